"""What goes wrong in some orders of events only: each right answer below is a matter of luck."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import Mesh

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .devices import DMA, REGULAR, boxes_of, called, meet, neighbours, on_devices, shard_of, sharded
from .pair import INTERPRETERS, twin

_DIMS = {"m": [8, 16, 40], "n": [4, 128]}

_on_one_core = functools.partial(
    KernelSpec,
    inputs=pst.arrays("m n", dtype="float32", dims=_DIMS),
    exact=True,
    vmappable=False,
    family="DMA pipelines",
    backends=INTERPRETERS,
    file=__file__,
)


def _doubled(x: jax.Array) -> jax.Array:
    return 2 * x


def buffered(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``2 x``, 8 rows at a time, of which the next ones come while these are doubled."""
    steps = len(x) // 8

    def body(x_ref: Any, o_ref: Any, slots: Any, loads: Any) -> None:
        def load(i: int) -> Any:
            source = x_ref.at[pl.ds(8 * i, 8)]
            return pltpu.make_async_copy(source, slots.at[i % 2], loads.at[0 if wrong else i % 2])

        load(0).start()
        for i in range(steps):
            if i + 1 < steps:
                load(i + 1).start()
            load(i).wait()
            slots[i % 2] *= 2
            pltpu.sync_copy(slots.at[i % 2], o_ref.at[pl.ds(8 * i, 8)])

    return called(body, x, pltpu.VMEM((2, 8, x.shape[1]), x.dtype), DMA((2,)))


def one_for_both_slots(x: jax.Array) -> jax.Array:
    """Both slots have one semaphore: the wait for a block takes the bytes of the next one."""
    return buffered(x, wrong="one semaphore")


SPEC_ONE_FOR_BOTH_SLOTS = _on_one_core(
    name="one_for_both_slots", kernel=one_for_both_slots, reference=_doubled
)
SPEC_ONE_FOR_BOTH_SLOTS_RIGHT = twin(SPEC_ONE_FOR_BOTH_SLOTS, buffered)


def by_halves(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``2 x``; the upper half is doubled while the lower one is under way."""
    half = len(x) // 2

    def body(x_ref: Any, o_ref: Any, buffer: Any, arrived: Any) -> None:
        parts = [pl.ds(0, half), pl.ds(half, half)]
        loads = [
            pltpu.make_async_copy(x_ref.at[part], buffer.at[part], arrived.at[0 if wrong else i])
            for i, part in enumerate(parts)
        ]
        if wrong:
            pltpu.make_async_copy(x_ref, buffer, arrived.at[0]).start()
        else:
            for load in loads:
                load.start()
        for load, part in zip(loads, parts, strict=True):
            load.wait()
            buffer[part] *= 2
        pltpu.sync_copy(buffer, o_ref)

    return called(body, x, pltpu.VMEM(x.shape, x.dtype), DMA((2,)))


def half_arrived(x: jax.Array) -> jax.Array:
    """Half the bytes of one copy are taken for its upper half: a copy has no order in itself."""
    return by_halves(x, wrong="one copy")


SPEC_HALF_ARRIVED = _on_one_core(name="half_arrived", kernel=half_arrived, reference=_doubled)
SPEC_HALF_ARRIVED_RIGHT = twin(SPEC_HALF_ARRIVED, by_halves)


def in_a_scope(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``2 x``, stored from memory that exists only for that."""

    def body(x_ref: Any, o_ref: Any, left: Any) -> None:
        def double(buffer: Any) -> None:
            pltpu.sync_copy(x_ref, buffer)
            buffer[...] *= 2
            store = pltpu.make_async_copy(buffer, o_ref, left)
            store.start()
            if not wrong:
                store.wait()

        pl.run_scoped(double, pltpu.VMEM(x.shape, x.dtype))
        if wrong:
            pltpu.make_async_copy(o_ref, o_ref, left).wait()

    return called(body, x, DMA)


def scope_ends_first(x: jax.Array) -> jax.Array:
    """A buffer's scope ends while a copy from it is under way, which is waited for afterwards."""
    return in_a_scope(x, wrong="ends first")


SPEC_SCOPE_ENDS_FIRST = _on_one_core(
    name="scope_ends_first", kernel=scope_ends_first, reference=_doubled
)
SPEC_SCOPE_ENDS_FIRST_RIGHT = twin(SPEC_SCOPE_ENDS_FIRST, in_a_scope)


def sums_in_place(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """Each 8 rows of x plus all those before, in the memory of x."""
    steps = len(x) // 8

    def body(x_ref: Any, o_ref: Any, before: Any, block: Any, total: Any, left: Any) -> None:
        def store(i: int) -> Any:
            return pltpu.make_async_copy(total, o_ref.at[pl.ds(8 * i, 8)], left)

        for i in range(1, steps):
            here = pl.ds(8 * i, 8)
            pltpu.sync_copy(x_ref.at[here], block)
            if not wrong and i > 1:
                store(i - 1).wait()
            pltpu.sync_copy(x_ref.at[pl.ds(8 * (i - 1), 8)], before)
            if wrong and i > 1:
                store(i - 1).wait()
            total[...] = before[...] + block[...]
            store(i).start()
        store(steps - 1).wait()

    memory = pltpu.VMEM((8, x.shape[1]), x.dtype)
    return called(body, x, memory, memory, memory, DMA, input_output_aliases={0: 0})


def _sums(x: jax.Array) -> jax.Array:
    return jnp.cumsum(x.reshape(-1, 8, x.shape[1]), axis=0).reshape(x.shape)


def stale_through_alias(x: jax.Array) -> jax.Array:
    """The block before is read by its other name while the store to it is under way."""
    return sums_in_place(x, wrong="stale")


SPEC_STALE_THROUGH_ALIAS = _on_one_core(
    name="stale_through_alias",
    kernel=stale_through_alias,
    reference=_sums,
    exact=False,
    backends=("tpu-sim", "tpu-interpret"),  # for `interpret`, x and its alias are two arrays
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [24, 40], "n": [4, 128]}),
)
SPEC_STALE_THROUGH_ALIAS_RIGHT = twin(SPEC_STALE_THROUGH_ALIAS, sums_in_place)


def _add_boxes(x_ref: Any, o_ref: Any, boxes: Any, acc: Any, first: Any, second: Any) -> None:
    """``o = boxes[0] + boxes[1]``, each after its wait."""
    del x_ref
    first()
    acc[...] = boxes[0]
    second()
    acc[...] += boxes[1]
    pltpu.sync_copy(acc, o_ref)


def both_sides(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of its neighbours' shards."""

    def body(x_ref: Any, o_ref: Any, boxes: Any, acc: Any, sent: Any, received: Any) -> None:
        left, right = neighbours()
        barrier = pltpu.get_barrier_semaphore()
        if wrong == "one side":
            pl.semaphore_signal(barrier, 1, device_id={"x": right})
            pl.semaphore_wait(barrier, 1)
        else:
            meet(left, right)
        copies = [
            pltpu.make_async_remote_copy(
                x_ref,
                boxes.at[i],
                sent.at[i],
                received.at[0 if wrong == "one semaphore" else i],
                device_id={"x": other},
            )
            for i, other in enumerate((left, right))
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait_send()
        _add_boxes(x_ref, o_ref, boxes, acc, copies[0].wait_recv, copies[1].wait_recv)

    return sharded(body, mesh, x, boxes_of(x, 2), shard_of(x), DMA((2,)), DMA((2,)))


def both_sides_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, 1, axis=0) + jnp.roll(x, -1, axis=0)


def meets_one_side(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device copies to both neighbours, and met only the left one at the entry."""
    return both_sides(x, mesh=mesh, wrong="one side")


def one_for_both_sides(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """What comes from both sides has one semaphore: a wait for one takes the other's bytes."""
    return both_sides(x, mesh=mesh, wrong="one semaphore")


SPEC_MEETS_ONE_SIDE = on_devices(
    name="meets_one_side", kernel=meets_one_side, reference=both_sides_reference
)
SPEC_MEETS_ONE_SIDE_RIGHT = twin(SPEC_MEETS_ONE_SIDE, both_sides)
SPEC_ONE_FOR_BOTH_SIDES = on_devices(
    name="one_for_both_sides", kernel=one_for_both_sides, reference=both_sides_reference
)


def round_the_ring(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """Every shard moved three devices to the right, one after the other, into one box of each."""

    def body(
        x_ref: Any, o_ref: Any, boxes: Any, out: Any, sent: Any, received: Any, free: Any
    ) -> None:
        left, right = neighbours()
        box = boxes.at[0]
        meet(left, right)
        pltpu.sync_copy(x_ref, out)
        for step in range(3):
            copy = pltpu.make_async_remote_copy(out, box, sent, received, device_id={"x": right})
            if step:
                pl.semaphore_wait(free, 1)
            copy.start()
            if wrong != "overwritten":
                copy.wait_send()
            copy.wait_recv()
            if wrong == "early credit" and step < 2:
                pl.semaphore_signal(free, 1, device_id={"x": left})
            out[...] = box[...]
            if wrong == "overwritten":
                copy.wait_send()
            if wrong != "early credit" and step < 2:
                pl.semaphore_signal(free, 1, device_id={"x": left})
        pltpu.sync_copy(out, o_ref)

    return sharded(body, mesh, x, boxes_of(x, 1), shard_of(x), DMA, DMA, REGULAR)


def round_the_ring_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, 3, axis=0)


def credit_too_early(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device gives its box back when something has arrived, and reads it afterwards."""
    return round_the_ring(x, mesh=mesh, wrong="early credit")


def overwritten_before_sent(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The kernel overwrites the buffer that it sends, and waits for the send only afterwards."""
    return round_the_ring(x, mesh=mesh, wrong="overwritten")


SPEC_CREDIT_TOO_EARLY = on_devices(
    name="credit_too_early", kernel=credit_too_early, reference=round_the_ring_reference
)
SPEC_CREDIT_TOO_EARLY_RIGHT = twin(SPEC_CREDIT_TOO_EARLY, round_the_ring)
SPEC_OVERWRITTEN_BEFORE_SENT = on_devices(
    name="overwritten_before_sent",
    kernel=overwritten_before_sent,
    reference=round_the_ring_reference,
)


def two_meetings(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """Every shard moved two devices to the right; the devices meet again when all have sent."""

    def body(x_ref: Any, o_ref: Any, boxes: Any, sent: Any, received: Any, again: Any) -> None:
        left, right = neighbours()
        first, second = (
            pltpu.make_async_remote_copy(
                source, boxes.at[i], sent.at[i], received.at[i], device_id={"x": right}
            )
            for i, source in enumerate((x_ref, boxes.at[0]))
        )
        meet(left, right)
        first.start()
        first.wait_send()
        if wrong:
            meet(left, right)
        else:
            for other in (left, right):
                pl.semaphore_signal(again, 1, device_id={"x": other})
            pl.semaphore_wait(again, 2)
        first.wait_recv()
        second.start()
        second.wait()
        pltpu.sync_copy(boxes.at[1], o_ref)

    return sharded(body, mesh, x, boxes_of(x, 2), DMA((2,)), DMA((2,)), REGULAR)


def two_meetings_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, 2, axis=0)


def counted_twice(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """Both meetings have one semaphore: two signals of one neighbour pass for one of each."""
    return two_meetings(x, mesh=mesh, wrong="one semaphore")


SPEC_COUNTED_TWICE = on_devices(
    name="counted_twice", kernel=counted_twice, reference=two_meetings_reference
)
SPEC_COUNTED_TWICE_RIGHT = twin(SPEC_COUNTED_TWICE, two_meetings)


def all_round(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """Every shard goes round the ring, but for the step that would bring it back."""

    def body(x_ref: Any, o_ref: Any, boxes: Any, sent: Any, received: Any) -> None:
        devices = jax.lax.axis_size("x")
        left, right = neighbours()
        meet(left, right)
        pltpu.sync_copy(x_ref, boxes.at[0])
        for step in range(devices if wrong else devices - 1):
            copy = pltpu.make_async_remote_copy(
                boxes.at[step],
                boxes.at[step + 1],
                sent.at[step],
                received.at[step],
                device_id={"x": right},
            )
            copy.start()
            copy.wait_send()
            if step < devices - 1:
                copy.wait_recv()
        pltpu.sync_copy(boxes.at[devices - 1], o_ref)

    devices = mesh.shape["x"]
    return sharded(body, mesh, x, boxes_of(x, devices + 1), DMA((devices,)), DMA((devices,)))


def all_round_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, -1, axis=0)


def last_not_received(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The last step sends what nobody needs or waits for, maybe to a device that has left."""
    return all_round(x, mesh=mesh, wrong="one step more")


SPEC_LAST_NOT_RECEIVED = on_devices(
    name="last_not_received", kernel=last_not_received, reference=all_round_reference
)
SPEC_LAST_NOT_RECEIVED_RIGHT = twin(SPEC_LAST_NOT_RECEIVED, all_round)

_SUBCORES = 4


def turned(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """The rows of x ``(4, n)`` moved up by one: each subcore gets that of the next one."""

    def body(x_ref: Any, o_ref: Any, shared: Any, row: Any, stored: Any) -> None:
        me = jax.lax.axis_index("subcore")
        pltpu.sync_copy(x_ref.at[me], row)
        store = pltpu.make_async_copy(row, shared.at[me], stored)
        store.start()
        if wrong != "barrier for wait":
            store.wait()
        if wrong != "no barrier":
            plsc.subcore_barrier()
        if wrong == "barrier for wait":
            store.wait()
        pltpu.sync_copy(shared.at[jax.lax.rem(me + 1, _SUBCORES)], row)
        pltpu.sync_copy(row, o_ref.at[me])

    mesh = plsc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=_SUBCORES
    )
    memory = pltpu.VMEM_SHARED(x.shape, x.dtype), pltpu.VMEM((x.shape[1],), x.dtype), DMA
    kernel: Any = pl.kernel(body, out_type=x, mesh=mesh, scratch_types=memory)
    return kernel(x)


def turned_reference(x: jax.Array) -> jax.Array:
    return jnp.roll(x, -1, axis=0)


def no_subcore_barrier(x: jax.Array) -> jax.Array:
    """A subcore reads what the next one stores in shared memory, and does not wait for it."""
    return turned(x, wrong="no barrier")


def barrier_for_wait(x: jax.Array) -> jax.Array:
    """Subcores meet after they have begun to store, and wait for the store after they met."""
    return turned(x, wrong="barrier for wait")


_on_subcores = functools.partial(
    KernelSpec,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": _SUBCORES, "n": [16, 128]}),
    exact=True,
    vmappable=False,
    family="SparseCores",
    backends=("tpu-sim", "tpu-interpret"),
    file=__file__,
)
SPEC_NO_SUBCORE_BARRIER = _on_subcores(
    name="no_subcore_barrier", kernel=no_subcore_barrier, reference=turned_reference
)
SPEC_NO_SUBCORE_BARRIER_RIGHT = twin(SPEC_NO_SUBCORE_BARRIER, turned)
SPEC_BARRIER_FOR_WAIT = _on_subcores(
    name="barrier_for_wait", kernel=barrier_for_wait, reference=turned_reference
)
