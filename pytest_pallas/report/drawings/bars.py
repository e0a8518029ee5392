"""Bars for numbers in tables: a share of a limit, and outcomes side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_pallas.report.drawings.svg import Svg, line, picture, rect, stretched


def share(value: float, limit: float, title: str, *, before: float | None = None) -> Svg:
    """A bar of what is used of a limit, with a mark where it was before."""
    wide = 110.0
    used = min(1.0, value / limit) if limit else 0.0
    kind = "fill-bad" if value > limit else "fill-warn" if used > 0.85 else "fill"
    parts = [rect(0, 2, wide, 10, "track"), rect(0, 2, max(1.0, wide * used), 10, kind)]
    if before is not None and limit:
        x = wide * min(1.0, before / limit)
        parts.append(line(x, 0, x, 14, "mark"))
    return picture(wide, 14, title, *parts)


def slots(shares: Mapping[str, float], title: str) -> Svg:
    """A small column for each unit: which share of its slots the main loop uses."""
    parts: list[Svg] = []
    for place, (unit, value) in enumerate(shares.items()):
        high = 22 * min(1.0, value)
        said = f"{unit}: {100 * value:.0f} %"
        parts.append(rect(place * 11, 1, 8, 22, "track", said))
        parts.append(rect(place * 11, 23 - high, 8, high, "fill", said))
    return picture(max(11.0 * len(shares), 1.0), 24, title, *parts)


def stacked(counts: Sequence[tuple[str, int]], title: str) -> Svg:
    """Outcomes side by side, as wide as there are of them."""
    total = sum(count for _, count in counts) or 1
    parts: list[Svg] = []
    x = 0.0
    for kind, count in counts:
        if count:
            wide = max(6.0, 988.0 * count / total)
            parts.append(rect(x, 0, wide, 12, f"of-{kind}", f"{count:,} {kind}"))
            x += wide + 2
    return stretched(x or 1.0, 12, title, *parts)
