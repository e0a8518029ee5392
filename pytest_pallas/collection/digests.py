"""Digests of the files of a suite, by which runs on several machines are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_pallas.collection.discovery import locate
from pytest_pallas.session import PytestSession


def set_digests(state: PytestSession, tests: Sequence[str] = ()) -> None:
    """Set the digests of a session with these tests, once: files may change while tests run."""
    if state.suite_digests or state.file_digests:
        return
    modules, directory = state.options.suite, state.config.invocation_params.dir
    state.suite_digests = suite_digests(modules, directory)
    state.file_digests = file_digests(modules, directory, tests, state.config.rootpath)


def suite_digests(modules: Sequence[str], directory: Path) -> dict[str, str]:
    """A digest of the Python files of each module of ``--pallas-suite``; "" for a missing one.

    Args:
      modules: importable names of packages or modules.
      directory: the folder in which pytest started.
    """
    return {module: _digest(module, directory) for module in modules}


def file_digests(
    modules: Sequence[str], directory: Path, tests: Sequence[str], root: Path
) -> dict[str, str]:
    """A digest of each Python file that a run is about, by its path.

    These are the files of suites, the files of tests, and the ``conftest.py`` of their folders.
    Other modules that tests import are not known here.

    Args:
      modules: as in ``suite_digests``.
      directory: likewise.
      tests: node ids of the tests.
      root: pytest's root folder, to which node ids are relative.
    """
    found = {name: file for module in modules for name, file in _files(module, directory)}
    for name in dict.fromkeys(test.partition("::")[0] for test in tests):
        file = root / name
        found.setdefault(name, file)
        for folder in file.relative_to(root).parents if file.is_relative_to(root) else ():
            conftest = folder / "conftest.py"
            found.setdefault(conftest.as_posix(), root / conftest)
    return {
        name: hashlib.sha256(found[name].read_bytes()).hexdigest()[:16]
        for name in sorted(found)
        if found[name].is_file()
    }


def _digest(module: str, directory: Path) -> str:
    digest = hashlib.sha256()
    found = False
    for name, file in _files(module, directory):
        found = True
        digest.update(f"{name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16] if found else ""


def _files(module: str, directory: Path) -> Iterator[tuple[str, Path]]:
    """The files of a module, each with its path as it is on every machine."""
    try:
        places = locate(module, directory).paths
    except pytest.UsageError:
        return  # the run has said so
    for place in places:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield file.relative_to(place.parent).as_posix(), file
