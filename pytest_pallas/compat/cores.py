"""Private names of JAX: the threads in which the TPU interpreter runs the cores of a device.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

#: XLA's CPU client lets no more than 32 computations run at once on one device, and cores wait for
#: each other. Each core is a computation, and so is what started them.
MOST = 24


def require_threads(cores: int) -> None:
    """Refuse more cores than can wait for each other.

    Raises:
      NotImplementedError: they would hang.
    """
    import jax

    devices = len(jax.devices("cpu"))
    if cores > MOST * devices:
        raise NotImplementedError(
            f"{cores} cores cannot be simulated on {devices} CPU devices: XLA runs no more than "
            f"{MOST} at once on each. Give --pallas-devices={-(-cores // MOST)} or more"
        )


@contextmanager
def cores_in_threads(options: Mapping[str, Any]) -> Generator[None]:
    """Let the cores of a device be computations of several CPU devices, if they are many.

    The interpreter compiles what a core does by itself, in the callback that starts the threads.
    Other options of XLA than those of the call around it make functions such as ``tanh`` differ in
    their last bit.

    Args:
      options: those of the call.
    """
    import jax
    import numpy as np

    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.thread_map")
    run = module._run_jaxpr

    def compiled(jaxpr: Any, consts: Any, core: Any, *args: Any) -> None:
        devices = jax.devices("cpu")
        device = devices[int(core) // MOST % len(devices)]
        with jax.default_device(device):
            given = (consts, np.asarray(core), *args)
            traced = jax.jit(module._run, static_argnums=0).trace(jaxpr, *given)
            traced.lower().compile(dict(options))(*given)

    module._run_jaxpr = compiled
    try:
        yield
    finally:
        module._run_jaxpr = run
