"""Cutting bracketed text, which regular expressions cannot count."""

from __future__ import annotations

import re
from collections.abc import Callable

_PAIRS = {"(": ")", "{": "}", "[": "]", "<": ">"}


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``; ``len(text)`` if none does.

    Only brackets of that kind are counted, none of them inside double quotes, and a ``->`` closes
    nothing.
    """
    opened, closed = text[start], _PAIRS[text[start]]
    depth, quoted, i = 0, False, start
    while i < len(text):
        char = text[i]
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted and char == opened:
            depth += 1
        elif not quoted and char == closed and text[i - 1 : i] != "-":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return len(text)


def replace_bracketed(
    text: str, start: str, replacement: Callable[[re.Match[str], str], str | None]
) -> str:
    """Replace every ``start...bracket``, where the pattern ``start`` ends with an open bracket.

    ``replacement`` gets the match of ``start`` and what is between the brackets; None leaves the
    text as it is.
    """
    pattern, position, parts = re.compile(start), 0, list[str]()
    while match := pattern.search(text, position):
        end = closing(text, match.end() - 1)
        new = replacement(match, text[match.end() : end])
        if new is None:
            parts.append(text[position : match.end()])
            position = match.end()
        else:
            parts.append(text[position : match.start()] + new)
            position = end + 1
    return "".join(parts) + text[position:]
