"""The processes of a gang: how many, on which hosts, and which devices each of them sees."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pallas_sim.chips import Label
from pytest_pallas.compat.distributed import Place
from pytest_pallas.devices.pinning import VARIABLES, Accelerators
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
      words: for the header of the run.
    """

    host: int
    hosts: int
    first: int
    environments: Sequence[Mapping[str, str]]
    devices: tuple[int, ...] | None = None
    address: str = "127.0.0.1"
    words: str

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
    found: Accelerators | None,
    backends: Collection[str],
) -> Layout:
    """``count`` processes that divide the devices of this machine.

    Accelerators are divided if a backend of the run may use them. Otherwise each process simulates
    its part of ``devices`` CPU devices, whose collectives run over gloo.

    Args:
      count: the number of processes.
      devices: the number of simulated devices, of all processes together.
      found: the accelerators of this machine, or None.
      backends: of the run: ``auto``, ``all``, ``NAME`` or ``NAME:TARGET``.

    Raises:
      GangError: there are too few devices, or they cannot be divided.
    """
    named = found is not None and any(Label.of(word).name == found.platform for word in backends)
    if found is not None and (named or {"auto", "all"} & set(backends)):
        enough = len(found.ids) >= count and len(found.ids) % count == 0
        if enough:
            return _divided(count, found)
        if named:
            raise GangError(
                f"{count} processes cannot divide {len(found.ids)} {found.platform.upper()}s of "
                f"this machine ({VARIABLES[found.platform]}): give a number of processes that "
                "divides them"
            )
    environment = _simulated(count, devices)
    each = devices // count
    why = ""
    if found is not None:
        why = f" ({count} processes cannot divide {len(found.ids)} {found.platform.upper()}s)"
    return Layout(
        host=0,
        hosts=1,
        first=0,
        environments=[{**environment, PROCESS: str(number)} for number in range(count)],
        words=f"{count} processes with {each} simulated device{'s' if each > 1 else ''} each{why}",
    )


def _divided(count: int, found: Accelerators) -> Layout:
    """Processes that have parts of the accelerators."""
    each = len(found.ids) // count
    environments: list[dict[str, str]] = []
    for number in range(count):
        ids = found.ids[number * each : (number + 1) * each]
        environments.append({VARIABLES[found.platform]: ",".join(ids), PROCESS: str(number)})
    if found.platform == "tpu":
        for number, more in enumerate(_tpu_variables(count, each)):
            environments[number] |= more
    words = f"{count} processes with {each} of {len(found.ids)} {found.platform.upper()}s each"
    return Layout(host=0, hosts=1, first=0, environments=environments, words=words)


def _tpu_variables(count: int, each: int) -> list[dict[str, str]]:
    """The variables by which libtpu makes one slice of the processes of a host.

    Processes with one chip each form a grid of two columns, as the chips of a host do.

    Raises:
      GangError: a process would have several chips, but not all: libtpu needs their topology.
    """
    if each > 1 and count > 1:
        raise GangError(
            f"{count} processes with {each} TPU chips each: give each process one chip, or set the "
            "variables of libtpu (TPU_PROCESS_BOUNDS, TPU_CHIPS_PER_PROCESS_BOUNDS) and start the "
            "processes yourself with --pallas-distributed"
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


def of_cluster(place: Place, devices: int, environ: Mapping[str, str]) -> Layout:
    """The process of this host, one of several that a cluster has started.

    Args:
      place: of this process among the hosts.
      devices: the number of simulated devices of all hosts together, where JAX has only the CPU.
      environ: the environment.

    Raises:
      GangError: the hosts cannot divide the simulated devices.
    """
    environment = {PROCESS: str(place.index)}
    if environ.get("JAX_PLATFORMS") == "cpu":
        environment |= _simulated(place.count, devices)
    return Layout(
        host=place.index,
        hosts=place.count,
        first=place.index,
        environments=[environment],
        devices=place.devices,
        address=place.host,
        words=f"process {place.index} of {place.count}, coordinated at {place.address}",
    )


def _simulated(count: int, devices: int) -> dict[str, str]:
    """The variables of each of several processes that simulate devices.

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
    """A port that nobody uses now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]
