"""The program of several processes that this one joins, and its key-value store.

``jax.distributed`` has no public way to either without starting a backend: ``jax.process_count()``
starts one, and the store of the coordination service belongs to the client in
``jax._src.distributed``; the detection of clusters is private, too. Seen in JAX 0.11.2 and 0.12.
It can go when JAX makes them public.
Probe: ``tests/unit/distribute/gang/test_processes.py``.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Place:
    """The place of a process in a program of several.

    Attributes:
      address: ``host:port`` of the coordinator.
      count: the number of processes.
      index: the number of this one, from 0.
      devices: ids of the local devices that it uses; None for all.
    """

    address: str
    count: int
    index: int
    devices: tuple[int, ...] | None = None

    @property
    def host(self) -> str:
        """The host of the address."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


def detect(seconds: float) -> Place | None:
    """Detect the place of this process on TPU pods, under Slurm, Open MPI or Kubernetes.

    Args:
      seconds: time limit to find the coordinator's address.

    Returns:
      The place; None if JAX knows no cluster here.
    """
    clusters: Any = importlib.import_module("jax._src.clusters")
    params = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(seconds)
    )
    address, count, index, devices = params
    if address is None or count is None or index is None:
        return None
    return Place(address, count, index, None if devices is None else tuple(devices))


def join(program: Place, seconds: float, heartbeat: float) -> None:
    """Make this process one of a JAX program. JAX ends it if not all join in time.

    Args:
      place: its place.
      seconds: time limit for all to join.
      heartbeat: seconds after which a silent process counts as dead.
    """
    import jax

    jax.distributed.initialize(
        program.address,
        program.count,
        program.index,
        local_device_ids=program.devices,
        # Otherwise process 0 listens on every address of its host.
        coordinator_bind_address=program.address,
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, int(seconds)),
        heartbeat_timeout_seconds=max(1, int(heartbeat)),
    )


class DistributedProgram(NamedTuple):
    """A program of several processes.

    Attributes:
      process: the number of this process.
      processes: how many there are.
      client: of the coordination service.
    """

    process: int
    processes: int
    client: Any


def distributed_program() -> DistributedProgram | None:
    """Return the program of several processes of this one, or None. It starts no backend."""
    if "jax" not in sys.modules:
        return None
    distributed: Any = importlib.import_module("jax._src.distributed")
    state = distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    return DistributedProgram(state.process_id, state.num_processes, state.client)


def put(program: DistributedProgram, key: str, value: str) -> None:
    """Set a key, also one that is set already."""
    program.client.key_value_set(key, value, allow_overwrite=True)


def read_folder(program: DistributedProgram, folder: str) -> dict[str, str]:
    """Return the keys below a folder, by their last part, and their values."""
    return {
        key.rpartition("/")[2]: value for key, value in program.client.key_value_dir_get(folder)
    }


def delete(program: DistributedProgram, key: str) -> None:
    """Delete a key, or the keys below it."""
    program.client.key_value_delete(key)
