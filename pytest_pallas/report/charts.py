"""Draw the bars and charts of the report: shares, outcomes, counts by error and errors by size.

They are made of the elements of ``report.drawings``, and take data of any file, as those do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_pallas.report.drawings import (
    CHARACTER,
    LEVELS,
    Svg,
    element,
    line,
    lower,
    number,
    picture,
    rect,
    short_number,
    squares,
    text,
)

# Bars of shares and outcomes.


def share(value: float, limit: float, title: str, *, before: float | None = None) -> Svg:
    """Draw a bar of the used part of a limit, with a mark at the recorded value."""
    wide = 110.0
    used = min(1.0, value / limit) if limit else 0.0
    kind = "fill-bad" if value > limit else "fill-warn" if used > 0.85 else "fill"
    parts = [rect(0, 2, wide, 10, "track"), rect(0, 2, max(1.0, wide * used), 10, kind)]
    if before is not None and limit:
        x = wide * min(1.0, before / limit)
        parts.append(line(x, 0, x, 14, "mark"))
    return picture(wide, 14, title, *parts)


def slots(shares: Mapping[str, float], title: str) -> Svg:
    """Draw a column for each unit: the share of its slots that the main loop uses."""
    parts: list[Svg] = []
    for column, (unit, value) in enumerate(shares.items()):
        high = 22 * min(1.0, value)
        tooltip = f"{unit}: {100 * value:.0f} %"
        parts.append(rect(column * 11, 1, 8, 22, "track", tooltip))
        parts.append(rect(column * 11, 23 - high, 8, high, "fill", tooltip))
    return picture(max(11.0 * len(shares), 1.0), 24, title, *parts)


def stacked(counts: Sequence[tuple[str, int]], title: str) -> Svg:
    """Draw a bar of outcomes as wide as the page; widths are proportional to their numbers."""
    total = sum(count for _, count in counts) or 1
    parts: list[Svg] = []
    x = 0.0
    for kind, count in counts:
        if count:
            wide = max(6.0, 988.0 * count / total)
            parts.append(rect(x, 0, wide, 12, f"of-{kind.replace(' ', '-')}", f"{count:,} {kind}"))
            x += wide + 2
    return picture(x or 1.0, 12, title, *parts, preserveAspectRatio="none")


# Charts: counts by error, and errors by size.

#: The area between the axes.
_LEFT, _TOP, _WIDE, _HIGH = 52.0, 26.0, 380.0, 150.0

#: Limit on the charts of one failure, one for each drawn dim.
_DIMS = 3


def _chart(
    title: str,
    up: str,
    across: str,
    ticks: Iterable[tuple[float, str]],
    labels: Iterable[tuple[float, str]],
    *marks: Svg,
) -> Svg:
    """Draw a chart with labelled axes.

    Args:
      title: for screen readers.
      up: the quantity of the vertical axis.
      across: the quantity of the horizontal axis.
      ticks: heights from 0 to 1 with their labels.
      labels: positions on the horizontal axis with their labels.
      marks: bars or points, and their key.
    """
    bottom, right = _TOP + _HIGH, _LEFT + _WIDE
    parts = [line(_LEFT, bottom, right, bottom, "axis"), text(0, 12, up)]
    for share, label in ticks:
        y = bottom - _HIGH * share
        parts.append(line(_LEFT, y, right, y, "rule"))
        parts.append(text(_LEFT - 6, y + 4, label, anchor="end", kind="t small"))
    parts += [text(x, bottom + 14, label, anchor="middle", kind="t small") for x, label in labels]
    parts += [*marks, text(right, bottom + 30, across, anchor="end")]
    return picture(right + 16, bottom + 38, title, *parts)


def histogram(counts: Mapping[str, Sequence[int]], unit: str = "ulps") -> Svg:
    """Draw the histogram of the errors of the kernel and the baseline.

    The scale of counts is logarithmic, so that one wrong element in a million is visible.
    """
    *kernel, strange = counts["kernel"]
    *baseline, _ = counts["baseline"]
    used = [i for i in range(1, LEVELS + 1) if kernel[i] or baseline[i]] or [1]
    bars = [("none", kernel[0], baseline[0])]
    bars += [
        (short_number(lower(i)) if i > 1 else "> 0", kernel[i], baseline[i])
        for i in range(used[0], used[-1] + 1)
    ]
    bars += [("NaN, inf", strange, 0)] if strange else []
    top = math.log10(1 + max(max(k, b) for _, k, b in bars) or 1) or 1.0
    powers = [10**power for power in range(12) if math.log10(1 + 10**power) <= top]
    step = _WIDE / len(bars)
    marks: list[Svg] = []
    for column, (label, of_kernel, of_baseline) in enumerate(bars):
        for shift, count, name in ((0.08, of_baseline, "baseline"), (0.5, of_kernel, "kernel")):
            if count:
                x, high = _LEFT + step * (column + shift), _HIGH * math.log10(1 + count) / top
                tooltip = f"{name}: {count:,} elements at {label}"
                y = _TOP + _HIGH - high
                marks.append(rect(x, y, 0.42 * step, high, f"bar-{name}", tooltip))
    names = [("bar-baseline", "jnp baseline")] if any(baseline) else []
    marks += squares(_LEFT + 30, 3, 7.0, *names, ("bar-kernel", "kernel"))
    shown = sorted(without_overlap([label for label, _, _ in bars], step))
    worst = next((label for label, k, _ in reversed(bars) if k), "0")
    return _chart(
        f"Histogram of errors, the kernel's and the baseline's; the kernel's reach {worst}",
        "elements",
        "error in ulps, from" if unit == "ulps" else "difference, from",
        [
            (math.log10(1 + power) / top, short_number(power))
            for power in powers[:: max(1, len(powers) // 5)]
        ],
        [(_LEFT + step * (column + 0.5), bars[column][0]) for column in shown],
        *marks,
    )


def without_overlap(labels: Sequence[str], step: float) -> frozenset[int]:
    """Choose the labels that fit beside each other, by number; the last one always.

    Args:
      labels: each in the middle of its column.
      step: width of a column, in the units of the picture.
    """
    shown, left = list[int](), math.inf
    for column in range(len(labels) - 1, -1, -1):
        half = CHARACTER * len(labels[column]) / 2
        middle = step * (column + 0.5)
        if middle + half <= left:
            shown.append(column)
            left = middle - half - CHARACTER
    return frozenset(shown)


def against_dims(examples: Sequence[Mapping[str, Any]]) -> list[tuple[str, Svg]]:
    """Draw the errors of examples against each dim with several sizes; returns names, charts."""
    names = dict.fromkeys(name for example in examples for name in example["dims"])
    charts: list[tuple[str, Svg]] = []
    for name in names:
        chosen = [example for example in examples if name in example["dims"]]
        if len({example["dims"][name] for example in chosen}) > 1:
            charts.append((name, _scatter(name, chosen)))
    return charts[:_DIMS]


def _scatter(name: str, examples: Sequence[Mapping[str, Any]]) -> Svg:
    """Draw errors by the size of one dim. Their axis is logarithmic, with NaN at its top."""
    points = [(int(e["dims"][name]), number(e["error"]) or 0.0, e) for e in examples]
    errors = [error for _, error, _ in points]
    finite = [error for error in errors if math.isfinite(error)]
    top = max([1.0, *(math.log2(1 + error) for error in finite)])
    sizes = sorted({size for size, _, _ in points})

    def across(size: int) -> float:
        return _LEFT + 14 + (_WIDE - 28) * (size - sizes[0]) / max(1, sizes[-1] - sizes[0])

    def share(error: float) -> float:
        return 0.9 * math.log2(1 + error) / top if math.isfinite(error) else 1.0

    dots: dict[str, None] = {}
    marks: dict[str, Svg] = {}
    for size, error, example in points:
        x, y = across(size), _TOP + _HIGH * (1 - share(error))
        if example["failed"]:
            dims = ", ".join(f"{k}={v}" for k, v in example["dims"].items())
            tooltip = element("title", f"{dims}: {short_number(error)} ulps, failed")
            marks[f"{x:.0f} {y:.0f}"] = _cross(x, y, tooltip)
        else:
            dots[f"M{x:.0f} {y:.0f}h0"] = None
    # All dots are one path: there may be a hundred, in three charts for each failure.
    path = [element("path", d="".join(dots), class_="points")] if dots else []
    key = [
        element("path", d=f"M{_LEFT + 70:.0f} 8h0", class_="points"),
        text(_LEFT + 80, 12, "passed"),
        _cross(_LEFT + 140, 8),
        text(_LEFT + 150, 12, "failed"),
    ]
    if len(finite) < len(errors):
        key.append(text(_LEFT - 6, _TOP + 4, "NaN", anchor="end", kind="t small"))
    step = max(1, round(top / 4))
    ticks = [0.0, *(2.0**k for k in range(step if step > 1 else 0, 60, step))]
    labelled: list[int] = []
    for size in sizes:  # so few that they do not overlap
        if not labelled or across(size) - across(labelled[-1]) > 40:
            labelled.append(size)
    failed = sum(bool(example["failed"]) for example in examples)
    return _chart(
        f"Error against the size of {name}: {failed} of {len(examples)} examples failed",
        "error in ulps",
        f"size of {name}",
        [(share(tick), short_number(tick)) for tick in ticks if math.log2(1 + tick) <= top],
        [(across(size), f"{size:,}") for size in labelled],
        *path,
        *marks.values(),
        *key,
    )


def _cross(x: float, y: float, *tooltip: Svg) -> Svg:
    """Draw a failure, which differs from dots also without colours."""
    shape = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
    return element("path", *tooltip, d=shape, class_="point-failed")
