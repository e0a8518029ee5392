"""The values of ``--pallas-fleet``, and runs that exclude it."""

from __future__ import annotations

import importlib.util
import socket
import time
from types import SimpleNamespace

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.distribute.fleet import cluster
from pytest_pallas.distribute.fleet.cluster import DaskCluster
from pytest_pallas.options import FleetPlace, fleet


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("local:3", FleetPlace(workers=3)),
        ("tcp://10.0.0.1:8786", FleetPlace(address="tcp://10.0.0.1:8786")),
        ("scheduler:8786", FleetPlace(address="tcp://scheduler:8786")),
        ("tls://[::1]:8786", FleetPlace(address="tls://[::1]:8786")),
        ("", None),
    ],
)
def test_values(text, location):
    assert fleet(text) == location


@pytest.mark.parametrize(
    "text", ["local", "local:0", "local:x", "host", "host:0", "host:70000", "http://host:80", ":1"]
)
def test_wrong_values(text):
    with pytest.raises(OptionError, match="must be local:N for N worker processes"):
        fleet(text)


@pytest.mark.parametrize("listens", [False, True])
def test_nobody_answers(listens, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        location = FleetPlace(address=f"tcp://127.0.0.1:{server.getsockname()[1]}")
        begin = time.monotonic()
        with pytest.raises(
            OptionError, match=r"no Dask scheduler can be reached there within 0\.5 s"
        ):
            DaskCluster(location)
        assert time.monotonic() - begin < 5


def test_a_scheduler_that_stops_is_lost(monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.1)
    made = object.__new__(DaskCluster)
    made._client = SimpleNamespace(processing=lambda: time.sleep(2))
    with pytest.raises(cluster.ClusterLostError, match=r"it does not answer within 0\.1 s"):
        made.tasks()


def test_distributed_is_not_installed(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "distributed" else find(name)
    )
    with pytest.raises(OptionError, match=r"pip install 'pytest-pallas\[fleet\]'"):
        DaskCluster(FleetPlace(workers=1))
