"""Specs as tests: found in packages, by a hook, or by one line in a test module."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_pallas.spec import KernelSpec
from pytest_pallas.suites.discovery import specs_in


@dataclass(frozen=True)
class Suite:
    """Specs to verify, in a test module; see ``suite``."""

    sources: tuple[KernelSpec | str, ...]

    def specs(self) -> Sequence[KernelSpec]:
        """The specs, importing the modules that were given by name."""
        found: list[KernelSpec] = []
        for source in self.sources:
            if isinstance(source, KernelSpec):
                found.append(source)
                continue
            package = importlib.import_module(source)
            names = [source]
            for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"{source}."):
                names.append(module.name)
            for name in names:
                found += specs_in(name)
        return found


def suite(*sources: KernelSpec | str) -> Suite:
    """Make every check of some specs a test of the module that this is assigned in.

    ::

        from pytest_pallas import suite
        from mykernels import matmul

        test_kernels = suite(matmul.SPEC)       # or suite("mykernels"), the whole package

    Args:
      *sources: specs, and names of packages or modules that define some.
    """
    return Suite(sources)


__all__ = ["Suite", "suite"]
