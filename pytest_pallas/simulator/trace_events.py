"""Timelines in the Chrome trace event format, which Perfetto and chrome://tracing open.

A device is a process, a core of it a thread. The copies that a device started are on threads of
their own, as many as it takes that none hides another. One microsecond is one equation.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_pallas.errors import OptionError
from pytest_pallas.findings import Owner
from pytest_pallas.simulator.timeline import CopySpan, Span, Timeline

#: What one unit of time is, for readers of a file.
UNIT = "1 us is 1 equation evaluated by the whole machine"

#: The numbers of threads that copies are on begin here.
_COPIES = 10_000

#: How long before the end of the equation that gives or takes something its arrow begins or ends.
_BEFORE = 0.5

_Event = dict[str, Any]


def text_of(timeline: Timeline, about: Mapping[str, Any]) -> str:
    """The text of a file.

    Args:
      timeline: of a run that has ended.
      about: what else to say of the run, by name.
    """
    timeline.close()
    lines = ",\n".join(json.dumps(event) for event in events_of(timeline))
    other = json.dumps({"time": UNIT, **about})
    return f'{{"displayTimeUnit": "ns", "otherData": {other}, "traceEvents": [\n{lines}\n]}}\n'


def events_of(timeline: Timeline) -> list[_Event]:
    """The events of a file: names first, then everything by time."""
    threads = _threads({span.owner for span in timeline.spans})
    lanes = _lanes(timeline.copies)
    events: list[_Event] = []
    for owner, thread in threads.items():
        events += _spans(thread, [span for span in timeline.spans if span.owner == owner])
    for copy, lane in lanes.items():
        events += _copy(copy, lane)
    tracks = {**{each: threads[each.owner] for each in timeline.spans}, **lanes}
    events += _arrows(timeline, tracks)
    events.sort(key=lambda event: event["ts"])
    return [*_names(threads, lanes), *events]


def check_path(path: str | os.PathLike[str]) -> Path:
    """A path that a timeline can be written to.

    Raises:
      OptionError: it cannot.
    """
    found = Path(path).absolute()
    if found.is_dir() or not found.parent.is_dir() or not os.access(found.parent, os.W_OK):
        raise OptionError(
            f"trace={str(path)!r}: cannot write there; give a file in a folder that exists"
        )
    return found


def _threads(owners: Iterable[Owner]) -> dict[Owner, int]:
    """A number for each core, of its device."""
    threads: dict[Owner, int] = {}
    count: Counter[int] = Counter()
    for owner in sorted(owners, key=_order):
        threads[owner] = count[owner.device]
        count[owner.device] += 1
    return threads


def _order(owner: Owner) -> tuple[Any, ...]:
    core = -1 if owner.core is None else owner.core
    # "subcore 10" comes after "subcore 9".
    return (owner.device, core, [int(word) for word in re.findall(r"\d+", owner.thread)])


def _event(phase: str, name: str, device: int, thread: int, time: float, **rest: Any) -> _Event:
    return {"ph": phase, "name": name, "pid": device, "tid": thread, "ts": time, **rest}


def _names(threads: Mapping[Owner, int], lanes: Mapping[CopySpan, int]) -> Iterator[_Event]:
    devices = dict.fromkeys(sorted(owner.device for owner in threads))
    for device in devices:
        yield _event("M", "process_name", device, 0, 0, args={"name": f"device {device}"})
        yield _event("M", "process_sort_index", device, 0, 0, args={"sort_index": device})
    tracks = [(owner.device, thread, _core(owner)) for owner, thread in threads.items()]
    copies = dict.fromkeys((copy.owner.device, lane) for copy, lane in lanes.items())
    tracks += [(device, lane, f"copies {lane - _COPIES}") for device, lane in sorted(copies)]
    for device, thread, name in tracks:
        yield _event("M", "thread_name", device, thread, 0, args={"name": name})
        yield _event("M", "thread_sort_index", device, thread, 0, args={"sort_index": thread})


def _core(owner: Owner) -> str:
    core = "" if owner.core is None else f"core {owner.core}"
    return ", ".join(word for word in (core, owner.thread) if word) or "core"


def _spans(thread: int, spans: Iterable[Span]) -> Iterator[_Event]:
    """Begin and end of the spans of a thread, which are nested and in the order of their begin."""
    opened: list[Span] = []
    for span in spans:
        while opened and opened[-1] is not span.parent:
            yield _end(thread, opened.pop())
        opened.append(span)
        yield _event(
            "B", span.name, span.owner.device, thread, span.begin, cat=span.kind, args=span.facts
        )
    while opened:
        yield _end(thread, opened.pop())


def _end(thread: int, span: Span) -> _Event:
    more = {"args": {"unfinished": True}} if span.unfinished else {}
    assert span.end is not None
    return _event("E", span.name, span.owner.device, thread, span.end, **more)


def _copy(copy: CopySpan, lane: int) -> Iterator[_Event]:
    device = copy.owner.device
    yield _event("B", copy.name, device, lane, copy.begin, cat="copy", args=copy.facts)
    for time, what, size in copy.moments:
        yield _event("i", what, device, lane, time, s="t", cat="copy", args={"bytes": size})
    yield _event("E", copy.name, device, lane, copy.end)


def _lanes(copies: Iterable[CopySpan]) -> dict[CopySpan, int]:
    """A thread for each copy, of its device, on which no other copy is at that time."""
    free: dict[tuple[int, int], int] = {}
    lanes: dict[CopySpan, int] = {}
    for copy in copies:
        lane = _COPIES
        while free.get((copy.owner.device, lane), -1) > copy.begin:
            lane += 1
        free[copy.owner.device, lane] = copy.end
        lanes[copy] = lane
    return lanes


def _arrows(timeline: Timeline, tracks: Mapping[Span | CopySpan, int]) -> Iterator[_Event]:
    for number, arrow in enumerate(timeline.arrows):
        source, target = arrow.source, arrow.target
        begin = _within(source, arrow.given)
        end = max(begin, _within(target, arrow.taken))
        rest = {"cat": "gives", "id": number}
        at, to = (source.owner.device, tracks[source]), (target.owner.device, tracks[target])
        yield _event("s", "gives", *at, begin, **rest)
        yield _event("f", "gives", *to, end, bp="e", **rest)


def _within(span: Span | CopySpan, time: int) -> float:
    """A time inside of a span, just before ``time``: viewers bind an arrow to the span there."""
    assert span.end is not None
    return min(max(time - _BEFORE, span.begin), span.end)
