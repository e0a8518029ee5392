"""Where the work of a program is done: inside of Pallas kernels, or outside of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    is_literal,
    open_jaxpr,
    sub_jaxprs,
    without_dead_code,
)
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

#: Most bytes of constants.
MOST_CONSTANTS = 1 << 20


def work_of(jaxpr: Any) -> Work:
    """Return where the work of a program is done.

    Operations are counted as by hand: two for each product of a matrix product, one for each
    element of anything else; those of a kernel as often as its grid has programs. A loop whose
    number of rounds is not known counts once.

    Args:
      jaxpr: closed.
    """
    counted = _Counted()
    counted.walk(without_dead_code(jaxpr), 1, inside=False)
    constants = sum(getattr(const, "nbytes", 0) for const in _constants(jaxpr))
    return Work(
        inside=counted.flops[True],
        outside=counted.flops[False],
        inside_bytes=counted.bytes[True],
        outside_bytes=counted.bytes[False],
        kernels=len(live_kernel_calls(jaxpr)),
        constants=constants,
    )


#: Seconds that simulating takes for one operation of a matrix product, for one element of anything
#: else, and for one equation of a kernel in one program of its grid.
_PRODUCT, _ELEMENT, _EQUATION = 1e-10, 1e-8, 3e-5


def seconds_of(jaxpr: Any) -> float:
    """Estimate the seconds that simulating a program takes.

    Args:
      jaxpr: closed.
    """
    return _seconds(open_jaxpr(jaxpr)[0], inside=False)


def _seconds(jaxpr: Any, *, inside: bool) -> float:
    total = 0.0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in _COMBINING or not (bodies := list(sub_jaxprs(eqn))):
            rate = _PRODUCT if name in _PRODUCTS else _ELEMENT
            size = max((_size(var.aval) for var in eqn.outvars), default=0)
            total += rate * max(_flops(eqn), size if rate == _ELEMENT else 0)
            total += _EQUATION if inside else 0.0
            continue
        rounds = int(eqn.params.get("length") or 1) if name == "scan" else 1
        if name in KERNEL_PRIMITIVES:
            grid = getattr(eqn.params.get("grid_mapping"), "grid", ())
            rounds = max(math.prod(n for n in grid if isinstance(n, int)), 1)
        within = inside or name in KERNEL_PRIMITIVES
        total += rounds * sum(_seconds(body, inside=within) for body in bodies)
    return total


def largest_array(jaxpr: Any) -> int:
    """Return the number of elements of the largest array of a program, outside of its kernels."""
    sizes = [0]
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        sizes += [_size(var.aval) for var in eqn.outvars]
        if eqn.primitive.name not in KERNEL_PRIMITIVES | _COMBINING:
            sizes += [largest_array(body) for body in sub_jaxprs(eqn)]
    return max(sizes)


def _constants(jaxpr: Any) -> Iterator[Any]:
    """Yield the constants of a program, and of those inside of it."""
    inner, consts = open_jaxpr(jaxpr)
    yield from consts
    for eqn in inner.eqns:
        yield from (atom.val for atom in eqn.invars if is_literal(atom))
        for body in sub_jaxprs(eqn):
            yield from _constants(body)


class _Counted:
    """Operations and bytes, inside (True) and outside (False) of kernels."""

    def __init__(self) -> None:
        self.flops = {True: 0, False: 0}
        self.bytes = {True: 0, False: 0}

    def walk(self, jaxpr: Any, times: int, *, inside: bool) -> None:
        """Count the equations of an open jaxpr, so many times each."""
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name in KERNEL_PRIMITIVES:
                grid = getattr(eqn.params.get("grid_mapping"), "grid", ())
                programs = math.prod(n for n in grid if isinstance(n, int))
                arrays = (*(atom.aval for atom in eqn.invars), *(v.aval for v in eqn.outvars))
                self.bytes[True] += times * sum(map(_nbytes, arrays))
                for body in sub_jaxprs(eqn):
                    self.walk(body, times * max(programs, 1), inside=True)
                continue
            rounds = times
            if name == "scan":
                rounds *= int(eqn.params.get("length") or 1)
            bodies = list(sub_jaxprs(eqn)) if name not in _COMBINING else []
            for body in bodies:
                self.walk(body, rounds, inside=inside)
            if not bodies:
                self.flops[inside] += times * _flops(eqn)
                if not inside:
                    self.bytes[False] += times * sum(_nbytes(var.aval) for var in eqn.outvars)


#: Primitives whose jaxpr says only how two elements are combined.
_COMBINING = frozenset({"reduce", "scatter", "scatter-add", "reduce_window", "select_and_scatter"})


#: Primitives whose operations are those of matrix products.
_PRODUCTS = frozenset(
    {
        *("dot_general", "ragged_dot_general", "wgmma_ref", "tcgen05_mma"),
        *("conv", "conv_general_dilated"),
    }
)


def _nbytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or not all(isinstance(n, int) for n in shape):
        return 0
    return math.prod(shape) * int(getattr(dtype, "itemsize", 0) or 0)


def _size(aval: Any) -> int:
    shape = getattr(aval, "shape", None)
    return math.prod(n for n in shape if isinstance(n, int)) if shape is not None else 0


def _flops(eqn: Any) -> int:
    name = eqn.primitive.name
    if name in _FREE:
        return 0
    if name in ("conv", "conv_general_dilated"):
        kernel = getattr(eqn.invars[1].aval, "shape", (1,))
        return 2 * _size(eqn.outvars[0].aval) * max(math.prod(kernel) // max(kernel[0], 1), 1)
    if name in _PRODUCTS:
        return 2 * _products(eqn)
    sizes = [_size(var.aval) for var in eqn.outvars]
    floats = any(
        getattr(getattr(var.aval, "dtype", None), "kind", "V") in "fcV" for var in eqn.outvars
    )
    if not floats:
        return 0
    if name.startswith(("reduce_", "cum", "arg", "sort")):
        sizes = [_size(atom.aval) for atom in eqn.invars[:1] if not is_literal(atom)]
    return max(sizes, default=0)


def _products(eqn: Any) -> int:
    """Return the number of products of a matrix product."""
    if "dimension_numbers" in eqn.params and eqn.primitive.name == "dot_general":
        (contracting, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return _size(eqn.outvars[0].aval) * math.prod(shape[axis] for axis in contracting)
    shapes = [getattr(atom.aval, "shape", ()) for atom in eqn.invars]
    matrices = sorted((math.prod(s) for s in shapes if len(s) >= 2), reverse=True)[:3]
    return int(np.sqrt(math.prod(matrices))) if len(matrices) > 1 else 0


def problem_with(jaxpr: Any, work: Work) -> tuple[str, str] | None:
    """Return why a program has no kernel that does its work: a name and a sentence; or None.

    Args:
      jaxpr: closed.
      work: its work.
    """
    kernels = live_kernel_calls(jaxpr)
    if not kernels and kernel_calls(jaxpr):
        return "unused kernel", "no result depends on what its Pallas kernels write"
    if not kernels:
        return "no kernel", "the function has no Pallas kernel for these arguments"
    if work.constants > MOST_CONSTANTS:
        size = f"{work.constants / (1 << 20):.1f}"
        return "constants", f"the program holds {size} MiB of constants; the limit is 1 MiB"
    names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
    unread = _without_inputs(open_jaxpr(jaxpr)[0])
    if unread:
        which = "the output" if len(unread) == 1 else f"{len(unread)} outputs"
        return "ignores its inputs", f"{which} of the program depends on no argument"
    if work.outside and all(map(only_copies, kernels)):
        return "only copies", f"the kernel {names} only copies what other operations computed"
    if work.share < LEAST_SHARE:
        percent = 100 * work.share
        return (
            "work outside",
            f"kernels do {percent:.0f} % of the operations, and must do {100 * LEAST_SHARE:.0f} %",
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
