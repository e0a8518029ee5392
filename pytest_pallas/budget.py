"""The limit on the bytes of the arrays of one draw: ``--pallas-max-bytes``.

Strategies are made when a module is imported, before there is a session. So they read the limit
here when they draw, and the plugin sets it for the time of a session.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from pytest_pallas.errors import DrawTooLargeError

#: Oracle, baseline and interpreter hold about twenty copies of the arguments, some in float64, and
#: two test processes on a laptop have 8 GiB between them and everything else.
DEFAULT_MAX_BYTES = 64 * 2**20

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_max_bytes: ContextVar[int] = ContextVar("pallas_max_bytes", default=DEFAULT_MAX_BYTES)


def max_bytes() -> int:
    """The most bytes that all arrays of one draw may have together."""
    return _max_bytes.get()


@contextmanager
def limited(number: int) -> Generator[None]:
    """Draw no more than ``number`` bytes within this context."""
    before = _max_bytes.get()
    _max_bytes.set(number)
    try:
        yield
    finally:
        _max_bytes.set(before)


def check_bytes(what: str, number: int) -> None:
    """Refuse to draw ``number`` bytes for ``what`` if that is too much.

    Raises:
      DrawTooLargeError: it is too large; the message has the remedy.
    """
    if number > max_bytes():
        raise DrawTooLargeError(
            f"{what} of {bytes_text(number)} does not fit within --pallas-max-bytes="
            f"{option_text(max_bytes())}; draw a smaller one, or raise the option"
        )


def bytes_text(number: int) -> str:
    """``1000 bytes``, ``64 MiB``, ``1.5 MiB``."""
    for unit, size in reversed(_UNITS.items()):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number} bytes"


def option_text(number: int) -> str:
    """``number`` bytes as the option takes them: ``64MiB``, or ``1000``."""
    for unit, size in reversed(_UNITS.items()):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def parse_bytes(text: str) -> int | None:
    """The bytes that ``"64MiB"``, ``"1.5GiB"`` or ``"4096"`` means, or None if it means none."""
    unit = next((unit for unit in _UNITS if text.lower().endswith(unit.lower())), "")
    try:
        number = float(text[: len(text) - len(unit)]) * _UNITS.get(unit, 1)
    except ValueError:
        return None
    return int(number) if 1 <= number < float("inf") else None
