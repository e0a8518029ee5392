"""pytest-pallas: find the bugs of JAX Pallas kernels before the hardware does.

The public names are listed in ``__init__.pyi`` and nowhere else. They are imported when they are
first used, so that ``import pytest_pallas`` imports neither jax nor numpy nor hypothesis.

PYTEST_DONT_REWRITE, and see ``_CompiledModules``.
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pytest_pallas._version import __version__ as __version__


def _public_names() -> dict[str, str]:
    """The public names and the modules that they are imported from, as ``__init__.pyi`` has them.

    It is what ``lazy_loader.attach_stub`` of scientific-python does.
    """
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


_MODULES = _public_names()

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


class _CompiledModules:
    """Finds the modules of this package with the bytecode that the installer compiled.

    pytest rewrites the assertions of every module of a distribution that has an entry point
    ``pytest11``. It compiles each of them again and ignores the bytecode beside it. No module of
    this package has an assertion for users, and 500 of them take seconds.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module of this package as Python does without pytest."""
        return PathFinder.find_spec(name, path, target) if name.startswith(f"{__name__}.") else None


_loader: Any = __spec__.loader
if _loader in sys.meta_path:  # pytest's hook, which finds and loads what it rewrites
    sys.meta_path.insert(sys.meta_path.index(_loader), _CompiledModules)


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] == __name__:  # a module of this package
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
