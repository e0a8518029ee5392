"""A simulated machine for Pallas kernels that compiles nothing.

It evaluates what JAX traced, kernels and everything around them, equation by equation in numpy, and
reports what is wrong with the kernels, whatever they returned. What is public:

- the names in ``__init__.pyi``, to run kernels (``simulate``), to give a primitive its rule
  (``rule``), and to build upon the machine (``evaluate`` and what follows it);
- ``pallas_sim.errors``, what it raises, and ``pallas_sim.findings``, what it reports;
- ``pallas_sim.chips``, the chips it knows, and ``pallas_sim.tracing``, to trace for one of them;
- ``pallas_sim.dtypes``, how JAX converts numbers;
- ``pallas_sim.coverage``, what of a kernel has run;
- ``pallas_sim.traces``, to read what JAX traced.

All other modules may change in any version. Names are imported when they are first used: ``import
pallas_sim`` imports neither jax nor numpy.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any


def _public_names() -> dict[str, str]:
    """Return the public names and the modules that they are imported from."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


_MODULES = _public_names()

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
