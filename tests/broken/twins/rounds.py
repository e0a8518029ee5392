"""Kernels for TPUs that go wrong only when they go round: rings used again, later tiles and steps.

Each is right on arrays of few tiles, which is what most tests have.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin

_ANY = pl.BlockSpec(memory_space=pl.ANY)
_WHOLE = pl.BlockSpec(memory_space=pltpu.VMEM)
_LANES = 128
_LOWEST = -1e30

_spec = functools.partial(
    KernelSpec,
    exact=True,
    vmappable=False,
    family="rounds of a TPU",
    backends=INTERPRETERS,
    file=__file__,
)


# Five buffers, by a loop of Python.

_BUFFERS = 5


def halves(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x / 2`` for x ``(m, n)`` in bfloat16, 16 rows at a time through five buffers."""
    steps = x.shape[0] // 16

    def body(x_ref: Any, o_ref: Any, *refs: Any) -> None:
        buffers, arrived = refs[:_BUFFERS], refs[_BUFFERS]

        def load(step: int) -> Any:
            rows, slot = x_ref.at[pl.ds(step * 16, 16)], step % _BUFFERS
            return pltpu.make_async_copy(rows, buffers[slot], arrived.at[slot])

        for step in range(min(_BUFFERS, steps)):
            load(step).start()
        for step in range(steps):
            load(step).wait()
            if wrong and step + _BUFFERS < steps:
                load(step + _BUFFERS).start()
            o_ref[pl.ds(step * 16, 16)] = buffers[step % _BUFFERS][...] / 2
            if not wrong and step + _BUFFERS < steps:
                load(step + _BUFFERS).start()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY],
        scratch_shapes=[
            *[pltpu.VMEM((16, x.shape[1]), x.dtype) for _ in range(_BUFFERS)],
            pltpu.SemaphoreType.DMA((_BUFFERS,)),
        ],
    )(x)


def buffer_refilled_unread(x: jax.Array) -> jax.Array:
    """The sixth block is loaded to the buffer of the first one before that is read."""
    return halves(x, wrong="unread")


SPEC_BUFFER_REFILLED_UNREAD = _spec(
    name="buffer_refilled_unread",
    kernel=buffer_refilled_unread,
    reference=lambda x: x / 2,
    inputs=pst.arrays("m n", dtype="bfloat16", multiple_of={"m": 16, "n": 128}),
)
SPEC_BUFFER_REFILLED_UNREAD_RIGHT = twin(SPEC_BUFFER_REFILLED_UNREAD, halves)


# Eight slots, by a loop of the kernel: weights are streamed past a few rows.


def streamed(x: jax.Array, w: jax.Array, *, ahead: int = 7) -> jax.Array:
    """``x @ w`` in float32 for x ``(8, k)`` and w ``(k, n)``, 128 rows of w at a time."""
    block = 128
    steps = w.shape[0] // block

    def body(x_ref: Any, w_ref: Any, o_ref: Any, ring: Any, arrived: Any) -> None:
        def slot_of(step: Any) -> Any:
            return pl.ds(pl.multiple_of((step & 7) * block, block), block)

        def load(step: Any) -> Any:
            rows = w_ref.at[pl.ds(step * block, block)]
            return pltpu.make_async_copy(rows, ring.at[slot_of(step)], arrived.at[step & 7])

        @pl.loop(0, min(ahead, steps))
        def _fill(step: Any) -> None:
            load(step).start()

        def add(step: Any, total: jax.Array) -> jax.Array:
            pl.when(step + ahead < steps)(lambda: load(step + ahead).start())
            load(step).wait()
            terms = x_ref[:, pl.ds(pl.multiple_of(step * block, block), block)]
            return total + jnp.dot(terms, ring[slot_of(step)], precision="highest")

        o_ref[...] = jax.lax.fori_loop(0, steps, add, jnp.zeros(o_ref.shape, jnp.float32))

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.float32),
        in_specs=[_WHOLE, _ANY],
        scratch_shapes=[
            pltpu.VMEM((8 * block, w.shape[1]), w.dtype),
            pltpu.SemaphoreType.DMA((8,)),
        ],
    )(x, w)


def eight_ahead_of_eight(x: jax.Array, w: jax.Array) -> jax.Array:
    """Weights are loaded eight blocks ahead, into a ring of eight, where one is in use."""
    return streamed(x, w, ahead=8)


SPEC_EIGHT_AHEAD_OF_EIGHT = _spec(
    name="eight_ahead_of_eight",
    kernel=eight_ahead_of_eight,
    reference=functools.partial(jnp.dot, precision="highest"),
    inputs=pst.arrays("m k, k n", dtype="float32", dims={"m": 8}, multiple_of={"k": 128, "n": 128}),
)
SPEC_EIGHT_AHEAD_OF_EIGHT_RIGHT = twin(SPEC_EIGHT_AHEAD_OF_EIGHT, streamed)


# Two rings: six blocks come, three leave.


def squares(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x * x`` for x ``(m, n)``, 8 rows at a time; six slots for loads, and three for stores."""
    steps, slots_in, slots_out = x.shape[0] // 8, 6, 3

    def body(x_ref: Any, o_ref: Any, coming: Any, leaving: Any, loads: Any, stores: Any) -> None:
        def load(step: Any) -> Any:
            slot = jax.lax.rem(step, slots_in)
            rows = x_ref.at[pl.ds(step * 8, 8)]
            return pltpu.make_async_copy(rows, coming.at[slot], loads.at[slot])

        def store(step: Any) -> Any:
            slot = jax.lax.rem(step, slots_out)
            rows = o_ref.at[pl.ds(step * 8, 8)]
            return pltpu.make_async_copy(leaving.at[slot], rows, stores.at[slot])

        behind = slots_in if wrong else slots_out
        pl.loop(0, min(slots_in - 1, steps))(lambda step: load(step).start())

        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            ahead = step + slots_in - 1
            pl.when(ahead < steps)(lambda: load(ahead).start())
            load(step).wait()
            block = coming[jax.lax.rem(step, slots_in)]
            pl.when(step >= behind)(lambda: store(step - behind).wait())
            leaving[jax.lax.rem(step, slots_out)] = block * block
            store(step).start()

        pl.loop(max(steps - behind, 0), steps)(lambda step: store(step).wait())

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[
            pltpu.VMEM((slots_in, 8, x.shape[1]), x.dtype),
            pltpu.VMEM((slots_out, 8, x.shape[1]), x.dtype),
            pltpu.SemaphoreType.DMA((slots_in,)),
            pltpu.SemaphoreType.DMA((slots_out,)),
        ],
    )(x)


def depth_of_the_other_ring(x: jax.Array) -> jax.Array:
    """A store is waited for six steps later, as a load is; its slot is filled again after three."""
    return squares(x, wrong="six")


SPEC_DEPTH_OF_THE_OTHER_RING = _spec(
    name="depth_of_the_other_ring",
    kernel=depth_of_the_other_ring,
    reference=jnp.square,
    inputs=pst.arrays("m n", dtype="float32", multiple_of={"m": 8, "n": 128}),
)
SPEC_DEPTH_OF_THE_OTHER_RING_RIGHT = twin(SPEC_DEPTH_OF_THE_OTHER_RING, squares)


# A wait that is for `step >= stages`.


def narrowed(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """x ``(m, n)`` in bfloat16, 16 rows at a time; four blocks are on their way out at a time."""
    steps, slots = x.shape[0] // 16, 4

    def body(x_ref: Any, o_ref: Any, leaving: Any, stores: Any) -> None:
        def store(step: Any) -> Any:
            slot = jax.lax.rem(step, slots)
            rows = o_ref.at[pl.ds(step * 16, 16)]
            return pltpu.make_async_copy(leaving.at[slot], rows, stores.at[slot])

        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            used = step > slots if wrong else step >= slots
            pl.when(used)(lambda: store(step - slots).wait())
            rows = x_ref[pl.ds(pl.multiple_of(step * 16, 16), 16)]
            leaving[jax.lax.rem(step, slots)] = rows.astype(o_ref.dtype)
            store(step).start()

        for step in range(max(steps - slots, 0), steps):
            store(step).wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.bfloat16),
        in_specs=[_WHOLE],
        out_specs=_ANY,
        scratch_shapes=[
            pltpu.VMEM((slots, 16, x.shape[1]), jnp.bfloat16),
            pltpu.SemaphoreType.DMA((slots,)),
        ],
    )(x)


def waits_from_the_sixth(x: jax.Array) -> jax.Array:
    """A slot is waited for if ``step > 4``, and not from the fifth step on: its first reuse."""
    return narrowed(x, wrong="one off")


SPEC_WAITS_FROM_THE_SIXTH = _spec(
    name="waits_from_the_sixth",
    kernel=waits_from_the_sixth,
    reference=lambda x: x.astype(jnp.bfloat16),
    inputs=pst.arrays("m n", dtype="float32", multiple_of={"m": 16, "n": 128}),
)
SPEC_WAITS_FROM_THE_SIXTH_RIGHT = twin(SPEC_WAITS_FROM_THE_SIXTH, narrowed)


# Three steps ahead.


def products(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """The sum of ``x[k] @ y[k]`` for x ``(k, 8, t)`` and y ``(k, t, n)``, with four slots each."""
    steps, slots, ahead = x.shape[0], 4, 3

    def body(x_ref: Any, y_ref: Any, o_ref: Any, xs: Any, ys: Any, arrived: Any) -> None:
        def loads(step: Any, of_y: Any) -> Any:
            slot = jax.lax.rem(step, slots)
            return (
                pltpu.make_async_copy(x_ref.at[step], xs.at[slot], arrived.at[0, slot]),
                pltpu.make_async_copy(y_ref.at[of_y], ys.at[slot], arrived.at[1, slot]),
            )

        def start(step: Any, of_y: Any) -> None:
            for copy in loads(step, of_y):
                copy.start()

        for step in range(min(ahead, steps)):
            start(step, step)
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            of_y = step + 1 if wrong else step + ahead
            pl.when(step + ahead < steps)(lambda: start(step + ahead, of_y))
            for copy in loads(step, step):
                copy.wait()
            slot = jax.lax.rem(step, slots)
            o_ref[...] += jnp.dot(xs[slot], ys[slot], precision="highest")

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[1], y.shape[2]), jnp.float32),
        in_specs=[_ANY, _ANY],
        scratch_shapes=[
            pltpu.VMEM((slots, *x.shape[1:]), x.dtype),
            pltpu.VMEM((slots, *y.shape[1:]), y.dtype),
            pltpu.SemaphoreType.DMA((2, slots)),
        ],
    )(x, y)


def one_operand_ahead(x: jax.Array, y: jax.Array) -> jax.Array:
    """When three blocks came to be loaded ahead in place of one, a ``step + 1`` was forgotten."""
    return products(x, y, wrong="step + 1")


SPEC_ONE_OPERAND_AHEAD = _spec(
    name="one_operand_ahead",
    kernel=one_operand_ahead,
    reference=lambda x, y: jnp.einsum("kmt,ktn->mn", x, y, precision="highest"),
    inputs=pst.arrays(
        "k m t, k t n", dtype="float32", dims={"m": 8}, multiple_of={"t": 128, "n": 128}
    ),
)
SPEC_ONE_OPERAND_AHEAD_RIGHT = twin(SPEC_ONE_OPERAND_AHEAD, products)


# More tiles than programs.


def tile_sums(x: jax.Array, *, programs: int = 2, wrong: str = "") -> jax.Array:
    """The sum of the rows of each tile of 32 rows of x ``(m, n)``; a program has several tiles."""
    tiles = x.shape[0] // 32

    def body(x_ref: Any, o_ref: Any, total: Any) -> None:
        def clear() -> None:
            total[...] = jnp.zeros_like(total)

        if wrong:
            clear()

        def tile_of(tile: Any) -> Any:
            if not wrong:
                clear()

            @pl.loop(0, 4)
            def _step(step: Any) -> None:
                total[...] += x_ref[pl.ds(pl.multiple_of(tile * 32 + step * 8, 8), 8)]

            o_ref[pl.ds(tile, 1)] = jnp.sum(total[...], axis=0, keepdims=True)
            return tile + programs

        jax.lax.while_loop(lambda tile: tile < tiles, tile_of, pl.program_id(0))

    whole = pl.BlockSpec((tiles, x.shape[1]), lambda program: (0, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((tiles, x.shape[1]), x.dtype),
        grid=(programs,),
        in_specs=[pl.BlockSpec(x.shape, lambda program: (0, 0))],
        out_specs=whole,
        scratch_shapes=[pltpu.VMEM((8, x.shape[1]), x.dtype)],
    )(x)


def second_tile_of_a_program(x: jax.Array, *, programs: int = 2) -> jax.Array:
    """A persistent program clears its sum once, and not for each of its tiles."""
    return tile_sums(x, programs=programs, wrong="once")


SPEC_SECOND_TILE_OF_A_PROGRAM = _spec(
    name="second_tile_of_a_program",
    kernel=second_tile_of_a_program,
    reference=lambda x: x.reshape(-1, 32, x.shape[1]).sum(axis=1, dtype=x.dtype),
    inputs=pst.arguments(
        pst.arrays("m n", dtype="int32", multiple_of={"m": 32, "n": 128}), tuning={"programs": 4}
    ),
)
SPEC_SECOND_TILE_OF_A_PROGRAM_RIGHT = twin(SPEC_SECOND_TILE_OF_A_PROGRAM, tile_sums)


# As many rounds as the data say.


def log_sums(x: jax.Array, lengths: jax.Array, *, wrong: str = "") -> jax.Array:
    """``log(sum(exp(x[b, :lengths[b]])))`` for x ``(b, n)``, in blocks of 128 that are reached."""
    rows = x.shape[0]

    def body(lengths_ref: Any, x_ref: Any, o_ref: Any, top_ref: Any, sum_ref: Any) -> None:
        length = lengths_ref[pl.program_id(0)]
        top_ref[...] = jnp.full_like(top_ref, _LOWEST)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        first = top_ref[...]

        def step(start: Any) -> Any:
            logits = x_ref[0, :, pl.ds(pl.multiple_of(start, _LANES), _LANES)]
            column = start + jax.lax.broadcasted_iota(jnp.int32, (1, _LANES), 1)
            logits = jnp.where(column < length, logits, _LOWEST)
            before = first if wrong else top_ref[...]
            top = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
            more = jnp.sum(jnp.exp(logits - top), axis=1, keepdims=True)
            sum_ref[...] = sum_ref[...] * jnp.exp(before - top) + more
            top_ref[...] = top
            return start + _LANES

        jax.lax.while_loop(lambda start: start < length, step, jnp.int32(0))
        o_ref[0] = top_ref[...] + jnp.log(sum_ref[...])

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((rows, 1, 1), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows,),
            in_specs=[pl.BlockSpec((1, 1, x.shape[1]), lambda row, _: (row, 0, 0))],
            out_specs=pl.BlockSpec((1, 1, 1), lambda row, _: (row, 0, 0)),
            scratch_shapes=[pltpu.VMEM((1, 1), jnp.float32)] * 2,
        ),
    )(lengths, x[:, None])[:, 0, 0]


def log_sums_reference(x: jax.Array, lengths: jax.Array) -> jax.Array:
    seen = jnp.arange(x.shape[1]) < lengths[:, None]
    return jax.scipy.special.logsumexp(jnp.where(seen, x, -jnp.inf), axis=1)


def maximum_of_the_start(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """The maximum is loaded ahead of the loop: from the second round on it is that of the start."""
    return log_sums(x, lengths, wrong="ahead of the loop")


SPEC_MAXIMUM_OF_THE_START = _spec(
    name="maximum_of_the_start",
    kernel=maximum_of_the_start,
    reference=log_sums_reference,
    inputs=pst.arguments(
        pst.arrays("b n", dtype="float32", multiple_of={"n": 128}),
        then=lambda drawn: {
            "lengths": pst.lengths(drawn.recipe["b"], max_length=drawn.recipe["n"], around=128)
        },
    ),
    exact=False,
)
SPEC_MAXIMUM_OF_THE_START_RIGHT = twin(SPEC_MAXIMUM_OF_THE_START, log_sums)


# A last block that is partial, and not the first.


def row_sums(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """The sums of the rows of x ``(m, n)`` in blocks of ``8 x 128``, partial ones at the edges."""
    m, n = x.shape

    def body(x_ref: Any, o_ref: Any) -> None:
        step = pl.program_id(1)

        @pl.when(step == 0)
        def _clear() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        column = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        inside = column < n if wrong else step * _LANES + column < n
        terms = jnp.where(inside, x_ref[...], 0)
        o_ref[...] += jnp.sum(terms, axis=1, keepdims=True, dtype=x.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
        grid=(pl.cdiv(m, 8), pl.cdiv(n, _LANES)),
        in_specs=[pl.BlockSpec((8, _LANES), lambda i, step: (i, step))],
        out_specs=pl.BlockSpec((8, 1), lambda i, step: (i, 0)),
    )(x)[:, 0]


def column_of_the_block(x: jax.Array) -> jax.Array:
    """A mask without ``step * 128``: right in the first block, and in every one that is whole."""
    return row_sums(x, wrong="of the block")


SPEC_COLUMN_OF_THE_BLOCK = _spec(
    name="column_of_the_block",
    kernel=column_of_the_block,
    reference=lambda x: jnp.sum(x, axis=1, dtype=x.dtype),
    inputs=pst.arrays("m n", dtype="int32"),
)
SPEC_COLUMN_OF_THE_BLOCK_RIGHT = twin(SPEC_COLUMN_OF_THE_BLOCK, row_sums)


# Sums of few steps, which are added to those of all.


def promoted(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x @ y`` for x ``(m, k)`` and y ``(k, n)`` in int8; four steps have a sum of their own."""
    (m, k), n = x.shape, y.shape[1]
    steps = k // 128

    def body(x_ref: Any, y_ref: Any, o_ref: Any, few: Any) -> None:
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _clear() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        first = step == 0 if wrong else jax.lax.rem(step, 4) == 0

        @pl.when(first)
        def _first() -> None:
            few[...] = jnp.zeros_like(few)

        few[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.int32)

        @pl.when((jax.lax.rem(step, 4) == 3) | (step == steps - 1))
        def _promote() -> None:
            o_ref[...] += few[...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.int32),
        grid=(m // 32, n // 128, steps),
        in_specs=[
            pl.BlockSpec((32, 128), lambda i, j, step: (i, step)),
            pl.BlockSpec((128, 128), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((32, 128), lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM((32, 128), jnp.int32)],
    )(x, y)


def promoted_again(x: jax.Array, y: jax.Array) -> jax.Array:
    """The sum of four steps is not cleared when it was added, and is added again in the fifth."""
    return promoted(x, y, wrong="not cleared")


SPEC_PROMOTED_AGAIN = _spec(
    name="promoted_again",
    kernel=promoted_again,
    reference=functools.partial(jnp.dot, preferred_element_type=jnp.int32),
    inputs=pst.arrays("m k, k n", dtype="int8", multiple_of={"m": 32, "k": 128, "n": 128}),
)
SPEC_PROMOTED_AGAIN_RIGHT = twin(SPEC_PROMOTED_AGAIN, promoted)


# A window of six blocks: from the seventh on, one leaves it.


def window_sums(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """For each block of 8 rows of x ``(m, n)``, the sum of it and of the five blocks before."""

    def body(x_ref: Any, o_ref: Any, total: Any, kept: Any) -> None:
        step = pl.program_id(0)
        slot = jax.lax.rem(step, 6)

        @pl.when(step == 0)
        def _clear() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]

        @pl.when(step >= 6)
        def _leave() -> None:
            total[...] -= kept[jax.lax.rem(step + 1, 6) if wrong else slot]

        kept[slot] = x_ref[...]
        o_ref[...] = total[...]

    block = pl.BlockSpec((8, x.shape[1]), lambda step: (step, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 8,),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[
            pltpu.VMEM((8, x.shape[1]), x.dtype),
            pltpu.VMEM((6, 8, x.shape[1]), x.dtype),
        ],
    )(x)


def window_sums_reference(x: jax.Array) -> jax.Array:
    blocks = x.reshape(-1, 8, x.shape[1])
    padded = jnp.pad(blocks, ((5, 0), (0, 0), (0, 0)))
    windows = [padded[i : i + len(blocks)] for i in range(6)]
    return sum(windows[1:], windows[0]).reshape(x.shape)


def wrong_block_leaves(x: jax.Array) -> jax.Array:
    """From the seventh block on, the last but one of the window is subtracted, not the last."""
    return window_sums(x, wrong="off by one")


SPEC_WRONG_BLOCK_LEAVES = _spec(
    name="wrong_block_leaves",
    kernel=wrong_block_leaves,
    reference=window_sums_reference,
    inputs=pst.arrays("m n", dtype="int32", multiple_of={"m": 8, "n": 128}),
)
SPEC_WRONG_BLOCK_LEAVES_RIGHT = twin(SPEC_WRONG_BLOCK_LEAVES, window_sums)
