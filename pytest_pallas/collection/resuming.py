"""``--pallas-resume``: the tests that are done are not run again."""

from __future__ import annotations

import pytest

from pytest_pallas.session import PytestSession
from pytest_pallas.session.done import Done


def settle_done(state: PytestSession, done: Done) -> None:
    """Give a process what is done."""
    state.done = done.tests
    state.raised.update(done.raised)
    state.killed.update(done.killed)


def leave_out_done(state: PytestSession, items: list[pytest.Item]) -> None:
    """Remove the tests that are done.

    They are not deselected: they are counted with their results.
    """
    state.done_items = [item for item in items if item.nodeid in state.done]
    items[:] = [item for item in items if item.nodeid not in state.done]
