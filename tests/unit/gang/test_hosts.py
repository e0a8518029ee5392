"""The keys and values of several hosts."""

import threading

import pytest

from pytest_pallas.compat.distributed import Place
from pytest_pallas.errors import GangError
from pytest_pallas.gang import hosts
from pytest_pallas.gang.hosts import RemoteStore, ServedStore
from pytest_pallas.gang.layout import free_port


@pytest.fixture
def stores():
    """The store of host 0, and that of host 1."""
    address = f"127.0.0.1:{free_port()}"
    first = ServedStore(Place(address, 2, 0))
    second = RemoteStore(Place(address, 2, 1), 5.0)
    yield first, second
    second.close()
    first.close()


def test_values_of_any_bytes_reach_the_other_host(stores):
    first, second = stores
    value = bytes(range(256)) * 4096
    second.put("a/1", value)
    assert first.get("a/1", 0.0) == value
    first.put("a/0", b"zero")
    assert second.get("a/0", 0.0) == b"zero"
    assert second.get("b", 0.0) is None
    assert sorted(second.keys("a/")) == ["a/0", "a/1"]


def test_a_host_waits_for_a_value(stores):
    first, second = stores
    timer = threading.Timer(0.2, first.put, ("late", b"value"))
    timer.start()
    assert second.get("late", 5.0) == b"value"


def test_a_silent_host_is_not_live(stores, monkeypatch):
    first, second = stores
    assert list(first.live()) == [0, 1]
    assert list(second.live()) == [0, 1]
    monkeypatch.setattr(hosts, "SILENCE", 0.0)
    assert list(first.live()) == [0]


def test_host_0_that_has_gone_is_named():
    address = f"127.0.0.1:{free_port()}"
    first = ServedStore(Place(address, 2, 0))
    second = RemoteStore(Place(address, 2, 1), 5.0)
    first.seen.clear()
    first.close()
    with pytest.raises(GangError, match=f"host 0 at {address} has gone"):
        second.put("key", b"")


def test_host_0_that_never_comes_is_named():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(GangError, match=f"host 3 of 4 cannot reach host 0 at {address} within 0.1"):
        RemoteStore(Place(address, 4, 3), 0.1)
