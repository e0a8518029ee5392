"""Whether a worker has the same project as the controller: versions, and digests of files."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from pytest_pallas.pytest_session import current
from pytest_pallas.run.collection import locate

#: The distributions that decide what a test computes.
_PACKAGES = ("jax", "jaxlib", "pytest-pallas", "numpy", "ml_dtypes", "hypothesis", "pytest")


@dataclass(frozen=True)
class ProjectFile:
    """A file of a project.

    Attributes:
      package: the importable name of the installed package that it is in; "" for a file in
        pytest's root folder.
      path: seen from the folder of the package, or from the root folder.
      digest: of its content.
    """

    package: str
    path: str
    digest: str

    def __str__(self) -> str:
        """Its path, as messages name it."""
        return f"{self.package}/{self.path}" if self.package else self.path


@dataclass(frozen=True)
class Project:
    """A project on one machine.

    Attributes:
      versions: of Python and the packages that decide what a test computes, by name.
      files: its files.
    """

    versions: Mapping[str, str]
    files: Sequence[ProjectFile]


@dataclass(frozen=True)
class Difference:
    """Something that a worker has in another version, or not at all.

    Attributes:
      name: of a package, or the path of a file.
      own: version or digest that the worker has; "" if it does not have it.
      wanted: that of the controller.
    """

    name: str
    own: str
    wanted: str
    is_file: bool = False

    def __str__(self) -> str:
        """In words."""
        if not self.own:
            return f"{self.name} is missing"
        if self.is_file:
            return f"{self.name} has another content"
        return f"{self.name} is {self.own}, here {self.wanted}"


def versions() -> dict[str, str]:
    """The versions of this process, by name; "" for a package that is not installed."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def project_of(config: pytest.Config, items: Sequence[pytest.Item]) -> Project:
    """The project of a session after its collection.

    Its files are those of the suites, and what the collection has imported from pytest's root
    folder: test modules, conftest.py, and the modules that they import.
    """
    root = config.rootpath
    paths: dict[Path, None] = {}
    for item in items:
        paths[item.path] = None
    for module in (*sys.modules.values(), *config.pluginmanager.get_plugins()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            paths[Path(file)] = None
    found: dict[tuple[str, str], ProjectFile] = {}
    for path in paths:
        if path.is_relative_to(root) and _is_source(path.relative_to(root)) and path.is_file():
            inside = path.relative_to(root).as_posix()
            found["", inside] = ProjectFile("", inside, digest_of(path))
    for module in current(config).options.suite:
        for package, file, base in _suite_files(module, config.invocation_params.dir):
            if not file.is_relative_to(root) or not _is_source(file.relative_to(root)):
                inside = file.relative_to(base).as_posix()
                found[package, inside] = ProjectFile(package, inside, digest_of(file))
            else:
                inside = file.relative_to(root).as_posix()
                found["", inside] = ProjectFile("", inside, digest_of(file))
    return Project(versions(), [found[key] for key in sorted(found)])


def differences(project: Project, root: Path) -> list[Difference]:
    """How this process differs from a project of another one.

    Args:
      project: of the other process.
      root: pytest's root folder here.
    """
    own = versions()
    found = [
        Difference(name, own.get(name, ""), wanted)
        for name, wanted in project.versions.items()
        if own.get(name, "") != wanted
    ]
    for file in project.files:
        folder = root if not file.package else _folder_of(file.package)
        path = None if folder is None else folder / file.path
        digest = digest_of(path) if path is not None and path.is_file() else ""
        if digest != file.digest:
            found.append(Difference(str(file), digest, file.digest, is_file=True))
    return found


def digest_of(path: Path) -> str:
    """A digest of a file's content, whatever its line ends."""
    content = path.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(content).hexdigest()[:16]


def _is_source(inside: Path) -> bool:
    """Whether a file in the root folder belongs to the project, and not to an environment in it."""
    return not any(part.startswith(".") or part.endswith("-packages") for part in inside.parts)


def _suite_files(module: str, directory: Path) -> Iterator[tuple[str, Path, Path]]:
    """The files of a suite: the importable name of their package, and its folder."""
    top = module.partition(".")[0]
    folder = _folder_of(top)
    for place in locate(module, directory).paths:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if folder is not None and file.is_relative_to(folder):
                yield top, file, folder


def _folder_of(package: str) -> Path | None:
    """The folder of an installed package, or that of a module's file."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    places = list(found.submodule_search_locations or ())
    if places:
        return Path(places[0]).resolve()
    return None if found.origin is None else Path(found.origin).resolve().parent
