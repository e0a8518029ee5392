"""Specs as tests: found in packages, by a hook, or by one line in a test module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_pallas.collection.discovery import modules_of, specs_in
from pytest_pallas.errors import SpecError
from pytest_pallas.spec import KernelSpec


@dataclass(frozen=True)
class Suite:
    """Specs to verify, in a test module; see ``suite``."""

    sources: tuple[KernelSpec | str, ...]

    def specs(self) -> Iterator[KernelSpec | SpecError]:
        """The specs, with errors for those that cannot be loaded. Imports the named modules."""
        for source in self.sources:
            if isinstance(source, KernelSpec):
                yield source
                continue
            for name in modules_of(source):
                try:
                    yield from specs_in(name)
                except SpecError as error:
                    yield error
                except Exception as error:
                    yield SpecError(
                        f"suite({source!r}): importing {name!r} raised "
                        f"{type(error).__name__}: {error}"
                    )


def suite(*sources: KernelSpec | str) -> Suite:
    """Make every check of some specs a test of the module that this is assigned in.

    ::

        from pytest_pallas import suite
        from mykernels.matmul_spec import SPEC

        test_kernels = suite(SPEC)      # or suite("mykernels"), the whole package

    Args:
      *sources: specs, and names of packages or modules with specs, in the module or in
        ``<module>_spec.py`` beside it.

    Raises:
      SpecError: a source is neither a spec nor a name.
    """
    for source in sources:
        if not isinstance(source, (KernelSpec, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"suite() takes specs and names of modules, not {source!r}")
    return Suite(sources)


__all__ = ["Suite", "suite"]
