"""Only what this repository's own tests need."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile

import pytest
from pallas_test_support.pinned_xla import pin_xla

pytest_plugins = ["pytester"]

# Where CI is set, hypothesis takes another profile and pytest prints longer summaries. The tests of
# the plugin say what happens where it is not.
for _name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS"):
    os.environ.pop(_name, None)

pin_xla()

# The plugins of hypothesis that other packages bring (trio's, by way of selenium) take a tenth of a
# second in each of the hundreds of processes that the tests start, and no test draws from them.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")

# Without bytecode, pytest compiles the modules of the plugin anew in each of those processes, which
# takes more than half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers of all runs of the tests are forks of the same few processes, also with pytest-xdist.
if "PYTEST_PALLAS_FORKS" not in os.environ:
    _forks = tempfile.TemporaryDirectory(prefix="forks-")
    os.environ["PYTEST_PALLAS_FORKS"] = _forks.name
    atexit.register(_forks.cleanup)

# Plugins that one test runs beside (tests/plugin/imports/test_other_plugins.py). In all other runs
# that tests start they would shuffle, or take time to import.
_OTHERS = ("randomly", "asyncio", "anyio", "rerunfailures", "timeout", "pytest_cov")
WITHOUT_OTHERS = " ".join(f"-p no:{name}" for name in _OTHERS)
os.environ["PYTEST_ADDOPTS"] = WITHOUT_OTHERS


@pytest.fixture(autouse=True)
def _runs_without_other_plugins(request: pytest.FixtureRequest) -> None:
    """The fixture ``pytester`` removes the variable, and restores it when the test ends."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")
        os.environ["PYTEST_ADDOPTS"] = WITHOUT_OTHERS


#: At most one test of so many may be marked slow.
_TESTS_PER_SLOW = 20

#: A run of fewer tests is a folder or a shard, and the share of slow ones says nothing there.
_MANY = 5000


def pytest_addoption(parser: pytest.Parser) -> None:
    """The tier of tests that only CI and a careful author run."""
    parser.addoption(
        "--slow", action="store_true", help="also run the tests marked slow, as CI does"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the slow tests with ``--slow`` only."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    if len(items) > _MANY and len(slow) * _TESTS_PER_SLOW > len(items):
        raise pytest.UsageError(f"{len(slow)} of {len(items)} tests are slow, more than 5 %")
    if slow and not config.getoption("--slow"):
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of each later search for garbage."""
    from pallas_test_support.garbage import freeze

    freeze()


@pytest.fixture(scope="session", autouse=True)
def _kept_programs(request: pytest.FixtureRequest) -> None:
    """Compile no program of XLA's CPU compiler that an earlier run compiled."""
    if (cache := getattr(request.config, "cache", None)) is not None:
        from pallas_test_support.compiled_programs import keep_programs

        keep_programs(cache.mkdir("programs"))


#: A project of its own, which tests copy.
collect_ignore = ["tests/support/newcomer"]
