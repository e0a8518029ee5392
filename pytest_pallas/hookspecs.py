"""Hooks by which a project extends the plugin. Implement them in a conftest.py or a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_pallas.backends.protocol import Backend
    from pytest_pallas.backends.registry import Family
    from pytest_pallas.checks import Check
    from pytest_pallas.judge.tolerance import Tolerance
    from pytest_pallas.mutate import Operator
    from pytest_pallas.record import Record
    from pytest_pallas.report.section import Section
    from pytest_pallas.spec import KernelSpec


@pytest.hookspec
def pytest_pallas_backends(config: pytest.Config) -> Sequence[Family]:  # pyright: ignore[reportReturnType]
    """Return backends of your own. A family replaces the built-in one of the same name."""


@pytest.hookspec
def pytest_pallas_checks(config: pytest.Config) -> Sequence[Check]:  # pyright: ignore[reportReturnType]
    """Return checks of your own, which run on every spec that they apply to."""


@pytest.hookspec
def pytest_pallas_mutation_operators(config: pytest.Config) -> Sequence[Operator]:  # pyright: ignore[reportReturnType]
    """Return mutation operators of your own, which ``--pallas-mutate`` uses in addition.

    It is called only if kernels are mutated: import ``pytest_pallas.mutate`` in it.
    """


@pytest.hookspec
def pytest_pallas_report_sections(config: pytest.Config) -> Sequence[Section]:  # pyright: ignore[reportReturnType]
    """Return sections of your own, which follow the others in the terminal and the HTML page.

    It is called in the reporting process: the controller, under xdist.
    """


@pytest.hookspec
def pytest_pallas_specs(config: pytest.Config) -> Sequence[KernelSpec]:  # pyright: ignore[reportReturnType]
    """Return specs to verify in this run, besides those of ``--pallas-suite``."""


@pytest.hookspec(firstresult=True)
def pytest_pallas_tolerance(
    config: pytest.Config, kernel: str, check: str, backend: Backend, dtypes: Sequence[str]
) -> Tolerance | None:
    """Return the tolerance for a kernel on a backend, or None for the next hook.

    It is called if neither a mark, the call nor the spec gives a tolerance. ``dtypes`` are those of
    the array arguments, in order. The first result that is not None is used.
    """


@pytest.hookspec
def pytest_pallas_record(config: pytest.Config, record: Record) -> None:
    """Called for every record, in the reporting process (the controller, under xdist).

    With ``--pallas-resume`` also for the records of tests that were done before.
    """
