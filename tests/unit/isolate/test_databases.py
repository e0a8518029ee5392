"""The database of failing examples in a process that runs tests for another one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis.database import InMemoryExampleDatabase

from pytest_pallas.isolate import worker
from pytest_pallas.isolate.messages import WorkerReply, WorkerRequest
from pytest_pallas.isolate.worker import WorkerSession


@pytest.fixture
def session(monkeypatch):
    """A session whose tests save their own name."""
    state = SimpleNamespace(
        database=InMemoryExampleDatabase(), facts={}, killed_earlier={}, options=None
    )
    monkeypatch.setattr(worker, "current", lambda _: state)
    made = object.__new__(WorkerSession)
    made.config, made.state = None, state
    made.alarm = SimpleNamespace(begin=lambda *_: None, stop=lambda: None)
    made._database_apart, made._own_databases = None, ()
    made._item = lambda request: SimpleNamespace(name=request.nodeid, stash={})

    def run_item(item, *_):
        state.database.save(b"key", item.name.encode())
        return WorkerReply()

    made.run_item = run_item
    return made


def test_a_request_without_changes_uses_the_database_of_the_session(session):
    """And its reply has none of those of an earlier request."""
    own = session.state.database

    def run(test, changes):
        return session.run(
            WorkerRequest(opening=b"", nodeid=test, path=None, timeout=1, changes=changes)
        )

    assert len(run("first", ()).changes) == 1
    assert not {*own.fetch(b"key")}
    assert run("second", None).changes == ()
    assert {*own.fetch(b"key")} == {b"second"}
    assert len(run("third", ()).changes) == 1
    assert {*own.fetch(b"key")} == {b"second"}
