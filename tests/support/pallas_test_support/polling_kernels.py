"""Kernels in which each device of a mesh signals others, and looks until enough have signalled."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P


def on_mesh(body: Callable[..., None], devices: int, semaphores: int = 1) -> Callable[..., Any]:
    """Return a call of ``body(o_ref, sems)`` on each device; the output is int32[2] of each."""
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((2,), jnp.int32),
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR((semaphores,))],
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )
    return jax.shard_map(call, mesh=mesh, in_specs=(), out_specs=P("x"), check_vma=False)


def signal(semaphore: Any, distance: int) -> None:
    """Signal the device so far ahead on the ring."""
    other = (jax.lax.axis_index("x") + distance) % jax.lax.axis_size("x")
    pl.semaphore_signal(semaphore, 1, device_id=other)


def polls(devices: int, distances: Sequence[int]) -> Callable[..., Any]:
    """Return a call in which each device signals those so far ahead, and looks until all came."""
    enough = len(distances)

    def body(o_ref, sems):
        for distance in distances:
            signal(sems.at[0], distance)
        o_ref[0] = o_ref[1] = jax.lax.while_loop(
            lambda count: count < enough, lambda _: pl.semaphore_read(sems.at[0]), 0
        )
        pl.semaphore_wait(sems.at[0], enough)

    return on_mesh(body, devices)


#: What loops of random kernels wait for: the signals that must have been given before, and whether
#: a count is too little.
LOOPS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "any": (1, lambda count: count < 1),
    "two": (2, lambda count: count < 2),
    "odd": (1, lambda count: count % 2 == 0),
}


@dataclass(frozen=True)
class PollingKernel:
    """What each device does, in order.

    Attributes:
      devices: their number.
      operations: ``"signal"``, ``"wait"``, ``"look"`` or one of ``LOOPS``; how far ahead the device
        is that is signalled; and the number of one of two semaphores.
      uneven: whether device 0 does more after the first operation.
      shows: whether the output has the counts that were looked at.
    """

    devices: int
    operations: tuple[tuple[str, int, int], ...]
    uneven: bool
    shows: bool

    @property
    def call(self) -> Callable[..., Any]:
        """The call of the kernel."""

        def body(o_ref, sems):
            o_ref[0] = o_ref[1] = 0
            left = [0, 0]
            for position, (kind, distance, number) in enumerate(self.operations):
                semaphore = sems.at[number]
                if kind == "signal":
                    signal(semaphore, distance)
                    left[number] += 1
                elif kind == "wait":
                    pl.semaphore_wait(semaphore, 1)
                    left[number] -= 1
                elif kind == "look":
                    seen = pl.semaphore_read(semaphore)
                    o_ref[0] = o_ref[0] + seen if self.shows else jnp.minimum(seen, 0)
                else:
                    o_ref[1] = jnp.minimum(0, _looked(semaphore, LOOPS[kind][1]))
                if self.uneven and position == 0:
                    pl.when(jax.lax.axis_index("x") == 0)(lambda: _alone(sems.at[0]))
            for number in (0, 1):
                if left[number]:
                    pl.semaphore_wait(sems.at[number], left[number])

        return on_mesh(body, self.devices, 2)


def _looked(semaphore: Any, too_little: Callable[[Any], Any]) -> Any:
    return jax.lax.while_loop(too_little, lambda _: pl.semaphore_read(semaphore), 0)


def _alone(semaphore: Any) -> None:
    pl.semaphore_signal(semaphore, 1, device_id=jax.lax.axis_index("x"))
    pl.semaphore_wait(semaphore, 1)


def polling_kernel(seed: int) -> PollingKernel:
    """Draw a kernel: no loop waits for more signals than each device gets before."""
    chance = random.Random(seed)
    devices = chance.choice((2, 3, 3, 4))
    left = [0, 0]
    operations: list[tuple[str, int, int]] = []
    kinds = ("signal", "signal", "signal", "wait", "look", *LOOPS, *LOOPS)
    for _ in range(chance.choice((4, 5, 6))):
        kind, number = chance.choice(kinds), chance.randrange(2)
        needed = LOOPS[kind][0] if kind in LOOPS else int(kind == "wait")
        kind = kind if left[number] >= needed else "signal"
        left[number] += {"signal": 1, "wait": -1}.get(kind, 0)
        operations.append((kind, chance.randrange(devices), number))
    return PollingKernel(
        devices, tuple(operations), uneven=chance.random() < 0.2, shows=chance.random() < 0.3
    )
