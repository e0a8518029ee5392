"""Grouped product on a Hopper GPU: each group of rows has weights of its own (``lax.ragged_dot``).

``o[r] = x[r] @ w[g]`` for every row ``r`` of group ``g``, zero in rows beyond the last group.
Shapes: ``x (m, k)``, ``w (groups, k, n)`` or, transposed, ``(groups, n, k)``, ``group_sizes
(groups,)``, ``o (m, n)``. Dtypes: bfloat16 or float16, int32 for ``group_sizes``; sums are float32.

Source: Gale et al., "MegaBlocks", 2022 (arXiv:2211.15841), on the pipeline of ``hopper_matmul``.
Rows are sorted by group, and the sizes of groups are known only while the program runs. So lists
are made of visits, one for each tile of rows and group that have rows in common (see
``matmul/_group_schedule.py``), and a block looks up in global memory which visit is its own. The
grid cannot depend on values: there are as many blocks as there could be visits, and those that are
too many end at once.

Rows that belong to no group are one more group, whose sums have no terms: its visits write zeros,
and the whole output is written by one kernel.

A tile that two groups share is multiplied by two blocks, at the same time perhaps. Each may write
its own rows only. TMA copies boxes whose size is a constant, so a range of rows is cut into pieces
of 64, 32, ... rows, one for each bit that is set in its length. The pieces begin at any row, and a
tile of swizzled shared memory only at every eighth: what is written lies in plain rows.

Backward: ``dx`` is the same product with transposed weights, and ``dw[g] = x_g^T @ do_g``, see
``_ragged_weights``.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels.matmul._group_schedule import group_schedule
from reference_kernels.mosaic_gpu import _tiles
from reference_kernels.mosaic_gpu._ragged_weights import products_of_groups

_COLUMNS = 64  # that are written at a time


class _Buffers(NamedTuple):
    """Shared memory of a block of the grid.

    Attributes:
      x: blocks of rows for ``stages`` steps, ``(stages, block_m, block_k)``.
      w: blocks of weights, ``(stages, block_k, block_n)``, or ``(stages, block_n, block_k)``.
      o: some columns of the output on their way out, ``(block_m, 64)``.
    """

    x: Ref
    w: Ref
    o: Ref


def _ragged_dot_kernel(
    groups: Ref,
    tiles: Ref,
    starts: Ref,
    ends: Ref,
    count: Ref,
    x: Ref,
    w: Ref,
    o: Ref,
    buffers: _Buffers,
    arrived: Ref,
    *,
    axis: int,
    steps: int,
) -> None:
    """A visit and some columns: contract a tile of ``x`` with ``axis`` of its group's weights.

    Args:
      groups: ``(visits,)``, the group of each visit; one beyond the last if its rows have none.
      tiles: ``(visits,)``, its tile of rows.
      starts: ``(visits,)``, the first row of the group, counted from that of the tile.
      ends: ``(visits,)``, the end of its rows, likewise.
      count: ``(1,)``, how many visits there are.
      x: ``(m, k)``, like all before in global memory.
      w: ``(groups, k, n)``, or ``(groups, n, k)``.
      o: ``(m, n)``.
      buffers: in shared memory.
      arrived: barriers, ``(stages,)``: both blocks of a step have arrived in a slot.
      axis: which axis of a group's weights is contracted.
      steps: of the sums.
    """
    visit = jax.lax.axis_index("visit")

    @pl.when(visit < count[0])
    def _work() -> None:
        group, row = groups[visit], tiles[visit] * buffers.x.shape[1]
        total = _multiply(x, w, buffers, arrived, group, row, axis=axis, steps=steps)
        start = jnp.maximum(starts[visit], 0)
        length = jnp.minimum(ends[visit], buffers.x.shape[1]) - start
        _store_rows(total, buffers.o, o, row, start, length)


def _multiply(
    x: Ref,
    w: Ref,
    buffers: _Buffers,
    arrived: Ref,
    group: jax.Array,
    row: jax.Array,
    *,
    axis: int,
    steps: int,
) -> jax.Array:
    """The rows of a tile, from ``row`` on, times some columns of the weights of a group."""
    _, block_m, block_k = buffers.x.shape
    block_n = buffers.w.shape[2 - axis]
    columns = pl.ds(jax.lax.axis_index("column") * block_n, block_n)
    terms = jnp.where(group < w.shape[0], steps, 0)  # none for rows without a group

    def fetch(step: jax.Array, slot: jax.Array) -> None:
        here = pl.ds(step * block_k, block_k)
        plgpu.copy_gmem_to_smem(
            x.at[pl.ds(row, block_m), here], buffers.x.at[slot], arrived.at[slot]
        )
        block = (columns, here) if axis else (here, columns)
        plgpu.copy_gmem_to_smem(w.at[group, *block], buffers.w.at[slot], arrived.at[slot])

    def multiply(acc: Ref, step: jax.Array, slot: jax.Array) -> None:
        del step
        right = buffers.w.at[slot]
        plgpu.wgmma(acc, buffers.x.at[slot], right.T if axis else right)

    return _tiles.sum_steps((block_m, block_n), arrived, terms, fetch=fetch, multiply=multiply)


def _store_rows(
    total: jax.Array, smem: Ref, o: Ref, row: jax.Array, start: jax.Array, length: jax.Array
) -> None:
    """Copy the rows of the group to the output, some columns at a time; others keep theirs.

    No copy begins behind an output of 64 columns: see ``_tiles.store``.
    """
    block_n = total.shape[1]
    column = jax.lax.axis_index("column") * block_n
    for part in range(0, min(block_n, o.shape[1]), _COLUMNS):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        smem[...] = total[:, part : part + _COLUMNS].astype(o.dtype)
        plgpu.commit_smem()
        _copy_rows(smem, o, start, length, row, pl.ds(column + part, _COLUMNS))
    plgpu.wait_smem_to_gmem(0)


def _copy_rows(smem: Ref, gmem: Ref, start: Any, length: Any, row: Any, columns: Any) -> None:
    """Copy ``length`` rows of ``smem`` from ``start`` on; its first is ``row`` of ``gmem``."""
    size = smem.shape[0]
    while size:
        done = length // (2 * size) * (2 * size)  # by larger pieces

        def piece(first: Any = start + done, size: int = size) -> None:
            there = (pl.ds(row + first, size), columns)
            plgpu.copy_smem_to_gmem(smem.at[pl.ds(first, size)], gmem.at[there])

        pl.when((length & size) != 0)(piece)
        size //= 2


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a product is computed with, besides its operands: see ``ragged_dot``."""

    block_m: int
    block_n: int
    block_k: int
    stages: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _product(
    x: jax.Array, w: jax.Array, group_sizes: jax.Array, axis: int, settings: _Settings
) -> jax.Array:
    """The rows of each group contracted with ``axis`` of its weights."""
    m, k, n = x.shape[0], w.shape[1 + axis], w.shape[2 - axis]
    block_m, block_n, block_k = settings.block_m, settings.block_n, settings.block_k
    rest = jnp.maximum(m - jnp.sum(group_sizes), 0)
    schedule = group_schedule(jnp.append(group_sizes, rest), m, block_m, visit_empty=False)
    x, w = _tiles.aligned(x), _tiles.aligned(w)
    w_block = (block_n, block_k) if axis else (block_k, block_n)
    return plgpu.kernel(
        functools.partial(_ragged_dot_kernel, axis=axis, steps=pl.cdiv(k, block_k)),
        out_type=jax.ShapeDtypeStruct(_tiles.whole((m, n), x.dtype), x.dtype),
        scratch_types=(
            _Buffers(
                x=_tiles.smem((settings.stages, block_m, block_k), x.dtype),
                w=_tiles.smem((settings.stages, *w_block), w.dtype),
                o=plgpu.SMEM((block_m, _COLUMNS), x.dtype),
            ),
            plgpu.Barrier(num_arrivals=2, num_barriers=settings.stages),
        ),
        grid=(schedule.groups.size, pl.cdiv(n, block_n)),
        grid_names=("visit", "column"),
    )(*schedule[:4], schedule.count[None], x, w)[:m, :n]


def _forward(
    x: jax.Array, w: jax.Array, group_sizes: jax.Array, axis: int, settings: _Settings
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _product(x, w, group_sizes, axis, settings), (x, w, group_sizes)


def _backward(
    axis: int, settings: _Settings, operands: tuple[jax.Array, ...], do: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x, w, group_sizes = operands
    dx = _product(do, w, group_sizes, 1 - axis, settings)
    left, right = (do, x) if axis else (x, do)
    return dx, products_of_groups(left, right, group_sizes, **dataclasses.asdict(settings)), None


_product.defvjp(_forward, _backward)


def ragged_dot(
    x: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    *,
    transpose_rhs: bool = False,
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 64,
    stages: int = 3,
) -> jax.Array:
    """``x[r] @ w[g]`` for the rows ``r`` of each group ``g``.

    It can be differentiated by ``x`` and ``w``, and vmapped.

    Args:
      x: ``(m, k)``, bfloat16 or float16, the rows of group 0 first, then those of group 1, and so
        on. It and ``w`` are copied first unless sizes are whole tiles (see ``hopper_matmul``).
      w: ``(groups, k, n)``, of the dtype of ``x``.
      group_sizes: ``(groups,)``, int32, not negative: how many rows each group has. Their sum may
        be less than ``m``: the rows beyond are not read, and zero in the output. If it is more,
        the groups end with row ``m``.
      transpose_rhs: ``w`` is ``(groups, n, k)``, and each group is multiplied by ``w[g].T``.
      block_m: rows of a tile, 64 or 128. A tile is multiplied once for each group that has rows in
        it, so small groups want small tiles.
      block_n: columns of a block of the output, a multiple of 64, at most 256.
      block_k: terms of the sums in one step, a multiple of 64.
      stages: how many steps fit in shared memory, at least 2.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not allowed.
    """
    _, k = _require.axes("x", x, "m k")
    groups, *sizes = _require.axes("w", w, "groups n k" if transpose_rhs else "groups k n")
    axis = int(transpose_rhs)
    _require.same_size("k", ("x", k), ("w", sizes[axis]))
    _tiles.check_dtype("x", x)
    _require.same_dtype(x=x, w=w)
    (given,) = _require.axes("group_sizes", group_sizes, "groups")
    _require.same_size("groups", ("w", groups), ("group_sizes", given))
    if group_sizes.dtype != jnp.int32:
        raise ValueError(f"group_sizes must be int32, but its dtype is {group_sizes.dtype}")
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    if block_m not in (64, 128):
        raise ValueError(f"block_m must be 64 or 128, but it is {block_m}")
    return _product(x, w, group_sizes, axis, _Settings(block_m, block_n, block_k, stages))
