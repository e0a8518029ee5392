"""Private names of JAX: what a primitive computes, as a jaxpr of other primitives.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when JAX gives access to the functions that it makes
lowerings of. Probe: ``tests/unit/simulator/test_compositions.py``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from pytest_pallas.compat.keys import operation_on_keys


def expanded(params: Any, avals: Sequence[Any]) -> Any:
    """What a high-level primitive computes, as a jaxpr of lower ones."""
    import jax

    hijax: Any = importlib.import_module("jax._src.hijax")
    lower = hijax.call_hi_primitive_p.to_lojax
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *args: lower(*args, **params))(*shapes)


def composition(primitive: Any, avals: Sequence[Any], params: Any) -> Any:
    """What JAX lowers a primitive to, as a jaxpr of other primitives; None if it is no such.

    ``mlir.lower_fun`` makes a lowering of a Python function, which it keeps in its closure. That
    for a TPU goes first, then the one for every platform.

    Args:
      primitive: of JAX or anybody else.
      avals: of its operands.
      params: of the equation.
    """
    import jax

    function = operation_on_keys(primitive.name, avals, params) or _composed(primitive)
    if primitive.name == "einshape_lo":
        function = _einshape
    if function is None:
        return None
    return jax.make_jaxpr(lambda *args: function(*args, **params))(*avals)


def _composed(primitive: Any) -> Any:
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    for table in (mlir._platform_specific_lowerings.get("tpu", {}), mlir._lowerings):
        entry = table.get(primitive)
        if entry is not None:
            rule = getattr(entry, "rule", entry)
            if getattr(rule, "__name__", "") != "f_lowered":
                return None
            return inspect.getclosurevars(rule).nonlocals.get("fun")
    return None


def _einshape(x: Any, equation: str, sizes: Sequence[tuple[str, int]], **_: Any) -> Any:
    home: Any = importlib.import_module("jax._src.pallas.einshape")
    return home._einshape(equation, x, **dict(sizes))
