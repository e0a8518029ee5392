"""Copy runs of rows from anywhere in ``x`` to anywhere in ``into``.

``o[into_starts[g] + i] = x[starts[g] + i]`` for ``i < sizes[g]``, and ``o = into`` elsewhere.

Shapes: ``x (m, h, d)``, ``into`` and ``o (l, h, d)``, ``starts``, ``into_starts`` and ``sizes``
``(g,)`` int32. Dtypes: any, the same for ``x`` and ``into``. It is ``lax.ragged_all_to_all`` within
one device: tokens are sorted by expert, or keys appended to the caches of sequences.

A block of a ``BlockSpec`` starts at a multiple of its size. A ``pl.BoundedSlice`` starts where the
index map says and is as long as it says, up to the size of the buffer, so the copies move only
what there is. Rows must be an axis that is not tiled, here the first of three: along the last two,
a copy would be rounded up to whole tiles, and overwrite what belongs to the neighbor.

How many blocks there are is known at run time only, and so is the grid of the pipeline: the number
of blocks of all runs together. The lists that say which run a step belongs to have room for the
most blocks there can be, ``g + m // block``, as the runs of one call together are no longer than
``x``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def _ragged_copy_kernel(
    run: Any,
    offset: Any,
    steps: Any,
    starts: Any,
    into_starts: Any,
    sizes: Any,
    x_ref: Any,
    into_ref: Any,
    o_ref: Any,
    *,
    block: int,
) -> None:
    del into_ref  # it is o_ref

    def rows_from(starts: Any) -> pl.BlockSpec:
        def rows(i: Any) -> tuple[pl.Slice, int, int]:
            left = sizes[run[i]] - offset[i]
            return pl.Slice(starts[run[i]] + offset[i], jnp.minimum(left, block)), 0, 0

        return pl.BlockSpec((pl.BoundedSlice(block), *x_ref.shape[1:]), rows)

    pltpu.emit_pipeline(
        _copy,
        grid=(steps[0],),
        in_specs=[rows_from(starts)],
        out_specs=[rows_from(into_starts)],
    )(x_ref, o_ref)


def _plan(sizes: jax.Array, most: int, block: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The run of every step, the step's first row within that run, and the number of steps."""
    blocks = pl.cdiv(sizes, block)
    ends = jnp.cumsum(blocks)
    step = jnp.arange(most)
    run = jnp.searchsorted(ends, step, side="right")
    run = jnp.minimum(run, len(sizes) - 1)  # steps beyond the last, which are not taken
    offset = (step - (ends - blocks)[run]) * block
    return run.astype(jnp.int32), offset.astype(jnp.int32), ends[-1:].astype(jnp.int32)


def ragged_copy(
    x: jax.Array,
    into: jax.Array,
    starts: jax.Array,
    into_starts: jax.Array,
    sizes: jax.Array,
    *,
    block: int = 256,
) -> jax.Array:
    """``into`` with runs of rows of ``x`` in it. Under ``jax.jit``, donate ``into``.

    Args:
      x: ``(m, h, d)``, of any dtype. A TPU wants whole tiles of ``(h, d)`` for speed.
      into: ``(l, h, d)``, of the dtype of ``x``.
      starts: ``(g,)`` int32, the first row of each run in ``x``. Runs may overlap there.
      into_starts: ``(g,)`` int32, the first row of each run in the result. Where runs overlap
        there, either may win.
      sizes: ``(g,)`` int32, the rows of each run, from 0. Together they are at most ``m``, and all
        of them lie inside both arrays: there is nobody to complain to at run time.
      block: rows in a buffer. There are four.

    Returns:
      ``(l, h, d)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or ``block`` is not positive.
    """
    m, h, d = _require.axes("x", x, "m h d")
    _, into_h, into_d = _require.axes("into", into, "l h d")
    _require.same_size("h", ("x", h), ("into", into_h))
    _require.same_size("d", ("x", d), ("into", into_d))
    _require.same_dtype(x=x, into=into)
    _require.positive(block=block)
    (runs,) = _require.axes("sizes", sizes, "g")
    for name, operand in {"starts": starts, "into_starts": into_starts, "sizes": sizes}.items():
        _require.same_size("g", ("sizes", runs), (name, *_require.axes(name, operand, "g")))
        if operand.dtype != jnp.int32:
            raise ValueError(f"{name} must have the dtype int32, but its dtype is {operand.dtype}")
    block = min(block, m)
    run, offset, steps = _plan(sizes, runs + m // block, block)

    def body(*refs: Any) -> None:
        _ragged_copy_kernel(*refs, block=block)

    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(into.shape, into.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6, grid=(), in_specs=[hbm, hbm], out_specs=hbm
        ),
        input_output_aliases={7: 0},
    )(run, offset, steps, starts, into_starts, sizes, x, into)


def reference(
    x: jax.Array, into: jax.Array, starts: jax.Array, into_starts: jax.Array, sizes: jax.Array
) -> jax.Array:
    """The same by a gather of the row that belongs to each row of the result."""
    row = jnp.arange(into.shape[0])[:, None]
    inside = (row >= into_starts) & (row < into_starts + sizes)
    source = jnp.sum(jnp.where(inside, row - into_starts + starts, 0), axis=1)
    return jnp.where(inside.any(axis=1)[:, None, None], x[source], into)
