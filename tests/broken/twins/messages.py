"""Devices that send each other several messages: credits, mailboxes, phases, and who may begin."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

from pytest_pallas import strategies as pst

from .devices import DMA, REGULAR, boxes_of, meet, neighbours, on_devices, shard_of, sharded
from .pair import twin

_ROUNDS = 6
_SLOTS = 2


def _others() -> list[Any]:
    """Return the other devices, the right neighbour first."""
    devices, me = jax.lax.axis_size("x"), jax.lax.axis_index("x")
    return [jax.lax.rem(me + ahead, devices) for ahead in range(1, devices)]


def _tell(semaphore: Any, device: Any) -> None:
    pl.semaphore_signal(semaphore, 1, device_id={"x": device})


# A stream of messages to the right neighbour, through two slots.


def streamed(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of six messages of its left neighbour: 1 x to 6 x of its shard."""
    ahead = _SLOTS + (wrong == "credit too large")

    def body(
        x_ref: Any,
        o_ref: Any,
        mine: Any,
        message: Any,
        slots: Any,
        total: Any,
        sent: Any,
        received: Any,
        free: Any,
    ) -> None:
        left, right = neighbours()
        meet(left, right)
        pltpu.sync_copy(x_ref, mine)
        total[...] = jnp.zeros_like(total)
        for number in range(_ROUNDS):
            slot = number % _SLOTS
            message[...] = mine[...] * (number + 1)
            if number >= ahead:
                pl.semaphore_wait(free, 1)
            copy = pltpu.make_async_remote_copy(
                message, slots.at[slot], sent, received.at[slot], device_id={"x": right}
            )
            copy.start()
            copy.wait()
            early = wrong == "slot 1 early" and slot == 1
            if early and number < _ROUNDS - ahead:
                _tell(free, left)
            total[...] += slots[slot]
            if not early and number < _ROUNDS - ahead:
                _tell(free, left)
        pltpu.sync_copy(total, o_ref)

    shard = shard_of(x)
    semaphores = DMA, DMA((_SLOTS,)), REGULAR
    return sharded(body, mesh, x, shard, shard, boxes_of(x, _SLOTS), shard, *semaphores)


def streamed_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(sum(x * (number + 1) for number in range(_ROUNDS)), 1, axis=0)


def credit_too_large(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """Senders begin with three credits for two slots: a mistake from three devices on."""
    return streamed(x, mesh=mesh, wrong="credit too large")


def slot_returned_early(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The second of two slots is given back when its message is there, and read afterwards."""
    return streamed(x, mesh=mesh, wrong="slot 1 early")


SPEC_CREDIT_TOO_LARGE = on_devices(
    name="credit_too_large",
    kernel=credit_too_large,
    reference=streamed_reference,
    meshes=({"x": 3},),
)
SPEC_CREDIT_TOO_LARGE_RIGHT = twin(SPEC_CREDIT_TOO_LARGE, streamed)
SPEC_SLOT_RETURNED_EARLY = on_devices(
    name="slot_returned_early", kernel=slot_returned_early, reference=streamed_reference
)


# Requests and replies: each device asks an expert, and is asked by its left neighbour.


def served(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """``2 x + 4 x + 6 x``: the right neighbour doubles what is in its mailbox and sends it back."""
    batches = 3

    def body(
        x_ref: Any,
        o_ref: Any,
        tokens: Any,
        mailbox: Any,
        doubled: Any,
        reply: Any,
        total: Any,
        sent: Any,
        asked: Any,
        replied: Any,
    ) -> None:
        left, right = neighbours()
        meet(left, right)
        pltpu.sync_copy(x_ref, tokens.at[0])
        total[...] = jnp.zeros_like(total)

        def ask(batch: int) -> None:
            tokens[1] = tokens[0] * (batch + 1)
            copy = pltpu.make_async_remote_copy(
                tokens.at[1], mailbox.at[0], sent.at[0], asked, device_id={"x": right}
            )
            copy.start()
            copy.wait_send()

        ask(0)
        for batch in range(batches):
            pltpu.make_async_copy(mailbox.at[0], mailbox.at[0], asked).wait()
            doubled[...] = 2 * mailbox[0]
            back = pltpu.make_async_remote_copy(
                doubled, reply.at[batch], sent.at[1], replied.at[batch], device_id={"x": left}
            )
            back.start()
            back.wait_send()
            if wrong and batch + 1 < batches:
                ask(batch + 1)
            back.wait_recv()
            if not wrong and batch + 1 < batches:
                ask(batch + 1)
            total[...] += reply[batch]
        pltpu.sync_copy(total, o_ref)

    shard = shard_of(x)
    scratch = boxes_of(x, 2), boxes_of(x, 1), shard, boxes_of(x, batches), shard
    return sharded(body, mesh, x, *scratch, DMA((2,)), DMA, DMA((batches,)))


def served_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return 12 * x


def mailbox_overwritten(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The next batch is sent before the reply to the last one says that the mailbox was read."""
    return served(x, mesh=mesh, wrong="before the reply")


SPEC_MAILBOX_OVERWRITTEN = on_devices(
    name="mailbox_overwritten", kernel=mailbox_overwritten, reference=served_reference
)
SPEC_MAILBOX_OVERWRITTEN_RIGHT = twin(SPEC_MAILBOX_OVERWRITTEN, served)


# All send to all, twice.


def mixed(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of all shards, mixed twice: of ``2 s - x`` for the sum ``s`` of x.

    The second time all send again, to other boxes.
    """
    senders = mesh.shape["x"] - 1

    def body(
        x_ref: Any, o_ref: Any, mine: Any, boxes: Any, total: Any, sent: Any, received: Any
    ) -> None:
        others = _others()
        if wrong == "neighbours":
            meet(*neighbours())
        else:
            meet(*others)
        pltpu.sync_copy(x_ref, mine)
        for time in range(2):
            copies = [
                pltpu.make_async_remote_copy(
                    mine,
                    boxes.at[time * senders + i],
                    sent,
                    received.at[0 if wrong == "one semaphore" else time],
                    device_id={"x": other},
                )
                for i, other in enumerate(others)
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait_send()
            for copy in copies:
                copy.wait_recv()
            total[...] = mine[...]
            for i in range(senders):
                total[...] += boxes[time * senders + i]
            mine[...] = 2 * total[...] - mine[...]
        pltpu.sync_copy(total, o_ref)

    shard = shard_of(x)
    return sharded(body, mesh, x, shard, boxes_of(x, 2 * senders), shard, DMA, DMA((2,)))


def mixed_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    total = jnp.sum(x, axis=0, keepdims=True)
    return jnp.broadcast_to(jnp.sum(2 * total - x, axis=0, keepdims=True), x.shape)


def neighbours_for_all(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device meets its two neighbours at the entry, and copies to all devices."""
    return mixed(x, mesh=mesh, wrong="neighbours")


def two_generations(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """Messages of both times arrive on one semaphore: a second one passes for another's first."""
    return mixed(x, mesh=mesh, wrong="one semaphore")


SPEC_NEIGHBOURS_FOR_ALL = on_devices(
    name="neighbours_for_all", kernel=neighbours_for_all, reference=mixed_reference, exact=False
)
SPEC_NEIGHBOURS_FOR_ALL_RIGHT = twin(SPEC_NEIGHBOURS_FOR_ALL, mixed)
SPEC_TWO_GENERATIONS = on_devices(
    name="two_generations", kernel=two_generations, reference=mixed_reference, exact=False
)


# Two phases: sums of rows, and all of them on every device.


def summed_by_rows(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of all shards: device d adds up rows d, and sends the sum to all.

    A shard of x ``(devices, devices, n)`` has one row for each device.
    """

    def body(
        x_ref: Any, o_ref: Any, mine: Any, parts: Any, sums: Any, sent: Any, received: Any
    ) -> None:
        me, others = jax.lax.axis_index("x"), _others()
        meet(*others)
        pltpu.sync_copy(x_ref, mine)

        def exchange(phase: int, source: Any, target: Any) -> None:
            copies = [
                pltpu.make_async_remote_copy(
                    source(other),
                    target,
                    sent,
                    received.at[0 if wrong == "one semaphore" else phase],
                    device_id={"x": other},
                )
                for other in others
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait_send()
            for copy in copies:
                copy.wait_recv()

        parts[0, me] = jnp.zeros_like(parts[0, 0])
        exchange(0, lambda other: mine.at[0, other], parts.at[0, me])
        sums[0, me] = mine[0, me] + jnp.sum(parts[0], axis=0)
        exchange(1, lambda _: sums.at[0, me], sums.at[0, me])
        pltpu.sync_copy(sums, o_ref)

    shard = shard_of(x)
    return sharded(body, mesh, x, shard, shard, shard, DMA, DMA((2,)))


def sum_of_all(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.broadcast_to(jnp.sum(x, axis=0, keepdims=True), x.shape)


def phases_share_semaphore(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """Sums and what they are sums of arrive on one semaphore: a sum may pass for another's row."""
    return summed_by_rows(x, mesh=mesh, wrong="one semaphore")


SPEC_PHASES_SHARE_SEMAPHORE = on_devices(
    name="phases_share_semaphore",
    kernel=phases_share_semaphore,
    reference=sum_of_all,
    inputs=lambda mesh: pst.arrays(
        "devices m n", dtype="float32", dims={"devices": mesh.size, "m": mesh.size, "n": [8, 128]}
    ),
)
SPEC_PHASES_SHARE_SEMAPHORE_RIGHT = twin(SPEC_PHASES_SHARE_SEMAPHORE, summed_by_rows)


# Both ways round the ring.


def both_ways(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of the shards two to the left and two to the right of it."""

    def body(x_ref: Any, o_ref: Any, boxes: Any, total: Any, sent: Any, received: Any) -> None:
        towards = neighbours()
        meet(*towards)

        def copies(step: int) -> list[Any]:
            return [
                pltpu.make_async_remote_copy(
                    boxes.at[0, way] if step else x_ref.at[0],
                    boxes.at[step, way],
                    sent.at[step, way],
                    received.at[step, way],
                    device_id={"x": device},
                )
                for way, device in enumerate(towards)
            ]

        first, second = copies(0), copies(1)
        for copy in first:
            copy.start()
        for way in range(2):
            first[1 - way if wrong else way].wait_recv()
            second[way].start()
        for copy in second:
            copy.wait_recv()
        total[0] = boxes[1, 0] + boxes[1, 1]
        for copy in (*first, *second):
            copy.wait_send()
        pltpu.sync_copy(total, o_ref)

    boxes = pltpu.VMEM((2, 2, *x.shape[1:]), x.dtype)
    return sharded(body, mesh, x, boxes, shard_of(x), DMA((2, 2)), DMA((2, 2)))


def both_ways_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, 2, axis=0) + jnp.roll(x, -2, axis=0)


def semaphore_of_the_other_way(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """What came from the right is passed on when the wait for what comes from the left is over."""
    return both_ways(x, mesh=mesh, wrong="other way")


SPEC_SEMAPHORE_OF_THE_OTHER_WAY = on_devices(
    name="semaphore_of_the_other_way",
    kernel=semaphore_of_the_other_way,
    reference=both_ways_reference,
)
SPEC_SEMAPHORE_OF_THE_OTHER_WAY_RIGHT = twin(SPEC_SEMAPHORE_OF_THE_OTHER_WAY, both_ways)


# Up a tree: device d has the children 2 d + 1 and 2 d + 2.


def up_the_tree(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of the shards of the tree below it, its own included."""
    devices = mesh.shape["x"]

    def body(x_ref: Any, o_ref: Any, total: Any, boxes: Any, sent: Any, received: Any) -> None:
        me = jax.lax.axis_index("x")
        children = [2 * me + 1, 2 * me + 2]
        parent, turn = jax.lax.div(me - 1, 2), jax.lax.rem(me + 1, 2)
        barrier = pltpu.get_barrier_semaphore()
        for child in children:
            pl.when(child < devices)(lambda child=child: _tell(barrier, child))
        pl.when(me > 0)(lambda: pl.semaphore_wait(barrier, 1))
        pltpu.sync_copy(x_ref, total)

        def arrived(turn: int) -> None:
            box = boxes.at[turn]
            pltpu.make_async_copy(box, box, received.at[turn]).wait()

        def add(turn: int) -> None:
            total[...] += boxes[turn]

        last = (arrived, add) if wrong != "late" else (add, arrived)
        pl.when(children[0] < devices)(lambda: arrived(0))
        pl.when(children[0] < devices)(lambda: add(0))
        for do in last:
            pl.when(children[1] < devices)(lambda do=do: do(1))

        @pl.when(me > 0)
        def _() -> None:
            copy = pltpu.make_async_remote_copy(
                total, boxes.at[turn], sent, received.at[turn], device_id={"x": parent}
            )
            copy.start()
            copy.wait_send()

        pltpu.sync_copy(total, o_ref)

    return sharded(body, mesh, x, shard_of(x), boxes_of(x, 2), DMA, DMA((2,)))


def up_the_tree_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    rows = list(x)
    for device in range(len(rows) - 1, 0, -1):
        rows[(device - 1) // 2] = rows[(device - 1) // 2] + rows[device]
    return jnp.stack(rows)


def second_child_late(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A parent adds what its second child sends, and waits for it afterwards."""
    return up_the_tree(x, mesh=mesh, wrong="late")


SPEC_SECOND_CHILD_LATE = on_devices(
    name="second_child_late", kernel=second_child_late, reference=up_the_tree_reference
)
SPEC_SECOND_CHILD_LATE_RIGHT = twin(SPEC_SECOND_CHILD_LATE, up_the_tree)


# Boxes that must be ready before others know of them.


def gathered_from_even(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device its shard and those of the other devices with even numbers, added up.

    All have a box, and only the even ones send: the boxes of the others stay zero.
    """
    devices = mesh.shape["x"]

    def body(x_ref: Any, o_ref: Any, *scratch: Any) -> None:
        *scoped, mine, sent, received = scratch
        me, others = jax.lax.axis_index("x"), _others()

        def gather(boxes: Any) -> None:
            if wrong == "cleared late":
                meet(*others)
            boxes[...] = jnp.zeros_like(boxes)
            if not wrong:
                meet(*others)
            pltpu.sync_copy(x_ref, mine)

            def copy_to(other: Any) -> Any:
                return pltpu.make_async_remote_copy(
                    mine, boxes.at[me], sent, received, device_id={"x": other}
                )

            even = jax.lax.rem(me, 2) == 0
            for other in others:
                pl.when(even)(lambda other=other: copy_to(other).start())
            for other in others:
                pl.when(even)(lambda other=other: copy_to(other).wait_send())
                pl.when(jax.lax.rem(other, 2) == 0)(lambda: copy_to(me).wait_recv())
            mine[...] += jnp.sum(boxes[...], axis=0)
            pltpu.sync_copy(mine, o_ref)

        if wrong == "scope":
            meet(*others)
        if scoped:
            gather(*scoped)
        else:
            pl.run_scoped(gather, boxes_of(x, devices))

    memory = (boxes_of(x, devices),) if wrong == "cleared late" else ()
    return sharded(body, mesh, x, *memory, shard_of(x), DMA, DMA)


def gathered_from_even_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    odd = (jnp.arange(len(x)) % 2)[:, None, None]
    return jnp.sum(x[::2], axis=0, keepdims=True) + x * odd


def cleared_after_filled(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """Boxes are cleared after the barrier, when others may have filled them."""
    return gathered_from_even(x, mesh=mesh, wrong="cleared late")


def scope_not_entered(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """The barrier is ahead of the scope of the boxes: they are filled before they exist."""
    return gathered_from_even(x, mesh=mesh, wrong="scope")


SPEC_CLEARED_AFTER_FILLED = on_devices(
    name="cleared_after_filled",
    kernel=cleared_after_filled,
    reference=gathered_from_even_reference,
)
SPEC_CLEARED_AFTER_FILLED_RIGHT = twin(SPEC_CLEARED_AFTER_FILLED, gathered_from_even)
SPEC_SCOPE_NOT_ENTERED = on_devices(
    name="scope_not_entered", kernel=scope_not_entered, reference=gathered_from_even_reference
)


# Looks at counts, which say what has arrived so far.


def in_order(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """On every device the sum of its shard, the left neighbour's and the right one's."""

    def body(x_ref: Any, o_ref: Any, boxes: Any, total: Any, sent: Any, received: Any) -> None:
        towards = neighbours()
        meet(*towards)
        pltpu.sync_copy(x_ref, total)
        copies = [
            pltpu.make_async_remote_copy(
                x_ref,
                boxes.at[1 - way],
                sent.at[way],
                received.at[1 - way],
                device_id={"x": device},
            )
            for way, device in enumerate(towards)
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait_send()

        def add(box: Any) -> None:
            pltpu.make_async_copy(boxes.at[box], boxes.at[box], received.at[box]).wait()
            total[...] += boxes[box]

        first = 0
        if wrong:
            first = jnp.where(pl.semaphore_read(received.at[1]) > 0, 1, 0)
        add(first)
        add(1 - first)
        pltpu.sync_copy(total, o_ref)

    return sharded(body, mesh, x, boxes_of(x, 2), shard_of(x), DMA((2,)), DMA((2,)))


def in_order_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return x + jnp.roll(x, 1, axis=0) + jnp.roll(x, -1, axis=0)


def added_as_they_come(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """What has arrived first is added first: sums of floats have other bits in each order."""
    return in_order(x, mesh=mesh, wrong="as they come")


SPEC_ADDED_AS_THEY_COME = on_devices(
    name="added_as_they_come",
    kernel=added_as_they_come,
    reference=in_order_reference,
    exact=False,
)
SPEC_ADDED_AS_THEY_COME_RIGHT = twin(SPEC_ADDED_AS_THEY_COME, in_order)


def coordinated(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """Every shard moved one device to the right; device 0 says when all may begin."""

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any, here: Any, go: Any) -> None:
        others, me = _others(), jax.lax.axis_index("x")
        meet(*others)
        _tell(here, 0)

        @pl.when(me == 0)
        def _() -> None:
            pl.semaphore_wait(here, 1)  # its own
            early = pl.semaphore_read(here)
            pl.semaphore_wait(here, len(others))
            for i, other in enumerate(others):
                if wrong:
                    pl.when(i < early)(lambda other=other: _tell(go, other))
                else:
                    _tell(go, other)

        pl.when(me > 0)(lambda: pl.semaphore_wait(go, 1))
        copy = pltpu.make_async_remote_copy(
            x_ref, o_ref, sent, received, device_id={"x": others[0]}
        )
        copy.start()
        copy.wait()

    return sharded(body, mesh, x, DMA, DMA, REGULAR, REGULAR)


def coordinated_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.roll(x, 1, axis=0)


def one_device_late(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """As many devices are let go as were there at the first look: one that is late never goes."""
    return coordinated(x, mesh=mesh, wrong="late")


SPEC_ONE_DEVICE_LATE = on_devices(
    name="one_device_late",
    kernel=one_device_late,
    reference=coordinated_reference,
    meshes=({"x": 3},),
)
SPEC_ONE_DEVICE_LATE_RIGHT = twin(SPEC_ONE_DEVICE_LATE, coordinated)


def until_stopped(x: jax.Array, *, mesh: Mesh, wrong: str = "") -> jax.Array:
    """Device 1 gets ``3 x`` of device 0, in messages; how many there are says the stop flag."""
    messages = 2

    def body(
        x_ref: Any, o_ref: Any, boxes: Any, total: Any, sent: Any, arrived: Any, stop: Any
    ) -> None:
        me, other = jax.lax.axis_index("x"), _others()[0]
        meet(other)
        pltpu.sync_copy(x_ref, total)

        @pl.when(me == 0)
        def _() -> None:
            for number in range(messages):
                copy = pltpu.make_async_remote_copy(
                    total, boxes.at[number], sent, arrived.at[number], device_id={"x": other}
                )
                copy.start()
                copy.wait_send()
            pl.semaphore_signal(stop, messages, device_id={"x": other})

        def take(number: Any) -> None:
            box = boxes.at[number]
            pltpu.make_async_copy(box, box, arrived.at[number]).wait()
            total[...] += box[...]

        def look(state: Any) -> Any:
            number, _ = state
            last = pl.semaphore_read(stop)
            there = pl.semaphore_read(arrived.at[jnp.minimum(number, messages - 1)]) > 0
            there &= number < messages
            pl.when(there)(lambda: take(number))
            return number + there.astype(jnp.int32), last

        @pl.when(me == 1)
        def _() -> None:
            total[...] = jnp.zeros_like(total)
            number, last = jax.lax.while_loop(lambda state: state[1] == 0, look, (0, 0))
            if not wrong:
                jax.lax.fori_loop(number, last, lambda i, _: take(i), None)
            pl.semaphore_wait(stop, messages)

        pltpu.sync_copy(total, o_ref)

    return sharded(
        body, mesh, x, boxes_of(x, messages), shard_of(x), DMA, DMA((messages,)), REGULAR
    )


def until_stopped_reference(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    del mesh
    return jnp.stack([x[0], 2 * x[0]])


def stopped_before_the_last(x: jax.Array, *, mesh: Mesh) -> jax.Array:
    """A device stops when the flag is set, which may overtake the last message."""
    return until_stopped(x, mesh=mesh, wrong="stops")


SPEC_STOPPED_BEFORE_THE_LAST = on_devices(
    name="stopped_before_the_last",
    kernel=stopped_before_the_last,
    reference=until_stopped_reference,
    meshes=({"x": 2},),
)
SPEC_STOPPED_BEFORE_THE_LAST_RIGHT = twin(SPEC_STOPPED_BEFORE_THE_LAST, until_stopped)
