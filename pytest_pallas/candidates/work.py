"""Where the work of a program is done: inside of Pallas kernels, or outside of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pallas_sim import Equation, Limits, Machine, StepObserver, evaluate
from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    is_literal,
    open_jaxpr,
    sub_jaxprs,
    without_dead_code,
)
from pytest_pallas.backends.ending import ending
from pytest_pallas.candidates.verdicts import Work
from pytest_pallas.grid.kernel_calls import kernel_calls, live_kernel_calls, only_copies

#: Operations that move numbers, and compute none.
_FREE = frozenset(
    {
        *("broadcast_in_dim", "bitcast_convert_type", "concatenate", "convert_element_type"),
        *("copy", "dynamic_slice", "dynamic_update_slice", "gather", "get", "iota", "pad"),
        *("program_id", "reshape", "rev", "select_n", "slice", "squeeze", "split", "stop_gradient"),
        *("swap", "transpose", "expand_dims", "empty", "and", "or", "not", "eq", "ne", "lt", "le"),
        *("gt", "ge", "device_put", "copy_p", "masked_load", "masked_swap", "load", "store"),
        *("dma_start", "dma_wait", "multiple_of", "num_programs", "stack", "tile"),
    }
)

#: The share of operations that kernels must do, at least.
LEAST_SHARE = 0.25

#: What other operations may do at most, as a share of what the reference does: a kernel can add
#: work that nobody needs, so that its own share looks large.
MOST_OUTSIDE = 0.75

#: Most bytes of constants.
MOST_CONSTANTS = 1 << 20


def work_of(
    jaxpr: Any, args: Sequence[Any], target: str, seconds: float, *, integers: bool = False
) -> Work:
    """Run a program on a simulated chip, and return where its work is done.

    Operations are counted as by hand: two for each product of a matrix product, one for each
    element of anything else. Only what runs counts: the branch that is taken, each round of a loop.

    Args:
      jaxpr: closed.
      args: its arguments.
      target: name of the chip.
      seconds: the time limit.
      integers: whether operations on integers count; they are indices in most kernels.

    Raises:
      PallasError: it cannot be simulated.
    """
    meter = _Meter(integers=integers)
    machine = Machine(target=target, limits=Limits(out_of_bounds="fill"), monitored=False)
    machine.inspector = meter
    with ending(seconds):
        evaluate(without_dead_code(jaxpr), machine, args)
    return Work(
        inside=meter.flops[True],
        outside=meter.flops[False],
        inside_bytes=meter.bytes[True],
        outside_bytes=meter.bytes[False],
        kernels=meter.launches,
        constants=sum(getattr(const, "nbytes", 0) for const in _constants(jaxpr)),
        copies=meter.launches > 0 and not meter.changes,
    )


def _constants(jaxpr: Any) -> Iterator[Any]:
    """Yield the constants of a program, and of those inside of it."""
    inner, consts = open_jaxpr(jaxpr)
    yield from consts
    for eqn in inner.eqns:
        yield from (atom.val for atom in eqn.invars if is_literal(atom))
        for body in sub_jaxprs(eqn):
            yield from _constants(body)


class _Meter(StepObserver):
    """Counts what a run evaluates.

    Attributes:
      integers: whether operations on integers count.
      flops: operations inside (True) and outside (False) of kernels.
      bytes: what kernels read and write, and what operations outside of them write.
      launches: how often a kernel ran.
      changes: whether a kernel gave something that it had not been given.
    """

    def __init__(self, *, integers: bool) -> None:
        self.integers = integers
        self.flops = {True: 0, False: 0}
        self.bytes = {True: 0, False: 0}
        self.launches = 0
        self.changes = False
        self._inside = False
        self._costs: dict[int, tuple[Equation, int]] = {}

    def steps(self, steps: Sequence[Any], thread: Any, env: Sequence[Any]) -> Iterator[Any]:
        """Yield the steps of a program, and count them."""
        for step in super().steps(steps, thread, env):
            eqn, inside = step.equation, self._inside
            if eqn.name in KERNEL_PRIMITIVES and not inside:
                self._inside = True
                operands = list(map(_array_of, step.operands(env)))
                given = [array.tobytes() for array in operands if array is not None]
                yield step
                self._inside = False
                self._launched(operands, given, [_array_of(env[slot]) for slot in step.outs])
                continue
            self.flops[inside] += self._cost(eqn)
            if not inside and not _has_body(eqn):
                self.bytes[False] += sum(map(_nbytes, eqn.outs))
            yield step

    def _cost(self, eqn: Equation) -> int:
        known = self._costs.get(id(eqn))
        if known is None:
            cost = 0 if _has_body(eqn) else _flops(eqn, integers=self.integers)
            known = self._costs[id(eqn)] = eqn, cost  # the equation is kept, and so its identity
        return known[1]

    def _launched(self, operands: list[Any], given: list[bytes], outputs: list[Any]) -> None:
        """Count a kernel that has run; what it writes are results, or references among operands."""
        self.launches += 1
        arrays = [array for array in (*operands, *outputs) if array is not None]
        self.bytes[True] += sum(array.nbytes for array in arrays)
        written = [array.tobytes() for array in outputs if array is not None]
        after = [array.tobytes() for array in operands if array is not None]
        written += [new for new, old in zip(after, given, strict=True) if new != old]
        known = set(given)
        self.changes |= any(data not in known for data in written)


def _array_of(value: Any) -> Any:
    """Return the array that a value is, or that a reference refers to; None for neither."""
    value = getattr(value, "data", value) if not isinstance(value, np.ndarray) else value
    return value if isinstance(value, np.ndarray) and value.dtype != object else None


#: Primitives whose jaxpr says only how two elements are combined.
_COMBINING = frozenset({"reduce", "scatter", "scatter-add", "reduce_window", "select_and_scatter"})


def _has_body(eqn: Equation) -> bool:
    """Return whether the work of an equation is that of the equations inside of it."""
    if eqn.name in KERNEL_PRIMITIVES:
        return True
    return eqn.name not in _COMBINING and eqn.origin is not None and any(sub_jaxprs(eqn.origin))


def _nbytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or not all(isinstance(n, int) for n in shape):
        return 0
    return math.prod(shape) * int(getattr(dtype, "itemsize", 0) or 0)


def _size(aval: Any) -> int:
    shape = getattr(aval, "shape", None)
    return math.prod(n for n in shape if isinstance(n, int)) if shape is not None else 0


def _flops(eqn: Equation, *, integers: bool) -> int:
    name, sizes = eqn.name, [_size(aval) for aval in eqn.outs]
    if name in ("dot_general", "ragged_dot_general", "ragged_dot", "wgmma_ref", "tcgen05_mma"):
        return 2 * _products(eqn)
    if name == "conv_general_dilated":
        kernel = eqn.ins[1].shape
        features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2 * sizes[0] * max(math.prod(kernel) // max(features, 1), 1)
    kinds = "fcViu" if integers else "fcV"
    if name in _FREE or not any(
        getattr(getattr(aval, "dtype", None), "kind", "V") in kinds for aval in eqn.outs
    ):
        return 0
    if name.startswith("cum"):
        axis = eqn.ins[0].shape[eqn.params["axis"]]
        return _size(eqn.ins[0]) * max(axis - 1, 1).bit_length()  # rounds of a parallel scan
    if name.startswith("reduce_window"):
        return sizes[0] * math.prod(eqn.params.get("window_dimensions", ()))
    if name.startswith(("reduce", "arg", "sort")):
        return _size(eqn.ins[0])
    return max(sizes, default=0)


def _products(eqn: Equation) -> int:
    """Return the number of products of a matrix product."""
    if eqn.name == "dot_general":
        (contracting, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.ins[0].shape
        return _size(eqn.out) * math.prod(shape[axis] for axis in contracting)
    shapes = [getattr(aval, "shape", ()) for aval in eqn.ins]
    matrices = sorted((math.prod(s) for s in shapes if len(s) >= 2), reverse=True)[:3]
    return int(np.sqrt(math.prod(matrices))) if len(matrices) > 1 else 0


def static_problem(jaxpr: Any) -> tuple[str, str] | None:
    """Return why a program cannot be one whose kernels do the work: a name and a sentence; or None.

    Args:
      jaxpr: closed.
    """
    kernels = live_kernel_calls(jaxpr)
    if not kernels and kernel_calls(jaxpr):
        return "unused kernel", "no result depends on what its Pallas kernels write"
    if not kernels:
        return "no kernel", "the function has no Pallas kernel for these arguments"
    names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels if kernel.interpreted))
    if names:
        return "interpreted", f"the kernel {names} has interpret=True, so no chip runs it"
    constants = sum(getattr(const, "nbytes", 0) for const in _constants(jaxpr))
    if constants > MOST_CONSTANTS:
        size = f"{constants / (1 << 20):.1f}"
        return "constants", f"the program holds {size} MiB of constants; the limit is 1 MiB"
    unread = _without_inputs(open_jaxpr(jaxpr)[0])
    if unread:
        which = "the output" if len(unread) == 1 else f"{len(unread)} outputs"
        return "ignores its inputs", f"{which} of the program depends on no argument"
    return None


def problem_with(jaxpr: Any, work: Work, whole: int, *, copies: bool) -> tuple[str, str] | None:
    """Return why the kernels of a run do not do its work: a name and a sentence; or None.

    Args:
      jaxpr: closed.
      work: of the run.
      whole: the operations of the reference; 0 if that is not known.
      copies: whether the answer is a copy of an argument, so that a kernel may copy.
    """
    kernels = live_kernel_calls(jaxpr)
    names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
    if not work.kernels:
        return "unused kernel", f"the kernel {names} does not run: the program goes another way"
    given = work.copies and (work.outside or work.outside_bytes)
    if not copies and (given or (work.outside and all(map(only_copies, kernels)))):
        return "only copies", f"the kernel {names} only copies what other operations computed"
    if work.share < LEAST_SHARE:
        percent = 100 * work.share
        return (
            "work outside",
            f"kernels do {percent:.3g} % of the operations, and must do {100 * LEAST_SHARE:.0f} %",
        )
    if whole and work.outside >= MOST_OUTSIDE * whole:
        return (
            "work outside",
            f"other operations than kernels do {work.outside:,} operations, and the whole "
            f"reference has {whole:,}",
        )
    return None


def _without_inputs(jaxpr: Any) -> list[int]:
    """Return the positions of results that depend on no input."""
    reached = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(not is_literal(atom) and atom in reached for atom in eqn.invars):
            reached.update(eqn.outvars)
    outs = [None if is_literal(out) else out for out in jaxpr.outvars]
    if not jaxpr.invars:
        return []
    return [number for number, out in enumerate(outs) if out is None or out not in reached]
