"""What earlier sessions knew of tests that are better run apart, in pytest's cache.

One small file a test, so that the processes of pytest-xdist can write without a lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Generator
from functools import cached_property
from pathlib import Path

import pytest

#: Folders in pytest's cache: of what to run apart, and of what is running.
APART, RUNNING = "pallas-isolated", "pallas-running"


class Remembered:
    """What is better run apart, by a key: a node id, or a spec on a backend."""

    def __init__(self, config: pytest.Config) -> None:
        """Read nothing yet."""
        self._config = config
        self._here: dict[str, str] = {}

    def reason(self, key: str) -> str:
        """Why something is run apart, or ""."""
        if key in self._here:
            return self._here[key]
        path = self._path(key)
        found = ""
        if path is not None and path.name in self._names:
            with contextlib.suppress(OSError, ValueError, KeyError):
                found = str(json.loads(path.read_text(encoding="utf-8"))["reason"])
        return self._here.setdefault(key, found)

    def add(self, key: str, reason: str) -> None:
        """Run it apart from now on, in this session and later ones."""
        if self.reason(key) == reason:
            return
        self._here[key] = reason
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.write_text(json.dumps({"test": key, "reason": reason}), encoding="utf-8")

    def remove(self, key: str) -> None:
        """The reason is gone."""
        if self.reason(key):
            self._here[key] = ""
            path = self._path(key)
            if path is not None:
                path.unlink(missing_ok=True)

    def failed(self, nodeid: str) -> bool:
        """Whether a test failed when it last ran, as ``--lf`` knows it."""
        return nodeid in self._failed

    @contextlib.contextmanager
    def running(self, nodeid: str) -> Generator[None]:
        """Leave a trace if the session dies inside."""
        path = self._marker
        if path is not None:
            with contextlib.suppress(OSError):
                path.write_text(nodeid, encoding="utf-8")
        try:
            yield
        finally:
            if path is not None:
                with contextlib.suppress(OSError):
                    path.write_text("", encoding="utf-8")

    def close(self) -> None:
        """The session ends, and did not die."""
        if "_marker" in vars(self) and self._marker is not None:
            with contextlib.suppress(OSError):
                self._marker.unlink(missing_ok=True)

    @cached_property
    def _failed(self) -> frozenset[str]:
        if not hasattr(self._config, "cache"):
            return frozenset()
        return frozenset(self._config.cache.get("cache/lastfailed", None) or ())

    @cached_property
    def _names(self) -> frozenset[str]:
        """The files that were there when the session began, those of dead sessions read in."""
        folder = self._folder(APART)
        if folder is None:
            return frozenset()
        self._bury()
        return frozenset(os.listdir(folder))

    @cached_property
    def _marker(self) -> Path | None:
        folder = self._folder(RUNNING)
        return None if folder is None else folder / f"{os.getpid()}-{platform.node()}"

    def _bury(self) -> None:
        """Remember what was running when earlier sessions on this machine died."""
        folder = self._folder(RUNNING)
        for path in [] if folder is None else sorted(folder.iterdir()):
            pid, _, machine = path.name.partition("-")
            if machine != platform.node() or not pid.isdigit() or _lives(int(pid)):
                continue
            with contextlib.suppress(OSError):  # another process may be at it
                nodeid = path.read_text(encoding="utf-8")
                path.unlink()
                where = self._path(nodeid)
                if nodeid and where is not None:
                    reason = "an earlier session died while it ran"
                    text = json.dumps({"test": nodeid, "reason": reason})
                    where.write_text(text, encoding="utf-8")

    def _path(self, key: str) -> Path | None:
        folder = self._folder(APART)
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return None if folder is None else folder / f"{name}.json"

    def _folder(self, name: str) -> Path | None:
        if not hasattr(self._config, "cache"):  # -p no:cacheprovider
            return None
        try:
            return self._config.cache.mkdir(name)
        except OSError:
            return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
