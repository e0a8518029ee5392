"""What no chip runs: kernels that JAX or Mosaic refuses, whatever their arguments.

JAX's lowering for TPUs has a rule for each primitive that a kernel may have, and refuses others;
so has that of Mosaic GPU. ``require_lowering`` and ``require_mosaic_gpu`` ask the installed JAX
which these are, so that no list is kept here. What TPUs refuse of a primitive that has a rule is in
``tpu_refusals``, and what Mosaic GPU refuses in ``_require_registers``: the kinds that
``benchmarks/refusals.py`` found to be refused always; docs/simulator.md has the rest. Asking costs
microseconds, where lowering a kernel takes up to a second. Kernels of the Triton route are lowered:
see ``gpu.triton``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from pallas_sim.compat.compilers import (
    infers_tiles,
    primitives_of_cores,
    primitives_of_mosaic_gpu,
)
from pallas_sim.compat.jaxprs import expanded, is_literal, is_reference, open_jaxpr, sub_jaxprs
from pallas_sim.compat.source import is_of_jax, source_line
from pallas_sim.dtypes import bit_width, is_integer
from pallas_sim.errors import refuse
from pallas_sim.registry import find_rule
from pallas_sim.tpu_refusals import (
    POINTWISE,
    Constants,
    VectorShapes,
    access_of,
    has_rows,
    is_folded,
    require_equation,
)

#: Operations on references in registers, of which JAX makes some on values before it lowers them.
_WITHOUT_REFS = frozenset({"wgmma_ref"})

#: What the kinds of cores are called in messages.
_CORES = {
    "tc": "a TensorCore",
    "sc_scalar_subcore": "the scalar subcore of a SparseCore",
    "sc_vector_subcore": "a vector subcore of a SparseCore",
}


def require_lowering(
    jaxpr: Any, kind: str, line: str = "", vectors: VectorShapes | None = None
) -> None:
    """Reject the body of a kernel that JAX does not lower for a TPU.

    Args:
      jaxpr: of the body.
      kind: of the cores that run it: ``"tc"``, ``"sc_scalar_subcore"``, ``"sc_vector_subcore"``.
      line: ``file:line`` of the kernel.
      vectors: gives the shapes of the vectors that a subcore loads and stores, by dtype; None
        where libtpu divides arrays into vectors (``needs_layout_passes``).

    Raises:
      SimulationError: the message has the primitive or dtype, and the line.
    """
    known, constants = primitives_of_cores(kind), Constants()
    for eqn, where in _lowered(jaxpr, line, constants):
        name = eqn.primitive.name
        if name not in known and not _is_of_project(name):
            _refuse_primitive(name, _CORES[kind], "TPU", where)
        _require_elements(eqn, where)
        require_equation(eqn, kind, constants, where, vectors)


def require_real(jaxpr: Any, line: str = "") -> None:
    """Reject the body of a kernel for a TPU with complex numbers.

    Args:
      jaxpr: of the body.
      line: ``file:line`` of the kernel.

    Raises:
      SimulationError: the message has dtype and shape, and the line.
    """
    for var in open_jaxpr(jaxpr)[0].invars:
        if _is_complex(var.aval):
            _refuse_complex(var.aval, line)
    for eqn, where in _lowered(jaxpr, line):
        for var in eqn.outvars:
            if _is_complex(var.aval):
                _refuse_complex(var.aval, where)


def require_mosaic_gpu(jaxpr: Any, params: Any, line: str = "", *, warp: bool = False) -> None:
    """Reject the body of a kernel that JAX's Mosaic GPU does not lower.

    Args:
      jaxpr: of the body.
      params: the compiler parameters of the kernel, or None.
      line: ``file:line`` of the kernel.
      warp: whether one warp runs it, and not a warpgroup.

    Raises:
      SimulationError: the message has the primitive, and the line.
    """
    known = primitives_of_mosaic_gpu(getattr(params, "lowering_semantics", None), warp=warp)
    known |= _WITHOUT_REFS
    constants = Constants()
    for eqn, where in _lowered(jaxpr, line, constants):
        name = eqn.primitive.name
        if name not in known and not _is_of_project(name):
            _refuse_primitive(name, "a warp" if warp else "a warpgroup", "GPU", where)
        _require_elements(eqn, where)
        if not is_folded(eqn, name, constants):
            _require_registers(eqn, name, where, inferred=infers_tiles(params))
        if name == "mpmd_map":
            for inner in sub_jaxprs(eqn):
                require_mosaic_gpu(inner, params, where, warp=True)


def _require_elements(eqn: Any, line: str) -> None:
    """Reject an array without elements in a kernel: MLIR has no such vectors."""
    for var in eqn.outvars:
        if not is_reference(var.aval) and 0 in getattr(var.aval, "shape", ()):
            refuse(
                f"{eqn.primitive.name} makes {var.aval.dtype}{list(var.aval.shape)}: an array in a "
                "kernel has elements; leave out the part that is empty",
                line,
            )


#: What registers of Mosaic GPU do with whole elements only, of 16 bits or more.
_OF_WIDE = POINTWISE - {"and", "or", "xor", "not", "lt", "le", "gt", "ge", "eq", "ne", "sign"}

#: What Mosaic GPU infers no layout for, though it has a lowering.
_WITHOUT_LAYOUT = frozenset({"erf", "atan2"})


def _require_registers(eqn: Any, name: str, line: str, *, inferred: bool) -> None:
    """Reject what Mosaic GPU does not lower of a primitive that it has a rule for.

    These are checks of ``mosaic_gpu/lowering.py``, ``mosaic/gpu/fragmented_array.py`` and
    ``layout_inference.py``, of JAX 0.11.2 and 0.12.0.1.

    Args:
      eqn: the equation.
      name: of its primitive.
      line: its ``file:line``.
      inferred: whether JAX infers the layouts (``LoweringSemantics.Warpgroup``).
    """
    access = access_of(eqn)
    if access is not None and access.arrays:
        refuse(
            f"a {access.verb} a reference at an array of indices: Mosaic GPU has indices that are "
            "scalars or slices; loop over them",
            line,
        )
    if access is not None and any(stride > 1 for stride in access.strides):
        refuse(f"a {access.verb} a reference with a stride: Mosaic GPU has slices without", line)
    if name == "slice" and eqn.params["strides"] is not None:
        refuse("a slice of a value with strides: Mosaic GPU has slices without", line)
    if name == "scan" and has_rows(eqn):
        refuse("a scan over the rows of arrays: loop over indices, and load the rows", line)
    if not eqn.invars or not eqn.outvars:
        return
    value = eqn.invars[0].aval
    if is_reference(value) or not isinstance(getattr(value, "dtype", None), np.dtype):
        return
    if not value.shape:
        return
    dtype, result = str(value.dtype), str(getattr(eqn.outvars[0].aval, "dtype", ""))
    is_wide = dtype == "bool" or bit_width(value.dtype) > 8 or (name == "abs" and "float" in dtype)
    if name in _OF_WIDE and not is_wide:
        refuse(
            f"Mosaic GPU computes no {name} of {dtype}: convert to 16 or 32 bits before",
            line,
        )
    if name == "rem" and not is_integer(value.dtype):
        refuse(f"Mosaic GPU computes no rem of {dtype}: use x - y * jnp.floor(x / y)", line)
    if inferred and name in _WITHOUT_LAYOUT:
        refuse(
            f"Mosaic GPU infers no layout for {name}: use "
            "plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)",
            line,
        )
    if inferred and name in ("max", "min", "clamp") and dtype == "bool":
        refuse(f"Mosaic GPU computes no {name} of bools: use & and |", line)
    if name == "convert_element_type" and _is_narrow(dtype, result, inferred=inferred):
        refuse(f"Mosaic GPU does not convert {dtype} to {result}: go by float32", line)


def _is_narrow(dtype: str, result: str, *, inferred: bool) -> bool:
    """Return whether a conversion is from or to float8, and the other side no wider float."""
    eights = [one for one in (dtype, result) if one.startswith("float8")]
    others = [one for one in (dtype, result) if "float" not in one]
    return len(eights) == 1 == len(others) or (inferred and len(eights) == 2 and dtype != result)


def _lowered(
    jaxpr: Any, around: str, constants: Constants | None = None
) -> Iterator[tuple[Any, str]]:
    """Yield the equations that JAX lowers, with their lines; ``around`` is that of the call.

    Branches are left out whose choice is known: JAX lowers the one that is taken. So are bodies on
    a mesh inside of the kernel, which other threads run. ``constants`` get what is known of the
    operands of the equation.
    """
    eqns = open_jaxpr(jaxpr)[0].eqns
    chooses = any(eqn.primitive.name == "platform_index" for eqn in eqns)
    for eqn in eqns:
        # A function of JAX, such as ``jnp.cumsum``, is traced once, for the line that came first.
        line = around if is_of_jax(jaxpr) else source_line(eqn) or around
        if eqn.primitive.name == "call_hi_primitive":  # which JAX expands before
            avals = [var.aval for var in eqn.invars]
            yield from _lowered(expanded(eqn.params, avals), line, constants)
            continue
        yield eqn, line
        name = eqn.primitive.name
        if name == "mpmd_map" or (name == "cond" and (chooses or is_literal(eqn.invars[0]))):
            continue
        if constants is not None:
            constants.follow(eqn)
        for inner in sub_jaxprs(eqn):
            yield from _lowered(inner, line, constants)


def _is_of_project(name: str) -> bool:
    """Return whether a project has given the simulator a rule for a primitive of its own."""
    rule = find_rule(name)
    return rule is not None and not rule.bind.__module__.startswith(f"{__package__}.")


def _is_complex(aval: Any) -> bool:
    return getattr(getattr(aval, "dtype", None), "kind", "") == "c"


def _refuse_complex(aval: Any, line: str) -> NoReturn:
    refuse(
        f"{aval.dtype} {list(aval.shape)}: a kernel on a TPU has no complex numbers; pass the real "
        "and the imaginary parts as two arrays",
        line,
    )


def _refuse_primitive(name: str, who: str, chip: str, line: str) -> NoReturn:
    refuse(
        f"JAX does not lower {name} for {who}, so that no {chip} runs this kernel; use another "
        "operation, or compute it outside of the kernel",
        line,
    )
