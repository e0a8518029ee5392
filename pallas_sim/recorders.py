"""What the loads and copies of a run gave, to find the first that reads uninitialized memory.

Two runs that differ only in what memory holds before it is written do the same until one loads
such memory. So the first load that gives other values is the place, whatever happens to the values
afterwards; whether they matter, the answers of both runs say.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.compat.places import transforms_of
from pallas_sim.dtypes import Array, is_complex, is_float
from pallas_sim.evaluation import Step
from pallas_sim.findings import Finding, Owner
from pallas_sim.inspector import differing, same_bits
from pallas_sim.machine import StepObserver, Thread
from pallas_sim.memory import Elements, KeyArray, Outside, Ref
from pallas_sim.order.accesses import bounds_of, index_of, root
from pallas_sim.recording import Copy
from pallas_sim.transforms import split_elsewhere
from pallas_sim.windows import read

#: Bytes of values that are kept of a run; loads after them are not.
_KEPT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLoad:
    """What an equation read from a reference, or a copy from its source.

    Attributes:
      ref: name of the reference.
      copied: whether a copy (DMA) read it.
      owner: the core, or who started the copy.
      line: ``file:line``.
      program: the grid point.
      kernel: name of the kernel, or "".
      shape: of the memory of the reference.
      left: whether it is a block of an output that the grid had left before.
      values: what was read.
      offset: bytes from the beginning of the memory to what was read; None if it is no slice.
      strides: bytes from one of its elements to the next, along each axis.
    """

    ref: str
    copied: bool
    owner: Owner
    line: str
    program: tuple[int, ...]
    kernel: str
    shape: tuple[int, ...]
    left: bool
    values: Array
    offset: int | None = None
    strides: tuple[int, ...] = ()

    def position(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in the memory of an element that was read; () if it is not known."""
        if self.offset is None:
            return ()
        offset = self.offset + sum(map(operator.mul, index, self.strides))
        memory = np.empty(self.shape, self.values.dtype)
        element = np.ndarray((), memory.dtype, memory, offset)
        return tuple(start for start, _ in index_of(element, memory))


@dataclass(eq=False)
class LoadRecorder(StepObserver):
    """Observes the steps of a run and keeps what was read.

    Attributes:
      loads: in the order in which they happened.
    """

    loads: list[RecordedLoad] = field(default_factory=list)
    _bytes: int = 0

    def steps(self, steps: Sequence[Step], thread: Thread, env: Sequence[Any]) -> Iterator[Step]:
        """Yield the steps of a program; see ``StepObserver.steps``."""
        for step in super().steps(steps, thread, env):
            ref = _reference(step, env)
            if ref is None:
                yield step
                continue
            part = _part(step, env)
            if step.equation.name == "addupdate":
                self._keep(thread, step, ref, part, part)
            yield step
            for slot in step.outs:
                self._keep(thread, step, ref, part, env[slot])

    def written(self, copy: Copy) -> None:
        """Note that a chunk of a copy was written."""
        super().written(copy)
        target = copy.target
        if target is None:
            return
        values = target.memory[target.key] if isinstance(target, Elements) else target
        whole, part = root(copy.source), copy.source
        part = None if isinstance(part, Elements) else part
        self._add(copy.names[0], copy, copy.line, whole, part, values, copied=True)

    def _keep(self, thread: Thread, step: Step, ref: Ref, part: Array | None, values: Any) -> None:
        values = values.data if isinstance(values, KeyArray) else values
        if isinstance(values, (np.ndarray, np.generic)) and values.dtype != object:
            self._add(ref.name, thread, step.line, ref.data, part, values, left=ref.left)

    def _add(
        self,
        ref: str,
        reader: Thread | Copy,
        line: str,
        whole: Array,
        part: Array | None,
        values: Any,
        *,
        copied: bool = False,
        left: bool = False,
    ) -> None:
        owner, program, kernel = reader.owner, reader.program, reader.kernel
        read = np.array(values)
        if self._bytes + read.nbytes <= _KEPT_BYTES:
            self._bytes += read.nbytes
            layout = _layout_in(part, whole, read)
            self.loads.append(
                RecordedLoad(
                    ref, copied, owner, line, program, kernel, whole.shape, left, read, *layout
                )
            )
        else:
            self._bytes = _KEPT_BYTES + 1  # so that what is kept has no gap


def _reference(step: Step, env: Sequence[Any]) -> Ref | None:
    """Return the reference that a step loads from, or None."""
    if not step.threaded or any(True for _ in sub_jaxprs(step.equation.origin)):
        return None
    return next((env[slot] for slot in step.ins if isinstance(env[slot], Ref)), None)


#: How many operands come before those of the window, by the name of the equation.
_BEFORE_WINDOW = {"get": 1, "swap": 2, "addupdate": 2}


def _part(step: Step, env: Sequence[Any]) -> Array | None:
    """Return the part of memory that a step reads, or None if that is not known."""
    first = _BEFORE_WINDOW.get(step.equation.name)
    if first is None:
        return None
    transforms = transforms_of(step.equation.params["tree"], first, len(step.ins) - first)
    window, elsewhere = split_elsewhere(transforms)
    operands = [env[slot] for slot in step.ins]
    try:
        return None if elsewhere else np.asarray(read(operands[0].data, window, operands))
    except Outside:  # the step reports it
        return None


def _layout_in(
    part: Array | None, whole: Array, values: Array
) -> tuple[int | None, tuple[int, ...]]:
    """Return offset and strides of what was read in the memory; see ``RecordedLoad``."""
    if part is None or part.shape != values.shape or not whole.flags.c_contiguous:
        return None, ()
    if part.dtype != whole.dtype or not np.may_share_memory(part, whole):
        return None, ()
    return bounds_of(part)[0] - bounds_of(whole)[0], part.strides


def uninitialized_load(
    before: Sequence[RecordedLoad], after: Sequence[RecordedLoad]
) -> Finding | None:
    """Return the first load of uninitialized memory, or None if there is none among these.

    Args:
      before: of a run.
      after: of one in which memory held something else before it was written.
    """
    for old, new in zip(before, after, strict=False):
        differs = _differing(old.values, new.values)
        if differs is not None:
            return _finding(old, new, differs)
    return None


def _differing(old: Array, new: Array) -> tuple[int, ...] | None:
    """Return the first element whose bits differ, or None."""
    if old.shape != new.shape or same_bits(old, new):
        return None
    return tuple(map(int, np.argwhere(differing(old, new))[0]))


def _finding(old: RecordedLoad, new: RecordedLoad, index: tuple[int, ...]) -> Finding:
    what = "copy from" if new.copied else "load from"
    shape = list(new.shape)
    if new.left:
        why = (
            "of a block that the grid visits again, which is not fetched again (let it visit the "
            "block in consecutive programs, or use RevisitMode.ANY)"
        )
    else:
        why = "before it is written"
    return Finding(
        kind="uninitialized",
        message=f"{what} {new.ref or 'memory'} {shape} {why}",
        kernel=new.kernel,
        program=new.program,
        line=new.line,
        ref=new.ref,
        index=new.position(index),
        shape=new.shape,
        owners=(new.owner,) if new.owner != Owner() else (),
    )


# The least magnitude that a run computes with: whether a smaller format may underflow.


#: The results of these are sums, whose terms are products of elements of the operands.
_PRODUCTS = frozenset(
    {"dot_general", "sum_of_product", "conv_general_dilated", "ragged_dot_general"}
)


@dataclass(eq=False)
class MagnitudeRecorder(StepObserver):
    """Observes the steps of a run and keeps the least magnitude of what a run computes.

    Attributes:
      least: of all finite results of floats that are not 0, and a lower bound of that of the terms
        of products of matrices; infinite if there are none.
    """

    least: float = math.inf

    def steps(self, steps: Sequence[Step], thread: Thread, env: Sequence[Any]) -> Iterator[Step]:
        """Yield the steps of a program; their results are looked at after each."""
        for step in super().steps(steps, thread, env):
            terms = math.inf
            if step.equation.name in _PRODUCTS:
                terms = math.prod(_least(env[slot]) for slot in step.ins[:2])
            yield step
            self.least = min([self.least, terms, *(_least(env[slot]) for slot in step.outs)])


def _least(value: Any) -> float:
    """Return the least magnitude of the finite elements of an array that are not 0."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype) or not (is_float(dtype) or is_complex(dtype)):
        return math.inf
    sizes = np.abs(np.asarray(value)).astype(np.float64)
    return float(sizes.min(initial=math.inf, where=(sizes > 0) & np.isfinite(sizes)))
