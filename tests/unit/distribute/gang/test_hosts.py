"""The keys and values of several hosts."""

import http.client
import socket
import threading
import time
import xmlrpc.client

import pytest

from pytest_pallas import GangError
from pytest_pallas.compat.distributed import Place
from pytest_pallas.distribute.gang import hosts
from pytest_pallas.distribute.gang.hosts import RemoteStore, ServedStore, free_port


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


def test_a_host_waits_for_a_value(stores, monkeypatch):
    """It is told of the value, and asks again only after some time."""
    first, second = stores
    requests = []
    get = first.get

    def late(key, seconds):
        requests.append(seconds)
        if len(requests) == 2:
            threading.Timer(0.01, first.put, ("late", b"value")).start()
        return get(key, seconds)

    monkeypatch.setattr(first, "get", late)
    monkeypatch.setattr(hosts, "_HOLD", 0.01)
    assert second.get("late", 60.0) == b"value"
    assert len(requests) >= 2
    monkeypatch.setattr(hosts, "_HOLD", 60.0)
    requests[:] = [0.0]
    first.values.clear()
    assert second.get("late", 60.0) == b"value"
    assert len(requests) == 2


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


def test_only_the_given_address_is_listened_to():
    port = free_port()
    first = ServedStore(Place(f"127.0.0.1:{port}", 2, 0))
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5.0)
    finally:
        first.close()


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(GangError, match=r"cannot serve the other hosts at 192\.0\.2\.1:1"):
        ServedStore(Place("192.0.2.1:1", 2, 0))
    with pytest.raises(GangError, match=r"cannot serve the other hosts at nowhere\.invalid:1"):
        ServedStore(Place("nowhere.invalid:1", 2, 0))


def post(store, body=b"", **headers):
    """The status of a request to the server of a store."""
    port = store._server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    connection.request("POST", "/RPC2", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_without_the_secret_nothing_is_read_or_written(stores):
    first, second = stores
    call = xmlrpc.client.dumps((1, "a", xmlrpc.client.Binary(b"evil")), "put").encode()
    for header in (
        {},
        {"Authorization": ""},
        {"Authorization": "guess"},
        {"Authorization": "\xe9"},
    ):
        assert post(first, call, **header) == 403
    assert first.get("a", 0.0) is None
    second.put("a", b"right")
    assert first.get("a", 0.0) == b"right"


def test_a_request_of_any_size_is_not_read(stores):
    first, _ = stores
    secret = {"Authorization": first._server.secret}
    for length in ("1" + "0" * 12, "-1", "x", "\u0663"):
        with socket.create_connection(first._server.server_address[:2], timeout=10.0) as made:
            lines = [f"{name}: {value}" for name, value in secret.items()]
            head = "\r\n".join(["POST /RPC2 HTTP/1.1", *lines, f"Content-Length: {length}", "", ""])
            made.sendall(head.encode())
            assert b" 403 " in made.recv(100)


def test_a_host_whose_answer_was_lost_is_admitted_again(stores, monkeypatch):
    """With the token of its first request, which no other host has."""
    first, second = stores
    server = first._server
    server._admitted.clear()
    answers = iter([False, True])
    answer = server.RequestHandlerClass.end_headers

    def lost(handler):
        if not next(answers, True):
            raise ConnectionResetError
        answer(handler)

    monkeypatch.setattr(server.RequestHandlerClass, "end_headers", lost)
    monkeypatch.setattr(server, "handle_error", lambda *_: None)
    address = f"127.0.0.1:{server.server_address[1]}"
    again = RemoteStore(Place(address, 2, 1), 30.0)
    again.put("a", b"right")
    assert second.get("a", 0.0) == b"right"
    assert server.admit("/join/1", "127.0.0.1")[0] == 403


def test_a_refusal_is_not_asked_for_again(stores):
    first, _ = stores
    address = f"127.0.0.1:{first._server.server_address[1]}"
    started = time.monotonic()
    with pytest.raises(GangError, match="host 1 of 2 is refused by host 0"):
        RemoteStore(Place(address, 2, 1), 60.0)
    assert time.monotonic() - started < 30


def test_each_host_gets_the_secret_once(stores):
    first, _ = stores
    address = f"127.0.0.1:{first._server.server_address[1]}"
    with pytest.raises(GangError, match=r"host 1 of 2 .* \(127.0.0.1 has joined as host 1\)"):
        RemoteStore(Place(address, 2, 1), 0.1)
    for number in (0, 2, -1, "x", "1/..", "1" * 5000):
        with pytest.raises(GangError, match="no such host"):
            RemoteStore(Place(address, 2, number), 0.1)
