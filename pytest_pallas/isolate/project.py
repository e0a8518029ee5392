"""Whether two processes have the same project: versions, and digests of files."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

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
        """Return its path, as messages name it."""
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
    """Something that a process has in another version, or not at all.

    Attributes:
      name: of a package, or the path of a file.
      own: version or digest that it has; "" if it has none.
      expected: that of the process that asks.
    """

    name: str
    own: str
    expected: str
    is_file: bool = False

    def __str__(self) -> str:
        """Describe it."""
        if not self.own:
            return f"{self.name} is missing"
        if self.is_file:
            return f"{self.name} has another content"
        return f"{self.name} is {self.own}, here {self.expected}"


def versions() -> dict[str, str]:
    """Return the versions of this process, by name; "" for a package that is not installed."""
    numbers = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        try:
            numbers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            numbers[name] = ""
    return numbers


def project_of(
    root: Path, files: Iterable[Path], suites: Iterable[tuple[str, Sequence[Path]]]
) -> Project:
    """Describe the project of a session after its collection.

    Its files are those of the suites, and what the collection has imported from pytest's root
    folder: test modules, conftest.py, and the modules that they import.

    Args:
      root: pytest's root folder.
      files: those of the collected tests, and of all plugins.
      suites: the importable name of each suite, and its files and folders.
    """
    imported = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    sources = [Path(file) for file in imported if isinstance(file, str) and file.endswith(".py")]
    digests: dict[tuple[str, str], str] = {}
    for file_path in {*files, *sources}:
        if _in_project(file_path, root) and file_path.is_file():
            digests["", file_path.relative_to(root).as_posix()] = digest_of(file_path)
    for module, paths in suites:
        package = module.partition(".")[0]
        folder = _folder_of(package)
        for path in paths:
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                if folder is None or not file.is_relative_to(folder):
                    continue
                name, base = ("", root) if _in_project(file, root) else (package, folder)
                digests[name, file.relative_to(base).as_posix()] = digest_of(file)
    return Project(versions(), [ProjectFile(*key, digests[key]) for key in sorted(digests)])


def differences(project: Project, root: Path) -> list[Difference]:
    """List how this process differs from a project of another one.

    Args:
      project: of the other process.
      root: pytest's root folder here.
    """
    own = versions()
    differing = [
        Difference(name, own.get(name, ""), expected)
        for name, expected in project.versions.items()
        if own.get(name, "") != expected
    ]
    for file in project.files:
        folder = root if not file.package else _folder_of(file.package)
        path = None if folder is None else folder / file.path
        digest = digest_of(path) if path is not None and path.is_file() else ""
        if digest != file.digest:
            differing.append(Difference(str(file), digest, file.digest, is_file=True))
    return differing


def digest_of(path: Path) -> str:
    """Return a digest of a file's content, whatever its line ends."""
    content = path.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(content).hexdigest()[:16]


def _in_project(path: Path, root: Path) -> bool:
    """Return whether a file is in the root folder, and not in an environment in it."""
    return path.is_relative_to(root) and not any(
        part.startswith(".") or part.endswith("-packages") for part in path.relative_to(root).parts
    )


def _folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, or that of a module's file."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    locations = list(spec.submodule_search_locations or ())
    if locations:
        return Path(locations[0]).resolve()
    return None if spec.origin is None else Path(spec.origin).resolve().parent
