"""Find the files of a package that may have specs, and the specs of a file.

A spec is in the module of its kernel, ``matmul.py``, or beside it, in ``matmul_spec.py``, so that
the kernel can be imported and copied without the plugin. The name of the kernel's module selects
both.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pytest_pallas.errors import SpecError
from pytest_pallas.spec import KernelSpec


@dataclass(frozen=True)
class Location:
    """The location of a package or module of a suite.

    Attributes:
      module: its importable name.
      path: its folder if it is a package, else its file.
      beside: the file ``<name>_spec.py`` that stands beside it, if there is one.
    """

    module: str
    path: Path
    beside: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths that pytest collects."""
        return (self.path,) if self.beside is None else (self.path, self.beside)

    def holds(self, module: str) -> bool:
        """Whether a module is this one, a submodule, or the spec module beside it."""
        return f"{module}.".startswith(f"{self.module}.") or (
            self.beside is not None and module == beside(self.module)
        )

    def module_of(self, file: Path) -> str | None:
        """The importable name of a Python file at this location, or None."""
        if file == self.path:
            return self.module
        if file == self.beside:
            return beside(self.module)
        if file.suffix != ".py" or not self.path.is_dir() or self.path not in file.parents:
            return None
        parts = file.relative_to(self.path).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        return ".".join((self.module, *parts))


def beside(module: str) -> str:
    """The name of the spec module beside a module."""
    return f"{module}_spec"


def spec_file_of(path: Path) -> Path | None:
    """The spec file beside a module's file or a package's folder, if there is one."""
    file = path.with_name(f"{beside(path.stem)}.py")
    return file if file.is_file() else None


def locate(module: str, directory: Path) -> Location:
    """Find a package or module by its importable name.

    Args:
      module: the name.
      directory: the folder in which pytest started; it is searched last.

    Raises:
      pytest.UsageError: there is no such module, or it fails to import.
    """
    found = _find(module)
    if found is None and str(directory) not in sys.path:
        sys.path.append(str(directory))
        found = _find(module)
    if found is None:
        remedy = "install the package, or add its folder to the pythonpath ini value"
        if module.partition(".")[0] == "reference_kernels":
            remedy = "pip install pytest-pallas-kernels, or run pytest in a checkout"
        raise pytest.UsageError(
            f"--pallas-suite: no module named {module!r}. It must be importable: {remedy}."
        )
    if found.submodule_search_locations:
        path = Path(next(iter(found.submodule_search_locations))).resolve()
    elif found.origin is None:
        raise pytest.UsageError(f"--pallas-suite: module {module!r} has no source file")
    else:
        path = Path(found.origin).resolve()
    return Location(module, path, spec_file_of(path))


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    except Exception as error:
        raise pytest.UsageError(
            f"--pallas-suite: importing {module!r} raised {type(error).__name__}: {error}"
        ) from error


def modules_of(module: str) -> Iterator[str]:
    """The names of a module, of its submodules, and of the spec module beside it.

    The module is imported when the second name is read.
    """
    yield module
    loaded = sys.modules.get(module)  # a module whose import failed has no submodules
    for each in pkgutil.walk_packages(getattr(loaded, "__path__", []), f"{module}."):
        yield each.name
    if _find(beside(module)) is not None:
        yield beside(module)


def specs_in(module: str) -> list[KernelSpec]:
    """The specs that a module defines, in the order of definition; not those that it imports.

    Raises:
      SpecError: a spec is wrong, or two have one name.
    """
    loaded = importlib.import_module(module)
    file = str(getattr(loaded, "__file__", ""))
    found: dict[int, KernelSpec] = {}
    for value in vars(loaded).values():
        for spec in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(spec, KernelSpec) and spec.file == file:
                found[id(spec)] = spec
    names = [spec.name for spec in found.values()]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{file} defines two specs with the name {name!r}")
    return list(found.values())
