"""Lines of source code: where something is, as data.

Findings, records and messages have ``file:line`` in text, because a line may also be the name of a
place that has none, such as "the end of the kernel". ``read`` is the one function that takes such a
text apart.
"""

from __future__ import annotations

import linecache
from pathlib import PurePath
from typing import NamedTuple


class SourceLine(NamedTuple):
    """A line of a file.

    Attributes:
      file: its path.
      line: its number, from 1.
    """

    file: str
    line: int

    def __str__(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """``file:line`` without the folders of the file."""
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        """What stands there, without its indentation; "" if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()


def read(text: str) -> SourceLine | None:
    """The line that ``file:line`` names; None of any other text."""
    file, _, line = text.rpartition(":")
    number = line.isdecimal() and len(line) < 10
    return SourceLine(file, int(line)) if file and number else None


def short(text: str) -> str:
    """``file:line`` without the folders of the file; any other text as it is."""
    found = read(text)
    return text if found is None else found.short


def text_at(text: str) -> str:
    """What stands at ``file:line``, without its indentation; "" if it cannot be read."""
    found = read(text)
    return "" if found is None else found.text
