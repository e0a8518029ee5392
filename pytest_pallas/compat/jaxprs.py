"""Private names of JAX: what is read off jaxprs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

#: Primitives that run a Pallas kernel: ``pl.pallas_call``, and what ``pl.kernel`` and
#: ``plgpu.kernel`` become. Seen in JAX 0.11.2 (``core_map``) and 0.12.0.1 (``mpmd_map``).
KERNEL_PRIMITIVES = frozenset({"pallas_call", "core_map", "mpmd_map"})

#: Primitives that run a kernel of another language, which JAX passes on as it is: jax-triton 0.4.1.
FOREIGN_PRIMITIVES = frozenset({"triton_kernel_call"})


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """The open jaxprs inside the parameters of an equation.

    ``jax.core`` exports no such walk. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    stack = list(eqn.params.values())
    while stack:
        value = stack.pop()
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns"):
            yield value.jaxpr
        elif isinstance(value, (tuple, list)):
            stack.extend(cast("Sequence[Any]", value))


def written_inputs(jaxpr: Any) -> frozenset[int]:
    """Positions of the refs of a kernel's jaxpr that its body writes, by its effects.

    An effect names its ref by variable (or, where none is in scope, by position). Seen in JAX
    0.11.2 and 0.12.0.1.
    """
    positions = {var: i for i, var in enumerate(jaxpr.invars)}
    written: set[int] = set()
    for effect in jaxpr.effects:
        if type(effect).__name__ in ("WriteEffect", "AccumEffect"):
            index = effect.input if isinstance(effect.input, int) else positions.get(effect.input)
            if index is not None:
                written.add(index)
    return frozenset(written)


def source_line(eqn: Any) -> str | None:
    """``file:line`` of the user's code that made an equation, or None.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    info = importlib.import_module("jax._src.source_info_util")
    frame = info.user_frame(getattr(eqn.source_info, "traceback", None))
    return None if frame is None else f"{frame.file_name}:{frame.start_line}"


def eval_jaxpr(jaxpr: Any, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Evaluate an open jaxpr. ``jax.core.eval_jaxpr`` is deprecated; its home is private.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    return importlib.import_module("jax._src.core").eval_jaxpr(jaxpr, consts, *args)


def called_jaxpr(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """The open jaxpr that an equation calls once with its own operands, and its constants.

    None for every other equation, loops and branches included. The primitives are those of
    ``jax.jit``, ``jax.checkpoint``, ``jax.custom_jvp`` and ``jax.custom_vjp``. Seen in JAX 0.11.2
    and 0.12.0.1.
    """
    if eqn.primitive.name not in _CALLS:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None:
            jaxpr = getattr(inner, "jaxpr", inner)
            return (jaxpr, getattr(inner, "consts", ()))
    return None


_CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    }
)


def kernel_name(eqn: Any) -> str:
    """The name of the Pallas kernel that an equation runs.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    for body in sub_jaxprs(eqn):
        info = getattr(body, "debug_info", None)
        if info is not None and getattr(info, "func_name", None):
            return str(info.func_name)
    return eqn.primitive.name


def has_blocks(eqn: Any) -> bool:
    """Whether a kernel is a ``pallas_call`` with a grid, or with blocks smaller than their arrays.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mapping = eqn.params.get("grid_mapping") if eqn.primitive.name == "pallas_call" else None
    if mapping is None:
        return False
    return bool(mapping.grid) or any(
        tuple(getattr(dim, "block_size", dim) for dim in block.block_shape)
        != tuple(block.array_aval.shape)
        for block in mapping.block_mappings
    )


def overhanging_blocks(eqn: Any) -> list[str]:
    """Which blocks of a ``pallas_call`` hang over the edge of their array, in words.

    What a kernel finds there nobody has written. Empty for other kernels, which get their refs from
    their caller. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    if eqn.primitive.name != "pallas_call":
        return []
    mapping = eqn.params["grid_mapping"]
    places: list[str] = []
    for position, block in enumerate(mapping.block_mappings):
        if _overhangs(block.array_aval.shape, block.block_shape):
            output = position - mapping.num_inputs
            operand = f"input {position}" if output < 0 else f"output {output}"
            places.append(f"a block of {operand} hangs over its edge")
    return places


def unwritten_memory(eqn: Any) -> list[str]:
    """Which memory the kernel of an equation could read before anybody has written it, in words.

    Scratch, memory that the body allocates, and outputs that the body reads. Empty if there is none
    (but for what is beyond the edge of an array, see ``overhanging_blocks``). Kernels other than a
    ``pallas_call`` get their refs from their caller, and count.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    if eqn.primitive.name != "pallas_call":
        return ["refs that its caller made"]
    import jax

    mapping, jaxpr = eqn.params["grid_mapping"], eqn.params["jaxpr"]
    places: list[str] = []
    scratch = jaxpr.invars[mapping.slice_scratch_ops]
    if any(not jax.numpy.issubdtype(var.aval.dtype, jax.dtypes.extended) for var in scratch):
        places.append("scratch")
    if _allocates(jaxpr):
        places.append("memory that the body allocates")
    outputs = jaxpr.invars[mapping.slice_block_ops][mapping.num_inputs :]
    read = {effect.input for effect in jaxpr.effects if type(effect).__name__ == "ReadEffect"}
    places += [
        f"output {position}"
        for position, var in enumerate(outputs)
        if var in read or jaxpr.invars.index(var) in read
    ]
    return places


def _overhangs(shape: Sequence[int], block: Sequence[Any]) -> bool:
    """Whether the last block along an axis may reach beyond the array."""
    for size, dim in zip(shape, block, strict=True):
        kind = type(dim).__name__
        if kind == "Squeezed" or dim is None:
            continue
        if kind not in ("Blocked", "int") or size % int(getattr(dim, "block_size", dim)):
            return True  # windows in elements may start anywhere, and have padding of their own
    return False


def _allocates(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in ("run_scoped", "empty_ref")
        or any(_allocates(inner) for inner in sub_jaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def parallel_programs(eqn: Any) -> int:
    """How many programs of a ``pallas_call`` the TPU may run in any order: 1 where it is none.

    The product of the grid's dimensions whose semantics are parallel. Seen in JAX 0.11.2 and
    0.12.0.1.
    """
    params, mapping = eqn.params.get("compiler_params"), eqn.params.get("grid_mapping")
    semantics = getattr(params, "dimension_semantics", None)
    if mapping is None or semantics is None:
        return 1
    grid = mapping.grid[len(mapping.grid) - len(semantics) :]
    sizes = [
        size
        for size, kind in zip(grid, semantics, strict=False)
        if getattr(kind, "value", kind) == "parallel" and isinstance(size, int)
    ]
    return math.prod(sizes)


def grid_programs(eqn: Any) -> int | None:
    """How many programs the grid of a ``pallas_call`` has; None if an operand says so.

    1 of what is none. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mapping = eqn.params.get("grid_mapping")
    if mapping is None:
        return 1
    sizes = list(mapping.grid)
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def has_semantics(eqn: Any) -> bool:
    """Whether a ``pallas_call`` says what each of its grid dimensions is.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    return getattr(eqn.params.get("compiler_params"), "dimension_semantics", None) is not None


def has_parallel_dimension(eqn: Any) -> bool:
    """Whether a ``pallas_call`` has a grid dimension whose semantics are parallel, of any size.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    semantics = getattr(eqn.params.get("compiler_params"), "dimension_semantics", None)
    return any(getattr(kind, "value", kind) == "parallel" for kind in semantics or ())
