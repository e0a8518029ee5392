"""The journal of a run: its results in a file as they come, so that a killed run loses none.

It is beside the file of ``--pallas-results`` until that is written: a line of JSON about the run,
then a line for each test that starts, one for each part of a test that a fleet has done, and one
for each test that ends, with its records.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: The end of a journal's name.
SUFFIX = ".partial"


def partial_path(path: Path) -> Path:
    """The journal of the run that writes its results to ``path``."""
    return path.with_name(path.name + SUFFIX)


class Journal:
    """A file to which lines are appended, each by one call of the operating system.

    A line is there once it was appended, also if this process is killed. (It is not forced to the
    disk, so a machine that loses power may lose the last ones.)
    """

    def __init__(self, path: Path, first: Iterable[Mapping[str, Any]]) -> None:
        """Create the file with its first lines, in place of an earlier one, at once.

        Args:
          path: the file.
          first: its first lines; the first one is about the run.

        Raises:
          OSError: it cannot be written.
        """
        self.path = path
        self._torn = False
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(map(_line, first))
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)  # closed: Windows replaces no open file
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def append(self, plain: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
          OSError: it cannot be written, or the file is gone. Later lines may be appended.
        """
        self._write(_line(plain))
        if not self._is_there():
            raise FileNotFoundError(f"{self.path.name} was removed")

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it if its run has come to its end."""
        remove = remove and self._is_there()
        os.close(self._handle)
        if remove:
            self.path.unlink()

    def _write(self, data: bytes) -> None:
        left = b"\n" + data if self._torn else data  # ends what a full disk has cut
        self._torn = True
        while left:
            left = left[os.write(self._handle, left) :]
        self._torn = False

    def _is_there(self) -> bool:
        """Whether the path is still this file, not removed or replaced by another run."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._handle))
        except OSError:
            return False


def _line(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode() + b"\n"
