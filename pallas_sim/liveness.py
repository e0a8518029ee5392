"""Which elements of the outputs of its kernels a program uses: the others reach no result.

A race of two writes to such elements changes nothing, if the kernel does not read them either. So a
kernel may let several copies write to a row that its caller cuts off, or return an output that only
some callers want. The analysis goes from the results of a program to its equations, as dead code
elimination does, and follows calls, branches, maps over devices, and slices.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import called_by, is_literal, open_jaxpr, sub_jaxprs
from pallas_sim.dtypes import Array
from pallas_sim.machine import Machine
from pallas_sim.order.accesses import root

#: Elements that are used, as ``(start, stop)`` along each axis.
Box = tuple[tuple[int, int], ...]

#: What is used of an array: some boxes, none, or all of it (None).
Use = tuple[Box, ...] | None

#: What is used of each output of a kernel, by the identity of its equation.
KernelUses = Mapping[int, Sequence[Use]]

_KERNELS = frozenset({"pallas_call", "mpmd_map"})

_USES: weakref.WeakKeyDictionary[Any, KernelUses] = weakref.WeakKeyDictionary()


def uses_of_kernels(jaxpr: Any) -> KernelUses:
    """Return what a program uses of the outputs of its kernels; kept as long as the jaxpr.

    Args:
      jaxpr: open or closed. A kernel that it runs in several ways has what is used in any of them.
    """
    known = _USES.get(jaxpr)
    if known is None:
        uses: dict[int, list[Use]] = {}
        inner = open_jaxpr(jaxpr)[0]
        _follow(inner, [None] * len(inner.outvars), uses)
        known = _USES[jaxpr] = uses
    return known


def note_unused(
    machine: Machine, equation: Any, outputs: Sequence[Array], only_written: Sequence[bool]
) -> None:
    """Note which elements of the outputs of a kernel reach nothing.

    Args:
      machine: the run.
      equation: of the kernel.
      outputs: their memory.
      only_written: which of them the kernel never reads, and which share no memory with an input.
    """
    uses = machine.uses.get(id(equation))
    for output, use, unread in zip(outputs, uses or (), only_written, strict=False):
        kept = kept_elements(output.shape, use) if unread else None
        if kept is not None:
            machine.drop(root(output), kept)


def kept_elements(shape: tuple[int, ...], use: Use) -> Array | None:
    """Return which elements of an array are used; None if all are."""
    if use is None or any(len(box) != len(shape) for box in use):
        return None
    kept = np.zeros(shape, bool)
    for box in use:
        kept[tuple(slice(*span) for span in box)] = True
    return None if kept.all() else kept


def _follow(jaxpr: Any, results: Sequence[Use], uses: dict[int, list[Use]]) -> list[Use]:
    """Note what is used of the outputs of kernels; return what is used of the inputs.

    Args:
      jaxpr: open.
      results: what is used of its results.
      uses: of kernels, which this adds to.
    """
    used: dict[Any, Use] = {}

    def use(atom: Any, boxes: Use) -> None:
        if not is_literal(atom):
            used[atom] = _joined(used.get(atom, ()), boxes)

    for atom, boxes in zip(jaxpr.outvars, results, strict=True):
        use(atom, boxes)
    for eqn in reversed(jaxpr.eqns):
        outputs = [used.get(var, ()) for var in eqn.outvars]
        for atom, boxes in zip(eqn.invars, _operands(eqn, outputs, uses), strict=True):
            use(atom, boxes)
    return [used.get(var, ()) for var in jaxpr.invars]


def _operands(eqn: Any, outputs: Sequence[Use], uses: dict[int, list[Use]]) -> Sequence[Use]:
    """Return what an equation uses of its operands."""
    name, params, everything = eqn.primitive.name, eqn.params, [None] * len(eqn.invars)
    if name in _KERNELS:
        before = uses.get(id(eqn), [()] * len(outputs))
        uses[id(eqn)] = [_joined(*pair) for pair in zip(before, outputs, strict=True)]
        return everything
    called = called_by(eqn)
    if called is not None:
        return _follow(called[0], outputs, uses)
    if name == "slice" and params["strides"] is None:
        starts = params["start_indices"]
        whole = tuple((0, size) for size in eqn.outvars[0].aval.shape)
        boxes = (whole,) if outputs[0] is None else outputs[0]
        return [tuple(_moved(box, starts) for box in boxes)]
    if name == "cond":
        branches = [_follow(open_jaxpr(b)[0], outputs, uses) for b in params["branches"]]
        return [None, *(_joined(*column) for column in zip(*branches, strict=True))]
    if name == "shard_map":  # its results are parts of the whole ones, or all of them
        body = open_jaxpr(params["jaxpr"])[0]
        inner = [() if boxes == () else None for boxes in outputs]
        return [() if use == () else None for use in _follow(body, inner, uses)]
    for inner in map(open_jaxpr, sub_jaxprs(eqn)):
        _follow(inner[0], [None] * len(inner[0].outvars), uses)
    idle = not eqn.effects and all(boxes == () for boxes in outputs)
    return [()] * len(eqn.invars) if idle else everything


def _joined(*uses: Use) -> Use:
    """Return what is used if something is used in any of these ways."""
    boxes: list[Box] = []
    for use in uses:
        if use is None:
            return None
        boxes += [box for box in use if box not in boxes]
    return tuple(boxes)


def _moved(box: Box, starts: Sequence[int]) -> Box:
    return tuple((a + at, b + at) for (a, b), at in zip(box, starts, strict=True))
