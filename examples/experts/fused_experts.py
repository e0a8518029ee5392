"""Experts over the devices of an axis: tokens go to their expert and come back, in one kernel.

Device ``j`` has expert ``j``, two matrices. Each device has a block of tokens for every expert, as
its router sorted them, with the number of those that are there. A block goes into a mailbox of the
expert's device, which computes and sends the results to where the block came from. There are four
mailboxes, so blocks of others come in rounds of four.

The devices wait for each other at five places: three of these barriers are not needed.
``pytest-pallas barriers examples/experts/fused_experts.py --mesh x=8`` says which.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst

MAILBOXES = 4


def meet(semaphore: Any, devices: int) -> None:
    """Wait until all devices are here."""
    for device in range(devices):
        pl.semaphore_signal(semaphore, 1, device_id={"x": device})
    pl.semaphore_wait(semaphore, devices)


def send(source: Any, target: Any, sent: Any, received: Any, device: Any) -> Any:
    """Start a copy to another device."""
    return pltpu.async_remote_copy(source, target, sent, received, device_id={"x": device})


def expert(block: Any, count: Any, up: Any, down: Any) -> Any:
    """What the expert makes of the first ``count`` tokens of a block; 0 for the others."""
    rows = jax.lax.broadcasted_iota(jnp.int32, block.shape, 0)
    hidden = jnp.maximum(jnp.dot(block, up[...], preferred_element_type=jnp.float32), 0)
    made = jnp.dot(hidden.astype(block.dtype), down[...], preferred_element_type=jnp.float32)
    return jnp.where(rows < count, made, 0).astype(block.dtype)


def kernel(
    x_ref: Any,
    up_ref: Any,
    down_ref: Any,
    counts_ref: Any,
    o_ref: Any,
    counts: Any,
    mailboxes: Any,
    answers: Any,
    up: Any,
    down: Any,
    own: Any,
    met: Any,
    loaded: Any,
    counted: Any,
    sent: Any,
    arrived: Any,
    answered: Any,
    returned: Any,
    *,
    devices: int,
) -> None:
    """The kernel of one device; see the module."""
    me = jax.lax.axis_index("x")

    def away(steps: int) -> Any:
        return jax.lax.rem(me + steps + devices, devices)

    local = [
        pltpu.async_copy(up_ref, up, loaded.at[0]),
        pltpu.async_copy(down_ref, down, loaded.at[1]),
        pltpu.async_copy(x_ref.at[me], own, loaded.at[2]),
    ]

    # 1. Everybody writes to everybody: they must all be here.
    meet(pltpu.get_barrier_semaphore(), devices)

    numbers = [
        send(
            counts_ref.at[away(step)],
            counts.at[me],
            counted.at[0, step],
            counted.at[1, step],
            away(step),
        )
        for step in range(devices)
    ]
    for copy in numbers:
        copy.wait()
    # 2. All have the numbers of tokens.
    meet(met.at[0], devices)

    for copy in local:
        copy.wait()
    own[...] = expert(own[...], counts[me, 0], up, down)
    pltpu.sync_copy(own, o_ref.at[me])
    # 3. All have their weights.
    meet(met.at[1], devices)

    for first in range(1, devices, MAILBOXES):
        steps = range(first, min(first + MAILBOXES, devices))
        tokens = [
            send(
                x_ref.at[away(step)],
                mailboxes.at[step % MAILBOXES],
                sent.at[step],
                arrived.at[step],
                away(step),
            )
            for step in steps
        ]
        results: list[Any] = []
        for step, copy in zip(steps, tokens, strict=True):
            copy.wait_recv()
            box, source = step % MAILBOXES, away(-step)
            answers[box] = expert(mailboxes[box], counts[source, 0], up, down)
            here = (answered.at[step], returned.at[step])
            results.append(send(answers.at[box], o_ref.at[me], *here, source))
        for copy, result in zip(tokens, results, strict=True):
            copy.wait_send()
            result.wait()
        # 5. Nobody writes into a mailbox that its owner still reads.
        meet(met.at[2 + first // MAILBOXES % 2], devices)

    # 4. Nobody leaves while others still send.
    meet(met.at[4], devices)


def experts(
    x: jax.Array, up: jax.Array, down: jax.Array, counts: jax.Array, *, mesh: jax.sharding.Mesh
) -> jax.Array:
    """What the experts make of all tokens, in the places of the tokens; 0 for those not there.

    Args:
      x: ``(devices, devices, capacity, d)``: of each device, a block for each expert.
      up: ``(devices, d, f)``.
      down: ``(devices, f, d)``.
      counts: ``(devices, devices)``, how many tokens of each block are there.
      mesh: with an axis ``"x"``.
    """
    devices, _, capacity, d = x.shape
    f = up.shape[2]
    dma, regular = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
    block = pltpu.VMEM((MAILBOXES, capacity, d), x.dtype)
    call = pl.pallas_call(
        functools.partial(kernel, devices=devices),
        out_shape=jax.ShapeDtypeStruct((devices, capacity, d), x.dtype),
        in_specs=[
            *[pl.BlockSpec(memory_space=pl.ANY)] * 3,
            pl.BlockSpec(memory_space=pltpu.SMEM),
        ],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[
            pltpu.SMEM((devices, 1), jnp.int32),
            *[block] * 2,
            pltpu.VMEM((d, f), x.dtype),
            pltpu.VMEM((f, d), x.dtype),
            pltpu.VMEM((capacity, d), x.dtype),
            regular((5,)),
            dma((3,)),
            dma((2, devices)),
            *[dma((devices,))] * 4,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )

    def on_device(x: jax.Array, up: jax.Array, down: jax.Array, counts: jax.Array) -> jax.Array:
        return call(x[0], up[0], down[0], counts[0, :, None])[None]

    split = P("x")
    on_devices = jax.shard_map(
        on_device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False
    )
    return on_devices(x, up, down, counts)


def reference(
    x: jax.Array, up: jax.Array, down: jax.Array, counts: jax.Array, *, mesh: jax.sharding.Mesh
) -> jax.Array:
    """The same, one expert after the other."""
    del mesh
    there = jnp.arange(x.shape[2])[:, None] < counts[:, :, None, None]
    hidden = jnp.maximum(jnp.einsum("secd,edf->secf", x, up), 0)
    return jnp.where(there, jnp.einsum("secf,efd->secd", hidden, down), 0).astype(x.dtype)


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    devices = mesh.size
    return pst.arguments(
        pst.arrays(
            "e e c d, e d f, e f d",
            dtype="float32",
            dims={"e": devices, "c": 8, "d": 128, "f": 128},
        ),
        then={
            "counts": pst.lengths(devices * devices, max_length=8).map(
                lambda flat: flat.reshape(devices, devices)
            )
        },
    )


SPEC = KernelSpec(
    name="experts",
    kernel=experts,
    reference=reference,
    inputs=_inputs,
    meshes="x",
    backends=("tpu-sim", "tpu-compile", "tpu"),
)
