"""The program of several processes that this one is part of, and its key-value store.

``jax.distributed`` has no public way to either without starting a backend: ``jax.process_count()``
starts one, and the store of the coordination service belongs to the client in
``jax._src.distributed``. Seen in JAX 0.11.2 and 0.12.0.1. It can go when JAX makes the client
public. Probe: ``tests/unit/gang/test_processes.py``.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple


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
    """The program of several processes that this one is part of, or None. It starts no backend."""
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
    """The keys below a folder, by their last part, and their values."""
    return {
        key.rpartition("/")[2]: value for key, value in program.client.key_value_dir_get(folder)
    }


def delete(program: DistributedProgram, key: str) -> None:
    """Delete a key, or the keys below it."""
    program.client.key_value_delete(key)
