"""``--pallas-shard=I/N``: run one of N parts of the collected tests, on a machine each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.collection.selecting import scope_of
from pytest_pallas.options.values import place_of
from pytest_pallas.results import read_results
from pytest_pallas.session import current


@dataclass(frozen=True)
class Group:
    """Tests that share draws and traces, and run on one machine: all checks of a kernel.

    Attributes:
      name: see ``collection.selecting.scope_of``.
      seconds: how long they are expected to take.
    """

    name: str
    seconds: float


def assign(groups: Collection[Group], count: int) -> dict[str, int]:
    """The shard of each group, from 1 to ``count``: always the same for the same groups.

    The longest group goes to the shard that has least to do so far (Graham, "Bounds on
    Multiprocessing Timing Anomalies", 1969: at most 4/3 of the best time).
    """
    loads = [0.0] * count
    found: dict[str, int] = {}
    for group in sorted(groups, key=lambda group: (-group.seconds, group.name)):
        shard = loads.index(min(loads))
        loads[shard] += group.seconds
        found[group.name] = shard + 1
    return found


def expected_groups(
    names: Sequence[str], scopes: Sequence[str], seconds: Mapping[str, float]
) -> list[Group]:
    """The groups of tests.

    Args:
      names: node ids of the tests.
      scopes: the group of each.
      seconds: of an earlier run, by node id. A test that is not there takes the median; without an
        earlier run all take the same.
    """
    usual = median(seconds.values()) if seconds else 1.0
    total: dict[str, float] = {}
    for name, scope in zip(names, scopes, strict=True):
        total[scope] = total.get(scope, 0.0) + seconds.get(name, usual)
    return [Group(scope, spent) for scope, spent in total.items()]


def keep_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other shards.

    Raises:
      pytest.UsageError: the file with the seconds of an earlier run cannot be read.
    """
    state = current(config)
    shard = state.options.shard
    assert shard is not None
    names = [item.nodeid for item in items]
    checks = state.check_names
    scopes = [scope_of(name, checks) for name in names]
    groups = expected_groups(names, scopes, _seconds(config))
    places = assign(groups, shard.count)
    kept = [item for item, scope in zip(items, scopes, strict=True) if places[scope] == shard.index]
    left = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    every = sum(group.seconds for group in groups)
    mine = sum(group.seconds for group in groups if places[group.name] == shard.index)
    state.shard_line = (
        f"shard {shard}: {len(kept)} of {len(items)} tests, "
        f"{mine / every if every else 0:.0%} of the expected time"
    )
    state.empty_shard = bool(items) and not kept
    items[:] = kept
    # Of a kernel without a test the first shard says so.
    for test in list(state.not_applicable):
        if places.get(scope_of(test, checks), 1) != shard.index:
            del state.not_applicable[test]


def _seconds(config: pytest.Config) -> Mapping[str, float]:
    """The seconds of each test in the file of ``--pallas-shard-by``; empty without it."""
    path = current(config).options.shard_by
    if path is None:
        return {}
    try:
        return recorded_seconds(config.invocation_params.dir / path)
    except OptionError as error:
        raise pytest.UsageError(f"{place_of(config, 'shard_by')}: {error}") from None


def recorded_seconds(path: Path) -> Mapping[str, float]:
    """The seconds of each test in a results file.

    Raises:
      OptionError: as ``read_results``.
    """
    found = read_results(path)
    of_records = {record.test: record.seconds for record in found.records}
    return {**of_records, **{test.test: test.seconds for test in found.tests}}
