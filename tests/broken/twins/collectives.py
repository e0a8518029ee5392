"""Rings of devices that copy into each other's memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from .devices import ANY, DMA, meet, neighbours, on_devices, on_shards
from .pair import twin


def permute(x: jax.Array, *, mesh: Mesh, wrong: str = "", meets: bool = False) -> jax.Array:
    """Every shard of x ``(devices, m, n)`` moved one device to the right."""

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        left, right = neighbours()
        if wrong == "too few waits":
            meet(left, right, signals=1)
        elif wrong == "too many waits":
            meet(left, signals=2)
        elif wrong == "to the wrong side":
            meet(right, signals=1)
        elif wrong not in ("no barrier", "no id either"):
            meet(left, signals=1)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id={"x": right})
        copy.start()
        if wrong != "send not waited for":
            copy.wait_send()
        if wrong != "sent is received":
            copy.wait_recv()
        if meets:
            meet(left, signals=1)

    def shard(x: jax.Array) -> jax.Array:
        # Without an id, the runtime lets all devices begin at once.
        barrier = None if wrong in ("no barrier", "no id either") else 0
        skips = wrong == "no barrier"
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[ANY],
            out_specs=ANY,
            scratch_shapes=[DMA, DMA],
            compiler_params=pltpu.CompilerParams(collective_id=barrier, skip_device_barrier=skips),
        )(x)

    return on_shards(shard, mesh, x)


def permute_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, 1, axis=0)


def no_barrier(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device copies to its neighbour before that can be known to have begun the kernel."""
    return permute(x, mesh=mesh, wrong="no barrier")


SPEC_NO_BARRIER = on_devices(name="no_barrier", kernel=no_barrier, reference=permute_reference)
SPEC_NO_BARRIER_RIGHT = twin(SPEC_NO_BARRIER, permute)


def no_id_either(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    return permute(x, mesh=mesh, wrong="no id either")


SPEC_NO_ID_EITHER_RIGHT = on_devices(
    name="no_id_either_right", kernel=no_id_either, reference=permute_reference
)


def too_few_waits(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """Two neighbours signal at the entry, and one signal is waited for."""
    return permute(x, mesh=mesh, wrong="too few waits")


SPEC_TOO_FEW_WAITS = on_devices(
    name="too_few_waits", kernel=too_few_waits, reference=permute_reference
)


def too_many_waits(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """One neighbour signals at the entry, and two signals are waited for."""
    return permute(x, mesh=mesh, wrong="too many waits")


SPEC_TOO_MANY_WAITS = on_devices(
    name="too_many_waits", kernel=too_many_waits, reference=permute_reference
)


def send_not_waited_for(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The barrier at the end proves the copies done, and the bytes of the send stay."""
    return permute(x, mesh=mesh, wrong="send not waited for", meets=True)


def send_waited_for(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    return permute(x, mesh=mesh, meets=True)


SPEC_SEND_NOT_WAITED_FOR = on_devices(
    name="send_not_waited_for", kernel=send_not_waited_for, reference=permute_reference
)
SPEC_SEND_NOT_WAITED_FOR_RIGHT = twin(SPEC_SEND_NOT_WAITED_FOR, send_waited_for)


def to_the_wrong_side(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The entry barrier tells the right neighbour, and the one who must know is the left."""
    return permute(x, mesh=mesh, wrong="to the wrong side")


SPEC_TO_THE_WRONG_SIDE = on_devices(
    name="to_the_wrong_side", kernel=to_the_wrong_side, reference=permute_reference
)


def sent_is_received(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device waits until its own copy has left, and not until its neighbour's has arrived."""
    return permute(x, mesh=mesh, wrong="sent is received")


SPEC_SENT_IS_RECEIVED = on_devices(
    name="sent_is_received", kernel=sent_is_received, reference=permute_reference
)


def ring_sum(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of all shards of x, which go round the ring through two slots."""

    def body(x_ref: Any, o_ref: Any, slots: Any, sent: Any, received: Any, free: Any) -> None:
        devices = jax.lax.axis_size("x")
        left, right = neighbours()
        meet(left, right, signals=2)
        slots[0] = x_ref[...]
        o_ref[...] = x_ref[...]

        @pl.loop(0, devices - 1)
        def _step(step: Any) -> None:
            here = jax.lax.rem(step, 2)
            there = 1 - here
            # The right neighbour's slot is free once it has passed on what it held.
            if wrong != "runs ahead":
                pl.when(step > 0)(lambda: pl.semaphore_wait(free, 1))
            copy = pltpu.make_async_remote_copy(
                slots.at[here],
                slots.at[there],
                sent.at[here],
                received.at[there],
                device_id={"x": right},
            )
            copy.start()
            copy.wait()
            o_ref[...] += slots[there]
            if wrong != "runs ahead":
                more = step < devices - (1 if wrong == "one signal more" else 2)
                pl.when(more)(lambda: pl.semaphore_signal(free, 1, device_id={"x": left}))

    def shard(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM((2, *x.shape), x.dtype),
                DMA((2,)),
                DMA((2,)),
                pltpu.SemaphoreType.REGULAR,
            ],
            compiler_params=pltpu.CompilerParams(collective_id=1),
        )(x)

    return on_shards(shard, mesh, x)


def ring_sum_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.broadcast_to(jnp.sum(x, axis=0, keepdims=True), x.shape)


def runs_ahead(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device fills its neighbour's slot again before that has passed on what is in it."""
    return ring_sum(x, mesh=mesh, wrong="runs ahead")


SPEC_RUNS_AHEAD = on_devices(name="runs_ahead", kernel=runs_ahead, reference=ring_sum_reference)
SPEC_RUNS_AHEAD_RIGHT = twin(SPEC_RUNS_AHEAD, ring_sum)


def one_signal_more(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """In the last step a slot is declared free that nobody waits for."""
    return ring_sum(x, mesh=mesh, wrong="one signal more")


SPEC_ONE_SIGNAL_MORE = on_devices(
    name="one_signal_more", kernel=one_signal_more, reference=ring_sum_reference
)


def gather_all(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """All shards of x ``(devices, m, n)`` on every device: ``(devices, devices, m, n)``."""

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any, local: Any) -> None:
        devices = jax.lax.axis_size("x")
        me = jax.lax.axis_index("x")
        left, right = neighbours()
        meet(left, right, signals=2)
        mine = pltpu.make_async_copy(x_ref.at[0], o_ref.at[0, me], local)
        mine.start()
        mine.wait()
        for step in range(devices - 1):
            origin = me + devices - step
            if wrong == "other way round":
                origin = me + step
            place = o_ref.at[0, jax.lax.rem(origin, devices)]
            copy = pltpu.make_async_remote_copy(
                place, place, sent.at[step], received.at[step], device_id={"x": right}
            )
            copy.start()
            copy.wait()

    def shard(x: jax.Array) -> jax.Array:
        devices = mesh.shape["x"]
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((1, devices, *x.shape[1:]), x.dtype),
            in_specs=[ANY],
            out_specs=ANY,
            scratch_shapes=[DMA((devices,)), DMA((devices,)), DMA],
            compiler_params=pltpu.CompilerParams(collective_id=2),
        )(x)

    return on_shards(shard, mesh, x)


def gather_all_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.broadcast_to(x, (len(x), *x.shape))


def other_way_round(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device passes on the shard of its right neighbour, which it has not got yet."""
    return gather_all(x, mesh=mesh, wrong="other way round")


SPEC_OTHER_WAY_ROUND = on_devices(
    name="other_way_round", kernel=other_way_round, reference=gather_all_reference
)
SPEC_OTHER_WAY_ROUND_RIGHT = twin(SPEC_OTHER_WAY_ROUND, gather_all)
