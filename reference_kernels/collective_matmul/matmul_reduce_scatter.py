"""Product whose sums run over devices: ``o_i`` is chunk ``i`` of the rows of ``sum_d x_d @ w_d``.

Shapes: on each of the devices of the ring ``x (devices m, k)``, ``w (k, n)``, ``o (m, n)``. Dtypes:
float32 or bfloat16, the same for both. It is the second layer of a block of a transformer with
tensor parallelism: each device has a part of the terms of every sum.

Schedule: in turn ``t`` device ``i`` multiplies the rows of chunk ``i - 1 - t``, adds what has come
of that chunk, and sends the sum to ``i + 1``; in the last turn that is chunk ``i``, which stays. It
is the ring of ``reduce_scatter``, with products in place of the parts. Every second block of rows
goes the other way around, from ``i + 1 + t`` to ``i - 1``.

A block of the output is sent as soon as it is complete, and is needed when the neighbor gets to the
same block, one turn later. In between, the core multiplies all other blocks of a turn: a transfer
is hidden if half a chunk of partial sums takes no longer on a link than the products of a turn.

A block that was received waits in HBM. It is fetched while its own product is made, and added to
that at the end. There is a place for each block of two turns. In the third turn a place is filled
again, and nothing but a credit keeps a fast device from doing so too early: one signal back for
each block that was fetched.

Bytes: a device sends ``(devices - 1) m n`` partial sums, the least that is possible, over two
links. They are float32, whatever the operands are, and rounded once, in the last turn. That is
twice the bytes of bfloat16, for an error that does not grow with the number of devices.

Floats are always added in the same order: chunk ``c`` is ``((p_{c + 1} + p_{c + 2}) + ...) + p_c``,
with ``p_d`` the product on device ``d``, or with minus in rows that go around the other way.

Source: Wang et al., "Overlap communication with dependent computation via decomposition in large
deep learning models", ASPLOS 2023.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh
from reference_kernels._tpu import vmem_limit
from reference_kernels.collective_matmul._operands import (
    add_product,
    check_operands,
    fit_blocks,
    padded,
    wide_product,
)
from reference_kernels.collectives import _stacked

_SLOTS = 2  # blocks that can be on their way out, and turns whose blocks can wait


def _forward(row: Any) -> Any:
    """The direction in which a block of rows goes around: 1 or -1."""
    return jnp.where(jax.lax.rem(row, 2) == 0, 1, -1)


def _kernel(
    me_ref: Any,
    x_ref: Any,
    w_ref: Any,
    o_ref: Any,
    inbox: Any,
    acc_ref: Any,
    received: Any,
    outbox: Any,
    sent: Any,
    arrived: Any,
    fetched: Any,
    credits: Any,
    *,
    axis_name: str,
    grid: tuple[int, int, int, int],
) -> None:
    del me_ref  # the index maps'
    devices, rows, columns, steps = grid
    turn, row, column, step = (pl.program_id(axis) for axis in range(4))
    number = (turn * rows + row) * columns + column  # of blocks: how many came before this one
    first, last = turn == 0, turn == devices - 1
    way, forward = jax.lax.rem(row, 2), _forward(row)

    slot, here = jax.lax.rem(number, _SLOTS), jax.lax.rem(turn, _SLOTS)
    before = 1 - here

    def transfer(turn_slot: Any) -> Any:
        """What was or will be sent of the block of this program."""
        there = (turn_slot, row, column)
        return pltpu.make_async_remote_copy(
            outbox.at[slot],
            inbox.at[there],
            sent.at[slot],
            arrived.at[there],
            device_id=_mesh.at(axis_name, _mesh.neighbor(axis_name, forward)),
        )

    def fetch() -> Any:
        return pltpu.make_async_copy(inbox.at[before, row, column], received, fetched)

    if devices > 1:

        @pl.when((number == 0) & (step == 0))
        def _enter() -> None:
            writers = [_mesh.neighbor(axis_name, each) for each in (-1, 1)]
            _mesh.enter(axis_name, *writers[:rows])  # a single row of blocks goes one way only

        @pl.when(~first & (step == 0))
        def _begin() -> None:
            transfer(before).wait_recv()
            fetch().start()

    add_product(x_ref[...], w_ref[...], acc_ref, step)

    def total() -> jax.Array:
        """The sum with what was received, whose place is free from here on."""
        if devices == 1:
            return acc_ref[...]
        pl.when(~first)(lambda: fetch().wait())
        return acc_ref[...] + jnp.where(first, 0.0, received[...])

    complete = step == steps - 1
    if devices > 1:

        @pl.when(complete & ~last)
        def _pass_on() -> None:
            pl.when(number >= _SLOTS)(lambda: transfer(here).wait_send())
            outbox[slot] = total()
            pl.when(turn >= _SLOTS)(lambda: pl.semaphore_wait(credits.at[way], 1))
            transfer(here).start()

    @pl.when(complete & last)
    def _keep() -> None:
        o_ref[...] = total().astype(o_ref.dtype)

    if devices > 1:

        @pl.when(complete & ~first & (turn + 1 < devices - 1))  # the place will be used again
        def _place_is_free() -> None:
            behind = _mesh.at(axis_name, _mesh.neighbor(axis_name, -forward))
            pl.semaphore_signal(credits.at[way], 1, device_id=behind)

    @pl.when((number == devices * rows * columns - 1) & (step == steps - 1))
    def _drain() -> None:
        for slot in range(min(_SLOTS, (devices - 1) * rows * columns)):
            pltpu.make_async_copy(outbox.at[slot], outbox.at[slot], sent.at[slot]).wait()


def matmul_reduce_scatter(
    x: jax.Array,
    w: jax.Array,
    axis_name: str,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    collective_id: int = 8,
) -> jax.Array:
    """``jax.lax.psum_scatter(x @ w, axis_name, tiled=True)``, with both at the same time.

    For use inside ``jax.shard_map``, with ``check_vma=False``.

    Args:
      x: ``(devices m, k)``, float32 or bfloat16.
      w: ``(k, n)``, of the dtype of ``x``.
      axis_name: axis of the mesh: the ring.
      block_m: rows of a block of the output.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` is contracted at once. Blocks are rounded up to whole tiles, and
        operands that are not whole blocks are padded, which copies them.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones:
        a device that is ahead in one could be taken for a device that is behind in the other.

    Returns:
      ``(m, n)``, the rows of this device, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, the rows of ``x`` cannot be divided
        over the axis, or a block size is not positive.
    """
    devices = jax.lax.axis_size(axis_name)
    (total, k, n), blocks = check_operands(x, w, block_m=block_m, block_n=block_n, block_k=block_k)
    if total % devices:
        raise ValueError(
            f"x must have rows that the {devices} devices of the axis {axis_name!r} divide, but "
            f"its shape is {x.shape}"
        )
    m = total // devices
    blocks = fit_blocks(blocks, m, k, n)
    x = padded(x.reshape(devices, m, k), blocks.rows, blocks.length)
    w = padded(w, blocks.length, blocks.columns)
    (_, height, length), width = x.shape, w.shape[1]
    rows, columns = height // blocks.rows, width // blocks.columns
    grid = (devices, rows, columns, length // blocks.length)
    block = (blocks.rows, blocks.columns)

    def x_index(turn: Any, row: Any, column: Any, step: Any, me: Any) -> tuple[Any, ...]:
        del column
        chunk = jax.lax.rem(me[0] - _forward(row) * (1 + turn) + 2 * devices, devices)
        return chunk, row, step

    def o_index(turn: Any, row: Any, column: Any, step: Any, me: Any) -> tuple[Any, ...]:
        del step, me
        here = (turn == devices - 1).astype(jnp.int32)  # before, it stays at the first block
        return here * row, here * column

    o, _ = pl.pallas_call(
        functools.partial(_kernel, axis_name=axis_name, grid=grid),
        out_shape=(
            jax.ShapeDtypeStruct((height, width), x.dtype),
            jax.ShapeDtypeStruct((_SLOTS, rows, columns, *block), jnp.float32),  # for the kernel
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[
                pl.BlockSpec((None, blocks.rows, blocks.length), x_index),
                pl.BlockSpec((blocks.length, blocks.columns), lambda t, i, j, step, me: (step, j)),
            ],
            out_specs=(pl.BlockSpec(block, o_index), pl.BlockSpec(memory_space=pl.ANY)),
            scratch_shapes=[
                pltpu.VMEM(block, jnp.float32),
                pltpu.VMEM(block, jnp.float32),
                pltpu.VMEM((_SLOTS, *block), jnp.float32),
                pltpu.SemaphoreType.DMA((_SLOTS,)),
                pltpu.SemaphoreType.DMA((_SLOTS, rows, columns)),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.REGULAR((2,)),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id if devices > 1 else None,
            dimension_semantics=("arbitrary",) * 4,
            vmem_limit_bytes=vmem_limit(
                ((blocks.rows, blocks.length), x.dtype),
                ((blocks.length, blocks.columns), x.dtype),
                (block, x.dtype),
                scratch=(2 + _SLOTS) * 4 * blocks.rows * blocks.columns,
            ),
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * devices * height * length * width,
            transcendentals=0,
            bytes_accessed=(x.size + devices * w.size + height * width) * x.dtype.itemsize,
            remote_bytes_transferred=4 * (devices - 1) * height * width,
        ),
    )(jax.lax.axis_index(axis_name).reshape(1), x, w)
    return o[:m, :n]


def matmul_reduce_scatter_on_mesh(
    x: jax.Array, w: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, **options: Any
) -> jax.Array:
    """``matmul_reduce_scatter`` of ``x (mesh.size, devices m, k)`` and ``w (mesh.size, k, n)``.

    Returns:
      ``(mesh.size, m, n)``: what each device gets.

    Raises:
      ValueError: the mesh has no such axis, an operand not one shard for each device, and whatever
        ``matmul_reduce_scatter`` raises.
    """
    _mesh.axis_size(mesh, axis_name)
    one = functools.partial(matmul_reduce_scatter, axis_name=axis_name, **options)
    return _mesh.on_each_device(one, mesh, x=x, w=w)


def reference(x: jax.Array, w: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """The sum of the products of all devices of the axis, each device's rows of it."""
    product = wide_product(*(_stacked.by_axis(each, mesh, axis_name) for each in (x, w)))
    devices, others, rows, n = product.shape
    parts = product.sum(axis=0).reshape(others, devices, rows // devices, n)
    return _stacked.by_device(jnp.moveaxis(parts, 1, 0), mesh, axis_name).astype(x.dtype)
