"""Which items ``--pallas-replay`` leaves, and which worker of pytest-xdist runs which."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pytest_pallas.session import current, variant_of

if TYPE_CHECKING:
    from pytest_pallas.goldens.example import Example


def keep_replayed(config: pytest.Config, items: list[pytest.Item], example: Example) -> None:
    """Deselect all items but those that ask what an example asks.

    Raises:
      pytest.UsageError: there is none.
    """
    kept = [item for item in items if _asks(item, example)]
    same = [item for item in kept if hasattr(item, "spec") or variant_of(item) == example.variant]
    kept = same or kept[:1]  # parameters may have other names by now; the call is that of the file
    if not kept:
        where = example.test or f"the specs of {', '.join(example.suite) or 'this run'}"
        raise pytest.UsageError(
            f"--pallas-replay: nothing that was collected asks {example.check} of "
            f"{example.kernel} on a backend of this run; it failed in {where} on "
            f"{example.backend}. Say where it is by --pallas-suite or a path, and where to run it "
            "by --pallas-backend"
        )
    left = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = kept


def _asks(item: Any, example: Example) -> bool:
    spec = getattr(item, "spec", None)
    if spec is None:
        return bool(example.test) and item.nodeid.partition("[")[0] == example.test
    if example.test or not hasattr(item, "check"):
        return False
    asked = (spec.name, item.check.name, dict(item.mesh))
    return asked == (example.kernel, example.check, dict(example.mesh))


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
