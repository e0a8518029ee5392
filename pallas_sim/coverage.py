"""What of a kernel has run: its points, where a run goes one of several ways, and the ways it went.

Tools that measure the coverage of Python see a kernel's lines run once, when JAX traces them. The
machine sees both sides of a branch, how often a loop goes round, and whether a slot of a ring of
buffers was used again. ``Coverage`` counts during a run; ``merged`` adds what several runs reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

#: The kinds of points, each with the ways that a run can go there.
#:
#: ``branch``: a condition (``pl.when``, ``lax.cond``) is ``true`` or ``false``; of ``lax.switch``,
#: the number of the branch. ``loop``: ``none``, ``one`` or ``several`` rounds. ``ring``: a slot of
#: buffers, barriers or semaphores that take turns is used ``first`` or ``again``.
#: ``mask``: an array of booleans that selects or guards is ``full``, ``partial`` or ``empty``.
#: ``block``: a block of the grid is ``whole`` or has an ``overhang``. ``revisit``: a block of an
#: output is visited ``first`` or ``again``. ``wait``: it was ``blocked``, or went on ``at once``.
Kind = Literal["branch", "loop", "ring", "mask", "block", "revisit", "wait"]


#: What must hold of one thing for a run to go a way: the thing, as in ``Reached.depends``, one of
#: ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=``, and a number.
Need = tuple[tuple[str, int], str, int]


class Point(NamedTuple):
    """A place of a kernel where a run goes one of several ways.

    Attributes:
      kind: see ``Kind``.
      line: ``file:line`` of the kernel's code, or "" if it has none (code made by ``exec``). A ring
        is the same whichever line uses it first, which depends on the run.
      kernel: name of the kernel.
      name: of the reference, for rings, blocks, revisits and waits; "" otherwise.
    """

    kind: Kind
    line: str
    kernel: str
    name: str = ""

    def __eq__(self, other: object) -> bool:
        """Whether it is the same point."""
        return isinstance(other, Point) and self._identity == other._identity

    def __ne__(self, other: object) -> bool:
        """As ``__eq__``; that of tuples compares the lines."""
        return not self == other

    def __hash__(self) -> int:
        """As points that are equal."""
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, ...]:
        return self.kind, "" if self.kind == "ring" else self.line, self.kernel, self.name


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Which ways runs went at a point.

    Attributes:
      point: the point.
      counts: how often each way was gone.
      missing: the ways that no run went, that a test should reach, and that the program of some
        run can go.
      unreachable: the other ones that a test should reach: each program of the runs rules them
        out, for this reason. One of another shape may go them.
      condition: what decides, as the kernel's source has it, such as ``step >= stages``; or "".
      depends: what the decision depends on in the program: ``("program_id", axis)`` of the grid;
        ``("num_programs", axis)`` of one that is known only at run time; ``("axis_index", number)``
        of the axes of the kernel's mesh, in order; ``("scalar", number)`` for a prefetched scalar
        or a value loaded from that operand, where prefetched ones come first; ``("memory",
        number)`` for a value in that scratch operand; ``("loop", 0)`` for the counter of a loop.
        Empty where all ways were gone. Sizes are constants of the trace, so what only sizes decide
        depends on nothing.
      needs: of ways that were not gone, what must hold of one thing: ``{"true": (("program_id", 2),
        ">=", 4)}`` needs a grid of five steps along axis 2. Nothing of a way that depends on
        several things, or not plainly on one. A ring needs more than ``slots`` uses.
      why: of ways that were not gone, why the examples that were made for them did not go them.
      slots: of a ring, the number of slots; else 0.
      used: of a ring, the largest number of uses of its slots together in one run of the kernel.
      within: of a point that no run came to, the ways of the branches and loops around it, each
        the innermost of a call of its code: no run went one of them.
    """

    point: Point
    counts: Mapping[str, int]
    missing: tuple[str, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict[str, str])
    condition: str = ""
    depends: tuple[tuple[str, int], ...] = ()
    needs: Mapping[str, Need] = field(default_factory=dict[str, Need])
    why: Mapping[str, str] = field(default_factory=dict[str, str])
    slots: int = 0
    used: int = 0
    within: tuple[tuple[Point, str], ...] = ()


def merged(runs: Iterable[Iterable[Reached]]) -> tuple[Reached, ...]:
    """Return what several runs reached together, by point, in order of their lines.

    A way that the program of one shape rules out and another one goes was gone; it is missing only
    where no run went it and the program of some run has it.
    """
    points: dict[Point, Reached] = {}
    for run in runs:
        for reached in run:
            before = points.get(reached.point)
            points[reached.point] = reached if before is None else _both(before, reached)
    return tuple(points[point] for point in sorted(points))


def _both(one: Reached, other: Reached) -> Reached:
    counts = Counter(one.counts)
    counts.update(other.counts)
    ways = dict.fromkeys((*one.missing, *other.missing))
    open_ways = tuple(way for way in ways if not counts.get(way))
    ruled_out = {
        way: reason
        for way, reason in {**one.unreachable, **other.unreachable}.items()
        if not counts.get(way) and way not in open_ways
    }
    return replace(
        one,
        point=min(one.point, other.point),
        counts=dict(counts),
        missing=open_ways,
        unreachable=ruled_out,
        condition=one.condition or other.condition,
        depends=tuple(dict.fromkeys((*one.depends, *other.depends))),
        needs={
            way: need for way, need in {**one.needs, **other.needs}.items() if not counts.get(way)
        },
        why={way: text for way, text in {**one.why, **other.why}.items() if not counts.get(way)},
        slots=max(one.slots, other.slots),
        used=max(one.used, other.used),
        within=() if counts else tuple(dict.fromkeys((*one.within, *other.within))),
    )
