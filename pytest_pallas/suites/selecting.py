"""Which items ``--pallas-replay`` leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_pallas.session import variant_of

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
