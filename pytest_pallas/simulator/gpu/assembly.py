"""What the code of ``plgpu.inline_mgpu`` consists of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def inline_assembly(params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The instructions of code that is nothing but inline PTX; None for any other code.

    The code is run in an empty module of MLIR, which needs no GPU. What takes references or values,
    or gives any, is not run.

    Args:
      params: of an ``inline_mgpu``.
    """
    if params["flat_arg_types"] or params["flat_ret_ty"]:
        return None
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        try:
            with ir.InsertionPoint(module.body):
                params["mgpu_fn"](None)
        except Exception:  # it asks for what only a kernel that is compiled has
            return None
        found: list[str] = []
        for operation in module.body.operations:
            if operation.operation.name != "llvm.inline_asm":
                return None
            text = ir.StringAttr(operation.attributes["asm_string"]).value
            found.extend(_instructions(text))
    return tuple(found)


def _instructions(text: str) -> Iterator[str]:
    for each in text.replace("\n", ";").split(";"):
        if each.strip():
            yield each.strip()
