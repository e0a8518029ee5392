"""The versions that were tested: the one record of them. docs/support.md says what ran with which.

It imports nothing, and no other package of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class VersionRange:
    """The versions of a package from the oldest to the newest one that was tested.

    Attributes:
      oldest: the oldest, which is also the oldest that is supported.
      newest: the newest; ``"6.170"`` stands for all that begin so.
    """

    oldest: str
    newest: str

    def newer(self, version: str) -> bool:
        """Return whether a version is newer than the newest that was tested."""
        newest = _numbers(self.newest)
        return _numbers(version)[: len(newest)] > newest

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


#: By the name of the distribution; Python by that of the interpreter.
TESTED: Mapping[str, VersionRange] = {
    "python": VersionRange("3.12", "3.14"),
    "jax": VersionRange("0.11.2", "0.12.0.1"),
    "pytest": VersionRange("8.4", "9.2"),
    "hypothesis": VersionRange("6.131", "6.170"),
}


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version: ``(0, 13, 0)`` of ``"0.13.0.dev20261101"``."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()


def installed_version(package: str) -> str:
    """Return the installed version of a package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
