"""Races and deadlocks as values, read off the messages of ``backends.watching``."""

from __future__ import annotations

import re
from typing import Any

#: The most waits that are drawn.
_WAITS = 16

_ACCESS = re.compile(
    r"(?:race: |\n  and )(?P<what>read|write) of (?P<buffer>.+?)(?:\[(?P<range>[^\]]*)\])?"
    r" of device (?P<device>\d+)(?:, core (?P<core>\d+))?"
    r"(?:, (?P<thread>block \d+, warpgroup \d+(?:, warp \d+)?))?, (?P<place>.+?)"
    r"(?:, program (?P<program>\([^)]*\)))?(?P<dma>, by a DMA)?(?=\n|$)"
)

_WHO = r"device \d+(?:, core \d+)?"

_WAIT = re.compile(
    rf"(?P<who>{_WHO}(?:, {_WHO})*)(?:: | )waits for (?P<what>.+?) to be (?P<amount>\d+)"
    r"(?P<unit> bytes)?, which is (?P<value>\d+), at (?P<place>.+?)"
    r"(?: in program (?P<program>\([^)]*\)))?(?=\n|$)"
)

#: A thread of a GPU at a barrier.
_ARRIVALS = re.compile(
    r"(?P<who>device \d+, block \d+, warpgroup \d+(?:, warp \d+)?) waits at a barrier at which "
    r"(?P<value>\d+) of (?P<amount>\d+) have arrived, at (?P<place>.+?)(?=\n|$)"
)

_RESTS = re.compile(
    rf"(?P<who>{_WHO}) (?P<what>waits for the others to begin the kernel|"
    r"is at the end of the kernel)(?=\n|$)"
)


def accesses(message: str) -> list[dict[str, Any]]:
    """The two accesses of a race; none where an interpreter says it in other words."""
    found = [
        {
            "what": access["what"],
            "buffer": access["buffer"],
            "range": access["range"] or "",
            "device": int(access["device"]),
            "core": int(access["core"]) if access["core"] else None,
            "thread": access["thread"] or "",
            "place": access["place"],
            "program": access["program"] or "",
            "dma": access["dma"] is not None,
        }
        for access in _ACCESS.finditer(message)
    ]
    return found if len(found) == 2 else []


def waits(message: str) -> list[dict[str, Any]]:
    """Who waits for what; none where it is not known."""
    found: list[dict[str, Any]] = [
        {
            "who": wait["who"],
            "for": wait["what"],
            "amount": int(wait["amount"]),
            "value": int(wait["value"]),
            "unit": (wait["unit"] or "").strip(),
            "place": wait["place"],
            "program": wait["program"] or "",
        }
        for wait in _WAIT.finditer(message)
    ]
    found += [
        {"who": wait["who"], "for": f"the barrier at {_line(wait['place'])}",
         "amount": int(wait["amount"]), "value": int(wait["value"]), "unit": "arrivals",
         "place": wait["place"], "program": ""}
        for wait in _ARRIVALS.finditer(message)
    ]  # fmt: skip
    found += [
        {"who": rest["who"], "for": "the others" if "others" in rest["what"] else "",
         "amount": 0, "value": 0, "unit": "", "place": rest["what"], "program": ""}
        for rest in _RESTS.finditer(message)
    ]  # fmt: skip
    return found[:_WAITS]


def _line(place: str) -> str:
    """``kernel.py:24`` of a place."""
    found = re.search(r"([^/\s]+:\d+)", place)
    return found[1] if found else place
