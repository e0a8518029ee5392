"""What of a kernel ran (``pallas_sim.coverage``), as plain values, and what need not run.

``KernelSpec.unreached`` gives reasons why a part of the kernel need not run: by a line, a line with
a way, or a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

from pallas_sim.coverage import Kind, Point, Reached
from pytest_pallas.decoding import Count, decode, jsonable


class PlainReached(TypedDict):
    """``Reached`` and its point, without fields that are empty."""

    kind: Kind
    line: str
    kernel: str
    name: NotRequired[str]
    counts: dict[str, Count]
    missing: NotRequired[tuple[str, ...]]
    unreachable: NotRequired[dict[str, str]]
    condition: NotRequired[str]
    depends: NotRequired[tuple[tuple[str, int], ...]]
    needs: NotRequired[dict[str, tuple[tuple[str, int], str, int]]]
    why: NotRequired[dict[str, str]]
    slots: NotRequired[Count]
    used: NotRequired[Count]
    within: NotRequired[tuple[tuple[Point, str], ...]]


#: Fields that are written although they are empty: every point has them.
_KEPT = ("line", "kernel", "counts")


def reached_to_json(reached: Reached) -> dict[str, Any]:
    """Return what was reached at a point as plain JSON values, without fields that are empty."""
    fields = {**reached.point._asdict(), **vars(reached)}
    del fields["point"]
    return {name: jsonable(value) for name, value in fields.items() if value or name in _KEPT}


def reached_from_json(plain: Mapping[str, Any]) -> Reached:
    """Return what ``reached_to_json`` was given.

    Raises:
      DataError: it is none.
    """
    fields: dict[str, Any] = decode(PlainReached, plain)
    point = {name: fields.pop(name) for name in Point._fields if name in fields}
    return Reached(point=Point(**point), **fields)


#: The ways of each kind of point, in order; those of a ``lax.switch`` are numbers.
WAYS: Mapping[Kind, tuple[str, ...]] = {
    "branch": ("true", "false"),
    "loop": ("none", "one", "several"),
    "ring": ("first", "again"),
    "mask": ("full", "partial", "empty"),
    "block": ("whole", "overhang"),
    "revisit": ("first", "again"),
    "wait": ("at once", "blocked"),
}


def ways_of(reached: Reached) -> list[str]:
    """Return the ways that were gone at a point, and those that should have been, in order."""

    def order(way: str) -> tuple[int, str]:
        known = WAYS[reached.point.kind]
        number = int(way) if way.isdecimal() else len(known)
        return (known.index(way) if way in known else number, way)

    gone = [way for way, count in reached.counts.items() if count]
    return sorted({*gone, *reached.missing}, key=order)


def concerns(key: str, reached: Reached, way: str) -> bool:
    """Return whether a key of ``KernelSpec.unreached`` is about a way of a point.

    A key is a condition as the source has it, ``file.py:46`` with as much of the path as one likes,
    the name of a ring or another reference, or the name of the kernel; perhaps followed by a way,
    such as ``step >= stages true``.
    """
    point, subject = reached.point, key.removesuffix(f" {way}")
    return subject in (reached.condition, point.name, point.kernel) or names(subject, point.line)


def names(key: str, line: str) -> bool:
    """Return whether ``file.py:46``, with as much of the path as one likes, names a line."""
    path, line = key.replace("\\", "/"), line.replace("\\", "/")
    return path == line or line.endswith(f"/{path}")


def reason_of(
    unreached: Mapping[str, str],
    reached: Reached,
    way: str,
    points: Mapping[Point, Reached],
) -> str:
    """Return why a way of a point need not be gone; "" if it should be.

    What is inside of a branch or loop that need not be entered need not run, either.

    Args:
      unreached: as in ``KernelSpec.unreached``.
      reached: the point.
      way: its way.
      points: all points of the kernel.
    """
    for key, why in unreached.items():
        if concerns(key, reached, way):
            return why
    return _reason_around(unreached, reached, points, frozenset())


def _reason_around(
    unreached: Mapping[str, str],
    reached: Reached,
    points: Mapping[Point, Reached],
    inside: frozenset[Point],
) -> str:
    """Return why none of the branches and loops around a point need be entered, or ""."""
    reasons: list[str] = []
    for point, way in reached.within:
        outer = points.get(point)
        if outer is None or point in inside:
            return ""
        own = next((why for key, why in unreached.items() if concerns(key, outer, way)), "")
        reasons.append(own or _reason_around(unreached, outer, points, inside | {point}))
    return reasons[0] if all(reasons) and reasons else ""


def by_point(reached: Iterable[Reached]) -> Mapping[Point, Reached]:
    """Return what was reached by its point."""
    return {one.point: one for one in reached}
