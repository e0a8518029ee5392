"""What no chip runs: kernels that JAX or Mosaic refuses, whatever their arguments.

JAX's lowering for TPUs has a rule for each primitive that a kernel may have, and refuses others;
so has that of Mosaic GPU. ``require_lowering`` and ``require_mosaic_gpu`` ask the installed JAX
which these are, so that no list is kept here. Of what Mosaic refuses on TPUs for a dtype,
``_REFUSED`` has the kinds that are refused for every TPU, as ``benchmarks/refusals.py`` found them;
docs/simulator.md has the rest. Asking costs microseconds, where lowering a kernel takes up to a
second. Kernels of the Triton route are lowered: see ``gpu.triton``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from pallas_sim.compat.compilers import primitives_of_cores, primitives_of_mosaic_gpu
from pallas_sim.compat.jaxprs import (
    expanded,
    is_literal,
    is_reference,
    open_jaxpr,
    scan_parts,
    sub_jaxprs,
)
from pallas_sim.compat.source import is_of_jax, source_line
from pallas_sim.errors import SimulationError
from pallas_sim.registry import find_rule

#: Operations on references in registers, of which JAX makes some on values before it lowers them.
_WITHOUT_REFS = frozenset({"wgmma_ref"})

#: What the kinds of cores are called in messages.
_CORES = {
    "tc": "a TensorCore",
    "sc_scalar_subcore": "the scalar subcore of a SparseCore",
    "sc_vector_subcore": "a vector subcore of a SparseCore",
}


def require_lowering(jaxpr: Any, kind: str, line: str = "") -> None:
    """Reject the body of a kernel that JAX does not lower for a TPU.

    Args:
      jaxpr: of the body.
      kind: of the cores that run it: ``"tc"``, ``"sc_scalar_subcore"``, ``"sc_vector_subcore"``.
      line: ``file:line`` of the kernel.

    Raises:
      SimulationError: the message has the primitive or dtype, and the line.
    """
    known = primitives_of_cores(kind)
    for eqn, where in _lowered(jaxpr, line):
        name = eqn.primitive.name
        if kind == "tc":
            _require_dtypes(eqn, name, where)
        if name not in known and not _is_of_project(name):
            _refuse_primitive(name, _CORES[kind], "TPU", where)


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
    for eqn, where in _lowered(jaxpr, line):
        name = eqn.primitive.name
        if name not in known and not _is_of_project(name):
            _refuse_primitive(name, "a warp" if warp else "a warpgroup", "GPU", where)
        if name == "mpmd_map":
            for inner in sub_jaxprs(eqn):
                require_mosaic_gpu(inner, params, where, warp=True)


def _lowered(jaxpr: Any, around: str) -> Iterator[tuple[Any, str]]:
    """Yield the equations that JAX lowers, with their lines; ``around`` is that of the call.

    Branches are left out whose choice is known: JAX lowers the one that is taken. So are bodies on
    a mesh inside of the kernel, which other threads run.
    """
    eqns = open_jaxpr(jaxpr)[0].eqns
    chooses = any(eqn.primitive.name == "platform_index" for eqn in eqns)
    for eqn in eqns:
        # A function of JAX, such as ``jnp.cumsum``, is traced once, for the line that came first.
        line = around if is_of_jax(jaxpr) else source_line(eqn) or around
        if eqn.primitive.name == "call_hi_primitive":  # which JAX expands before
            avals = [var.aval for var in eqn.invars]
            yield from _lowered(expanded(eqn.params, avals), line)
            continue
        yield eqn, line
        name = eqn.primitive.name
        if name == "mpmd_map" or (name == "cond" and (chooses or is_literal(eqn.invars[0]))):
            continue
        for inner in sub_jaxprs(eqn):
            yield from _lowered(inner, line)


# What Mosaic refuses for a dtype, or JAX's rule for the primitive (libtpu 0.0.51, JAX 0.12.0.1).

_NARROW = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})
_UNSIGNED = frozenset({"uint32", "uint16", "uint8", "uint4", "uint2"})
_SHORT = frozenset({"int16", "bool"}) | _NARROW
_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"})
_UNEVEN = frozenset({"bfloat16", "float16"}) | _SHORT | _FLOAT8  # not 32 bits

#: Dtypes of the first operand, by primitive, that no TPU computes.
_REFUSED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("add", "sub", "mul", "neg", "square", "integer_pow"), _NARROW | _FLOAT8),
    **dict.fromkeys(("div", "abs", "lt", "le", "gt", "ge", "eq", "ne"), _FLOAT8),
    **dict.fromkeys(("exp", "exp2", "log", "log1p", "sqrt", "rsqrt", "logistic", "erf"), _FLOAT8),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "floor", "ceil", "round"), _FLOAT8),
    "rem": _FLOAT8 | {"bfloat16"},
    "is_finite": _FLOAT8 | {"bfloat16"},
    "erf_inv": _FLOAT8 | {"bfloat16"},
    **dict.fromkeys(("population_count", "clz"), _SHORT - {"bool"}),
    "reduce_sum": _FLOAT8 | _UNSIGNED,
    **dict.fromkeys(("reduce_max", "reduce_min"), _FLOAT8 | _UNSIGNED | _SHORT),
    **dict.fromkeys(("argmax", "argmin"), _FLOAT8 | _UNSIGNED | _SHORT | {"int32"}),
    "dot_general": frozenset({"int32", "int16"}) | _UNSIGNED,
}


def _require_dtypes(eqn: Any, name: str, line: str) -> None:
    """Reject an equation that no TensorCore computes because of its dtypes."""
    values = [var.aval for var in eqn.invars if not is_reference(var.aval)]
    out = eqn.outvars[0].aval if eqn.outvars else None
    dtype = str(getattr(values[0], "dtype", "")) if values else ""
    results = str(getattr(out, "dtype", ""))
    if "float16" in (dtype, results):
        _refuse("no TPU computes with float16: use bfloat16, or convert before the kernel", line)
    if dtype in _REFUSED.get(name, ()):
        _refuse(f"no TPU computes {name} of {dtype}: convert to 32 bits before", line)
    if name == "dot_general" and getattr(getattr(out, "dtype", None), "itemsize", 4) != 4:
        _refuse(
            f"a product with sums of {results}: a TPU adds in 32 bits; say "
            "preferred_element_type=jnp.float32 (or jnp.int32), and convert the result",
            line,
        )
    if name == "slice" and any(stride != 1 for stride in eqn.params["strides"] or ()):
        _refuse("a slice of a value with a stride: load it so, with pl.ds(..., stride=...)", line)
    if name in ("squeeze", "reshape") and dtype in _UNEVEN and _is_element(eqn):
        _refuse(f"an element of {dtype} as a scalar: convert to 32 bits before", line)
    if name == "scan" and _has_rows(eqn):
        _refuse("a scan over the rows of arrays: loop over indices, and load the rows", line)


def _is_element(eqn: Any) -> bool:
    """Return whether an equation makes a scalar of an array of one element."""
    return eqn.outvars[0].aval.shape == () != eqn.invars[0].aval.shape


def _has_rows(eqn: Any) -> bool:
    """Return whether a scan takes rows of arrays, or gives some."""
    _, carried, scanned = scan_parts(eqn.params, len(eqn.invars))
    return scanned > 0 or len(eqn.outvars) > carried


def _is_of_project(name: str) -> bool:
    """Return whether a project has given the simulator a rule for a primitive of its own."""
    rule = find_rule(name)
    return rule is not None and not rule.bind.__module__.startswith(f"{__package__}.")


def _is_complex(aval: Any) -> bool:
    return getattr(getattr(aval, "dtype", None), "kind", "") == "c"


def _refuse_complex(aval: Any, line: str) -> NoReturn:
    _refuse(
        f"{aval.dtype} {list(aval.shape)}: a kernel on a TPU has no complex numbers; pass the real "
        "and the imaginary parts as two arrays",
        line,
    )


def _refuse_primitive(name: str, who: str, chip: str, line: str) -> NoReturn:
    _refuse(
        f"JAX does not lower {name} for {who}, so that no {chip} runs this kernel; use another "
        "operation, or compute it outside of the kernel",
        line,
    )


def _refuse(message: str, line: str) -> NoReturn:
    refusal = SimulationError(message)
    refusal.at(line, "")
    raise refusal
