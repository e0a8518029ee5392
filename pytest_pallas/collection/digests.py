"""Digests of the files of a suite, by which runs on several machines are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_pallas.collection.discovery import locate


def suite_digests(modules: Sequence[str], directory: Path) -> dict[str, str]:
    """A digest of the Python files of each module of ``--pallas-suite``; "" for a missing one.

    Args:
      modules: importable names of packages or modules.
      directory: the folder in which pytest started.
    """
    return {module: _digest(module, directory) for module in modules}


def _digest(module: str, directory: Path) -> str:
    try:
        places = locate(module, directory).paths
    except pytest.UsageError:
        return ""  # the run has said so
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{file.relative_to(place.parent).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
