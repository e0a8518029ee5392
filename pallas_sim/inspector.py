"""A debugger: stops at a line of a kernel, and watches references.

An ``Inspector`` takes the place of the evaluator's plain walk over a program, so that nothing here
costs anything in a run without one.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pallas_sim.compat.grids import grid_facts
from pallas_sim.compat.jaxprs import argument_names, is_reference, open_jaxpr, sub_jaxprs
from pallas_sim.compat.places import transforms_of
from pallas_sim.compat.source import place_of_call
from pallas_sim.dtypes import Array, is_complex, is_float, same_bits
from pallas_sim.errors import OptionError
from pallas_sim.evaluation import Step
from pallas_sim.findings import Finding, Owner, SourceLine, text_at
from pallas_sim.machine import StepObserver, Thread
from pallas_sim.memory import Elements, KeyArray, Outside, Ref
from pallas_sim.order.accesses import bounds_of, index_of, root
from pallas_sim.recording import Copy
from pallas_sim.transforms import split_elsewhere
from pallas_sim.windows import read

#: A statement that gives a value to one name, whose last equation is that value.
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]+)?(?:[-+*/@%&|^]|//|>>|<<|\*\*)?=(?!=)")

#: The lines of this package, which are those of operations without jit: no run stops there.
_PACKAGE = f"{Path(__file__).parent}/"

#: How many names or lines an error lists.
_LISTED = 30

#: Primitives whose programs have parameters that are new memory, with the name of one without name.
_ALLOCATING = {
    "pallas_call": "",
    "mpmd_map": "scratch {}",
    "run_scoped": "scoped memory {}",
    "run_state": "state {}",
}


@dataclass(slots=True, eq=False)
class _Watched:
    """Memory that a watched name stands for.

    Attributes:
      ref: of the memory.
      thread: the number of the thread that it was first seen on.
      owner: that thread's.
      values: when it was last looked at.
      frames: how many programs that are being evaluated have it.
    """

    ref: Ref
    thread: int
    owner: Owner
    values: Array
    frames: int = 0


@dataclass(eq=False)
class Inspector(StepObserver):
    """Stops at lines and watches references.

    Attributes:
      watch: names of references.
      stop_at: places, ``"file.py:41"``.
      changes: of the references, in order. Each is printed when it happens, too.
      raised: what the debugger raised, which ends the run as it is.
      time: equations evaluated so far.
    """

    watch: tuple[str, ...] = ()
    stop_at: tuple[str, ...] = ()
    changes: list[RefChange] = field(default_factory=list)
    raised: BaseException | None = None
    time: int = 0
    _lines: set[SourceLine] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)
    _line_of: dict[int, tuple[Step, str]] = field(default_factory=dict)
    _frames: dict[int, list[Any]] = field(default_factory=dict)
    _watched: dict[Any, _Watched] = field(default_factory=dict)

    def steps(self, steps: Sequence[Step], thread: Thread, env: Sequence[Any]) -> Iterator[Step]:
        """Yield the steps of a program; see ``StepObserver.steps``."""
        frame = _Frame(env)
        frames = self._frames.setdefault(thread.number, [])
        frames.append(frame)
        seen = [self._see(thread, ref) for ref in frame.refs() if ref.name in self.watch]
        try:
            for step in super().steps(steps, thread, env):
                self.time = thread.machine.steps
                line = self._line(step)
                if self.stop_at and any(_is_at(line, stop) for stop in self.stop_at):
                    self._stop(thread, step, line, frames)
                yield step
                if self.stop_at:
                    frame.name_result(step, line)
                if self.watch and step.threaded:
                    self._look("store", _where(thread, line))
        finally:
            frames.remove(frame)
            for watched in seen:
                watched.frames -= 1

    def written(self, copy: Copy) -> None:
        """Note that a chunk of a copy was written."""
        if self.watch:
            self._look("copy", {"by": copy.owner, "line": copy.line, "program": copy.program})

    def learn(self, jaxpr: Any) -> None:
        """Take note of the lines and references of a program that is about to run."""
        for eqn in open_jaxpr(jaxpr)[0].eqns:
            spot = place_of_call(eqn)
            if spot is not None and not spot.file.startswith(_PACKAGE):
                self._lines.add(spot.at)
            inner = list(sub_jaxprs(eqn))
            unnamed = _ALLOCATING.get(eqn.primitive.name)
            if unnamed is not None:
                self._names.update(name for body in inner for name in _references(body, unnamed))
            if eqn.primitive.name == "pallas_call":
                facts = grid_facts(eqn)
                blocks = [*facts.inputs, *facts.outputs]
                self._names.update(block.name for block in blocks)
                inner += [block.index_map for block in blocks]
            for body in inner:
                self.learn(body)

    def require(self) -> None:
        """Reject names and lines that nothing has.

        Raises:
          OptionError: with those that there are.
        """
        for stop in self.stop_at:
            if not any(_is_at(str(line), stop) for line in self._lines):
                raise OptionError(
                    f"stop_at={stop!r}: no equation was made at that line; {self._places(stop)}"
                )
        for name in self.watch:
            if name not in self._names:
                raise OptionError(
                    f"watch={name!r}: no kernel has a reference of that name; there are: "
                    f"{_listed(sorted(self._names - {''})) or 'none'}"
                )

    def _places(self, stop: str) -> str:
        """Return the lines that have equations: those of the same file, if there are some."""
        file = stop.rpartition(":")[0]
        numbers = sorted({n for path, n in self._lines if file and _is_at(path, file)})
        if numbers:
            return f"lines of {file} with equations: {_listed(numbers)}"
        lines = sorted({SourceLine(Path(path).name, number) for path, number in self._lines})
        return f"there are: {_listed(lines) or 'none'}"

    def _line(self, step: Step) -> str:
        """Return the line of a step, which takes JAX some time to find."""
        known = self._line_of.get(id(step))
        if known is None:
            known = self._line_of[id(step)] = (step, step.equation.line)
        return known[1]

    def _stop(self, thread: Thread, step: Step, line: str, frames: Sequence[_Frame]) -> None:
        where = f"{line}: {step.equation.name}"
        where += f" in {thread.location}" if thread.location else ""
        refs = {ref.name: ref.data for frame in frames for ref in frame.refs() if ref.name}
        try:
            stopped(
                f"{where} on {thread.owner}",
                refs=refs,
                values=dict(ChainMap(*(frame.values for frame in reversed(frames)))),
                operands=[frames[-1].env[slot] for slot in step.ins],
                program=thread.program,
                thread=thread,
            )
        except BaseException as error:
            self.raised = error
            raise

    def _see(self, thread: Thread, ref: Ref) -> _Watched:
        """Return the memory of a watched reference that a program has."""
        memory = ref.data.__array_interface__
        key = (ref.name, memory["data"][0], memory["shape"], memory["strides"])
        watched = self._watched.get(key)
        if watched is None:
            watched = _Watched(ref, thread.number, thread.owner, values_of(ref))
            former = [
                other
                for other, earlier in self._watched.items()
                if (earlier.ref.name, earlier.thread, earlier.frames)
                == (ref.name, thread.number, 0)
            ]
            same = [same_bits(self._watched.pop(other).values, watched.values) for other in former]
            self._watched[key] = watched
            if not any(same):
                self._note("new", watched, None, _where(thread, ""))
        watched.frames += 1
        return watched

    def _look(self, kind: Literal["store", "copy"], site: Mapping[str, Any]) -> None:
        """Note what changed since the last look."""
        for watched in self._watched.values():
            values = values_of(watched.ref)
            if not same_bits(values, watched.values):
                before, watched.values = watched.values, values
                self._note(kind, watched, before, site)

    def _note(
        self,
        kind: Literal["new", "store", "copy"],
        watched: _Watched,
        before: Array | None,
        site: Mapping[str, Any],
    ) -> None:
        values = watched.values
        points = [] if before is None else np.argwhere(differing(before, values))
        index = tuple(map(int, points[0])) if len(points) else None
        change = RefChange(
            ref=watched.ref.name,
            kind=kind,
            owner=watched.owner,
            time=self.time,
            index=index,
            changed=len(points),
            before=None if before is None or index is None else before[index],
            values=values,
            **site,
        )
        self.changes.append(change)
        sys.stdout.write(f"{change}\n")


def _where(thread: Thread, line: str) -> dict[str, Any]:
    """Return who changes something, and where, as fields of a ``RefChange``."""
    where = {"line": line, "program": thread.program, "kernel": thread.kernel}
    return {"by": thread.owner, **where}


@dataclass(eq=False)
class _Frame:
    """A program that is being evaluated.

    Attributes:
      env: the values of its slots.
      values: results so far, by the name that the line of the equation gives them.
    """

    env: Sequence[Any]
    values: dict[str, Any] = field(default_factory=dict)

    def refs(self) -> Iterator[Ref]:
        """Return the references that it has."""
        return (value for value in self.env if isinstance(value, Ref))

    def name_result(self, step: Step, line: str) -> None:
        """Keep the result of a step under the name that its line gives it, if it gives one."""
        match = _ASSIGNMENT.match(text_at(line))
        if match is not None and len(step.outs) == 1:
            self.values[match[1]] = self.env[step.outs[0]]


def stopped(
    place: str,
    refs: Mapping[str, Array],
    values: Mapping[str, Any],
    operands: Sequence[Any],
    program: tuple[int, ...],
    thread: Thread,
) -> None:
    """Where the debugger is when a run stops before an equation; ``c`` goes on.

    Args:
      place: line, primitive, program, kernel and core.
      refs: the memory of references, by name: an assignment to its elements changes it.
      values: results so far, by the name that the kernel's line gives them.
      operands: of the equation.
      program: the grid point.
      thread: the core, as the simulator has it.
    """
    _ = (place, refs, values, operands, program, thread)  # to be looked at in the debugger
    sys.breakpointhook()


def _references(jaxpr: Any, unnamed: str) -> Iterator[str]:
    """Yield the names of the references among the parameters of a kernel or scope."""
    for number, (var, name) in enumerate(zip(jaxpr.invars, argument_names(jaxpr), strict=True)):
        if is_reference(var.aval):
            yield name or unnamed.format(number)


def _is_at(line: str, stop: str) -> bool:
    """Return whether a ``file:line`` is a place that the user named, by the end of its path."""
    return line == stop or line.endswith(f"/{stop}")


def _listed(names: Sequence[Any]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(str, names[:_LISTED])) + more


# Changes of the memory of references: what changed, by whom, and a short picture of it.


@dataclass(frozen=True, kw_only=True)
class RefChange:
    """A change of the values of a watched reference.

    Attributes:
      ref: its name.
      kind: ``"new"``: the name stands for memory that was not seen before, or that changed while no
        program had it, such as the next block. ``"store"``: an equation of a core changed it.
        ``"copy"``: a copy (DMA) did.
      owner: the core whose reference it is.
      by: who changed it: the core, or who started the copy.
      line: ``file:line`` of the equation, or of the start of the copy, or "".
      program: the grid point of ``by``, or ().
      kernel: the kernel that ``by`` is in, or "".
      time: equations evaluated so far.
      index: the first element that changed; None if it is new.
      changed: how many elements did.
      before: the element at ``index``; None if it is new.
      values: all of them, after the change; those of semaphores are their counts.
    """

    ref: str
    kind: Literal["new", "store", "copy"]
    owner: Owner
    by: Owner
    line: str
    program: tuple[int, ...]
    time: int
    index: tuple[int, ...] | None
    changed: int
    before: Any
    values: Array
    kernel: str = ""

    def __str__(self) -> str:
        """What changed, who did it and where, and a short picture of the values."""
        shape = f"{self.values.dtype}{list(self.values.shape)}"
        if self.index is None:
            what = f"{self.ref} is {shape}"
        else:
            at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
            what = (
                f"{self.ref}{at}: {_number(self.before)} -> {_number(self.values[self.index])}, "
                f"{self.changed} of {self.values.size} elements of {shape}"
            )
        if self.kind == "copy":
            what += f", by a copy of {self.by}"
        program = f"({', '.join(map(str, self.program))})"
        where = f" in program {program}" if self.program else ""
        where += f" of {self.kernel}" if self.kernel and where else ""
        line = f" at {self.line}" if self.line else ""
        return f"{what}{line}{where} on {self.owner}\n{picture(self.values)}"


def picture(values: Array) -> str:
    """Return a few of the values of an array, and of many their range, as indented text."""
    plain = values if values.dtype.kind in "iufbc" else values.astype(np.float32)
    edge = 1 if values.ndim > 1 else 3
    text = np.array2string(plain, precision=4, threshold=8, edgeitems=edge, max_line_width=96)
    if plain.dtype.kind in "iuf" and plain.size > 8:
        real = plain[~np.isnan(plain)]
        parts = [f"from {_number(real.min())} to {_number(real.max())}"] if real.size else []
        parts += [f"{plain.size - real.size} NaN"] if real.size < plain.size else []
        text += f"\n{', '.join(parts)}"
    return f"  {text}".replace("\n", "\n  ")


def values_of(ref: Ref) -> Array:
    """Return a copy of the memory; of semaphores, the counts."""
    if ref.data.dtype != object:
        return np.array(ref.data)
    counts = [getattr(semaphore, "count", 0) for semaphore in ref.data.flat]
    return np.array(counts, np.int64).reshape(ref.data.shape)


def differing(first: Array, second: Array) -> Any:
    """Return which elements of arrays of one shape and dtype have other bits."""
    size = first.dtype.itemsize
    bits = [
        np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, size)
        for array in (first, second)
    ]
    return (bits[0] != bits[1]).any(axis=-1)


def _number(value: Any) -> str:
    return str(np.asarray(value)[()])


# What loads and copies gave, to find the first that reads uninitialized memory.


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
