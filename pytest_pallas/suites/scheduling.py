"""Which worker of pytest-xdist runs which items of a suite."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pytest_pallas.session import current


class SpecScheduling(LoadScopeScheduling):
    """Gives all checks of a kernel to one worker: they share draws, traces, runs and expectations.

    Everything else is distributed test by test.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid, current(self.config).check_names)


def scope_of(nodeid: str, checks: Collection[str]) -> str:
    """What stays together with a test: the checks of one kernel, on all backends and meshes.

    Args:
      nodeid: of the test.
      checks: names of the checks.

    Returns:
      ``file::kernel`` for ``file::kernel-check[backend-mesh]``, and other node ids as they are.
    """
    name = nodeid.partition("[")[0]
    for check in sorted(checks, key=len, reverse=True):
        if name.endswith(f"-{check}"):
            return name.removesuffix(f"-{check}")
    return nodeid


def scheduler_for(config: pytest.Config, log: Any) -> SpecScheduling | None:
    """The scheduler of a session that runs suites, unless ``--dist`` asks for another one."""
    suites = current(config).options.suite
    return SpecScheduling(config, log) if suites and config.getvalue("dist") == "load" else None
