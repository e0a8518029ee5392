"""The pytest plugin that every run of pytest loads: options, marks and fixtures.

Most runs test no kernel, so the rest is in ``active``, which is imported with the first option,
mark, fixture, suite or hook of the plugin in a session.

PYTEST_DONT_REWRITE: ``-p pytest_pallas.plugin`` asks for it.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from pallas_sim import set_platforms
from pytest_pallas import hookspecs
from pytest_pallas.backends.devices import simulate
from pytest_pallas.fixtures import (
    activate,
    pallas_backend,
    pallas_benchmark,
    pallas_check,
    pallas_compile,
    pallas_devices,
    pallas_mesh,
    pallas_rng,
    pallas_run,
    pallas_verify,
)
from pytest_pallas.options import DOCTOR_FIELD, Options, add_options, any_given

__all__ = [
    "pallas_backend",
    "pallas_benchmark",
    "pallas_check",
    "pallas_compile",
    "pallas_devices",
    "pallas_mesh",
    "pallas_rng",
    "pallas_run",
    "pallas_verify",
]

#: ``devices.pinning.ANNOUNCED``, without importing that.
_ANNOUNCED = "PYTEST_PALLAS_WORKER_DEVICES"

_MARKS = (
    "pallas(backends=..., targets=..., reason=..., max_examples=N, growth=N, seed=N, checks=..., "
    "sanitize=..., arithmetic=..., read_fences=..., schedules=N, witness=..., timeout=SECONDS, "
    "isolate=..., shrink_time=SECONDS, missing=...): run this test on these backends or chips, "
    "instead of those of the command line; the other arguments set the option of the same name for "
    "this test",
    "pallas_mesh(x=4): the mesh that the fixture pallas_mesh() returns in this test; skips the "
    "test if there are too few devices",
    "pallas_tolerance(tolerance, *, rtol=, atol=, ulp=, fraction=, factor=, floor=, backend=, "
    "dtype=): tolerance of this test, for one backend or dtype if given; tolerance stands for what "
    "tolerance= takes, such as 1e-3",
    "pallas_xfail(backend, *, reason, strict=True): this test is expected to fail on this backend "
    "(NAME or NAME:TARGET); with strict=True, a pass is a failure",
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """In a worker of pytest-xdist, see one accelerator, before a conftest.py can import JAX."""
    if _ANNOUNCED in os.environ:
        from pytest_pallas.backends.devices import pin

        pin(os.environ)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options and their ini values."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks that projects implement."""
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Report on the machine in place of a test run."""
    if not config.getoption(DOCTOR_FIELD):
        return None
    from pytest_pallas.doctor import run

    return run(config)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set devices before anything can start JAX; the rest only if the run uses the plugin."""
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    set_platforms()
    if any_given(config) or _is_part_of_a_run(config) or _extended(config):
        activate(config)
    else:
        simulate(Options.devices, os.environ, explicit=False)


def _is_part_of_a_run(config: pytest.Config) -> bool:
    """Return whether this is an xdist controller or worker."""
    distributed = getattr(config.option, "dist", "no") != "no"  # of pytest-xdist
    return distributed or config.pluginmanager.has_plugin("pallas-worker")


def _extended(config: pytest.Config) -> bool:
    """Return whether a project implements a hook of the plugin."""
    names = (name for name in vars(hookspecs) if name.startswith("pytest_pallas_"))
    return any(getattr(config.hook, name).get_hookimpls() for name in names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that uses the fixture ``pallas_backend`` over backends."""
    if any(name in __all__ for name in metafunc.fixturenames):
        activate(metafunc.config)
    if "pallas_backend" in metafunc.fixturenames:
        from pytest_pallas.run.parametrize import over_backends

        over_backends(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Apply marks; in tests that use the fixtures, seed Hypothesis and remove its deadline."""
    fixtures = getattr(item, "fixturenames", ())
    names = (*fixtures, *(mark.name for mark in item.iter_markers()))
    if any(name.startswith("pallas") for name in names):
        activate(item.config)
    uses = "pallas_backend" in fixtures
    if uses or hasattr(item, "spec"):
        from pytest_pallas.run.parametrize import apply_marks, seed_given_test

        apply_marks(item)
        if uses:
            seed_given_test(item)
    elif item.config.pluginmanager.has_plugin("pallas-active"):
        from pytest_pallas.run.parametrize import limit_examples

        limit_examples(item)


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Any:
    """Collect ``test_kernels = suite(...)`` in a test module."""
    if type(obj).__name__ != "Suite":
        return None  # without imports for other objects
    activate(collector.config)
    from pytest_pallas.run.collection import collect_suite

    return collect_suite(collector, name, obj)
