"""The tasks of a fleet: tests, with what a worker must know to run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_pallas.fleet.ledger import Sent
from pytest_pallas.fleet.messages import Task, TestRequest
from pytest_pallas.session import PytestSession


def task_of(
    key: str,
    sent: Sent,
    *,
    state: PytestSession,
    items: Mapping[str, Any],
    seconds: Mapping[str, float],
    failures: int,
) -> Task:
    """The task with this key.

    Args:
      key: its name.
      sent: its tests.
      state: the session.
      items: the tests of the run, by node id.
      seconds: how long tests may take, as ``time_shares``.
      failures: number of tests that have failed.
    """
    places = {getattr(items[nodeid], "place", "") for nodeid in sent.nodeids}
    most = state.config.option.maxfail
    return Task(
        key=key,
        tests=[
            _request(state, items[nodeid], sent, seconds.get(nodeid)) for nodeid in sent.nodeids
        ],
        raised={place: each for place, each in state.raised.items() if place in places},
        changes=sent.group.changes,
        most=max(most - failures, 1) if most else 0,
    )


def _request(state: PytestSession, item: Any, sent: Sent, seconds: float | None) -> TestRequest:
    path, root = item.path, state.config.rootpath
    inside = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    options = state.options_for(item)
    if sent.part is not None and sent.group.parts is not None:
        seconds = sent.group.parts.left
    elif seconds is not None:
        seconds = min(seconds, options.fuzz_time or options.mutate_time)
    return TestRequest(
        nodeid=item.nodeid,
        path=inside if path.is_file() else None,
        timeout=options.timeout,
        seconds=seconds,
        mutates=options.mutate is not None,
        part=sent.part,
    )
