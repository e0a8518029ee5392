"""Errors in words: the levels of ``report.pictures.errors``, and numbers that a person reads."""

from __future__ import annotations

import math

#: As many as in ``report.pictures.errors``: ``a`` is below 2**-3 ulps, ``z`` 2**21 and more.
LEVELS = 26


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
    """A number as records hold it: JSON has no infinities."""
    return None if value is None else float(value)
