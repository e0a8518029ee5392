"""Which operations of a tensor core keep their order (PTX ISA 9.0, 9.7.16.6.2, "pipelined")."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_pallas.simulator.concurrency.recording import Asynchronous, Side
from pytest_pallas.simulator.monitors.accesses import SideInFlight, overlap, place_of

#: Accesses that keep their order: what the first one is, and the second one.
_DIRECT = frozenset(
    {
        *(("copied", "operand"), ("copied", "sums")),
        *(("operand", "sums"), ("operand", "copied")),
    }
)


#: Among more operations than these, order is not looked for, and taken to be there.
_MOST = 256


def are_pipelined(
    first: SideInFlight, second: SideInFlight, started: Sequence[Asynchronous]
) -> bool:
    """Whether two sides of operations of one unit are accessed in this order.

    Args:
      first: of the operation that was started first.
      second: of the one that was started last.
      started: all that the unit was given so far, in order.
    """
    assert first.side is not None
    assert second.side is not None
    roles = (first.side.role, second.side.role)
    if "" in roles or roles in _DIRECT:
        return True
    if roles == ("sums", "sums") and place_of(first.region) == place_of(second.region):
        return True
    assert isinstance(first.origin, Asynchronous)
    assert isinstance(second.origin, Asynchronous)
    return _is_reached(first.origin, second.origin, started)


def _is_reached(first: Asynchronous, second: Asynchronous, started: Sequence[Asynchronous]) -> bool:
    """Whether operations in between put two others into their order."""
    between: list[Asynchronous] = []
    for each in reversed(started):
        if each is first:
            break
        if each is not second and each.thread == second.thread:
            between.append(each)
            if _follows(each, second) and _follows(first, each):
                return True
    if len(between) > _MOST:
        return True
    reached = [first]
    for each in (*reversed(between), second):
        if any(_follows(before, each) for before in reached):
            reached.append(each)
    return reached[-1] is second


def _follows(first: Asynchronous, second: Asynchronous) -> bool:
    """Whether an operation is done as a whole after another one, because PTX pairs them."""
    if _sides(first, "copied"):
        return not _sides(second, "copied")
    sums = [place_of(side.region) for side in _sides(first, "sums")]
    if any(place_of(side.region) in sums for side in _sides(second, "sums")):
        return True
    read = _sides(first, "operand")
    copied = _sides(second, "copied")
    return any(overlap(one.region, other.region) for one in read for other in copied)


def _sides(operation: Asynchronous, role: str) -> list[Side]:
    return [side for side in operation.sides if side.role == role]
