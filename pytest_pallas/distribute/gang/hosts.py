"""The hosts of a gang: which processes each host starts, and how hosts exchange values.

``on_this_host`` and ``of_cluster`` return the ``Layout`` of a host: its processes and their
devices. Hosts agree by keys and values: host 0 keeps them in a ``ServedStore``, and the other hosts
read and set them by a ``RemoteStore``.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
import xmlrpc.client
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from socketserver import ThreadingMixIn
from typing import Any
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

from pallas_sim.chips import Label
from pytest_pallas.backends.devices import VARIABLES, Accelerators
from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import shown
from pytest_pallas.errors import GangError

#: The environment variable with the number of a process: a conftest.py may need the number before
#: JAX is started.
PROCESS = "PYTEST_PALLAS_PROCESS"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The processes that one host starts.

    Attributes:
      host: the number of the host, from 0; host 0 reports.
      hosts: the number of hosts.
      first: the number of the first process of this host.
      environments: the variables of each process of this host, in order.
      devices: ids of the local devices that a process uses; None for all that it sees.
      address: the name by which all hosts reach host 0.
      header: a line for the header of the run.
    """

    host: int
    hosts: int
    first: int
    environments: Sequence[Mapping[str, str]]
    devices: tuple[int, ...] | None = None
    address: str = "127.0.0.1"
    header: str

    @property
    def processes(self) -> Sequence[int]:
        """The numbers of the processes of this host."""
        return range(self.first, self.first + len(self.environments))

    @property
    def count(self) -> int:
        """The number of processes of all hosts: one for each host if there are several hosts."""
        return len(self.environments) if self.hosts == 1 else self.hosts


def on_this_host(
    count: int,
    devices: int,
    accelerators: Accelerators | None,
    backends: Collection[str],
) -> Layout:
    """Lay out ``count`` processes that divide the devices of this machine.

    They divide the accelerators if a backend of the run may use these and ``count`` divides their
    number. Otherwise each process simulates its part of ``devices`` CPU devices, whose collectives
    run over gloo; but a backend that names the accelerators does not fall back.

    Args:
      count: the number of processes.
      devices: the number of simulated devices, of all processes together.
      accelerators: the accelerators of this machine, or None.
      backends: the backends of the run: ``auto``, ``all``, ``NAME`` or ``NAME:TARGET``.

    Raises:
      GangError: ``count`` does not divide the accelerators that a backend names, or the simulated
        devices.
    """
    named = accelerators is not None and any(
        Label.of(name).name == accelerators.platform for name in backends
    )
    if accelerators is not None and (named or {"auto", "all"} & set(backends)):
        divisible = len(accelerators.ids) >= count and len(accelerators.ids) % count == 0
        if divisible:
            return _divided(count, accelerators)
        if named:
            raise GangError(
                f"{count} processes cannot divide {_numbered(accelerators)} of this machine "
                f"({VARIABLES[accelerators.platform]}): give a number of processes that divides "
                "them"
            )
    environment = _simulated(count, devices)
    size = devices // count
    plural, note = "s" if size > 1 else "", ""
    if accelerators is not None:
        note = f" ({count} processes cannot divide {_numbered(accelerators)})"
    return Layout(
        host=0,
        hosts=1,
        first=0,
        environments=[{**environment, PROCESS: str(number)} for number in range(count)],
        header=f"{count} processes with {size} simulated device{plural} each{note}",
    )


def _numbered(accelerators: Accelerators) -> str:
    """Return the number and the platform of accelerators, as ``8 TPUs``."""
    return f"{len(accelerators.ids)} {accelerators.platform.upper()}s"


def _divided(count: int, accelerators: Accelerators) -> Layout:
    """Lay out processes that divide the accelerators."""
    size = len(accelerators.ids) // count
    variables = _tpu_variables(count, size) if accelerators.platform == "tpu" else [{}] * count
    environments = [
        {
            VARIABLES[accelerators.platform]: ",".join(
                accelerators.ids[number * size : (number + 1) * size]
            ),
            PROCESS: str(number),
            **variables[number],
        }
        for number in range(count)
    ]
    header = f"{count} processes with {size} of {_numbered(accelerators)} each"
    return Layout(host=0, hosts=1, first=0, environments=environments, header=header)


def _tpu_variables(count: int, chips: int) -> list[dict[str, str]]:
    """Return the environment variables by which libtpu joins the processes of a host to one slice.

    Each process has one chip. The processes form a grid of two columns, as the chips of a host do.

    Raises:
      GangError: each of several processes would have several chips. Then libtpu needs a topology,
        which is not known here.
    """
    if chips > 1 and count > 1:
        raise GangError(
            f"{count} processes with {chips} TPU chips each: give each process one chip, or set "
            "the variables of libtpu (TPU_PROCESS_BOUNDS, TPU_CHIPS_PER_PROCESS_BOUNDS) and start "
            "the processes yourself with --pallas-distributed"
        )
    ports = [free_port() for _ in range(count)]
    columns = 2 if count % 2 == 0 else 1
    return [
        {
            "CLOUD_TPU_TASK_ID": str(number),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_BOUNDS": f"{columns},{count // columns},1",
            "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port}" for port in ports),
            "TPU_PROCESS_PORT": str(ports[number]),
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        for number in range(count)
    ]


def of_cluster(position: Place, devices: int, environ: Mapping[str, str]) -> Layout:
    """Lay out the one process of this host, in a cluster that has started pytest on every host.

    Args:
      position: the position of this process among those of all hosts.
      devices: the number of simulated devices of all hosts together, if JAX has only the CPU.
      environ: the environment variables of this process.

    Raises:
      GangError: the hosts cannot divide the simulated devices.
    """
    environment = {PROCESS: str(position.index)}
    if environ.get("JAX_PLATFORMS") == "cpu":
        environment |= _simulated(position.count, devices)
    return Layout(
        host=position.index,
        hosts=position.count,
        first=position.index,
        environments=[environment],
        devices=position.devices,
        address=position.host,
        header=f"process {position.index} of {position.count}, coordinated at {position.address}",
    )


def _simulated(count: int, devices: int) -> dict[str, str]:
    """Return the environment variables of each of ``count`` processes that simulate devices.

    Raises:
      GangError: ``count`` does not divide ``devices``.
    """
    if count > devices or devices % count:
        raise GangError(
            f"{count} processes cannot divide {devices} simulated devices: give "
            f"--pallas-devices={count * max(1, round(devices / count))}"
        )
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices // count),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# The store of keys and values by which hosts of a gang communicate. Host 0 keeps it.
#
# JAX's coordination service has a store, too. But that service ends a process whose peers do not
# come, and this process must live to report results.
#
# Host 0 listens on the address that it was given, and makes a secret. It gives the secret once for
# each host number, to the first client that asks as that host. It refuses a request without the
# secret before it reads the body. Nothing is encrypted: see docs/multihost.md.


#: Seconds without a request after which host 0 counts another host as gone.
SILENCE = 30.0

#: The prefix of the keys that hosts set when they leave, and how many seconds host 0 waits for all
#: of these keys.
_LEFT, _LEAVING = "left/", 10.0

#: Seconds between tries to reach host 0, and time limit in seconds for an answer of host 0.
_LOOK, _ANSWER = 0.1, 20.0

#: Limit on the seconds that host 0 waits for a key that another host requests. Then it answers
#: None, and that host asks again. Less than ``_ANSWER``, so that the request does not time out.
_HOLD = 5.0


@dataclass
class LocalStore:
    """Keeps the keys and values of a gang in memory: all that the only host of a gang needs.

    Attributes:
      values: the values, by key.
      seen: when each other host last sent a request, in seconds of ``time.monotonic``.
    """

    values: dict[str, bytes] = field(default_factory=dict[str, bytes])
    seen: dict[int, float] = field(default_factory=dict[int, float])
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str, seconds: float) -> bytes | None:
        """Return the value of a key; None if it is not set within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, seconds)
        return self.values.get(key)

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with ``prefix``."""
        return [key for key in list(self.values) if key.startswith(prefix)]

    def live(self) -> Sequence[int]:
        """Return host 0, and the hosts that sent a request within the last ``SILENCE`` seconds."""
        now = time.monotonic()
        return [0, *(host for host, when in list(self.seen.items()) if now - when < SILENCE)]

    def close(self) -> None:
        """Do nothing: no other host uses this store."""


#: Limit on the bytes of a request.
_MOST = 2**28


class _Handler(SimpleXMLRPCRequestHandler):
    """Gives the secret to each host once, and serves those that send it."""

    timeout = _ANSWER
    rpc_paths = ("/RPC2",)

    @property
    def _served(self) -> _StoreServer:
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
        secret = self.headers.get("Authorization", "").encode("utf-8", "replace")
        length = self.headers.get("Content-Length", "")
        right = hmac.compare_digest(secret, self._served.secret.encode())
        if not right or not (length.isascii() and length.isdecimal() and int(length) <= _MOST):
            self.close_connection = True
            self.send_error(403)
            return
        super().do_POST()


class _StoreServer(ThreadingMixIn, SimpleXMLRPCServer):
    daemon_threads = True

    def __init__(self, family: int, address: tuple[str, int], hosts: int) -> None:
        """Listen on an address, for a number of hosts."""
        self.address_family = family
        self.secret = secrets.token_urlsafe(32)
        self._admitted: dict[int, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._hosts = hosts
        super().__init__(address, _Handler, logRequests=False, allow_none=True)

    def admit(self, path: str, client: str) -> tuple[int, str]:
        """Admit a host; return an HTTP status, and the secret or the reason for a refusal.

        A host that asks again, because the answer was lost, has the token of its first request.
        """
        number, _, token = path.removeprefix(_JOIN).partition("/")
        valid = path.startswith(_JOIN) and number.isascii() and number.isdecimal()
        if not valid or "/" in token or len(number) > 9 or not 0 < int(number) < self._hosts:
            return 404, "no such host"
        with self._lock:
            earlier, own = self._admitted.setdefault(int(number), (client, token))
        if not hmac.compare_digest(own.encode(), token.encode()):
            return 403, f"{earlier} has joined as host {int(number)}"
        return 200, self.secret


#: The path at which a host asks for the secret; its number and a token of its own follow.
_JOIN = "/join/"


class ServedStore(LocalStore):
    """The store of host 0, with a thread that serves the other hosts."""

    def __init__(self, position: Place, seconds: float = 0.0) -> None:
        """Serve the store at the address of a position, and at no other.

        Args:
          position: the position of host 0.
          seconds: time limit to resolve its name: the name of a container is known some time after
            the start.

        Raises:
          GangError: the port is taken, or this machine does not have the address.
        """
        super().__init__()
        self._server = _served(position, seconds)
        self._server.register_instance(self)
        serving = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True)
        serving.start()

    def _dispatch(self, method: str, params: tuple[Any, ...]) -> Any:
        """Answer a request of another host, whose number is the first parameter."""
        host, *arguments = params
        self.seen[host] = time.monotonic()
        match method, arguments:
            case "put", [key, value]:
                self.put(key, value.data)
                return True
            case "get", [key, seconds]:
                value = self.get(key, min(seconds, _HOLD))
                return None if value is None else xmlrpc.client.Binary(value)
            case "keys", [prefix]:
                return list(self.keys(prefix))
            case "live", []:
                return list(self.live())
            case _:
                raise ValueError(f"there is no method {method!r}")

    def close(self) -> None:
        """Stop the server, once the other hosts have read the last values and left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._present(), _LEAVING)
        self._server.shutdown()
        self._server.server_close()

    def _present(self) -> set[int]:
        """Return the other hosts that are live and have not left."""
        left = {int(key.removeprefix(_LEFT)) for key in self.keys(_LEFT)}
        return {*self.live()} - left - {0}


def _served(position: Place, seconds: float) -> _StoreServer:
    """Return a server at the first of the addresses of a position that this machine has.

    Raises:
      GangError: this machine has none of them, or their ports are taken.
    """
    until = time.monotonic() + seconds
    host = position.host.removeprefix("[").removesuffix("]")
    while True:
        try:
            addresses = socket.getaddrinfo(host, position.port, type=socket.SOCK_STREAM)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise GangError(_not_served(position, error)) from None
            time.sleep(_LOOK)
    problem: OSError | None = None
    for family, *_, address in addresses:
        try:
            return _StoreServer(family, (str(address[0]), int(address[1])), position.count)
        except OSError as error:
            problem = error
    raise GangError(_not_served(position, problem or OSError("it has no address")))


def _not_served(position: Place, error: OSError) -> str:
    return (
        f"host 0 cannot serve the other hosts at {position.address}: {error.strerror or error}. "
        "Give an address of host 0 by which the others reach it, and a port that is free"
    )


class _Transport(xmlrpc.client.Transport):
    """Limits the time of a request: ``xmlrpc.client`` would wait forever for a dead host."""

    def make_connection(self, host: Any) -> HTTPConnection:
        """Return a connection with a time limit."""
        connection = super().make_connection(host)
        connection.timeout = _ANSWER
        return connection


class RemoteStore:
    """Reads and sets the store of host 0 from another host."""

    def __init__(self, position: Place, seconds: float) -> None:
        """Reach host 0 within some seconds, and get its secret.

        Raises:
          GangError: host 0 cannot be reached, or refuses: another host has joined with the number
            of this one.
        """
        self._host, self._address = position.index, position.address
        self._token = secrets.token_urlsafe(16)
        until = time.monotonic() + seconds
        while True:
            status, answer = self._join()
            if status == HTTPStatus.OK:
                break
            if status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):  # it stays like that
                raise GangError(
                    f"host {position.index} of {position.count} is refused by host 0 at "
                    f"{position.address} ({shown(answer)}). Start pytest with the same arguments "
                    "on every host, each with its own number"
                )
            if time.monotonic() > until:
                raise GangError(
                    f"host {position.index} of {position.count} cannot reach host 0 at "
                    f"{position.address} within {seconds:g} s ({shown(answer)}). Start pytest with "
                    "the same arguments on every host, each with its own number, and open this port"
                )
            time.sleep(_LOOK)
        self._server: Any = xmlrpc.client.ServerProxy(
            f"http://{position.address}/RPC2",
            transport=_Transport(headers=[("Authorization", answer)]),
            allow_none=True,
        )
        self.live()  # a request, by which host 0 learns that this host is live

    def _join(self) -> tuple[int, str]:
        """Ask for the secret; return the HTTP status, and the secret or why there is none.

        The status is 0 if there was no answer.
        """
        connection = HTTPConnection(self._address, timeout=_ANSWER)
        try:
            connection.request("GET", f"{_JOIN}{self._host}/{self._token}")
            answer = connection.getresponse()
            return answer.status, answer.read(1000).decode("ascii", "replace")
        except (OSError, HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        with self._host_0():
            self._server.put(self._host, key, xmlrpc.client.Binary(value))

    def get(self, key: str, seconds: float) -> bytes | None:
        """Return the value of a key; None if it is not set within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            remaining = max(0.0, until - time.monotonic())
            with self._host_0():
                answer = self._server.get(self._host, key, remaining)
            if isinstance(answer, xmlrpc.client.Binary):
                return answer.data
            if time.monotonic() >= until:
                return None

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with ``prefix``."""
        with self._host_0():
            return self._server.keys(self._host, prefix)

    def live(self) -> Sequence[int]:
        """Return host 0, and the hosts that sent it a request within ``SILENCE`` seconds."""
        with self._host_0():
            return self._server.live(self._host)

    def close(self) -> None:
        """Tell host 0 that this host leaves, if host 0 is still there."""
        with contextlib.suppress(GangError):
            self.put(f"{_LEFT}{self._host}", b"")

    @contextlib.contextmanager
    def _host_0(self) -> Generator[None]:
        """Raise errors of a request to host 0 as ``GangError``."""
        try:
            yield
        except (OSError, HTTPException, xmlrpc.client.Error) as error:
            raise GangError(f"host 0 at {self._address} has gone ({error})") from None


#: The store of keys and values of a gang, as one of its hosts sees it.
type HostStore = LocalStore | RemoteStore
