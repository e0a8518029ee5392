"""Charts of errors, bars of shares and outcomes, and their scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_pallas.report.drawings.svg import Svg, element, line, picture, rect, stretched, text

#: As many as in ``report.pictures.errors``: ``a`` is below 2**-3 ulps, ``z`` 2**21 and more.
LEVELS = 26


#: Width of a character of a small label, in the units of the picture.
_CHARACTER = 6.0


def lower(level: int) -> float:
    """The smallest error of a level from 1 to ``LEVELS``, in ulps."""
    return 0.0 if level <= 1 else 2.0 ** (level - 5)


def short(number: float) -> str:
    """A number in a few characters."""
    if not math.isfinite(number):
        return "∞"
    if number >= 1e6 or 0 < number < 0.01:
        return f"{number:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def number(value: float | str | None) -> float | None:
    """A number of a record: JSON has no infinities."""
    return None if value is None else float(value)


def share(value: float, limit: float, title: str, *, before: float | None = None) -> Svg:
    """A bar of the used part of a limit, with a mark at the recorded value."""
    wide = 110.0
    used = min(1.0, value / limit) if limit else 0.0
    kind = "fill-bad" if value > limit else "fill-warn" if used > 0.85 else "fill"
    parts = [rect(0, 2, wide, 10, "track"), rect(0, 2, max(1.0, wide * used), 10, kind)]
    if before is not None and limit:
        x = wide * min(1.0, before / limit)
        parts.append(line(x, 0, x, 14, "mark"))
    return picture(wide, 14, title, *parts)


def slots(shares: Mapping[str, float], title: str) -> Svg:
    """A small column for each unit: the share of its slots that the main loop uses."""
    parts: list[Svg] = []
    for place, (unit, value) in enumerate(shares.items()):
        high = 22 * min(1.0, value)
        tooltip = f"{unit}: {100 * value:.0f} %"
        parts.append(rect(place * 11, 1, 8, 22, "track", tooltip))
        parts.append(rect(place * 11, 23 - high, 8, high, "fill", tooltip))
    return picture(max(11.0 * len(shares), 1.0), 24, title, *parts)


def stacked(counts: Sequence[tuple[str, int]], title: str) -> Svg:
    """A bar of outcomes, with widths proportional to their numbers."""
    total = sum(count for _, count in counts) or 1
    parts: list[Svg] = []
    x = 0.0
    for kind, count in counts:
        if count:
            wide = max(6.0, 988.0 * count / total)
            parts.append(rect(x, 0, wide, 12, f"of-{kind}", f"{count:,} {kind}"))
            x += wide + 2
    return stretched(x or 1.0, 12, title, *parts)


_LEFT, _TOP, _WIDE, _HIGH = 52.0, 26.0, 380.0, 150.0

#: Limit on the charts of one failure, one for each drawn dim.
_DIMS = 3


def histogram(counts: Mapping[str, Sequence[int]], unit: str = "ulps") -> Svg:
    """Histogram of the errors of the kernel and the baseline."""
    kernel, baseline = list(counts["kernel"]), list(counts["baseline"])
    strange = kernel.pop()
    baseline.pop()
    used = [i for i in range(1, LEVELS + 1) if kernel[i] or baseline[i]]
    first, last = (used[0], used[-1]) if used else (1, 1)
    levels = [0, *range(first, last + 1)]
    bars = [(_label(i), kernel[i], baseline[i]) for i in levels]
    if strange:
        bars.append(("NaN, inf", strange, 0))
    top = math.log10(1 + max(max(k, b) for _, k, b in bars) or 1) or 1.0
    step = _WIDE / len(bars)
    shown = without_overlap([label for label, _, _ in bars], step)
    parts = [*_count_axis(top)]
    for place, (label, of_kernel, of_baseline) in enumerate(bars):
        x = _LEFT + step * place
        for shift, count, kind, name in (
            (0.08, of_baseline, "bar-baseline", "baseline"),
            (0.5, of_kernel, "bar-kernel", "kernel"),
        ):
            high = _HIGH * math.log10(1 + count) / top
            if count:
                tooltip = f"{name}: {count:,} elements at {label}"
                y = _TOP + _HIGH - high
                parts.append(rect(x + shift * step, y, 0.42 * step, high, kind, tooltip))
        if place in shown:
            middle, y = x + step / 2, _TOP + _HIGH + 14
            parts.append(text(middle, y, label, anchor="middle", kind="t small"))
    parts += _key(*([("bar-baseline", "jnp baseline")] * any(baseline)), ("bar-kernel", "kernel"))
    axis = "error in ulps, from" if unit == "ulps" else "difference, from"
    parts.append(text(_LEFT + _WIDE, _TOP + _HIGH + 30, axis, anchor="end"))
    worst = next((label for label, k, _ in reversed(bars) if k), "0")
    title = f"Histogram of errors, the kernel's and the baseline's; the kernel's reach {worst}"
    return picture(_LEFT + _WIDE + 16, _TOP + _HIGH + 38, title, *parts)


def without_overlap(labels: Sequence[str], step: float) -> frozenset[int]:
    """The places of labels that fit beside each other, the last one in any case.

    Args:
      labels: the words, each in the middle of its place.
      step: width of a place, in the units of the picture.
    """
    shown, left = list[int](), math.inf
    for place in range(len(labels) - 1, -1, -1):
        half = _CHARACTER * len(labels[place]) / 2
        middle = step * (place + 0.5)
        if middle + half <= left:
            shown.append(place)
            left = middle - half - _CHARACTER
    return frozenset(shown)


def _label(level: int) -> str:
    return "none" if level == 0 else short(lower(level)) if level > 1 else "> 0"


def _count_axis(top: float) -> Iterator[Svg]:
    """Powers of ten, so that one wrong element in a million is visible."""
    yield line(_LEFT, _TOP + _HIGH, _LEFT + _WIDE, _TOP + _HIGH, "axis")
    ticks = [10**power for power in range(12) if math.log10(1 + 10**power) <= top]
    for tick in ticks[:: max(1, len(ticks) // 5)]:
        y = _TOP + _HIGH * (1 - math.log10(1 + tick) / top)
        yield line(_LEFT, y, _LEFT + _WIDE, y, "rule")
        yield text(_LEFT - 6, y + 4, short(tick), anchor="end", kind="t small")
    yield text(0, 12, "elements")


def _key(*pairs: tuple[str, str]) -> Iterator[Svg]:
    x = _LEFT + 30
    for kind, words in pairs:
        yield rect(x, 3, 10, 10, kind)
        yield text(x + 15, 12, words)
        x += 24 + 7.0 * len(words)


def against_dims(examples: Sequence[Mapping[str, Any]]) -> list[tuple[str, Svg]]:
    """The error of each example against each dim that had several sizes: name and chart."""
    names = dict.fromkeys(name for example in examples for name in example["dims"])
    charts: list[tuple[str, Svg]] = []
    for name in names:
        chosen = [example for example in examples if name in example["dims"]]
        if len({example["dims"][name] for example in chosen}) > 1:
            charts.append((name, _scatter(name, chosen)))
    return charts[:_DIMS]


def _scatter(name: str, examples: Sequence[Mapping[str, Any]]) -> Svg:
    sizes = [int(example["dims"][name]) for example in examples]
    errors = [number(example["error"]) or 0.0 for example in examples]
    finite = [error for error in errors if math.isfinite(error)]
    top = max([1.0, *(_log(error) for error in finite)])
    low, high = min(sizes), max(sizes)
    has_class = len(finite) < len(errors)
    parts = [
        line(_LEFT, _TOP + _HIGH, _LEFT + _WIDE, _TOP + _HIGH, "axis"),
        text(0, 12, "error in ulps"),
    ]
    step = max(1, round(top / 4))
    ticks = [0.0, *(2.0**k for k in range(step if step > 1 else 0, 60, step))]
    for tick in ticks:
        if _log(tick) <= top:
            y = _TOP + _HIGH * (1 - 0.9 * _log(tick) / top)
            parts.append(line(_LEFT, y, _LEFT + _WIDE, y, "rule"))
            parts.append(text(_LEFT - 6, y + 4, short(tick), anchor="end", kind="t small"))
    if has_class:
        parts.append(text(_LEFT - 6, _TOP + 4, "NaN", anchor="end", kind="t small"))
    for size in _some(sorted(set(sizes))):
        x = _across(size, low, high)
        parts.append(text(x, _TOP + _HIGH + 14, f"{size:,}", anchor="middle", kind="t small"))
    dots: dict[str, None] = {}
    crosses: dict[str, Svg] = {}
    for size, error, example in zip(sizes, errors, examples, strict=True):
        x = _across(size, low, high)
        share = 0.9 * _log(error) / top if math.isfinite(error) else 1.0
        y = _TOP + _HIGH * (1 - share)
        if example["failed"]:
            crosses[f"{x:.0f} {y:.0f}"] = _cross(x, y, error, example)
        else:
            dots[f"M{x:.0f} {y:.0f}h0"] = None
    # All dots are one path: there may be a hundred, in three charts for each failure.
    parts += [element("path", d="".join(dots), class_="points")] if dots else []
    parts += crosses.values()
    parts += _key_of_points()
    parts.append(text(_LEFT + _WIDE, _TOP + _HIGH + 30, f"size of {name}", anchor="end"))
    failed = sum(bool(example["failed"]) for example in examples)
    title = f"Error against the size of {name}: {failed} of {len(examples)} examples failed"
    return picture(_LEFT + _WIDE + 16, _TOP + _HIGH + 38, title, *parts)


def _cross(x: float, y: float, error: float, example: Mapping[str, Any]) -> Svg:
    """A failure: distinguishable from dots without colours."""
    dims = ", ".join(f"{k}={v}" for k, v in example["dims"].items())
    tooltip = element("title", f"{dims}: {short(error)} ulps, failed")
    shape = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
    return element("path", tooltip, d=shape, class_="point-failed")


def _key_of_points() -> Iterator[Svg]:
    x = _LEFT + 70
    yield element("path", d=f"M{x:.0f} 8h0", class_="points")
    yield text(x + 10, 12, "passed")
    yield element("path", d=f"M{x + 66:.1f} 4l8 8m0 -8l-8 8", class_="point-failed")
    yield text(x + 80, 12, "failed")


def _log(error: float) -> float:
    return math.log2(1 + error)


def _across(size: int, low: int, high: int) -> float:
    return _LEFT + 14 + (_WIDE - 28) * (size - low) / max(1, high - low)


def _some(sizes: Sequence[int]) -> list[int]:
    """Sizes below the axis, so few that they do not overlap."""
    low, high = sizes[0], sizes[-1]
    shown: list[int] = []
    for size in sizes:
        if not shown or _across(size, low, high) - _across(shown[-1], low, high) > 40:
            shown.append(size)
    return shown
