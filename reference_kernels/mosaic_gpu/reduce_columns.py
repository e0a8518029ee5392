"""Reduction over rows on a GPU: ``o[j] = op_i x[i, j]``.

Shapes: ``x (m, n)``, ``o (n,)``. Dtypes: int32 or uint32 for each ``op`` (``"add"``, ``"max"``,
``"min"``, ``"and"``, ``"or"`` or ``"xor"``); float32 for ``"add"``.

A thread has some columns of ``block_rows`` rows, which it reduces in registers. Two ways to reduce
what the blocks have are here:

- ``"parts"``: a block writes a row, and XLA reduces these rows.
- ``"atomic"``: a thread ends with one atomic operation for each column (PTX ISA, "red"), whose
  results meet in the L2 cache. There is no second kernel and no scratch memory, but the output
  begins as the neutral element of ``op``, which a kernel must write before.

``atomic_max`` and ``atomic_min`` of JAX 0.11.2 to 0.12.0.1 compare the bits of int32 as unsigned.
So they get uint32 here, with the sign bit flipped, which keeps the order.

All these operations of integers give the same answer in any order. A sum of floats does not: it is
rounded after each addition, and blocks do atomic additions in any order. So its last bits differ
from run to run then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu import _rows

Operation = Literal["add", "max", "min", "and", "or", "xor"]
Meeting = Literal["parts", "atomic"]

_THREADS = 128  # of a block

_AHEAD = 16  # rows whose loads are under way at a time

_SIGN = np.uint32(1 << 31)

#: What two elements become, and what an element of memory and one of a register become.
_PAIRS: dict[Operation, Callable[..., jax.Array]] = {
    "add": jnp.add,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}


#: The same over an axis.
_OVER_AXIS: dict[Operation, Callable[..., jax.Array]] = {
    "add": jnp.sum,
    "max": jnp.max,
    "min": jnp.min,
    **{op: getattr(jnp, f"bitwise_{op}").reduce for op in ("and", "or", "xor")},
}


def _atomic(op: Operation) -> Callable[..., None]:
    atomics: dict[Operation, Callable[..., None]] = {
        "add": plgpu.atomic_add,
        "max": plgpu.atomic_max,
        "min": plgpu.atomic_min,
        "and": plgpu.atomic_and,
        "or": plgpu.atomic_or,
        "xor": plgpu.atomic_xor,
    }
    return atomics[op]


def _neutral(op: Operation, dtype: Any) -> Any:
    """What changes nothing: ``op(neutral, x) = x``."""
    if op in ("max", "min"):
        limits = jnp.iinfo(dtype)
        return limits.min if op == "max" else limits.max
    return np.array(-1).astype(dtype) if op == "and" else 0


def _kernel(x_gmem: Any, o_gmem: Any, *, op: Operation, block_rows: int, width: int) -> None:
    first = jax.lax.axis_index("rows") * block_rows
    columns = pl.ds(jax.lax.axis_index("columns") * width, width)
    layout = plgpu.Layout.WG_STRIDED((width,), vec_size=width // _THREADS)

    def row(i: Any) -> jax.Array:
        return plgpu.load(x_gmem.at[i, columns], layout=layout)

    def add_some(i: Any, total: jax.Array) -> jax.Array:
        rows = [row(first + i * _AHEAD + j) for j in range(_AHEAD)]
        return functools.reduce(_PAIRS[op], rows, total)

    def add_one(i: Any, total: jax.Array) -> jax.Array:
        return _PAIRS[op](total, row(i))

    end = jnp.minimum(first + block_rows, x_gmem.shape[0])
    groups = jax.lax.div(end - first, _AHEAD)
    total = plgpu.layout_cast(jnp.full((width,), _neutral(op, x_gmem.dtype), x_gmem.dtype), layout)
    total = jax.lax.fori_loop(0, groups, add_some, total)
    total = jax.lax.fori_loop(first + groups * _AHEAD, end, add_one, total)
    if o_gmem.ndim == 2:
        _rows.store(o_gmem.at[jax.lax.axis_index("rows"), columns], total)
        return
    if o_gmem.dtype != total.dtype:
        total = jax.lax.bitcast_convert_type(total, o_gmem.dtype) ^ _SIGN
    _atomic(op)(o_gmem.at[columns], total)


def reduce_columns(
    x: jax.Array, *, op: Operation = "add", by: Meeting = "parts", block_rows: int = 128
) -> jax.Array:
    """``op`` of all rows of ``x``.

    Args:
      x: ``(m, n)``, int32 or uint32, or float32 for ``"add"``. Columns that are not a multiple of
        128 are padded, in a copy; a multiple of 512 is read 16 bytes at a time.
      op: what rows are reduced by.
      by: how blocks reduce what they have: to ``"parts"`` of the output, which XLA reduces, or by
        ``"atomic"`` operations.
      block_rows: rows of a block; it writes a number for each of its columns, or does an atomic
        operation.

    Returns:
      ``(n,)``, of the dtype of ``x``. Integer sums wrap around. The last bits of a float32 sum
      by atomic operations differ from run to run.

    Raises:
      ValueError: ``x`` is not a matrix, is empty, or has a dtype that ``op`` does not take;
        ``op`` or ``by`` is unknown; or ``block_rows`` is not positive.
    """
    _, n = _require.axes("x", x, "m n")
    if op not in get_args(Operation):
        raise ValueError(f"op must be one of {get_args(Operation)}, but it is {op!r}")
    if by not in get_args(Meeting):
        raise ValueError(f"by must be one of {get_args(Meeting)}, but it is {by!r}")
    dtypes = ("int32", "uint32", *(["float32"] if op == "add" else []))
    if x.dtype.name not in dtypes:
        raise ValueError(f"x must be {' or '.join(dtypes)} for {op!r}, but its dtype is {x.dtype}")
    _require.positive(block_rows=block_rows)
    x = jnp.pad(x, ((0, 0), (0, -n % _THREADS)))
    width = _THREADS * (1 if x.shape[1] % (4 * _THREADS) else 4)
    if by == "parts":
        parts = _parts(x, op=op, block_rows=block_rows, width=width)
        return _OVER_AXIS[op](parts, axis=0).astype(x.dtype)[:n]
    flips = x.dtype == jnp.int32 and op in ("min", "max")
    dtype = jnp.uint32 if flips else x.dtype
    start = jnp.full((x.shape[1],), _neutral(op, dtype), dtype)
    out = _reduced(x, start, op=op, block_rows=block_rows, width=width)[:n]
    return jax.lax.bitcast_convert_type(out ^ _SIGN, jnp.int32) if flips else out


def _parts(x: jax.Array, *, op: Operation, block_rows: int, width: int) -> jax.Array:
    """What each block of rows is reduced to, ``(blocks, n)``."""
    rows, n = pl.cdiv(x.shape[0], block_rows), x.shape[1]
    return plgpu.kernel(
        functools.partial(_kernel, op=op, block_rows=block_rows, width=width),
        out_type=jax.ShapeDtypeStruct((rows, n), x.dtype),
        grid=(rows, n // width),
        grid_names=("rows", "columns"),
    )(x)


# A reference with a memory space exists inside of jax.jit only.
@functools.partial(jax.jit, static_argnames=("op", "block_rows", "width"))
def _reduced(
    x: jax.Array, start: jax.Array, *, op: Operation, block_rows: int, width: int
) -> jax.Array:
    o = jax.new_ref(start, memory_space=plgpu.GMEM)
    plgpu.kernel(
        functools.partial(_kernel, op=op, block_rows=block_rows, width=width),
        grid=(pl.cdiv(x.shape[0], block_rows), x.shape[1] // width),
        grid_names=("rows", "columns"),
    )(x, o)
    return jax.freeze(o)


def reference(x: jax.Array, *, op: Operation = "add") -> jax.Array:
    """``op`` over the rows."""
    return functools.reduce(_PAIRS[op], x)
