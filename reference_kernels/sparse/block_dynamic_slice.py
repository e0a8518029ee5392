"""A slice that starts where is only known at run time, in two ways.

``block_dynamic_slice``: ``o = lax.dynamic_slice(x, starts * block, sizes)``
``tile_dynamic_slice``: ``o = lax.dynamic_slice(x, starts, sizes)``, ``starts`` a multiple of a tile

Shapes: ``x (rows, columns)``, ``starts (2,)`` int32, ``o`` of shape ``sizes``. Dtypes: any for
``x``; of 16 or 32 bits for ``tile_dynamic_slice``.

In the first, ``PrefetchScalarGridSpec`` puts ``starts`` into scalar memory before the first step,
so the index map can name blocks by it, and the pipeline still copies the next block while one is at
work. Index maps count in blocks, so the start is a number of blocks, not of elements.

In the second there is no grid: the kernel itself reads ``starts`` from scalar memory and copies the
slice from HBM to HBM by one DMA, past VMEM. A DMA moves whole tiles, of 8 rows and 128 columns, so
where it starts and how much it moves are multiples of those. The compiler cannot see that of a
number that it does not know; ``pl.multiple_of`` says so.

As ``lax.dynamic_slice`` does, a start that would take the slice beyond the end is moved back, here
to the last block or tile from which the whole slice fits; a negative one becomes zero.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

#: Rows and columns that a DMA moves together, of 16 and 32 bits.
_TILE = (8, 128)


def _copy_kernel(starts_ref: Any, x_ref: Any, o_ref: Any) -> None:
    del starts_ref  # used by the index map only
    o_ref[...] = x_ref[...]


def _clamped(
    starts: jax.Array, shape: tuple[int, ...], sizes: tuple[int, int], block: tuple[int, int]
) -> jax.Array:
    """``starts`` moved into the range from which the whole slice fits."""
    last = [(total - size) // b for total, size, b in zip(shape, sizes, block, strict=True)]
    return jnp.clip(starts, 0, jnp.array(last, starts.dtype))


def _checked(
    x: jax.Array, starts: jax.Array, sizes: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The shape of ``x`` and the sizes of the slice, which lies within it."""
    shape = _require.axes("x", x, "rows columns")
    if np.shape(starts) != (2,) or starts.dtype != jnp.int32:
        raise ValueError(
            f"starts must be int32 of shape (2,), but it is {starts.dtype} of {np.shape(starts)}"
        )
    sizes = _require.pair("sizes", sizes)
    if sizes[0] > shape[0] or sizes[1] > shape[1]:
        raise ValueError(f"sizes must be at most the shape of x, {shape}, but they are {sizes}")
    return shape, sizes


def block_dynamic_slice(
    x: jax.Array,
    starts: jax.Array,
    *,
    sizes: tuple[int, int],
    block: tuple[int, int] = (256, 512),
) -> jax.Array:
    """The slice of ``sizes`` that starts at ``starts * block``.

    Args:
      x: ``(rows, columns)``, of any dtype.
      starts: ``(2,)`` int32, the first block along each axis.
      sizes: rows and columns of the slice, at most those of ``x``; not only whole blocks.
      block: rows and columns of a block. It is the unit of ``starts``, so it is not cut to size.

    Returns:
      An array of shape ``sizes`` and the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank or dtype, or a size is too large or not positive.
    """
    shape, sizes = _checked(x, starts, sizes)
    block = _require.pair("block", block)
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(pl.cdiv(sizes[0], block[0]), pl.cdiv(sizes[1], block[1])),
        in_specs=[pl.BlockSpec(block, lambda i, j, start: (start[0] + i, start[1] + j))],
        out_specs=pl.BlockSpec(block, lambda i, j, start: (i, j)),
    )
    return pl.pallas_call(
        _copy_kernel,
        out_shape=jax.ShapeDtypeStruct(sizes, x.dtype),
        grid_spec=grid_spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(_clamped(starts, shape, sizes, block), x)


def _tile_copy_kernel(starts_ref: Any, x_ref: Any, o_ref: Any) -> None:
    window = tuple(
        pl.ds(pl.multiple_of(starts_ref[axis], tile), size)
        for axis, (tile, size) in enumerate(zip(_TILE, o_ref.shape, strict=True))
    )
    pltpu.sync_copy(x_ref.at[window], o_ref)


def tile_dynamic_slice(x: jax.Array, starts: jax.Array, *, sizes: tuple[int, int]) -> jax.Array:
    """The slice of ``sizes`` that starts at ``starts``, moved back to the nearest tile.

    Args:
      x: ``(rows, columns)``, of a dtype of 16 or 32 bits. Its own size need not be whole tiles.
      starts: ``(2,)`` int32, the first element along each axis. What is no multiple of 8 rows and
        128 columns is moved back to one.
      sizes: rows and columns of the slice, multiples of 8 and 128, at most those of ``x``.

    Returns:
      An array of shape ``sizes`` and the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank or dtype, or a size is too large or no multiple.
    """
    shape, sizes = _checked(x, starts, sizes)
    if jnp.dtype(x.dtype).itemsize not in (2, 4):
        raise ValueError(f"x must have a dtype of 16 or 32 bits, but its dtype is {x.dtype}")
    if any(size % tile for size, tile in zip(sizes, _TILE, strict=True)):
        raise ValueError(f"sizes must be multiples of {_TILE}, but they are {sizes}")
    tiles = jnp.array(_TILE, jnp.int32)
    starts = _clamped(starts // tiles, shape, sizes, _TILE) * tiles
    return pl.pallas_call(
        _tile_copy_kernel,
        out_shape=jax.ShapeDtypeStruct(sizes, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
    )(starts, x)


def reference(
    x: jax.Array, starts: jax.Array, *, sizes: tuple[int, int], block: tuple[int, int]
) -> jax.Array:
    """``lax.dynamic_slice`` at ``starts * block``, after moving the start into range."""
    last = jnp.array([(x.shape[axis] - sizes[axis]) // block[axis] for axis in (0, 1)])
    first = jnp.minimum(jnp.maximum(starts, 0), last) * jnp.array(block)
    return jax.lax.dynamic_slice(x, (first[0], first[1]), sizes)


def reference_tiles(x: jax.Array, starts: jax.Array, *, sizes: tuple[int, int]) -> jax.Array:
    """``lax.dynamic_slice`` at ``starts``, moved back to a tile and into range."""
    return reference(x, starts // jnp.array(_TILE), sizes=sizes, block=_TILE)
