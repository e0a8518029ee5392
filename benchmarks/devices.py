"""Simulated devices: a ring over 16 to 256 of them, and JAX's all-gather under many schedules.

    uv run python benchmarks/devices.py [--most=256]

The ring is an all-gather: every device passes on what it got, in a loop with a semaphore for each
step. Its work grows with the square of the number of devices, so the time for each copy should stay
the same: the ratio to 16 devices is printed. The target for 256 devices is 10 s. The all-gather is
``jax.experimental.pallas.ops.tpu.all_gather``, whose steps share a receive semaphore.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.all_gather import all_gather
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim import simulate


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("x",))


def _ring_body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
    me, count = lax.axis_index("x"), lax.axis_size("x")
    left, right = lax.rem(me + count - 1, count), lax.rem(me + 1, count)
    barrier = pltpu.get_barrier_semaphore()
    for other in (left, right):
        pl.semaphore_signal(barrier, 1, device_id=(other,))
    pl.semaphore_wait(barrier, 2)
    pltpu.sync_copy(x_ref, o_ref.at[pl.ds(me * 8, 8)])

    @pl.loop(0, count - 1)
    def _(step: Any) -> None:
        part = o_ref.at[pl.ds(lax.rem(me - step + count, count) * 8, 8)]
        pltpu.async_remote_copy(
            part, part, sent.at[step], received.at[step], device_id=(right,)
        ).wait()


def ring(devices: int) -> Any:
    """An all-gather of ``(8 * devices, 128)`` float32, whose result every device has."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    def each(x: jax.Array) -> jax.Array:
        gathered = pl.pallas_call(
            _ring_body,
            out_shape=jax.ShapeDtypeStruct((8 * devices, 128), x.dtype),
            in_specs=[anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA((devices,))] * 2,
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)
        return gathered[:1, :1]

    spec = P("x")
    return jax.shard_map(each, mesh=_mesh(devices), in_specs=spec, out_specs=spec, check_vma=False)


def rows(devices: int) -> np.ndarray[Any, Any]:
    """What the devices gather: 8 rows each."""
    return np.arange(devices * 8 * 128, dtype=np.float32).reshape(-1, 128)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=256)
    most = parser.parse_args().most
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(most, 8))
    simulate(ring(16), rows(16))  # imports, and what is made once
    print("devices  seconds     equations  us a copy  ratio to 16")
    first = 0.0
    for devices in (16, 32, 64, 128, 256):
        if devices > most:
            break
        started = time.perf_counter()
        found = simulate(ring(devices), rows(devices))
        seconds = time.perf_counter() - started
        assert not found.findings
        each = seconds / (devices * (devices - 1)) * 1e6
        first = first or each
        print(f"{devices:7} {seconds:8.2f} {found.steps:13,} {each:10.0f} {each / first:12.2f}")
    print("\nall_gather of JAX, 40 schedules each")
    print("devices  seconds  wrong answers  schedules with a race")
    for devices in (2, 4, 8):
        gather = functools.partial(all_gather, mesh=_mesh(devices), axis_name="x")
        x = rows(devices)
        started = time.perf_counter()
        runs = [simulate(gather, x, seed=seed, target="v5p") for seed in range(40)]
        seconds = time.perf_counter() - started
        wrong = sum(not np.array_equal(run.values, x) for run in runs)
        races = sum(any(each.kind == "race" for each in run.findings) for run in runs)
        print(f"{devices:7} {seconds:8.2f} {wrong:14} {races:22}")


if __name__ == "__main__":
    main()
