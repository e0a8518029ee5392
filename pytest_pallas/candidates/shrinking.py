"""Smaller sizes for tasks of a suite that are meant for a chip: which can be judged here.

What counts is that a right kernel stays right. Sizes are halved, in this order, until simulating
takes seconds:

1. sizes along which the first half of the answer depends on the first half of the inputs only
   (batch, heads, rows): what is computed is then a part of the answer at the suite's own sizes;
2. other sizes (such as one that a product contracts), which make it a smaller task of its kind.

Of a size that the candidate cuts into blocks, two blocks are kept, or if that is too much, one. A
size is kept if the task or the candidate cannot be traced with a smaller one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.traces import KERNEL_PRIMITIVES, open_jaxpr, sub_jaxprs
from pytest_pallas.candidates.codec import ProgramData
from pytest_pallas.candidates.source import CandidateSource
from pytest_pallas.candidates.suite_modules import (
    Sizes,
    SuiteCall,
    SuiteSize,
    Workload,
    inputs_of,
    shaped,
    trace,
)
from pytest_pallas.grid.kernel_calls import live_kernel_calls

#: Seconds that one run of the candidate and one of the reference should take; those that they may
#: take before fewer than two blocks are kept; and those that they may take at all.
USUAL_SECONDS, TWO_BLOCKS_SECONDS, MOST_SECONDS = 2.0, 8.0, 20.0

#: Seconds after which no other sizes are tried.
SEARCH_SECONDS = 300.0

#: Elements that an array of the task may have.
MOST_ELEMENTS = 1 << 27

#: Seconds that simulating takes for a product of a matrix product, for an element of anything else,
#: and for one equation of a kernel in one program of its grid.
_PRODUCT, _ELEMENT, _EQUATION = 2e-10, 1e-8, 3e-5

#: Sizes that are tried for the question whether halves depend on halves, the smallest first.
_TINY = (4, 16, 64, 256)

#: A size is made smaller if a half of it costs at most so much of the whole.
_CHEAPER = 0.95

#: The largest difference, as a part of the mean, of answers that are the same but for rounding.
_SAME = 2.0**-5


@dataclass(frozen=True, kw_only=True)
class ShrunkTask:
    """A task at sizes at which it can be judged.

    Attributes:
      call: the call.
      reference: what the task computes in it.
      part: whether what is computed is a part of the answer at the suite's own sizes.
      sentence: why it cannot be judged; "" if it can.
    """

    call: SuiteCall
    reference: ProgramData = field(repr=False)
    part: bool = True
    sentence: str = ""


#: Sizes that are cut by the same factor, such as the heads of queries and those of keys.
Together = tuple[SuiteSize, ...]


@dataclass(frozen=True)
class _Costs:
    """What a run of task and candidate costs.

    Attributes:
      seconds: the time of one run of both.
      elements: of the largest array.
    """

    seconds: float
    elements: int

    @classmethod
    def of(cls, *programs: ProgramData) -> _Costs:
        jaxprs = [program.jaxpr for program in programs]
        return cls(sum(map(_seconds_of, jaxprs)), max(map(_largest_array, jaxprs)))

    def times(self, factor: float) -> _Costs:
        """Return so many times the costs."""
        return _Costs(factor * self.seconds, math.ceil(factor * self.elements))

    def excess(self, seconds: float) -> float:
        """How many times more it is than may be."""
        return max(self.seconds / seconds, self.elements / MOST_ELEMENTS)


class Shrinking:
    """The search for the sizes at which a candidate is judged.

    Attributes:
      workload: the task.
      candidate: the source of the candidate.
      full: the call of the suite.
      reference: the task at its own sizes.
      program: the candidate at these.
    """

    def __init__(
        self,
        workload: Workload,
        candidate: CandidateSource,
        full: SuiteCall,
        reference: ProgramData,
        program: ProgramData,
    ) -> None:
        self.workload, self.candidate = workload, candidate
        self.full, self.reference, self.program = full, reference, program
        self._begun = time.monotonic()

    def shrunk(self) -> ShrunkTask:
        """Return the task at sizes that can be judged, or with the sentence why there are none."""
        whole = _Costs.of(self.reference, self.program)
        task = ShrunkTask(call=self.full, reference=self.reference)
        if whole.excess(USUAL_SECONDS) <= 1:
            return task
        singles = [(one,) for one in sorted(self.workload.followed, key=lambda one: -one.size)]
        ratios = self._ratios(singles)
        parts = list(self._parts([together[0] for together in ratios]))
        ratios |= self._ratios([together for together in parts if together not in ratios])
        floors: dict[Together, int] = {}
        before: Mapping[Together, int] = {}
        while True:
            targets = self._targets(whole, ratios, frozenset(parts), floors)
            task, costs, larger = self._accepted(targets, frozenset(parts))
            if costs.excess(MOST_SECONDS) <= 1 or self._late():
                break
            if not larger and targets == before:
                break
            before = targets
            floors |= larger
            if not larger:  # sizes that are smaller together cost more than each says
                whole = whole.times(2.0)
        if costs.excess(MOST_SECONDS) > 1:
            sentence = (
                f"too large for this machine: about {costs.seconds:.0f} s a run, with arrays of "
                f"{costs.elements:,} elements"
            )
            refused = [together for together, n in floors.items() if n == together[0].size]
            if refused:
                names = sorted(" and ".join(map(str, together)) for together in refused)
                sentence += f"; it needs {', '.join(names)}"
            return replace(task, sentence=sentence)
        return task

    def _late(self) -> bool:
        return time.monotonic() - self._begun > SEARCH_SECONDS

    def _ratios(self, several: Sequence[Together]) -> dict[Together, float]:
        """Return by which factor the task costs less, for all sizes that can be halved."""
        own = _Costs.of(self.reference)
        ratios: dict[Together, float] = {}
        changes = [_scaled(together, together[0].size // 2) for together in several]
        for sizes, _, program in self._traced(changes):
            costs = _Costs.of(program)
            ratios[sizes] = min(
                costs.seconds / own.seconds if own.seconds else 1.0,
                costs.elements / own.elements if own.elements else 1.0,
            )
        return ratios

    def _traced(
        self, changes: Sequence[Sizes]
    ) -> Iterator[tuple[Together, SuiteCall, ProgramData]]:
        """Yield the changed sizes, the call and the task's program, of those that have one."""
        calls = self.workload.calls(changes)
        usable = [call for call in calls if isinstance(call, SuiteCall)]
        for call, program in zip(usable, self.workload.programs(usable), strict=True):
            if isinstance(program, ProgramData) and all(0 not in n for n in _shapes(program)):
                yield tuple(call.sizes), call, program

    def _parts(self, sizes: Sequence[SuiteSize]) -> Iterator[Together]:
        """Yield the sizes whose first half of the answer depends on first halves of inputs only.

        Of the others, pairs that have this property together.
        """
        tiny: dict[SuiteSize, int] = {}
        for one in sizes:
            if self._late():
                return
            levels = dict.fromkeys(_halved(one.size, least) for least in _TINY if least < one.size)
            accepted = [call for _, call, _ in self._traced([{**tiny, one: n} for n in levels])]
            tiny[one] = accepted[0].sizes[one] if accepted else one.size
        whole = next(self._traced([tiny]), None)
        if whole is None:
            return
        inputs = _some_inputs(whole[1])
        answer = _answers(whole[2], inputs)
        known: set[SuiteSize] = set()
        followed = self.workload.followed
        inputs_by_size = {one: {number for number, _ in followed[one]} for one in sizes}
        pairs = (
            (one, other)
            for one, other in itertools.combinations(sizes, 2)
            if inputs_by_size[one].isdisjoint(inputs_by_size[other])
        )
        for together in (*((one,) for one in sizes), *pairs):
            if self._late():
                return
            if known & set(together) or any(tiny[one] < 2 for one in together):
                continue
            halves = {**tiny, **{one: tiny[one] // 2 for one in together}}
            half = next(self._traced([halves]), None)
            if half is None:
                continue
            shapes = [shape for shape, _ in half[1].args]
            cut = [_first(value, shape) for value, shape in zip(inputs, shapes, strict=True)]
            if _are_parts(_answers(half[2], cut), answer):
                known |= set(together)
                yield together

    def _targets(
        self,
        whole: _Costs,
        ratios: Mapping[Together, float],
        parts: frozenset[Together],
        floors: Mapping[Together, int],
    ) -> dict[Together, int]:
        """Return what sizes should become, in the order in which they are tried.

        Of sizes that are cut together, it is what the first one becomes. ``floors`` are sizes below
        which task or candidate cannot be traced.
        """
        blocks = _blocks(self.program)
        targets: dict[Together, int] = {}
        costs = whole
        taken = {one for together in parts for one in together}
        parts &= frozenset(ratios)
        others = frozenset(one for one in ratios if not taken & set(one))
        steps = [
            (parts, 2, USUAL_SECONDS),
            *((parts, 1, TWO_BLOCKS_SECONDS), (others, 2, TWO_BLOCKS_SECONDS)),
            *((others, 1, MOST_SECONDS), (parts, 0, MOST_SECONDS), (others, 0, MOST_SECONDS)),
        ]
        for group, count, seconds in steps:
            while costs.excess(seconds) > 1:
                smaller = {
                    one: _below(targets.get(one, one[0].size), blocks.get(one[0].size, 1), count)
                    for one in group
                    if ratios[one] < _CHEAPER
                }
                smaller = {
                    one: n
                    for one, n in smaller.items()
                    if n >= floors.get(one, 1) and _scaled(one, n)
                }
                if not smaller:
                    break
                chosen = max(smaller, key=lambda one: smaller[one])
                before, after = targets.get(chosen, chosen[0].size), smaller[chosen]
                costs = costs.times(ratios[chosen] ** math.log2(before / after))
                targets[chosen] = after
        return targets | self._apart(costs, ratios, parts, targets)

    def _apart(
        self,
        costs: _Costs,
        ratios: Mapping[Together, float],
        parts: frozenset[Together],
        targets: Mapping[Together, int],
    ) -> dict[Together, int]:
        """Return new sizes for axes that were cut together, where one of them is 1 by now.

        Heads of queries can be fewer where one head of keys is left.
        """
        smaller: dict[Together, int] = {}
        for together in parts & frozenset(targets):
            reached = _scaled(together, targets[together])
            if len(together) < 2 or min(reached.values()) > 1:
                continue
            for one, size in reached.items():
                while size > 1 and (one,) in ratios and costs.excess(MOST_SECONDS) > 1:
                    size //= 2
                    costs = costs.times(ratios[one,])
                    smaller[one,] = size
        return smaller

    def _accepted(
        self, targets: Mapping[Together, int], parts: frozenset[Together]
    ) -> tuple[ShrunkTask, _Costs, dict[Together, int]]:
        """Take over the sizes that task and candidate accept, one after the other.

        Returns:
          The task, what it costs, and the sizes that are larger than they should be.
        """
        task = ShrunkTask(call=self.full, reference=self.reference)
        costs = _Costs.of(self.reference, self.program)
        larger = {together: together[0].size for together in targets}
        for together, least in targets.items():
            if self._late():
                break
            levels = [least]
            while levels[-1] * 2 < together[0].size:
                levels.append(levels[-1] * 2)
            for tried in (levels[:1], levels[1:]):
                changes = [{**task.call.sizes, **_scaled(together, level)} for level in tried]
                accepted = self._both(changes) if changes else None
                if accepted is not None:
                    call, reference, costs = accepted
                    part = task.part and together in parts
                    task = replace(task, call=call, reference=reference, part=part)
                    larger[together] = call.sizes[together[0]]
                    break
        larger = {together: n for together, n in larger.items() if n > targets[together]}
        return task, costs, larger

    def _both(self, changes: Sequence[Sizes]) -> tuple[SuiteCall, ProgramData, _Costs] | None:
        """Return the first call that task and candidate accept, the task's program and costs."""
        tried = list(self._traced(changes))
        cases = [call.case for _, call, _ in tried]
        sandbox, target = self.workload.sandbox, self.workload.target
        candidates = trace(self.candidate, "workload", cases, sandbox, target)
        whole = _are_whole(self.program)
        for (_, call, reference), program in zip(tried, candidates, strict=True):
            if not isinstance(program, ProgramData) or _shapes(program) != _shapes(reference):
                continue
            if _are_whole(program) or not whole:
                return call, reference, _Costs.of(reference, program)
        return None


def _shapes(program: ProgramData) -> list[tuple[int, ...]]:
    return [shape for shape, _ in shaped(program)]


def _scaled(together: Together, size: int) -> dict[SuiteSize, int]:
    """Return what sizes become that are cut together; {} if they cannot be.

    Args:
      together: the sizes.
      size: what the first becomes.
    """
    first = together[0].size
    if any(one.size * size % first for one in together):
        return {together[0]: size} if len(together) == 1 else {}
    return {one: one.size * size // first for one in together}


def _halved(size: int, least: int) -> int:
    """Halve a size as often as it stays even and at least as large as ``least``."""
    while size % 2 == 0 and size // 2 >= least:
        size //= 2
    return size


def _below(size: int, block: int, count: int) -> int:
    """Return about half of a size, in whole blocks and not less than so many; 0 if there is none.

    Args:
      size: the size.
      block: of the candidate.
      count: the least number of blocks; 0 to cut blocks, too.
    """
    block, count = (block, count) if count and block > 1 else (1, 1)
    smaller = max(size // 2 // block, count) * block
    return smaller if smaller < size else 0


def _cut_axes(program: ProgramData) -> Iterator[tuple[int, int]]:
    """Yield the size of each axis that a kernel cuts into blocks, with that of a block."""
    for facts in (call.facts for call in live_kernel_calls(program.jaxpr)):
        for block in () if facts is None else (*facts.inputs, *facts.outputs):
            for size, (_, tile, _) in zip(block.shape, block.dims, strict=True):
                if 1 < tile != size:
                    yield size, tile


def _blocks(program: ProgramData) -> dict[int, int]:
    """Return the largest block of each size of an axis that is cut into whole blocks."""
    largest: dict[int, int] = {}
    for size, tile in _cut_axes(program):
        if tile < size and size % tile == 0:
            largest[size] = max(largest.get(size, 1), tile)
    return largest


def _are_whole(program: ProgramData) -> bool:
    """Return whether blocks divide the axes of all kernels."""
    return all(tile < size and size % tile == 0 for size, tile in _cut_axes(program))


def _some_inputs(call: SuiteCall) -> tuple[Any, ...]:
    """Return inputs of a call: floats are drawn, because halves of other sizes are made of them."""
    rng = np.random.default_rng(0)
    if all(np.dtype(dtype).kind in "fV" for _, dtype in call.args):
        return tuple(rng.exponential(1.0, shape).astype(dtype) for shape, dtype in call.args)
    return inputs_of(call)


def _first(value: Any, shape: Sequence[int]) -> Any:
    return value[tuple(slice(size) for size in shape)]


def _answers(program: ProgramData, inputs: Sequence[Any]) -> list[Any]:
    import jax

    values = jax.jit(program)(*inputs)
    return [np.asarray(value).astype(np.float64) for value in jax.tree.leaves(values)]


def _are_parts(smaller: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Return whether answers are the first parts of others, and not all of them."""
    if all(one.shape == other.shape for one, other in zip(smaller, whole, strict=True)):
        return False
    for one, other in zip(smaller, whole, strict=True):
        part = _first(other, one.shape)
        if part.shape != one.shape or not np.isfinite(one).all():
            return False
        if np.abs(part - one).max(initial=0.0) > _SAME * max(np.abs(one).mean(), 1e-30):
            return False
    return True


# What simulating costs, read from a program.


def _seconds_of(jaxpr: Any, *, inside: bool = False) -> float:
    """Estimate the seconds that simulating a program takes."""
    total = 0.0
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        name, bodies = eqn.primitive.name, list(sub_jaxprs(eqn))
        if not bodies or name in _COMBINING:
            size = max((_size(var.aval) for var in eqn.outvars), default=0)
            total += _ELEMENT * size + _PRODUCT * size * _contracted(eqn)
            total += _EQUATION if inside else 0.0
            continue
        rounds = int(eqn.params.get("length") or 1) if name == "scan" else 1
        if name in KERNEL_PRIMITIVES:
            grid = getattr(eqn.params.get("grid_mapping"), "grid", ())
            rounds = max(math.prod(n for n in grid if isinstance(n, int)), 1)
        within = inside or name in KERNEL_PRIMITIVES
        total += rounds * sum(_seconds_of(body, inside=within) for body in bodies)
    return total


#: Primitives whose jaxpr says only how two elements are combined.
_COMBINING = frozenset({"reduce", "scatter", "scatter-add", "reduce_window", "select_and_scatter"})


def _contracted(eqn: Any) -> int:
    """Return the number of products that each element of a matrix product is made of; else 0."""
    if eqn.primitive.name == "dot_general":
        (contracting, _), _ = eqn.params["dimension_numbers"]
        return math.prod(eqn.invars[0].aval.shape[axis] for axis in contracting)
    if eqn.primitive.name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        return math.prod(kernel) // max(kernel[eqn.params["dimension_numbers"].rhs_spec[0]], 1)
    return 0


def _largest_array(jaxpr: Any) -> int:
    """Return the number of elements of the largest array of a program, outside of its kernels."""
    sizes = [0]
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        sizes += [_size(var.aval) for var in eqn.outvars]
        if eqn.primitive.name not in KERNEL_PRIMITIVES | _COMBINING:
            sizes += [_largest_array(body) for body in sub_jaxprs(eqn)]
    return max(sizes)


def _size(aval: Any) -> int:
    return math.prod(n for n in getattr(aval, "shape", ()) if isinstance(n, int))
