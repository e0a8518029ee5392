"""What the hosts of a gang tell each other: keys and values, which host 0 keeps.

The coordination service of JAX would serve, too, but it ends a process whose peers do not come,
and the process of pytest has results to report.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import xmlrpc.client
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from xmlrpc.server import SimpleXMLRPCServer

from pytest_pallas.compat.distributed import Place
from pytest_pallas.errors import GangError

#: Seconds after which a silent host counts as gone.
SILENCE = 30.0

#: The beginning of the keys of hosts that have left, and how long host 0 waits for them.
_LEFT, _LEAVING = "left/", 10.0

#: Seconds between looks at a key, and time limit in seconds for an answer of host 0.
_LOOK, _ANSWER = 0.1, 20.0


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

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        self.values[key] = value

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None if it is not set within so many seconds."""
        until = time.monotonic() + seconds
        while key not in self.values and time.monotonic() < until:
            time.sleep(_LOOK)
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


#: Whether one socket listens to both versions of IP.
_BOTH = socket.has_dualstack_ipv6()


class _Server(ThreadingMixIn, SimpleXMLRPCServer):
    daemon_threads = True
    address_family = socket.AF_INET6 if _BOTH else socket.AF_INET

    def server_bind(self) -> None:
        if _BOTH:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class ServedStore(LocalStore):
    """The store of host 0, with a thread that serves it."""

    def __init__(self, place: Place) -> None:
        """Serve it at the port of a place.

        Raises:
          GangError: the port is taken.
        """
        super().__init__()
        try:
            anywhere = "::" if _BOTH else ""
            self._server = _Server((anywhere, place.port), logRequests=False, allow_none=True)
        except OSError as error:
            raise GangError(
                f"host 0 cannot serve the other hosts at {place.address}: {error.strerror}. Give "
                "another port"
            ) from None
        answers: dict[str, Any] = {
            "put": self._put,
            "get": self._get,
            "keys": self._keys,
            "live": self._live,
        }
        for name, function in answers.items():
            self._server.register_function(function, name)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _put(self, host: int, key: str, value: xmlrpc.client.Binary) -> bool:
        self.seen[host] = time.monotonic()
        self.put(key, value.data)
        return True

    def _get(self, host: int, key: str) -> xmlrpc.client.Binary | None:
        self.seen[host] = time.monotonic()
        value = self.values.get(key)
        return None if value is None else xmlrpc.client.Binary(value)

    def _keys(self, host: int, prefix: str) -> list[str]:
        self.seen[host] = time.monotonic()
        return list(self.keys(prefix))

    def _live(self, host: int) -> list[int]:
        self.seen[host] = time.monotonic()
        return list(self.live())

    def close(self) -> None:
        """Stop to serve, once the other hosts have read the last values and left."""
        until = time.monotonic() + _LEAVING
        while self._present() and time.monotonic() < until:
            time.sleep(_LOOK)
        self._server.shutdown()
        self._server.server_close()

    def _present(self) -> set[int]:
        """The other hosts that live and have not left."""
        left = {int(key.removeprefix(_LEFT)) for key in self.keys(_LEFT)}
        return {*self.live()} - left - {0}


class _Transport(xmlrpc.client.Transport):
    def make_connection(self, host: Any) -> HTTPConnection:
        made = super().make_connection(host)
        made.timeout = _ANSWER
        return made


class RemoteStore:
    """The store of host 0, for another host."""

    def __init__(self, place: Place, seconds: float) -> None:
        """Reach host 0 within some seconds.

        Raises:
          GangError: it cannot be reached.
        """
        self._host, self._address = place.index, place.address
        self._server: Any = xmlrpc.client.ServerProxy(
            f"http://{place.address}/RPC2", transport=_Transport(), allow_none=True
        )
        until = time.monotonic() + seconds
        while True:
            try:
                self._server.live(self._host)
            except (OSError, HTTPException) as error:
                if time.monotonic() > until:
                    raise GangError(
                        f"host {place.index} of {place.count} cannot reach host 0 at "
                        f"{place.address} within {seconds:g} s ({error}). Start pytest with the "
                        "same arguments on every host, and open this port"
                    ) from None
                time.sleep(_LOOK)
            else:
                return

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._asked():
            self._server.put(self._host, key, xmlrpc.client.Binary(value))

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None if it is not set within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            with self._asked():
                found = self._server.get(self._host, key)
            if found is not None:
                return found.data
            if time.monotonic() > until:
                return None
            time.sleep(_LOOK)

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
