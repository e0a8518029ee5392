"""Compile results on disk: one small JSON file each, named by all that decides the result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Version of the files. It is part of their names' hash: another version is another file.
FORMAT = 1


class Cache:
    """A folder of results. A damaged or foreign file is as good as none, and is rewritten."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, which is made when something is written."""
        self.folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """What was put under ``key``, or None."""
        try:
            plain = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # UnicodeDecodeError is a ValueError
            return None
        if not isinstance(plain, dict) or plain.pop("key", None) != key:  # pyright: ignore[reportUnknownMemberType]
            return None
        return plain  # pyright: ignore[reportUnknownVariableType]

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value of plain JSON. Without effect where the folder cannot be written."""
        with contextlib.suppress(OSError):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            # In one step: other processes read while this one writes.
            handle, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"key": key, **value}, file)
            Path(temporary).replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def digest(parts: Iterable[str | bytes]) -> str:
    """A key for what the parts say, in this order."""
    hashed = hashlib.blake2b(str(FORMAT).encode(), digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8))
        hashed.update(data)
    return hashed.hexdigest()
