"""How long each test may fuzz, or try mutants, on the workers of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_pallas.items.item import SpecItem
from pytest_pallas.items.mutants import MutantsItem
from pytest_pallas.items.time_budget import weights
from pytest_pallas.session import current


def time_shares(
    config: pytest.Config, items: Sequence[pytest.Item], threads: int
) -> Mapping[str, float]:
    """Seconds for each test that has a time limit, on all workers together, by node id.

    All kernels get equal times, of ``--pallas-fuzz-time`` or ``--pallas-mutate-time`` on each of
    the workers. Workers run tests at the same time, so the time that one leaves is lost.

    Args:
      config: of the session.
      items: its tests.
      threads: number of tests that run at a time.
    """
    options = current(config).options
    # Tests that an earlier part of the run has done had their share.
    items = [*current(config).done_items, *items]
    seconds = options.fuzz_time if options.mutate is None else options.mutate_time
    if not seconds:
        return {}
    mutants = [item for item in items if isinstance(item, MutantsItem)]
    shares = weights(items) if options.mutate is None else dict.fromkeys(_ids(mutants), 1.0)
    total = sum(shares.values())
    return {nodeid: threads * seconds * each / total for nodeid, each in shares.items()}


def _ids(items: Sequence[SpecItem]) -> list[str]:
    return [item.nodeid for item in items]
