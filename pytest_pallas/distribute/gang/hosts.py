"""The hosts of a gang: which processes each starts, with which devices, and what hosts tell others.

``on_this_host`` and ``of_cluster`` make the ``Layout`` of a host. ``ServedStore`` on host 0 and
``RemoteStore`` on the others are the keys and values by which they agree.
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
from http.client import HTTPConnection, HTTPException
from socketserver import ThreadingMixIn
from typing import Any
from xmlrpc.server import SimpleXMLRPCRequestHandler, SimpleXMLRPCServer

from pallas_sim.chips import Label
from pytest_pallas.backends.devices import VARIABLES, Accelerators
from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import shown
from pytest_pallas.errors import GangError

#: The variable with the number of a process, for conftest.py files that run before JAX is started.
PROCESS = "PYTEST_PALLAS_PROCESS"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The processes that one host starts.

    Attributes:
      host: the number of the host, from 0; that one reports.
      hosts: the number of hosts.
      first: the number of the first process of this host.
      environments: the variables of each process of this host, in order.
      devices: ids of local devices of each process of this host; None for all that it sees.
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
        """The number of all processes: of several hosts, each has one."""
        return len(self.environments) if self.hosts == 1 else self.hosts


def on_this_host(
    count: int,
    devices: int,
    accelerators: Accelerators | None,
    backends: Collection[str],
) -> Layout:
    """Lay out ``count`` processes that divide the devices of this machine.

    Accelerators are divided if a backend of the run may use them. Otherwise each process simulates
    its part of ``devices`` CPU devices, whose collectives run over gloo.

    Args:
      count: the number of processes.
      devices: the number of simulated devices, of all processes together.
      accelerators: those of this machine, or None.
      backends: of the run: ``auto``, ``all``, ``NAME`` or ``NAME:TARGET``.

    Raises:
      GangError: there are too few devices, or they cannot be divided.
    """
    named = accelerators is not None and any(
        Label.of(name).name == accelerators.platform for name in backends
    )
    if accelerators is not None and (named or {"auto", "all"} & set(backends)):
        enough = len(accelerators.ids) >= count and len(accelerators.ids) % count == 0
        if enough:
            return _divided(count, accelerators)
        if named:
            raise GangError(
                f"{count} processes cannot divide {_numbered(accelerators)} of this machine "
                f"({VARIABLES[accelerators.platform]}): give a number of processes that divides "
                "them"
            )
    environment = _simulated(count, devices)
    size = devices // count
    why = ""
    if accelerators is not None:
        why = f" ({count} processes cannot divide {_numbered(accelerators)})"
    return Layout(
        host=0,
        hosts=1,
        first=0,
        environments=[{**environment, PROCESS: str(number)} for number in range(count)],
        header=f"{count} processes with {size} simulated device{'s' if size > 1 else ''} each{why}",
    )


def _numbered(accelerators: Accelerators) -> str:
    """Return the number and the platform of accelerators, as ``8 TPUs``."""
    return f"{len(accelerators.ids)} {accelerators.platform.upper()}s"


def _divided(count: int, accelerators: Accelerators) -> Layout:
    """Lay out processes that divide the accelerators."""
    size = len(accelerators.ids) // count
    more = _tpu_variables(count, size) if accelerators.platform == "tpu" else [{}] * count
    environments = [
        {
            VARIABLES[accelerators.platform]: ",".join(
                accelerators.ids[number * size : (number + 1) * size]
            ),
            PROCESS: str(number),
            **more[number],
        }
        for number in range(count)
    ]
    header = f"{count} processes with {size} of {_numbered(accelerators)} each"
    return Layout(host=0, hosts=1, first=0, environments=environments, header=header)


def _tpu_variables(count: int, chips: int) -> list[dict[str, str]]:
    """Return the variables by which libtpu makes one slice of the processes of a host.

    Processes with one chip each form a grid of two columns, as the chips of a host do.

    Raises:
      GangError: a process would have several chips, but not all: libtpu needs their topology.
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
    """Lay out the process of this host, one of several that a cluster has started.

    Args:
      position: of this process among the hosts.
      devices: the number of simulated devices of all hosts together, where JAX has only the CPU.
      environ: the environment.

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
    """Return the variables of each of several processes that simulate devices.

    Raises:
      GangError: they cannot be divided.
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
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


# What the hosts of a gang tell each other: keys and values, which host 0 keeps.
#
# The coordination service of JAX would serve, too, but it ends a process whose peers do not come,
# and the process of pytest has results to report.
#
# Host 0 listens on the address that it was given, and makes a secret. The first that asks as host 1
# gets it, and so on; after that, nobody does. Whoever does not send the secret is refused before
# anything is read. Nothing is encrypted: see docs/multihost.md.


#: Seconds after which a silent host counts as gone.
SILENCE = 30.0

#: The beginning of the keys of hosts that have left, and how long host 0 waits for them.
_LEFT, _LEAVING = "left/", 10.0

#: Seconds between tries to reach host 0, and time limit in seconds for an answer of host 0.
_LOOK, _ANSWER = 0.1, 20.0

#: Limit on the seconds that host 0 waits for a key before it answers another host.
_HOLD = 5.0


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
        """Return the value of a key; None if it is not set within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, seconds)
        return self.values.get(key)

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with ``prefix``."""
        return [key for key in list(self.values) if key.startswith(prefix)]

    def live(self) -> Sequence[int]:
        """Return host 0, and the hosts that were heard of within ``SILENCE`` seconds."""
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
        self._admitted: dict[int, str] = {}
        self._lock = threading.Lock()
        self._hosts = hosts
        super().__init__(address, _Handler, logRequests=False, allow_none=True)

    def admit(self, path: str, client: str) -> tuple[int, str]:
        """Admit a host; returns a status of HTTP, and the secret or a reason."""
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

    def __init__(self, position: Place, seconds: float = 0.0) -> None:
        """Serve it at the address of a position, and at no other.

        Args:
          position: of host 0.
          seconds: time limit for its name to be known: that of a container comes late.

        Raises:
          GangError: the port is taken, or this machine does not have the address.
        """
        super().__init__()
        self._server = _served(position, seconds)
        self._server.register_instance(self)
        serving = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True)
        serving.start()

    def _dispatch(self, method: str, params: tuple[Any, ...]) -> Any:
        """Answer another host, which says its number first."""
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
        """Stop to serve, once the other hosts have read the last values and left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._present(), _LEAVING)
        self._server.shutdown()
        self._server.server_close()

    def _present(self) -> set[int]:
        """Return the other hosts that live and have not left."""
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
    def make_connection(self, host: Any) -> HTTPConnection:
        made = super().make_connection(host)
        made.timeout = _ANSWER
        return made


class RemoteStore:
    """The store of host 0, for another host."""

    def __init__(self, position: Place, seconds: float) -> None:
        """Reach host 0 within some seconds, and get its secret.

        Raises:
          GangError: it cannot be reached, or another host has the number of this one.
        """
        self._host, self._address = position.index, position.address
        until = time.monotonic() + seconds
        while True:
            secret, problem = self._joined()
            if secret:
                break
            if time.monotonic() > until:
                raise GangError(
                    f"host {position.index} of {position.count} cannot reach host 0 at "
                    f"{position.address} within {seconds:g} s ({problem}). Start pytest with the "
                    "same arguments on every host, each with its own number, and open this port"
                )
            time.sleep(_LOOK)
        self._server: Any = xmlrpc.client.ServerProxy(
            f"http://{position.address}/RPC2",
            transport=_Transport(headers=[("Authorization", secret)]),
            allow_none=True,
        )
        self.live()  # from now on, host 0 knows that this one is there

    def _joined(self) -> tuple[str, str]:
        """Ask for the secret; returns it, or "" and why there is none."""
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
        with self._host_0():
            self._server.put(self._host, key, xmlrpc.client.Binary(value))

    def get(self, key: str, seconds: float) -> bytes | None:
        """Return the value of a key; None if it is not set within so many seconds."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            with self._host_0():
                answer = self._server.get(self._host, key, left)
            if isinstance(answer, xmlrpc.client.Binary):
                return answer.data
            if time.monotonic() >= until:
                return None

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with ``prefix``."""
        with self._host_0():
            return self._server.keys(self._host, prefix)

    def live(self) -> Sequence[int]:
        """Return the hosts that were heard of within ``SILENCE`` seconds."""
        with self._host_0():
            return self._server.live(self._host)

    def close(self) -> None:
        """Leave."""
        with contextlib.suppress(GangError):
            self.put(f"{_LEFT}{self._host}", b"")

    @contextlib.contextmanager
    def _host_0(self) -> Generator[None]:
        try:
            yield
        except (OSError, HTTPException, xmlrpc.client.Error) as error:
            raise GangError(f"host 0 at {self._address} has gone ({error})") from None


#: Keys and values that all hosts see.
type HostStore = LocalStore | RemoteStore
