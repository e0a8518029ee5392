"""Texts that are compared with a stored file, and how the file is written anew."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

#: Set to 1, stored files are written and not compared.
VARIABLE = "PALLAS_STORE_TEXTS"

#: Elements without words.
_SILENT = ("style", "script", "svg")

#: Elements that words of a line may be in.
_INLINE = ("span", "code", "strong", "em", "a", "b", "th", "td", "dt", "dd", "button", "small")


def assert_stored(path: Path, text: str) -> None:
    """A text must be what a file holds.

    Raises:
      AssertionError: it is not; with what to do if it should be.
    """
    text = text.rstrip() + "\n"
    if os.environ.get(VARIABLE) == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    stored = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    assert text.split("\n") == stored, f"if this is meant, run again with {VARIABLE}=1: {path}"


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[list[str]] = [[]]
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._silent += tag in _SILENT
        if tag not in _INLINE:
            self.lines.append([])

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT
        if tag not in _INLINE:
            self.lines.append([])

    def handle_data(self, data: str) -> None:
        if not self._silent and data.strip():
            self.lines[-1].append(" ".join(data.split()))


def words_of_page(page: str) -> str:
    """What a reader sees of an HTML page: a line for each block or row of a table."""
    parser = _Words()
    parser.feed(page)
    return "\n".join(" | ".join(line) for line in parser.lines if line)
