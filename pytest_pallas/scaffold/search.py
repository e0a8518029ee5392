"""Search arguments that a function accepts: what each parameter is, ranks, dtypes and sizes."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.scaffold.parameters import Leaf, Operand, Parameters, Static
from pytest_pallas.scaffold.trials import Attempt, Lab, Trace

#: Sizes of all unknown axes of the first attempts, most likely first. Blocks are seldom larger.
SIZES = (128, 256, 512, 64, 1024, 16, 8, 1)

#: Limits of the search: attempts, and seconds.
MOST_TRIES, MOST_SECONDS = 600, 40.0

#: After so many more attempts a call is taken although its reference or grid is wrong.
_PATIENCE = 60

_FLOATS, _INTEGERS = ("float32", "bfloat16"), ("int32",)


@dataclass(frozen=True)
class Found:
    """Arguments that a function accepts, or the last ones that were tried.

    Attributes:
      operands: the parameters that are arrays, in order.
      statics: the required parameters that are not.
      attempt: a call.
      trace: what came of it.
      lab: with its traces.
      size: of all axes of unknown size.
      errors: what the attempts raised, with their number; the most frequent first.
      tries: the number of attempts.
      ignored: what was said of arrays and is not so.
    """

    operands: tuple[Operand, ...]
    statics: tuple[Static, ...]
    attempt: Attempt
    trace: Trace
    lab: Lab
    size: int
    errors: tuple[tuple[str, int], ...] = ()
    tries: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """All arrays, in order."""
        return tuple(leaf for operand in self.operands for leaf in operand.leaves)


@dataclass
class _Search:
    function: Callable[..., Any]
    reference: Callable[..., Any] | None
    end: float
    tries: int = 0
    errors: dict[str, int] = field(default_factory=dict[str, int])
    second_best: Found | None = None
    after: int = 0

    @property
    def over(self) -> bool:
        patient = self.second_best is not None and self.tries - self.after > _PATIENCE
        return patient or self.tries >= MOST_TRIES or time.monotonic() > self.end


def search(
    function: Callable[..., Any], reference: Callable[..., Any] | None, parameters: Parameters
) -> Found:
    """The first arguments that a function accepts, in the order of what is likely.

    Those for which its reference raises, returns other shapes, or the grid has errors are taken
    only if there are no better ones. If there are none at all, ``trace.error`` of the result says
    what the likeliest arguments raise.

    Args:
      function: the function.
      reference: its reference, or None.
      parameters: of the function.
    """
    running = _Search(function, reference, time.monotonic() + MOST_SECONDS)
    first: Found | None = None
    ignored: tuple[str, ...] = ()
    for trust in (True, False):
        for platform in ("tpu", "gpu"):
            for choice in _in_order(parameters.choices):
                for found in _of_choice(running, choice, platform, trust=trust):
                    first = first or found
                    if found.trace.right:
                        return _told(running, found, ignored)
            if running.second_best is not None or running.over:
                break
        if running.second_best is not None or running.over or not _says(parameters):
            break
        ignored = _says(parameters)
    best = running.second_best or first
    if best is None:  # it takes nothing
        lab = Lab(function, (), reference)
        attempt = Attempt((), ())
        best = Found((), (), attempt, lab.trace(attempt), lab, SIZES[0])
    return _told(running, best, ignored if running.second_best else ())


def _told(running: _Search, found: Found, ignored: tuple[str, ...]) -> Found:
    errors = sorted(running.errors.items(), key=lambda each: -each[1])
    return Found(
        found.operands,
        found.statics,
        found.attempt,
        found.trace,
        found.lab,
        found.size,
        tuple(errors),
        running.tries,
        ignored,
    )


def _says(parameters: Parameters) -> tuple[str, ...]:
    """What annotations, the docstring and the source say of arrays."""
    return tuple(
        f"{leaf.said_by} says {leaf.name}: ({', '.join(dim or '?' for dim in leaf.dims or ())})"
        for choice in parameters.choices
        for each in choice
        if isinstance(each, Operand)
        for leaf in each.leaves
        if leaf.said_by
    )


def _of_choice(
    running: _Search, choice: Sequence[Operand | Static], platform: str, *, trust: bool
) -> Iterator[Found]:
    """The attempts of one reading of the parameters."""
    operands = tuple(each for each in choice if isinstance(each, Operand))
    statics = tuple(each for each in choice if isinstance(each, Static))
    lab = Lab(running.function, operands, running.reference, platform)
    leaves = [leaf for operand in operands for leaf in operand.leaves]
    said = [name for leaf in leaves for name in leaf.dtypes if not leaf.integers]
    floats = tuple(dict.fromkeys([*said, *_FLOATS]))
    axes = [
        _sizes(leaves, alone=running.reference is None),
        *([*static.values] or [None] for static in statics),
        *(_kinds(leaf, floats, trust=trust) for leaf in leaves),
    ]
    for size, *rest in _in_order(axes):
        if running.over:
            return
        values, kinds = rest[: len(statics)], rest[len(statics) :]
        attempt = Attempt(
            shapes=tuple(_shape(dims, size) for dims, _ in kinds),
            dtypes=tuple(dtype for _, dtype in kinds),
            statics=tuple((s.name, value) for s, value in zip(statics, values, strict=True)),
        )
        trace = lab.trace(attempt)
        running.tries += 1
        found = Found(operands, statics, attempt, trace, lab, size)
        if trace.error:
            running.errors[trace.error] = running.errors.get(trace.error, 0) + 1
        elif running.second_best is None:
            running.second_best, running.after = found, running.tries
        yield found


def _kinds(
    leaf: Leaf, floats: tuple[str, ...], *, trust: bool
) -> list[tuple[tuple[str, ...], str]]:
    """The dims and dtypes that an array may have, best first; ``floats`` are those of others."""
    if leaf.dims is not None and trust:
        ranks: list[tuple[str, ...]] = [leaf.dims]
    else:
        likely = (1, 2, 0, 3) if leaf.integers else (2, 3, 1, 4, 0)
        ranks = [("",) * rank for rank in likely]
    dtypes = leaf.dtypes
    if not dtypes:
        dtypes = (*_INTEGERS, floats[0]) if leaf.integers else (floats[0], *_INTEGERS)
    pairs = [(rank, dtype) for rank, dtype in itertools.product(range(len(ranks)), dtypes)]
    pairs.sort(key=lambda pair: (pair[0] + 2 * dtypes.index(pair[1]), pair[0]))
    return [(ranks[rank], dtype) for rank, dtype in pairs]


def _sizes(leaves: Sequence[Leaf], *, alone: bool) -> list[int]:
    """The sizes to try: without a reference, several blocks must show that two axes have one size.

    Arrays with many axes have smaller ones: their grids would have millions of programs.
    """
    many = any(len(leaf.dims or ()) > 3 for leaf in leaves)
    first = {(True, False): 512, (False, True): 64}.get((alone, many), SIZES[0])
    return sorted(SIZES, key=lambda size: size != first)


def _shape(dims: Sequence[str], size: int) -> tuple[int, ...]:
    return tuple(int(dim) if dim.isdigit() else size for dim in dims)


def _in_order(choices: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """All combinations, the sooner the nearer their parts are to the beginning."""
    start: tuple[int, ...] = (0,) * len(choices)
    heap: list[tuple[int, tuple[int, ...]]] = [(0, start)]
    seen: set[tuple[int, ...]] = {start}
    while heap:
        _, positions = heapq.heappop(heap)
        yield tuple(each[at] for each, at in zip(choices, positions, strict=True))
        for axis, at in enumerate(positions):
            if at + 1 < len(choices[axis]):
                new = (*positions[:axis], at + 1, *positions[axis + 1 :])
                if new not in seen:
                    seen.add(new)
                    heapq.heappush(heap, (sum(new), new))
