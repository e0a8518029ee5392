"""Product with rows that are spread over devices: ``o = concatenate(x_0, x_1, ...) @ w``.

Shapes: on each of the devices of the ring ``x (m, k)``, ``w (k, n)``, ``o (devices m, n)``. Dtypes:
float32 or bfloat16, the same for both. Each device may have another ``w``: columns of a large
matrix, as in the first layer of a block of a transformer with tensor parallelism.

To gather first and multiply then leaves the links idle while the core computes, and the other way
around. Here a device multiplies the rows that it has while they are on their way to the next one:

1. Device ``i`` starts with its own rows. In step ``t`` the upper half of its rows is from device
   ``i - t``, the lower half from ``i + t``.
2. It starts to send the upper half to the right and the lower half to the left, multiplies both,
   and waits until they have left and those of step ``t + 1`` have arrived.

So a transfer is hidden if half a shard takes no longer on a link than a shard in the matrix unit.
Each step has a place of its own to receive in. That is the memory that a gathered ``x`` would take,
but no place is used twice, and a neighbor may be any number of steps ahead without credits. The
first step needs none: it multiplies and sends ``x`` itself.

Bytes: a device sends ``(devices - 1) m k`` elements, as for any all-gather, over two links.

The grid is ``(devices, m, n, k)`` in blocks, with the steps outside. Blocks of ``w`` and ``o`` come
and go with it. Blocks of ``x`` cannot, because the pipeline of a grid fetches ahead, and the first
rows of a step would be fetched before they have arrived. So ``x`` is fetched by hand, one block
ahead within a step.

Source: Wang et al., "Overlap communication with dependent computation via decomposition in large
deep learning models", ASPLOS 2023.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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


def _kernel(
    me_ref: Any,
    x_ref: Any,
    w_ref: Any,
    o_ref: Any,
    others_ref: Any,
    x_slots: Any,
    acc_ref: Any,
    loaded: Any,
    sent: Any,
    arrived: Any,
    *,
    axis_name: str,
    grid: tuple[int, int, int, int],
) -> None:
    del me_ref  # the index map's
    devices, rows, columns, lengths = grid
    step, row, column, part = (pl.program_id(axis) for axis in range(4))
    number = (row * columns + column) * lengths + part
    block_rows, block_length = x_slots.shape[1:]
    ways = _ways(rows, block_rows)

    def transfers(step: Any, source: Any) -> list[Any]:
        """What is sent in a step: rows of ``source``, to where the neighbor has the next step's."""
        return [
            pltpu.make_async_remote_copy(
                source.at[half],
                others_ref.at[step, half],
                sent.at[way],
                arrived.at[way, step],
                device_id=_mesh.at(axis_name, _mesh.neighbor(axis_name, forward)),
            )
            for way, (forward, half) in enumerate(ways)
        ]

    def at_hand(use: Callable[[Any], None]) -> None:
        """``use`` the rows that this step multiplies."""
        pl.when(step == 0)(lambda: use(x_ref))
        if devices > 1:
            pl.when(step > 0)(lambda: use(others_ref.at[step - 1]))

    def load(source: Any, row: Any, part: Any, slot: Any) -> Any:
        here = (pl.ds(row * block_rows, block_rows), pl.ds(part * block_length, block_length))
        return pltpu.make_async_copy(source.at[here], x_slots.at[slot], loaded.at[slot])

    if devices > 1:
        begins = number == 0

        @pl.when(begins & (step == 0))
        def _enter() -> None:
            _mesh.enter(axis_name, *(_mesh.neighbor(axis_name, -forward) for forward, _ in ways))

        @pl.when(begins & (step > 0))
        def _arrive() -> None:
            for copy in transfers(step - 1, x_ref):
                copy.wait()

        def send(source: Any) -> None:
            for copy in transfers(step, source):
                copy.start()

        pl.when(begins & (step < devices - 1))(lambda: at_hand(send))

    slot, row_ends = jax.lax.rem(number, 2), part == lengths - 1
    next_row = row + (row_ends & (column == columns - 1)).astype(jnp.int32)
    next_part = jnp.where(row_ends, 0, part + 1)
    pl.when(number == 0)(lambda: at_hand(lambda source: load(source, 0, 0, 0).start()))
    pl.when(number + 1 < rows * columns * lengths)(
        lambda: at_hand(lambda source: load(source, next_row, next_part, 1 - slot).start())
    )
    load(x_ref, 0, 0, slot).wait()
    add_product(x_slots[slot], w_ref[...], acc_ref, part)

    @pl.when(row_ends)
    def _round() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def _ways(rows: int, block_rows: int) -> list[tuple[int, Any]]:
    """The directions on the ring, and the rows of a shard that go there."""
    upper, lower = pl.cdiv(rows, 2) * block_rows, rows // 2 * block_rows
    return [(1, pl.ds(0, upper)), (-1, pl.ds(upper, lower))][:rows]


def all_gather_matmul(
    x: jax.Array,
    w: jax.Array,
    axis_name: str,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    collective_id: int = 7,
) -> jax.Array:
    """``jax.lax.all_gather(x, axis_name, tiled=True) @ w``, with both at the same time.

    For use inside ``jax.shard_map``, with ``check_vma=False``.

    Args:
      x: ``(m, k)``, the rows of this device, float32 or bfloat16.
      w: ``(k, n)``, of the dtype of ``x``.
      axis_name: axis of the mesh: the ring.
      block_m: rows of a block of the output.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` is contracted at once. Blocks are rounded up to whole tiles, and
        operands that are not whole blocks are padded, which copies them.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones:
        a device that is ahead in one could be taken for a device that is behind in the other.

    Returns:
      ``(devices m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    devices = jax.lax.axis_size(axis_name)
    (m, k, n), blocks = check_operands(x, w, block_m=block_m, block_n=block_n, block_k=block_k)
    blocks = fit_blocks(blocks, m, k, n)
    x, w = padded(x, blocks.rows, blocks.length), padded(w, blocks.length, blocks.columns)
    (height, length), width = x.shape, w.shape[1]
    rows = height // blocks.rows
    grid = (devices, rows, width // blocks.columns, length // blocks.length)

    def o_index(step: Any, row: Any, column: Any, part: Any, me: Any) -> tuple[Any, ...]:
        del part
        away = jnp.where(row < pl.cdiv(rows, 2), -step, step)  # where the rows came from
        return jax.lax.rem(me[0] + away + devices, devices), row, column

    places = max(1, devices - 1)
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    block = (blocks.rows, blocks.columns)
    o, _ = pl.pallas_call(
        functools.partial(_kernel, axis_name=axis_name, grid=grid),
        out_shape=(
            jax.ShapeDtypeStruct((devices, height, width), x.dtype),
            jax.ShapeDtypeStruct((places, height, length), x.dtype),  # memory for the kernel
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[
                hbm,
                pl.BlockSpec((blocks.length, blocks.columns), lambda t, i, j, k, me: (k, j)),
            ],
            out_specs=(pl.BlockSpec((None, *block), o_index), hbm),
            scratch_shapes=[
                pltpu.VMEM((2, blocks.rows, blocks.length), x.dtype),
                pltpu.VMEM(block, jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA((2, places)),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id if devices > 1 else None,
            dimension_semantics=("arbitrary",) * 4,
            vmem_limit_bytes=vmem_limit(
                ((blocks.rows, blocks.length), x.dtype),
                ((blocks.length, blocks.columns), x.dtype),
                (block, x.dtype),
                scratch=4 * blocks.rows * blocks.columns,
            ),
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * devices * height * length * width,
            transcendentals=0,
            bytes_accessed=devices * (x.size + w.size + height * width) * x.dtype.itemsize,
            remote_bytes_transferred=(devices - 1) * x.size * x.dtype.itemsize,
        ),
    )(jax.lax.axis_index(axis_name).reshape(1), x, w)
    return o[:, :m, :n].reshape(devices * m, n)


def all_gather_matmul_on_mesh(
    x: jax.Array, w: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, **options: Any
) -> jax.Array:
    """``all_gather_matmul`` of ``x (mesh.size, m, k)`` and ``w (mesh.size, k, n)``.

    Returns:
      ``(mesh.size, devices m, n)``: what each device gets.

    Raises:
      ValueError: the mesh has no such axis, an operand not one shard for each device, and whatever
        ``all_gather_matmul`` raises.
    """
    _mesh.axis_size(mesh, axis_name)
    one = functools.partial(all_gather_matmul, axis_name=axis_name, **options)
    return _mesh.on_each_device(one, mesh, x=x, w=w)


def reference(x: jax.Array, w: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """All rows of the axis times the matrix of each device."""
    grid = _stacked.by_axis(x, mesh, axis_name)
    devices, others, m, k = grid.shape
    rows = jnp.moveaxis(grid, 0, 1).reshape(1, others, devices * m, k)
    product = wide_product(rows, _stacked.by_axis(w, mesh, axis_name))
    return _stacked.by_device(product, mesh, axis_name).astype(x.dtype)
