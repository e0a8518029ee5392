"""The items that ``--pallas-replay`` selects, and the distribution of items to xdist workers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pytest_pallas.session import current, variant_of

if TYPE_CHECKING:
    from pytest_pallas.goldens.example import Example


def keep_replayed(config: pytest.Config, items: list[pytest.Item], example: Example) -> None:
    """Deselect all items except those of the example's check.

    Raises:
      pytest.UsageError: there is none.
    """
    kept = [item for item in items if _matches(item, example)]
    same = [item for item in kept if hasattr(item, "spec") or variant_of(item) == example.variant]
    kept = same or kept[:1]  # parameters may have been renamed; the call is that of the file
    if not kept:
        suite = ",".join(example.suite)
        where = example.test or f"the specs of {suite or 'its run'}"
        how = (
            f"--pallas-suite={suite}" if suite and not example.test else "--pallas-suite or a path"
        )
        raise pytest.UsageError(
            f"--pallas-replay: no collected test runs {example.check} of {example.kernel} on a "
            f"backend of this run; the example failed in {where} on {example.backend}. Nothing "
            f"that a file names is imported: give its location with {how}, and its backend with "
            "--pallas-backend"
        )
    left = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = kept


def _matches(item: Any, example: Example) -> bool:
    spec = getattr(item, "spec", None)
    if spec is None:
        return bool(example.test) and item.nodeid.partition("[")[0] == example.test
    if example.test or not hasattr(item, "check"):
        return False
    selected = (spec.name, item.check.name, dict(item.mesh))
    return selected == (example.kernel, example.check, dict(example.mesh))


class SpecScheduling(LoadScopeScheduling):
    """Gives all checks of a kernel to one worker: they share draws, traces and runs.

    Everything else is distributed test by test.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid, current(self.config).check_names)


def scope_of(nodeid: str, checks: Collection[str]) -> str:
    """The group of a test: the checks of one kernel, on all backends and meshes.

    Args:
      nodeid: of the test.
      checks: the names of all checks.

    Returns:
      ``file::kernel`` for ``file::kernel-check[backend-mesh]``, and other node ids as they are.
    """
    name = nodeid.partition("[")[0]
    for check in sorted(checks, key=len, reverse=True):
        if name.endswith(f"-{check}"):
            return name.removesuffix(f"-{check}")
    return nodeid


def scheduler_for(config: pytest.Config, log: Any) -> SpecScheduling | None:
    """The scheduler of a session that runs suites, unless ``--dist`` selects another one."""
    suites = current(config).options.suite
    return SpecScheduling(config, log) if suites and config.getvalue("dist") == "load" else None
