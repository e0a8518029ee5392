"""JAX's coordination service: joining a program of several processes, and its key-value store.

``jax.distributed.initialize`` is public; its client and the detection of clusters are not. Seen in
JAX 0.11.2 to 0.12. It can go when JAX has a public store.
Probe: ``tests/unit/compat/test_coordination.py``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

#: Bytes of one value: gRPC limits a message to 4 MiB.
_PIECE = 2**20


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


def detect(seconds: float) -> Place | None:
    """The place of this process, by the variables of TPU pods, Slurm, Open MPI and Kubernetes.

    Args:
      seconds: time limit to find the coordinator's address.

    Returns:
      The place; None if JAX knows no cluster here.
    """
    clusters: Any = importlib.import_module("jax._src.clusters")
    found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(seconds)
    )
    address, count, index, devices = found
    if address is None or count is None or index is None:
        return None
    return Place(address, count, index, None if devices is None else tuple(devices))


def join(place: Place, seconds: float, heartbeat: float) -> Store:
    """Make this process one of a JAX program. JAX ends it if not all join in time.

    Args:
      place: its place.
      seconds: time limit for all to join.
      heartbeat: seconds after which a silent process counts as dead.

    Returns:
      The program's store.
    """
    import jax

    jax.distributed.initialize(
        place.address,
        place.count,
        place.index,
        local_device_ids=place.devices,
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, int(seconds)),
        heartbeat_timeout_seconds=max(1, int(heartbeat)),
    )
    state: Any = importlib.import_module("jax._src.distributed").global_state
    return Store(state.client)


class Store:
    """Keys and values that all processes see."""

    def __init__(self, client: Any) -> None:
        """With the client of JAX's coordination service."""
        self._client = client

    def put(self, key: str, value: bytes) -> None:
        """Set a key, once."""
        pieces = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)] or [b""]
        for number, piece in enumerate(pieces[1:], 1):
            self._client.key_value_set_bytes(f"{key}#{number}", piece)
        self._client.key_value_set_bytes(key, b"%d " % len(pieces) + pieces[0])

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None if it is not set within so many seconds."""
        first = self._piece(key, seconds)
        if first is None:
            return None
        count, _, value = first.partition(b" ")
        return value + b"".join(
            self._piece(f"{key}#{number}", 60.0) or b"" for number in range(1, int(count))
        )

    def _piece(self, key: str, seconds: float) -> bytes | None:
        from jax.errors import JaxRuntimeError

        try:
            if seconds <= 0:
                return self._client.key_value_try_get_bytes(key)
            return self._client.blocking_key_value_get_bytes(key, max(1, int(1000 * seconds)))
        except JaxRuntimeError:
            return None
