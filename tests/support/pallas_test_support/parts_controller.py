"""A plugin that runs divisible items in parts, in an order of chance.

``PARTS=SIZE:SEED`` in the environment: parts of so many rounds or mutants, each run once or twice,
in an order that the seed decides. Their reports travel as JSON. With ``PARTS=SIZE:SEED:worker``
they run in the process for isolated tests, otherwise here. User-written tests run as a whole,
without the kills of those before them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol

from pytest_pallas.distribute.parts import (
    Division,
    credit_kills,
    divisible,
    endless,
    keep_examples,
    merged_reports,
    remaining,
    result_of,
)
from pytest_pallas.isolate.isolator import isolator_of
from pytest_pallas.isolate.messages import WorkerReply, WorkerRequest, decoded, encoded
from pytest_pallas.pytest_session import PART, Part, current
from pytest_pallas.run.item import SpecItem

#: Rounds of an item that only the time ends.
MOST = 6


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run an item in parts, and report it as one."""
    division = None if PART in item.stash else divisible(item)
    if division is None:
        return _alone(item)
    size, seed = map(int, os.environ["PARTS"].split(":")[:2])
    rng = random.Random(seed)
    division = dataclasses.replace(division, size=size)
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    replies = [_run(item, part) for part in _parts(item, division, rng)]
    results = [result for reply in replies if (result := result_of(reply)) is not None]
    reports = merged_reports(cast("SpecItem", item), replies, current(item.config).killed)
    keep_examples(current(item.config), results)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _alone(item: pytest.Item) -> bool | None:
    """Run a test on mutants as another process would."""
    state = current(item.config)
    if PART in item.stash or state.options.mutate is None or isinstance(item, SpecItem):
        return None
    before, state.killed = state.killed, {}
    reports = runtestprotocol(item, log=False, nextitem=None)
    state.killed = before
    credit_kills(item, reports, state.killed)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True


def _parts(item: pytest.Item, division: Division, rng: random.Random) -> Iterator[Part]:
    """All parts, in an order of chance, and some of them twice."""
    known: list[Any] = []  # results; None if a part did not begin
    while True:
        left: list[Part] = []
        for part in remaining(division, known):
            if endless(division) and part.first >= MOST:
                break
            left.append(part)
        if not left:
            return
        left += rng.sample(left, rng.randint(0, min(2, len(left))))
        rng.shuffle(left)
        for part in left:
            yield part
            known.append(LAST[item.nodeid])


#: The last result of each item.
LAST: dict[str, Any] = {}


def _run(item: pytest.Item, part: Part) -> list[dict[str, Any]]:
    """The reports of a part, as another process sends them."""
    worker = os.environ["PARTS"].endswith(":worker")
    reply = json.loads(json.dumps((_in_worker if worker else _here)(item, part)))
    LAST[item.nodeid] = result_of(reply)
    return reply


def _here(item: pytest.Item, part: Part) -> list[dict[str, Any]]:
    item.stash[PART] = part
    current(item.config).results.clear()
    try:
        reports = runtestprotocol(item, log=False, nextitem=None)
    finally:
        del item.stash[PART]
    hook = item.config.hook
    return [hook.pytest_report_to_serializable(config=item.config, report=r) for r in reports]


def _in_worker(item: pytest.Item, part: Part) -> list[dict[str, Any]]:
    isolator: Any = isolator_of(item.config)
    request = WorkerRequest(
        opening=isolator._opening,
        nodeid=item.nodeid,
        path=None,
        timeout=60.0,
        part=part,
    )
    result = isolator._pool.submit(isolator._setup, encoded(request), timeout=120.0).result()
    assert result.status == "done", result
    return list(decoded(WorkerReply, result.value).reports)
