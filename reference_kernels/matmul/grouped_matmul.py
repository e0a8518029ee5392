"""Grouped products: each group of rows has weights of its own, as the experts of a mixture do.

``gmm``: ``o[r] = x[r] @ w[g]`` for every row ``r`` of group ``g``, zero in rows beyond the last
group. Shapes: ``x (m, k)``, ``w (groups, k, n)`` or, transposed, ``(groups, n, k)``,
``group_sizes (groups,)``, ``o (m, n)``.

``tgmm``: ``o[g] = x[rows of g]^T @ y[rows of g]``, zero for an empty group. Shapes: ``x (m, k)``,
``y (m, n)``, ``o (groups, k, n)``.

Dtypes: float32 or bfloat16, the same for all; int32 for ``group_sizes``. Sums are float32.

Source: Gale et al., "MegaBlocks", 2022 (arXiv:2211.15841). Rows are sorted by group, and neither
padded to whole tiles nor multiplied with weights of other groups. The sizes are known only while
the program runs. So ``group_schedule`` makes lists of visits from them, one for each tile and group
with rows in common; index maps look up in these lists, in SMEM, which blocks a program gets; and
the grid is as long as they are.

A tile of ``gmm`` that two groups share is visited by both, one after the other. Its block of the
output stays in VMEM meanwhile, and each visit writes the rows from the first of its group on: the
next one writes what is not the group's again. The rows beyond the last group have no visit; they
are cleared afterwards, if there are any. In ``tgmm`` the block of the output is the group's, and a
visit adds the product of the rows that are its group's. It clears the others in both operands,
because zero times NaN is NaN.

Each is the other's gradient. With ``o = gmm(x, w)``, ``dx = gmm(do, w^T)`` and ``dw = tgmm(x,
do)``; with ``o = tgmm(x, y)``, ``dx = gmm(y, do^T)`` and ``dy = gmm(x, do)``.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels._tpu import (
    chip_at_hand,
    divisor,
    fit_axis,
    precision_for,
    product,
    vmem_limit,
)
from reference_kernels.matmul._group_schedule import group_schedule
from reference_kernels.matmul.matmul import Blocks, default_blocks


class _Visits(NamedTuple):
    """What is known of each visit before the kernel starts; see ``_group_schedule.Schedule``.

    Attributes:
      groups: its group, for index maps.
      tiles: its tile of rows, likewise.
      starts: the row of the tile with which the group starts, if it is not negative.
      ends: one more than its last row; None in ``gmm``, which does not ask.
    """

    groups: Ref
    tiles: Ref
    starts: Ref
    ends: Ref | None


def _gmm_kernel(
    visits: _Visits, x_ref: Ref, w_ref: Ref, o: Ref, *sums: Ref, axis: int, length: int
) -> None:
    """A visit: contract axis 1 of a tile of ``x`` with ``axis`` of its group's weights.

    Args:
      visits: all of them.
      x_ref: a block of a tile, ``(rows, block)``.
      w_ref: a block of the group's weights, ``(block, columns)``, or ``(columns, block)``.
      o: a block of the output, ``(rows, columns)``.
      *sums: ``(rows, columns)``, float32, if there is more than one step.
      axis: the axis of the weights that is contracted.
      length: of it.
    """
    visit, step = pl.program_id(1), pl.program_id(2)
    x, w = x_ref[...], w_ref[...]
    block = x.shape[1]
    if length % block:
        left = length - step * block
        x, w = _keep(0, left, x, 1), _keep(0, left, w, axis)
    total = product(x, w, (1, axis))
    if not sums:
        _write_rows(o, total, visits, visit)
        return
    (acc,) = sums
    acc[...] = jnp.where(step == 0, 0.0, acc[...]) + total
    pl.when(step == pl.num_programs(2) - 1)(lambda: _write_rows(o, acc[...], visits, visit))


def _write_rows(o: Ref, total: jax.Array, visits: _Visits, visit: jax.Array) -> None:
    """Write ``total`` from the first row of the visit's group on."""
    row = jax.lax.broadcasted_iota(jnp.int32, o.shape, 0)
    earlier = o[...].astype(jnp.float32)
    o[...] = jnp.where(row >= visits.starts[visit], total, earlier).astype(o.dtype)


def _tgmm_kernel(visits: _Visits, x: Ref, y: Ref, o: Ref, *sums: Ref) -> None:
    """A visit: add the product of those rows of a tile that are the group's.

    Args:
      visits: all of them.
      x: a block of a tile, ``(rows, length)``.
      y: a block of the same rows, ``(rows, columns)``.
      o: a block of the group's output, ``(length, columns)``.
      *sums: ``(length, columns)``, float32, if ``o`` is not.
    """
    assert visits.ends is not None
    start, end = visits.starts[pl.program_id(2)], visits.ends[pl.program_id(2)]
    is_first, is_last = start >= 0, end <= x.shape[0]
    (acc,) = sums or (o,)

    @pl.when(start < end)
    def _add() -> None:
        x_rows, y_rows = _keep_packed(start, end, x[...]), _keep(start, end, y[...], 0)
        acc[...] = jnp.where(is_first, 0.0, acc[...]) + product(x_rows, y_rows, (0, 0))

    @pl.when(start == end)
    def _clear() -> None:
        o[...] = jnp.zeros_like(o)

    if sums:

        @pl.when(jnp.logical_and(start < end, is_last))
        def _round() -> None:
            o[...] = acc[...].astype(o.dtype)


def _between(first: Any, end: Any, shape: tuple[int, ...], axis: int) -> jax.Array:
    """Which places of a block lie from ``first`` to before ``end`` along ``axis``."""
    place = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    return jnp.logical_and(place >= first, place < end)


def _keep(first: Any, end: Any, x: jax.Array, axis: int) -> jax.Array:
    """``x`` with zeros elsewhere than ``_between``."""
    kept = _between(first, end, x.shape, axis)
    return jnp.where(kept, x.astype(jnp.float32), 0.0).astype(x.dtype)


def _keep_packed(first: Any, end: Any, x: jax.Array) -> jax.Array:
    """``_keep`` along axis 0, on whole registers of 32 bits: rows of bfloat16 share one by twos.

    For the operand that is transposed on its way to the MXU: widened first, as ``_keep`` does, it
    would take twice the registers there, and more of them would be spilled.
    """
    parts = 4 // x.dtype.itemsize
    words = pltpu.bitcast(x, jnp.uint32)
    row = parts * jax.lax.broadcasted_iota(jnp.int32, words.shape, 0) - first
    mask = jnp.zeros(words.shape, jnp.uint32)
    for part in range(parts):
        bits = np.uint32((2 ** (32 // parts) - 1) << (part * 32 // parts))
        # One comparison for both ends: a row before the first is a large number without a sign.
        inside = (row + part).astype(jnp.uint32) < (end - first).astype(jnp.uint32)
        mask = mask | jnp.where(inside, bits, np.uint32(0))
    return pltpu.bitcast(words & mask, x.dtype)


def _call_gmm(
    x: jax.Array, w: jax.Array, group_sizes: jax.Array, axis: int, blocks: Blocks
) -> jax.Array:
    """``gmm``; ``axis`` of the weights of a group is contracted."""
    (m, k), n = x.shape, w.shape[2 - axis]
    rows = fit_axis(blocks.rows, m, last=False)
    columns = fit_axis(blocks.columns, n, last=True)
    length = fit_axis(blocks.length, k, last=True)
    schedule = group_schedule(group_sizes, m, rows, visit_empty=False)
    w_block = (columns, length) if axis else (length, columns)

    def w_index(j: Any, visit: Any, step: Any, visits: _Visits) -> tuple[Any, ...]:
        group = visits.groups[visit]
        return (group, j, step) if axis else (group, step, j)

    sums = [pltpu.VMEM((rows, columns), jnp.float32)] if k > length else []
    out = pl.pallas_call(
        functools.partial(_gmm_kernel, axis=axis, length=k),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(n, columns), schedule.count, pl.cdiv(k, length)),
            in_specs=[
                pl.BlockSpec(
                    (rows, length), lambda j, visit, step, visits: (visits.tiles[visit], step)
                ),
                pl.BlockSpec((pl.squeezed, *map(pl.Blocked, w_block)), w_index),
            ],
            out_specs=pl.BlockSpec(
                (rows, columns), lambda j, visit, step, visits: (visits.tiles[visit], j)
            ),
            scratch_shapes=sums,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_limit(
                ((rows, length), x.dtype),
                (w_block, w.dtype),
                ((rows, columns), x.dtype),
                scratch=4 * rows * columns * len(sums),
            ),
        ),
        cost_estimate=_cost(x, w, m * n, m * k * n),
    )(_Visits(schedule.groups, schedule.tiles, schedule.starts, None), x, w)
    used = jnp.sum(group_sizes)
    return jax.lax.cond(used < m, _clear_from, lambda out, _: out, out, used)


def _clear_from(out: jax.Array, row: jax.Array) -> jax.Array:
    """``out`` with zeros from ``row`` on."""
    return jnp.where(jnp.arange(out.shape[0])[:, None] < row, out, 0)


def _call_tgmm(x: jax.Array, y: jax.Array, group_sizes: jax.Array, blocks: Blocks) -> jax.Array:
    """``tgmm``, without its gradient."""
    (m, k), n, groups = x.shape, y.shape[1], group_sizes.shape[0]
    rows = fit_axis(blocks.rows, m, last=False)
    columns = fit_axis(blocks.columns, n, last=True)
    length = fit_axis(blocks.length, k, last=True)
    schedule = group_schedule(group_sizes, m, rows, visit_empty=True)
    sums = [] if x.dtype == jnp.float32 else [pltpu.VMEM((length, columns), jnp.float32)]
    return pl.pallas_call(
        _tgmm_kernel,
        out_shape=jax.ShapeDtypeStruct((groups, k, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(k, length), pl.cdiv(n, columns), schedule.count),
            in_specs=[
                pl.BlockSpec((rows, length), lambda i, j, visit, visits: (visits.tiles[visit], i)),
                pl.BlockSpec((rows, columns), lambda i, j, visit, visits: (visits.tiles[visit], j)),
            ],
            out_specs=pl.BlockSpec(
                (pl.squeezed, pl.Blocked(length), pl.Blocked(columns)),
                lambda i, j, visit, visits: (visits.groups[visit], i, j),
            ),
            scratch_shapes=sums,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(
                ((rows, length), x.dtype),
                ((rows, columns), y.dtype),
                ((length, columns), x.dtype),
                scratch=4 * length * columns * len(sums),
            ),
        ),
        cost_estimate=_cost(x, y, groups * k * n, m * k * n),
    )(_Visits(schedule.groups, schedule.tiles, schedule.starts, schedule.ends), x, y)


def _cost(x: jax.Array, y: jax.Array, written: int, products: int) -> pl.CostEstimate:
    return pl.CostEstimate(
        flops=2 * products,
        transcendentals=0,
        bytes_accessed=(x.size + y.size + written) * x.dtype.itemsize,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _gmm(
    x: jax.Array, w: jax.Array, group_sizes: jax.Array, axis: int, blocks: Blocks
) -> jax.Array:
    return _call_gmm(x, w, group_sizes, axis, blocks)


def _gmm_forward(
    x: jax.Array, w: jax.Array, group_sizes: jax.Array, axis: int, blocks: Blocks
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _gmm(x, w, group_sizes, axis, blocks), (x, w, group_sizes)


def _gmm_backward(axis: int, blocks: Blocks, kept: Any, do: jax.Array) -> tuple[Any, Any, None]:
    x, w, group_sizes = kept
    dx = _gmm(do, w, group_sizes, 1 - axis, blocks)
    dw = _tgmm(*((do, x) if axis else (x, do)), group_sizes, blocks)
    return dx, dw, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _tgmm(x: jax.Array, y: jax.Array, group_sizes: jax.Array, blocks: Blocks) -> jax.Array:
    return _call_tgmm(x, y, group_sizes, blocks)


def _tgmm_forward(
    x: jax.Array, y: jax.Array, group_sizes: jax.Array, blocks: Blocks
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _tgmm(x, y, group_sizes, blocks), (x, y, group_sizes)


def _tgmm_backward(blocks: Blocks, kept: Any, do: jax.Array) -> tuple[Any, Any, None]:
    x, y, group_sizes = kept
    dx = _gmm(y, do, group_sizes, 1, blocks)
    dy = _gmm(x, do, group_sizes, 0, blocks)
    return dx, dy, None


_gmm.defvjp(_gmm_forward, _gmm_backward)
_tgmm.defvjp(_tgmm_forward, _tgmm_backward)


def gmm(
    x: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    *,
    transpose_rhs: bool = False,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
) -> jax.Array:
    """``x[r] @ w[g]`` for the rows ``r`` of each group ``g``. It can be differentiated and vmapped.

    Args:
      x: ``(m, k)``, float32 or bfloat16, the rows of group 0 first, then those of group 1, and so
        on.
      w: ``(groups, k, n)``, of the dtype of ``x``.
      group_sizes: ``(groups,)``, int32, not negative: how many rows each group has. Their sum may
        be less than ``m``: the rows beyond are not read, and zero in the output. If it is more,
        the groups end with row ``m``.
      transpose_rhs: ``w`` is ``(groups, n, k)``, and each group is multiplied by ``w[g].T``.
      block_m: rows of a tile. A tile is visited once for each group that has rows in it, so small
        groups want small tiles.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` a program contracts. By default, blocks are chosen for the chip
        and the dtype. They are rounded up to whole tiles.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    _, k = _require.axes("x", x, "m k")
    groups, *sizes = _require.axes("w", w, "groups n k" if transpose_rhs else "groups k n")
    _require.same_size("k", ("x", k), ("w", sizes[int(transpose_rhs)]))
    _check("w", x, w, groups, group_sizes)
    blocks = _blocks_for(x, k, block_m, block_n, block_k)
    return _gmm(x, w, group_sizes, int(transpose_rhs), blocks)


def tgmm(
    x: jax.Array,
    y: jax.Array,
    group_sizes: jax.Array,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
) -> jax.Array:
    """``x[rows of g].T @ y[rows of g]`` for each group. It can be differentiated and vmapped.

    Args:
      x: ``(m, k)``, float32 or bfloat16, sorted by group.
      y: ``(m, n)``, of the dtype of ``x``.
      group_sizes: ``(groups,)``, int32, as for ``gmm``. Rows beyond the last group do not matter.
      block_m: rows of a tile.
      block_n: columns of a block of the output.
      block_k: rows of a block of the output.

    Returns:
      ``(groups, k, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k = _require.axes("x", x, "m k")
    y_m, _ = _require.axes("y", y, "m n")
    _require.same_size("m", ("x", m), ("y", y_m))
    _check("y", x, y, None, group_sizes)
    return _tgmm(x, y, group_sizes, _blocks_for(x, k, block_m, block_n, block_k))


def _check(
    name: str, x: jax.Array, other: jax.Array, groups: int | None, group_sizes: jax.Array
) -> None:
    _require.floating("x", x)
    _require.same_dtype(**{"x": x, name: other})
    (sizes,) = _require.axes("group_sizes", group_sizes, "groups")
    if groups is not None:
        _require.same_size("groups", (name, groups), ("group_sizes", sizes))
    if group_sizes.dtype != jnp.int32:
        raise ValueError(f"group_sizes must be int32, but its dtype is {group_sizes.dtype}")


def _blocks_for(
    x: jax.Array, k: int, block_m: int | None, block_n: int | None, block_k: int | None
) -> Blocks:
    given = {"block_m": block_m, "block_n": block_n, "block_k": block_k}
    _require.positive(**{name: size for name, size in given.items() if size is not None})
    rows, columns, length = default_blocks(x.dtype, chip_at_hand())
    # Half the rows of a dense product: whatever two groups share is computed twice.
    return Blocks(block_m or rows // 2, block_n or columns, block_k or divisor(length, k))


def reference(
    x: jax.Array, w: jax.Array, group_sizes: jax.Array, *, transpose_rhs: bool = False
) -> jax.Array:
    """``gmm`` by ``jax.lax.ragged_dot``."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    # It multiplies what belongs to no group with zero, so that must not be NaN.
    x = jnp.where(jnp.arange(x.shape[0])[:, None] < jnp.sum(group_sizes), x, 0)
    w = jnp.where(group_sizes[:, None, None] > 0, w, 0)
    return jax.lax.ragged_dot(
        x,
        w.swapaxes(1, 2) if transpose_rhs else w,
        group_sizes,
        precision=precision_for(x.dtype),
        preferred_element_type=wide,
    ).astype(x.dtype)


def tgmm_reference(x: jax.Array, y: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """``tgmm`` with the rows of all other groups set to zero for each group."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(x.shape[0])

    def one(start: jax.Array, end: jax.Array) -> jax.Array:
        mine = jnp.logical_and(row >= start, row < end)[:, None]
        return jnp.dot(
            jnp.where(mine, x, 0).T,
            jnp.where(mine, y, 0),
            precision=precision_for(x.dtype),
            preferred_element_type=wide,
        )

    return jax.vmap(one)(ends - group_sizes, ends).astype(x.dtype)
