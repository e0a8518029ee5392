"""Meetings: points that several threads must reach before any of them goes on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.findings import Wait
from pytest_pallas.simulator.concurrency.recording import Synchronized
from pytest_pallas.simulator.concurrency.scheduler import Task
from pytest_pallas.simulator.thread import Thread


@dataclass(eq=False)
class _Meeting:
    """A meeting that is not over.

    Attributes:
      given: what each member brought.
      threads: the numbers of those that are there.
      waiting: their tasks.
    """

    given: dict[Any, Any] = field(default_factory=dict)
    threads: list[int] = field(default_factory=list)
    waiting: list[Task] = field(default_factory=list)


def meet(
    thread: Thread,
    place: Hashable,
    member: Hashable,
    members: Sequence[Any],
    value: Any,
    what: str,
    kind: str = "device",
) -> dict[Any, Any]:
    """Wait until all members are at a place, and give what each of them brought.

    Args:
      thread: who arrives.
      place: names the meeting; it can be used again once all have left.
      member: which member the thread is.
      members: all of them.
      value: what it brings.
      what: the place in words, for deadlocks: ``"psum at FILE:LINE"``.
      kind: what a member is.

    Raises:
      DeadlockError: they never come.
    """
    if len(members) == 1:
        return {member: value}
    machine = thread.machine
    meeting = machine.meetings.setdefault(place, _Meeting())
    meeting.given[member] = value
    meeting.threads.append(thread.number)
    timeline = machine.timeline
    span = None if timeline is None else timeline.begin(thread, "meeting", what)

    def blocked() -> Wait:
        missing = [each for each in members if each not in meeting.given]
        shown = ", ".join(map(str, missing[:4])) + (", ..." if len(missing) > 4 else "")
        return Wait(
            owner=thread.owner,
            on=f"{what} (not reached by {kind} {shown})",
            needed=len(members),
            had=len(meeting.given),
            unit="arrivals",
            program=thread.program,
        )

    if len(meeting.given) == len(members):
        thread.recording.events.append(Synchronized(tuple(meeting.threads)))
        for task in meeting.waiting:
            machine.scheduler.wake(task)
        del machine.meetings[place]
        if timeline is not None and span is not None:
            timeline.end(thread, span)
        return meeting.given
    task = machine.scheduler.current
    assert task is not None
    meeting.waiting.append(task)
    while len(meeting.given) < len(members):
        machine.scheduler.block(blocked)
    if timeline is not None and span is not None:
        timeline.end(thread, span)
    return meeting.given
