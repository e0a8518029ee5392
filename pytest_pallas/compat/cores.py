"""Private names of JAX: the threads in which the TPU interpreter runs the cores of a device.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.compat.interpreters import fail_interpreters

#: XLA's CPU client lets no more than 32 computations run at once on one device, and cores wait for
#: each other. Each core is a computation, and so is what started them.
MOST = 24


def require_threads(cores: int) -> None:
    """Refuse more cores than can wait for each other.

    Args:
      cores: of one simulated device; inside ``shard_map``, each device of the mesh has as many.

    Raises:
      NotImplementedError: they would hang.
    """
    import jax

    core: Any = importlib.import_module("jax._src.core")
    kernels = math.prod(core.get_axis_env().axis_sizes.values())
    devices = len(jax.devices("cpu"))
    needed = -(-cores * kernels // MOST)
    if needed > devices:
        on_each = f" on each of {kernels} devices" if kernels > 1 else ""
        raise NotImplementedError(
            f"{cores} cores{on_each} cannot be simulated on {devices} CPU devices: XLA runs no "
            f"more than {MOST} at once on each. Give --pallas-devices={needed} or more"
        )


@dataclass
class _Places:
    """How many cores run on each CPU device now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    running: Counter[Any] = field(default_factory=Counter)

    @contextmanager
    def taken(self, devices: list[Any]) -> Generator[Any]:
        """The first device that has room, since what a core does is compiled for each anew."""
        with self.lock:
            free = [device for device in devices if self.running[device] < MOST]
            device = free[0] if free else min(devices, key=self.running.__getitem__)
            self.running[device] += 1
        try:
            yield device
        finally:
            with self.lock:
                self.running[device] -= 1


@contextmanager
def cores_in_threads(options: Mapping[str, Any]) -> Generator[None]:
    """Let the cores of a device be computations of several CPU devices, if they are many.

    The interpreter compiles what a core does by itself, in the callback that starts the threads.
    Other options of XLA than those of the call around it make functions such as ``tanh`` differ in
    their last bit. A core that fails ends those that wait for it at once; the interpreter asks
    for their errors in order, so it would first wait for them.

    Args:
      options: those of the call.
    """
    import jax
    import numpy as np

    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.thread_map")
    run = module._run_jaxpr
    places = _Places()

    def compiled(jaxpr: Any, consts: Any, core: Any, *args: Any) -> None:
        with places.taken(jax.devices("cpu")) as device, jax.default_device(device):
            given = (consts, np.asarray(core), *args)
            traced = jax.jit(module._run, static_argnums=0).trace(jaxpr, *given)
            try:
                traced.lower().compile(dict(options))(*given)
            except Exception as error:
                fail_interpreters(error)
                raise

    module._run_jaxpr = compiled
    try:
        yield
    finally:
        module._run_jaxpr = run
