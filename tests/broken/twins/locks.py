"""Programs and blocks of a GPU that share memory: tickets, locks, flags, clusters, consumers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import twin

_COLUMNS = 16

_spec = functools.partial(
    KernelSpec,
    backends=("gpu-sim",),
    exact=True,
    vmappable=False,
    file=__file__,
)

#: For the Triton route: sums of the rows of x ``(m, 16)`` by programs of ``block`` rows each.
_of_rows = functools.partial(
    _spec,
    reference=lambda x: jnp.sum(x, axis=0),
    inputs=pst.arguments(
        pst.arrays("m n", dtype="int32", dims={"m": [8, 16, 32], "n": [_COLUMNS]}),
        tuning={"block": 4},
    ),
    family="grids of a GPU",
)

_SCALAR = pl.BlockSpec((), lambda i: ())
_WHOLE = pl.BlockSpec((_COLUMNS,), lambda i: (0,))


def _rows(block: int) -> Any:
    return pl.BlockSpec((block, _COLUMNS), lambda i: (i, 0))


def _array(x: jax.Array, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, x.dtype)


_COUNTER = jax.ShapeDtypeStruct((), jnp.int32)


# The last program adds up what all have written.


def sums_by_ticket(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """The sum of the rows of x; the program that draws the last ticket adds up all parts."""
    count = x.shape[0] // block

    def body(x_ref: Any, _none: Any, parts_ref: Any, tickets_ref: Any, o_ref: Any) -> None:
        here = pl.program_id(0)
        if wrong == "by arrival":
            here = plt.atomic_add(tickets_ref, (1,), 1)
        parts_ref[here] = jnp.sum(x_ref[...], axis=0)
        ticket = plt.atomic_add(tickets_ref, (0,), 1)
        if wrong == "plain read":
            ticket = tickets_ref[0] - 1

        @pl.when(ticket == count - 1)
        def _() -> None:
            o_ref[...] = jnp.sum(parts_ref[...], axis=0)

    tickets = pl.BlockSpec((2,), lambda i: (0,))
    return pl.pallas_call(
        body,
        out_shape=[
            _array(x, count, _COLUMNS),
            jax.ShapeDtypeStruct((2,), jnp.int32),
            _array(x, _COLUMNS),
        ],
        grid=(count,),
        in_specs=[_rows(block), tickets],
        out_specs=[pl.BlockSpec((count, _COLUMNS), lambda i: (0, 0)), tickets, _WHOLE],
        input_output_aliases={1: 1},
    )(x, jnp.zeros((2,), jnp.int32))[2]


def ticket_read_plainly(x: jax.Array, *, block: int = 4) -> jax.Array:
    """A program adds 1 atomically, and reads the number of tickets by a plain load."""
    return sums_by_ticket(x, block=block, wrong="plain read")


def parts_by_arrival(x: jax.Array, *, block: int = 4) -> jax.Array:
    """Parts are kept and added in the order in which programs arrive: other bits every time."""
    return sums_by_ticket(x, block=block, wrong="by arrival")


SPEC_TICKET_READ_PLAINLY = _of_rows(name="ticket_read_plainly", kernel=ticket_read_plainly)
SPEC_TICKET_READ_PLAINLY_RIGHT = twin(SPEC_TICKET_READ_PLAINLY, sums_by_ticket)
SPEC_PARTS_BY_ARRIVAL = _of_rows(
    name="parts_by_arrival",
    kernel=parts_by_arrival,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [16, 32], "n": [_COLUMNS]}),
        tuning={"block": 4},
    ),
    exact=False,
)
SPEC_PARTS_BY_ARRIVAL_RIGHT = twin(SPEC_PARTS_BY_ARRIVAL, sums_by_ticket)


# Split sums, added to the output under a lock.


def split_sums(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """The sum of the rows of x; each program adds its part to the output under a spin lock."""

    def body(x_ref: Any, _zeros: Any, _free: Any, o_ref: Any, lock_ref: Any) -> None:
        part = jnp.sum(x_ref[...], axis=0)
        if wrong == "two steps":
            # A loop whose result is not used and that writes nothing would be removed by JAX.
            tries = jax.lax.while_loop(
                lambda _: plt.atomic_add(lock_ref, (), 0) == 1, lambda tries: tries + 1, 0
            )
            plt.atomic_xchg(lock_ref, (), jnp.minimum(tries, 0) + 1)
        else:
            jax.lax.while_loop(lambda _: plt.atomic_cas(lock_ref, 0, 1) == 1, lambda one: one, 0)
        total = o_ref[...] + part
        if wrong == "released early":
            plt.atomic_xchg(lock_ref, (), 0)
        o_ref[...] = total
        if wrong != "released early":
            plt.atomic_xchg(lock_ref, (), 0)

    return pl.pallas_call(
        body,
        out_shape=[_array(x, _COLUMNS), _COUNTER],
        grid=(x.shape[0] // block,),
        in_specs=[_rows(block), _WHOLE, _SCALAR],
        out_specs=[_WHOLE, _SCALAR],
        input_output_aliases={1: 0, 2: 1},
    )(x, jnp.zeros((_COLUMNS,), x.dtype), jnp.int32(0))[0]


def lock_released_early(x: jax.Array, *, block: int = 4) -> jax.Array:
    """The lock is released when the sum is computed, and the sum is stored afterwards."""
    return split_sums(x, block=block, wrong="released early")


def two_hold_the_lock(x: jax.Array, *, block: int = 4) -> jax.Array:
    """A program looks until the lock is free and then takes it: another one may do the same."""
    return split_sums(x, block=block, wrong="two steps")


SPEC_LOCK_RELEASED_EARLY = _of_rows(name="lock_released_early", kernel=lock_released_early)
SPEC_LOCK_RELEASED_EARLY_RIGHT = twin(SPEC_LOCK_RELEASED_EARLY, split_sums)
SPEC_TWO_HOLD_THE_LOCK = _of_rows(name="two_hold_the_lock", kernel=two_hold_the_lock)


# Each program waits for the one before it.


def chained_sums(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """The sum of the rows of x up to each block; a program begins where the one before ended."""
    count = x.shape[0] // block

    def body(x_ref: Any, _unset: Any, o_ref: Any, flags_ref: Any) -> None:
        program = pl.program_id(0)
        before = jnp.maximum(program - 1, 0)

        def look(_: Any) -> Any:
            if wrong:
                return plt.load(flags_ref.at[before], volatile=True)
            return plt.atomic_add(flags_ref, (before,), 0)

        flag = jax.lax.while_loop(lambda flag: (flag == 0) & (program > 0), look, 0)
        start = jnp.where(flag != 0, o_ref[before], 0)
        o_ref[program] = start + jnp.sum(x_ref[...], axis=0)
        plt.atomic_xchg(flags_ref, (program,), 1)

    flags = pl.BlockSpec((count,), lambda i: (0,))
    return pl.pallas_call(
        body,
        out_shape=[_array(x, count, _COLUMNS), jax.ShapeDtypeStruct((count,), jnp.int32)],
        grid=(count,),
        in_specs=[_rows(block), flags],
        out_specs=[pl.BlockSpec((count, _COLUMNS), lambda i: (0, 0)), flags],
        input_output_aliases={1: 1},
    )(x, jnp.zeros((count,), jnp.int32))[0]


def polled_without_fence(x: jax.Array, *, block: int = 4) -> jax.Array:
    """A program polls the flag by plain loads, after which it may see the sum as it was before."""
    return chained_sums(x, block=block, wrong="plain loads")


SPEC_POLLED_WITHOUT_FENCE = _of_rows(
    name="polled_without_fence",
    kernel=polled_without_fence,
    reference=lambda x: jnp.cumsum(jnp.sum(x.reshape(-1, 4, _COLUMNS), axis=1), axis=0),
)
SPEC_POLLED_WITHOUT_FENCE_RIGHT = twin(SPEC_POLLED_WITHOUT_FENCE, chained_sums)


# Mosaic GPU: two warpgroups take what a third one loads.


def taken_by_two(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``[x + 1, x + 2]`` for x ``(m, 128)``: one warpgroup loads 8 rows at a time, two use them."""
    steps, slots = x.shape[0] // 8, 2

    def body(x_gmem: Any, o_gmem: Any, coming: Any, leaving: Any, arrived: Any, free: Any) -> None:
        warpgroup = jax.lax.axis_index("warpgroup")

        @pl.when(warpgroup == 2)
        def _load() -> None:
            @pl.loop(0, steps)
            def _step(step: Any) -> None:
                slot = jax.lax.rem(step, slots)
                pl.when(step >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                rows = x_gmem.at[pl.ds(step * 8, 8)]
                plgpu.copy_gmem_to_smem(rows, coming.at[slot], arrived.at[slot])

            @pl.loop(max(0, steps - slots), steps)
            def _drain(step: Any) -> None:
                plgpu.barrier_wait(free.at[jax.lax.rem(step, slots)])

        @pl.when(warpgroup < 2)
        def _use() -> None:
            @pl.loop(0, steps)
            def _step(step: Any) -> None:
                slot = jax.lax.rem(step, slots)
                plgpu.barrier_wait(arrived.at[slot])
                leaving[warpgroup] = coming[slot] + (warpgroup + 1).astype(x.dtype)
                plgpu.commit_smem()
                if wrong:
                    pl.when(warpgroup == 0)(lambda: plgpu.barrier_arrive(free.at[slot]))
                else:
                    plgpu.barrier_arrive(free.at[slot])
                rows = o_gmem.at[warpgroup, pl.ds(step * 8, 8)]
                plgpu.copy_smem_to_gmem(leaving.at[warpgroup], rows)
                plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, *x.shape), x.dtype),
        scratch_types=[
            plgpu.SMEM((slots, 8, 128), x.dtype),
            plgpu.SMEM((2, 8, 128), x.dtype),
            plgpu.Barrier(num_barriers=slots),
            plgpu.Barrier(num_arrivals=1 if wrong else 2, num_barriers=slots),
        ],
        num_threads=3,
        thread_name="warpgroup",
    )(x)


def one_consumer_releases(x: jax.Array) -> jax.Array:
    """A slot is free when the first of two consumers has read it; the second may be behind."""
    return taken_by_two(x, wrong="one")


_mosaic = functools.partial(_spec, family="Mosaic GPU")

SPEC_ONE_CONSUMER_RELEASES = _mosaic(
    name="one_consumer_releases",
    kernel={"gpu": one_consumer_releases},
    reference=lambda x: jnp.stack([x + 1, x + 2]),
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [24, 40], "n": [128]}),
)
SPEC_ONE_CONSUMER_RELEASES_RIGHT = twin(SPEC_ONE_CONSUMER_RELEASES, taken_by_two)


# Two blocks of a cluster.


def swapped(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """x ``(32, 128)`` with its halves exchanged: each block reads the other one's shared memory."""

    def body(x_gmem: Any, o_gmem: Any, buffer: Any, met: Any) -> None:
        half = jax.lax.axis_index("half")
        rows = pl.ds(half * 16, 16)
        buffer[...] = x_gmem[rows]
        if not wrong:
            plgpu.barrier_arrive_and_wait(met)
        o_gmem[rows] = plgpu.cluster_ref(buffer, {"half": 1 - half})[...]
        plgpu.barrier_arrive_and_wait(met)  # neither ends before the other one has read

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[
            plgpu.SMEM((16, 128), x.dtype),
            plgpu.ClusterBarrier(collective_axes=("half",)),
        ],
        cluster=(2,),
        cluster_names=("half",),
    )(x)


def peer_not_met(x: jax.Array) -> jax.Array:
    """A block reads the other one's shared memory, which that may not have written yet."""
    return swapped(x, wrong="not met")


SPEC_PEER_NOT_MET = _mosaic(
    name="peer_not_met",
    kernel={"gpu": peer_not_met},
    reference=lambda x: jnp.roll(x, 16, axis=0),
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [32], "n": [128]}),
)
SPEC_PEER_NOT_MET_RIGHT = twin(SPEC_PEER_NOT_MET, swapped)


# Blocks that take turns.


def in_turns(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """The sum of the 8 rows that each block has of x ``(m, 128)``: each adds to the output."""

    def body(x_gmem: Any, o_gmem: Any) -> None:
        block = jax.lax.axis_index("block")
        turns = pl.get_global(plgpu.SemaphoreType.REGULAR)
        if wrong:
            start = jax.lax.while_loop(
                lambda seen: seen != block, lambda _: pl.semaphore_read(turns), jnp.int32(-1)
            )
        else:
            pl.semaphore_wait(turns, block, decrement=False)
            start = block
        part = x_gmem[pl.ds(block * 8, 8)]

        @pl.when(start == 0)
        def _() -> None:
            o_gmem[...] = part

        @pl.when(start != 0)
        def _() -> None:
            o_gmem[...] += part

        pl.semaphore_signal(turns)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((8, 128), x.dtype),
        grid=(x.shape[0] // 8,),
        grid_names=("block",),
    )(x)


def turn_read_off(x: jax.Array) -> jax.Array:
    """A block looks at the semaphore until it is its turn, which makes nothing visible."""
    return in_turns(x, wrong="looks")


SPEC_TURN_READ_OFF = _mosaic(
    name="turn_read_off",
    kernel={"gpu": turn_read_off},
    reference=lambda x: x.reshape(-1, 8, 128).sum(axis=0),
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [16, 32], "n": [128]}),
)
SPEC_TURN_READ_OFF_RIGHT = twin(SPEC_TURN_READ_OFF, in_turns)
