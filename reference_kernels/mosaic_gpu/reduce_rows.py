"""Reduction over the last axis on a GPU: ``o[i] = op_j x[i, j]``.

Shapes: ``x (..., n)``, ``o (...)``, ``n`` up to 16384. Dtypes: float32, bfloat16 or float16,
reduced in float32 and rounded once. ``op`` is ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``.

The rows lie in registers as in ``row_softmax``, a row to a warp or to all four of them. What a
thread has of a row it reduces alone, and ``accumulators`` says in how many chains: an addition
takes four cycles and one can begin in each, so a single chain of additions would wait for itself
(Volkov, "Better Performance at Lower Occupancy", 2010). The threads then exchange what they have:
five shuffles among the lanes of a warp, and a step through shared memory among warps.

A sum of several chains is rounded differently from a sum of one, but the same in every run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels.mosaic_gpu import _rows

Operation = Literal["sum", "prod", "max", "min"]

_NEW = ("sum", "prod", "max", "min")  # in JAX 0.12

#: What changes nothing.
_NEUTRAL: dict[Operation, float] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": -float("inf"),
    "min": float("inf"),
}


def _reduction(op: Operation) -> Callable[..., jax.Array]:
    reductions: dict[Operation, Callable[..., jax.Array]] = {
        "sum": plgpu.sum,
        "prod": plgpu.prod,
        "max": plgpu.max,
        "min": plgpu.min,
    }
    return reductions[op]


def _kernel(
    x_gmem: Any, o_gmem: Any, *, op: Operation, plan: _rows.Plan, accumulators: int
) -> None:
    rows = pl.ds(jax.lax.axis_index("block") * plan.rows, plan.rows)
    x = _rows.load(x_gmem.at[rows], plan.layout)
    _rows.store(o_gmem.at[rows], _reduction(op)(x, axis=1, accumulator_ilp=accumulators))


def reduce_rows(
    x: jax.Array, *, op: Operation = "sum", block_rows: int | None = None, accumulators: int = 4
) -> jax.Array:
    """``op`` over the last axis.

    Args:
      x: ``(..., n)`` with at least one axis, float32, bfloat16 or float16. ``n`` is at most 16384;
        multiples of 1024 make full use of the memory.
      op: what elements of a row are reduced by.
      block_rows: rows of a block; by default as many as make 64 elements a thread. Rows that are
        no multiple of them are padded, in a copy.
      accumulators: chains of operations in a thread.

    Returns:
      ``x.shape[:-1]``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` is a scalar, empty, of another dtype or too long; ``op`` is unknown; or
        ``block_rows`` or ``accumulators`` is not positive.
      NotImplementedError: before JAX 0.12.
    """
    _gpu.check_names("reduce_rows", *_NEW)
    m, n = _rows.check(x)
    if op not in get_args(Operation):
        raise ValueError(f"op must be one of {get_args(Operation)}, but it is {op!r}")
    _require.positive(accumulators=accumulators)
    if block_rows is not None:
        _require.positive(block_rows=block_rows)
    rows = _rows.whole(x.reshape(m, n), _NEUTRAL[op])
    plan = _rows.Plan.of(rows.shape[1], x.dtype.itemsize, block_rows)
    rows = jnp.pad(rows, ((0, -m % plan.rows), (0, 0)))
    o = plgpu.kernel(
        functools.partial(_kernel, op=op, plan=plan, accumulators=accumulators),
        out_type=jax.ShapeDtypeStruct((rows.shape[0],), x.dtype),
        grid=(rows.shape[0] // plan.rows,),
        grid_names=("block",),
    )(rows)
    return o[:m].reshape(x.shape[:-1])


def reference(x: jax.Array, *, op: Operation = "sum") -> jax.Array:
    """``op`` over the last axis, in float32 at least and rounded once."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return getattr(jnp, op)(wide, axis=-1).astype(x.dtype)
