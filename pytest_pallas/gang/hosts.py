"""What the hosts of a gang tell each other: keys and values, which host 0 keeps.

The coordination service of JAX would serve, too, but it ends a process whose peers do not come,
and the process of pytest has results to report.

Host 0 listens on the address that it was given, and makes a secret. The first that asks as host 1
gets it, and so on; after that, nobody does. Whoever does not send the secret is refused before
anything is read. Nothing is encrypted: see docs/multihost.md.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
import xmlrpc.client
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import shown
from pytest_pallas.errors import GangError

#: Seconds after which a silent host counts as gone.
SILENCE = 30.0

#: The beginning of the keys of hosts that have left, and how long host 0 waits for them.
_LEFT, _LEAVING = "left/", 10.0

#: Seconds between tries to reach host 0, and time limit in seconds for an answer of host 0.
_LOOK, _ANSWER = 0.1, 20.0

#: Limit on the seconds that host 0 waits for a key before it answers another host.
_HOLD = 5.0


class HostStore(Protocol):
    """Keys and values that all hosts see."""

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None if it is not set within so many seconds."""

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys that begin with ``prefix``."""
        ...

    def live(self) -> Sequence[int]:
        """The hosts that were heard of within ``SILENCE`` seconds."""
        ...

    def close(self) -> None:
        """Leave."""


@dataclass
class LocalStore:
    """The store of host 0, which other hosts reach through ``serve``."""

    values: dict[str, bytes] = field(default_factory=dict[str, bytes])
    seen: dict[int, float] = field(default_factory=dict[int, float])
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None if it is not set within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, seconds)
        return self.values.get(key)

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys that begin with ``prefix``."""
        return [key for key in list(self.values) if key.startswith(prefix)]

    def live(self) -> Sequence[int]:
        """Host 0, and the hosts that were heard of within ``SILENCE`` seconds."""
        now = time.monotonic()
        return [0, *(host for host, when in list(self.seen.items()) if now - when < SILENCE)]

    def close(self) -> None:
        """Nothing to do."""


#: Limit on the bytes of a request.
_MOST = 2**28


class _Handler(SimpleXMLRPCRequestHandler):
    """Gives the secret to each host once, and serves those that send it."""

    timeout = _ANSWER
    rpc_paths = ("/RPC2",)

    @property
    def _served(self) -> _Server:
        server: Any = self.server
        return server

    def do_GET(self) -> None:  # noqa: N802 - of http.server
        """Admit a host."""
        status, text = self._served.admit(self.path, self.client_address[0])
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:  # noqa: N802
        """Serve a request with the secret, of limited size."""
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        length = self.headers.get("Content-Length", "")
        right = hmac.compare_digest(given, self._served.secret.encode())
        if not right or not (length.isascii() and length.isdecimal() and int(length) <= _MOST):
            self.close_connection = True
            self.send_error(403)
            return
        super().do_POST()


class _Server(ThreadingMixIn, SimpleXMLRPCServer):
    daemon_threads = True

    def __init__(self, family: int, address: tuple[str, int], hosts: int) -> None:
        """Listen on an address, for a number of hosts."""
        self.address_family = family
        self.secret = secrets.token_urlsafe(32)
        self._admitted: dict[int, str] = {}
        self._lock = threading.Lock()
        self._hosts = hosts
        super().__init__(address, _Handler, logRequests=False, allow_none=True)

    def admit(self, path: str, client: str) -> tuple[int, str]:
        """The answer to the request of a host: a status of HTTP, and the secret or a reason."""
        number = path.removeprefix(_JOIN)
        valid = path.startswith(_JOIN) and number.isascii() and number.isdecimal()
        if not valid or len(number) > 9 or not 0 < int(number) < self._hosts:
            return 404, "no such host"
        with self._lock:
            if (before := self._admitted.get(int(number))) is not None:
                return 403, f"{before} has joined as host {int(number)}"
            self._admitted[int(number)] = client
        return 200, self.secret


#: The path at which a host asks for the secret, and its number.
_JOIN = "/join/"


class ServedStore(LocalStore):
    """The store of host 0, with a thread that serves it."""

    def __init__(self, place: Place, seconds: float = 0.0) -> None:
        """Serve it at the address of a place, and at no other.

        Args:
          place: of host 0.
          seconds: time limit for its name to be known: that of a container comes late.

        Raises:
          GangError: the port is taken, or the address is none of this machine.
        """
        super().__init__()
        self._server = _served(place, seconds)
        answers: dict[str, Any] = {
            "put": self._put,
            "get": self._get,
            "keys": self._keys,
            "live": self._live,
        }
        for name, function in answers.items():
            self._server.register_function(function, name)
        serving = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True)
        serving.start()

    def _put(self, host: int, key: str, value: xmlrpc.client.Binary) -> bool:
        self.seen[host] = time.monotonic()
        self.put(key, value.data)
        return True

    def _get(self, host: int, key: str, seconds: float) -> xmlrpc.client.Binary | None:
        self.seen[host] = time.monotonic()
        value = self.get(key, min(seconds, _HOLD))
        return None if value is None else xmlrpc.client.Binary(value)

    def _keys(self, host: int, prefix: str) -> list[str]:
        self.seen[host] = time.monotonic()
        return list(self.keys(prefix))

    def _live(self, host: int) -> list[int]:
        self.seen[host] = time.monotonic()
        return list(self.live())

    def close(self) -> None:
        """Stop to serve, once the other hosts have read the last values and left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._present(), _LEAVING)
        self._server.shutdown()
        self._server.server_close()

    def _present(self) -> set[int]:
        """The other hosts that live and have not left."""
        left = {int(key.removeprefix(_LEFT)) for key in self.keys(_LEFT)}
        return {*self.live()} - left - {0}


def _served(place: Place, seconds: float) -> _Server:
    """A server at the first of a place's addresses that this machine has.

    Raises:
      GangError: there is none.
    """
    until = time.monotonic() + seconds
    host = place.host.removeprefix("[").removesuffix("]")
    while True:
        try:
            found = socket.getaddrinfo(host, place.port, type=socket.SOCK_STREAM)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise GangError(_not_served(place, error)) from None
            time.sleep(_LOOK)
    problem: OSError | None = None
    for family, *_, address in found:
        try:
            return _Server(family, (str(address[0]), int(address[1])), place.count)
        except OSError as error:
            problem = error
    raise GangError(_not_served(place, problem or OSError("it has no address")))


def _not_served(place: Place, error: OSError) -> str:
    return (
        f"host 0 cannot serve the other hosts at {place.address}: {error.strerror or error}. Give "
        "an address of host 0 by which the others reach it, and a port that is free"
    )


class _Transport(xmlrpc.client.Transport):
    def make_connection(self, host: Any) -> HTTPConnection:
        made = super().make_connection(host)
        made.timeout = _ANSWER
        return made


class RemoteStore:
    """The store of host 0, for another host."""

    def __init__(self, place: Place, seconds: float) -> None:
        """Reach host 0 within some seconds, and get its secret.

        Raises:
          GangError: it cannot be reached, or another host has the number of this one.
        """
        self._host, self._address = place.index, place.address
        until = time.monotonic() + seconds
        while True:
            secret, problem = self._joined()
            if secret:
                break
            if time.monotonic() > until:
                raise GangError(
                    f"host {place.index} of {place.count} cannot reach host 0 at "
                    f"{place.address} within {seconds:g} s ({problem}). Start pytest with the "
                    "same arguments on every host, each with its own number, and open this port"
                )
            time.sleep(_LOOK)
        self._server: Any = xmlrpc.client.ServerProxy(
            f"http://{place.address}/RPC2",
            transport=_Transport(headers=[("Authorization", secret)]),
            allow_none=True,
        )
        self.live()  # from now on, host 0 knows that this one is there

    def _joined(self) -> tuple[str, str]:
        """The secret, or "" and why there is none."""
        connection = HTTPConnection(self._address, timeout=_ANSWER)
        try:
            connection.request("GET", f"{_JOIN}{self._host}")
            answer = connection.getresponse()
            text = answer.read(1000).decode("ascii", "replace")
        except (OSError, HTTPException) as error:
            return "", str(error)
        finally:
            connection.close()
        return (text, "") if answer.status == 200 else ("", shown(text))

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._asked():
            self._server.put(self._host, key, xmlrpc.client.Binary(value))

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None if it is not set within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            with self._asked():
                found = self._server.get(self._host, key, left)
            if isinstance(found, xmlrpc.client.Binary):
                return found.data
            if time.monotonic() >= until:
                return None

    def keys(self, prefix: str) -> Sequence[str]:
        """The keys that begin with ``prefix``."""
        with self._asked():
            return self._server.keys(self._host, prefix)

    def live(self) -> Sequence[int]:
        """The hosts that were heard of within ``SILENCE`` seconds."""
        with self._asked():
            return self._server.live(self._host)

    def close(self) -> None:
        """Leave."""
        with contextlib.suppress(GangError):
            self.put(f"{_LEFT}{self._host}", b"")

    @contextlib.contextmanager
    def _asked(self) -> Generator[None]:
        try:
            yield
        except (OSError, HTTPException, xmlrpc.client.Error) as error:
            raise GangError(f"host 0 at {self._address} has gone ({error})") from None
