"""Workers that are lost are reported, whenever that happens."""

from __future__ import annotations

import pytest

from pytest_pallas.distribute.fleet.cluster import CLOSED, Ended, WorkerInfo, Workers
from pytest_pallas.distribute.messages import Answer
from pytest_pallas.isolate.messages import encoded
from pytest_pallas.pytest_session import FleetFacts


class FakeCluster:
    """Knows the workers that a test says."""

    def __init__(self):
        self.known = ()

    def workers(self):
        return {
            address: WorkerInfo(address=address, threads=1, silence=0.0) for address in self.known
        }

    def cancel(self, keys):
        pass

    def call(self, key, function, *args, addresses):
        pass


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def facts():
    return FleetFacts(place="local:1", processes=1)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def workers(cluster, facts, lines):
    return Workers(cluster, facts, setup=b"", say=lines.append, silence=30.0)


def test_a_worker_that_runs_a_test_before_it_is_greeted(workers, facts, lines):
    workers.lose("a (process 1 of here)")
    workers.lose("a (process 1 of here)")
    assert facts.lost == {"a (process 1 of here)": CLOSED}
    assert lines == [f"lost worker a (process 1 of here): {CLOSED}"]


def test_a_worker_that_has_left_is_lost_once(workers, cluster, facts, lines):
    cluster.known = ("a",)
    list(workers.look())
    [key] = workers.greetings
    workers.greeted(key, Ended(key=key, answer=encoded(Answer(worker="a (process 1 of here)"))))
    cluster.known = ()
    list(workers.look())
    workers.lose("a (process 1 of here)")
    assert facts.lost == {"a (process 1 of here)": CLOSED}
    assert lines == [f"lost worker a (process 1 of here): {CLOSED}"]
