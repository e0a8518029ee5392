"""What JAX's lowering to Triton refuses of a kernel, whatever its operands hold.

It is asked of that lowering (``jax/_src/pallas/triton/lowering.py``), which ``jaxlib`` has on every
machine and which takes some milliseconds. So a kernel is refused here if the installed JAX refuses
it for a GPU, and no other.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from pytest_pallas.compat.compilers import lowering_to_triton
from pytest_pallas.compat.jaxprs import sub_jaxprs
from pytest_pallas.compat.source import source_line
from pytest_pallas.devices.absent import tracing_for
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.devices.targets import TARGETS
from pytest_pallas.explanations import one_line
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.eager import bind
from pytest_pallas.source_lines import read

#: The chip that JAX is asked about, by the least compute capability. JAX does not know every chip
#: (``jax/_src/pallas/triton/gpu_info.py``), and its lowering depends on the capability only.
_CHIPS = {0: "a100", 9: "h100", 10: "b200"}

#: The most elements of an array in Triton (``maxTensorNumElements`` in triton/Dialect/Triton/IR).
_MOST = 1 << 20


def require_lowering(equation: Any, target: str) -> None:
    """Reject a ``pallas_call`` that JAX does not lower to Triton.

    Args:
      equation: JAX's.
      target: name of the chip.

    Raises:
      SimulationError: JAX refuses to lower it; the message has the line, and the shape of an array
        whose size Triton does not allow.
    """
    import jax

    avals = [var.aval for var in equation.invars]
    asked = equation.replace(params={**equation.params, "interpret": False, "debug": False})
    wide = any(aval.dtype.itemsize == 8 for aval in (*avals, *(v.aval for v in asked.outvars)))
    operands = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    chip = _CHIPS[max(each for each in _CHIPS if each <= GPUS[target].capability)]

    def call(*operands: Any) -> Any:
        # A kernel may close over references, which become arrays when JAX lowers the function.
        given = zip(operands, avals, strict=True)
        return bind(asked, [jax.new_ref(x) if _is_reference(aval) else x for x, aval in given])

    with (
        warnings.catch_warnings(),
        tracing_for(TARGETS[chip]),
        jax.enable_x64(True) if wide else nullcontext(),
        lowering_to_triton() as lowered,
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # of the Triton route
        try:
            jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",))
        except Exception as error:  # whatever the lowering raises is its answer
            raise _refusal(equation, lowered, error) from error


def _refusal(equation: Any, lowered: Sequence[Any], error: Exception) -> SimulationError:
    """What JAX said, as an error with the line, and the array if it is one of a wrong size.

    Args:
      equation: of the ``pallas_call``.
      lowered: the equations that JAX was lowering, one inside of the other; empty if there was
        none, as when it verifies what it made of the whole kernel.
      error: what it raised.
    """
    lines = [line for each in (equation, *lowered) if (line := source_line(each))]
    line = lines[-1] if lines else ""
    wrong: list[tuple[str, Any]] = []
    if lowered:
        wrong = [(line, aval) for aval in _arrays(lowered[-1]) if _is_refused(aval)]
    elif equation.params["jaxpr"].eqns:
        wrong = [each for each in _all_arrays(equation, line) if _is_refused(each[1])]
        named = [each for each in wrong if _is_named(each[0], str(error))]
        wrong = named or wrong
    if wrong and not isinstance(error, NotImplementedError):
        line, aval = wrong[0]
        refusal = SimulationError(_size_refused(aval))
    else:
        what = lowered[-1] if lowered else equation
        arrays = ", ".join(map(_array, _arrays(what, what.invars) or _arrays(what)))
        refusal = SimulationError(
            f"JAX does not lower {what.primitive.name} of {arrays} to Triton, so that no GPU runs "
            f"this kernel ({one_line(error)}); use another operation, or plgpu.kernel of Mosaic GPU"
        )
    refusal.at(line, "")
    return refusal


def _size_refused(aval: Any) -> str:
    size = math.prod(aval.shape)
    if not size:
        return (
            f"Triton refuses {_array(aval)}: an array in a kernel has elements; return before the "
            "pallas_call where a size is 0"
        )
    if size > _MOST:
        return (
            f"Triton refuses {_array(aval)}, which has {size:,} elements: an array in a kernel has "
            f"at most {_MOST:,}; use smaller blocks"
        )
    padded = [1 << (dim - 1).bit_length() for dim in aval.shape]
    return (
        f"Triton refuses {_array(aval)}, which has {size:,} elements: the size of every array in a "
        f"kernel is a power of two; use {aval.dtype}{padded}, and mask what is too much "
        "(mask= of plgpu.load and plgpu.store)"
    )


def _is_reference(aval: Any) -> bool:
    return hasattr(aval, "inner_aval")


def _is_refused(aval: Any) -> bool:
    size = math.prod(aval.shape)
    return not size or bool(size & (size - 1)) or size > _MOST


def _is_named(line: str, words: str) -> bool:
    """Whether MLIR names ``file:line`` among the places of an operation."""
    place = read(line)
    return place is not None and f'"{place.file}":{place.line}:' in words


def _arrays(eqn: Any, among: Sequence[Any] = ()) -> list[Any]:
    """The abstract values of an equation's results and operands, or of some, that are arrays."""
    avals = (var.aval for var in among or (*eqn.outvars, *eqn.invars))
    return [aval for aval in avals if hasattr(aval, "dtype") and not _is_reference(aval)]


def _array(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}"


def _all_arrays(equation: Any, around: str) -> Iterator[tuple[str, Any]]:
    """The arrays inside of an equation, each with the ``file:line`` of its operation."""
    for jaxpr in sub_jaxprs(equation):
        for eqn in jaxpr.eqns:
            line = source_line(eqn) or around
            yield from ((line, aval) for aval in _arrays(eqn))
            yield from _all_arrays(eqn, line)
