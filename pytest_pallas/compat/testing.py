"""Private names of pytest."""

from __future__ import annotations

from typing import Any


def terminal_width(reporter: Any) -> int:
    """The width of the terminal in columns, as pytest itself uses it.

    Seen in pytest 8.4 to 9.2.
    """
    return int(reporter._tw.fullwidth)


def fixture_is_overridden(metafunc: Any, name: str, module: str) -> bool:
    """Whether a test sees another fixture ``name`` than the one that ``module`` defines.

    Seen in pytest 8.4 to 9.2.
    """
    definitions = metafunc._arg2fixturedefs.get(name, ())
    return bool(definitions) and definitions[-1].func.__module__ != module
