"""Races and deadlocks: two accesses that nothing orders, and who waits for what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_pallas.report.drawings.svg import Svg, cut, element, line, picture, rect, text

_WIDE = 520.0

#: A core of a TPU, or a thread of a GPU.
_WHO = re.compile(r"device \d+(?:, core \d+|, block \d+, warpgroup \d+(?:, warp \d+)?)?")


def timeline(accesses: Sequence[Mapping[str, Any]]) -> Svg:
    """The two accesses of a race, a lane each, at a time that nothing decides."""
    parts: list[Svg] = [text(112, 14, "time", kind="t"), _arrow(142, 10, _WIDE - 8, 10)]
    for lane, access in enumerate(accesses):
        y = 34.0 + 74 * lane
        x = 112.0 + 150 * lane
        kind = "write" if access["what"] == "write" else "read"
        range_ = f"[{access['range']}]" if access["range"] else ""
        parts += [
            text(0, y + 22, who(access)),
            text(0, y + 37, _where(access), kind="t"),
            line(112, y + 25, _WIDE - 8, y + 25, "rule"),
            rect(x, y, 250, 50, f"access-{kind}"),
            text(x + 10, y + 20, cut(f"{kind}s {access['buffer']}{range_}", 32), kind="t strong"),
            text(x + 10, y + 38, cut(short_place(str(access["place"])), 36), kind="t small"),
        ]
    parts += [
        line(300, 84, 300, 108, "bad-line"),
        text(310, 100, "nothing orders these", kind="t bad"),
    ]
    first, second = (f"{who(a)} {a['what']}s {a['buffer']}" for a in accesses)
    title = f"Race: {first}, and {second}; nothing orders the two accesses"
    return picture(_WIDE, 170, title, *parts)


def _where(access: Mapping[str, Any]) -> str:
    """The program, or the block of a GPU, that makes an access."""
    if access.get("thread"):
        block = str(access["thread"]).partition(", ")[0]
        return f"{block}, device {access['device']}"
    return str(access["program"]) and f"program {access['program']}"


def who(access: Mapping[str, Any]) -> str:
    """Who makes an access."""
    if access.get("thread"):
        return str(access["thread"]).partition(", ")[2]
    core = "" if access["core"] is None else f" core {access['core']}"
    return f"device {access['device']}{core}" + (", DMA" if access["dma"] else "")


def short_place(place: str) -> str:
    """A place without the folders of its file."""
    return re.sub(r"^.*/(?=[^/]+:\d)", "", place)


def graph(waits: Sequence[Mapping[str, Any]]) -> Svg:
    """Who waits (left) for what (right), and what it is now."""
    edges = [(name, wait) for wait in waits for name in _WHO.findall(str(wait["who"]))]
    resources = list(dict.fromkeys(_resource(wait) for _, wait in edges))
    count = max(len(edges), len(resources), 1)
    parts: list[Svg] = []
    for row, (name, wait) in enumerate(edges):
        y = _middle(row, len(edges), count)
        at = _middle(resources.index(_resource(wait)), len(resources), count)
        unit = f" {wait['unit']}" if wait["unit"] else ""
        need = f"needs {wait['amount']}{unit}, has {wait['value']}" if wait["amount"] else ""
        parts += [
            rect(2, y - 29, 190, 58, "node"),
            text(12, y - 11, cut(name.removeprefix("device 0, "), 25), kind="t strong"),
            text(12, y + 5, cut(short_place(str(wait["place"])), 29), kind="t small"),
            text(12, y + 21, need, kind="t small"),
            _arrow(194, y, 326, at, bad=True),
        ]
    for row, name in enumerate(resources):
        y = _middle(row, len(resources), count)
        parts.append(rect(328, y - 18, 190, 36, "node resource"))
        parts.append(text(338, y + 4, cut(name, 25), kind="t strong"))
    title = "Deadlock: " + "; ".join(f"{name} waits for {_resource(wait)}" for name, wait in edges)
    return picture(_WIDE, 70.0 * count, title, *parts)


def _resource(wait: Mapping[str, Any]) -> str:
    return str(wait["for"]) or "nothing"


def _middle(row: int, rows: int, count: int) -> float:
    """The height of one of ``rows`` boxes beside ``count`` others."""
    return 35.0 + 70 * (row + (count - rows) / 2)


def _arrow(x: float, y: float, x2: float, y2: float, *, bad: bool = False) -> Svg:
    kind = "bad-line" if bad else "axis"
    shaft = line(x, y, x2 - 6, y2, kind)
    head = f"M{x2:.1f} {y2:.1f}l-8 -4v8z"
    return element("g", shaft, element("path", d=head, class_=f"head {kind}"))
