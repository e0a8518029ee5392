"""Functions of rows on a GPU: which thread holds which elements, and how many rows at a time.

A row lives in the registers of the threads that share it, so it is read once and written once, 16
bytes a thread and access, 512 neighbouring bytes a warp. There are two layouts:

- *short rows*: a row to each of the four warps of the warpgroup. A reduction is over the lanes of
  a warp, five shuffles, and nothing passes through shared memory.
- *long rows*: all four warps on each row. A reduction ends in shared memory and a barrier, but a
  row may have four times as many elements.

A block takes as many rows as keep about ``_ELEMENTS`` elements in the registers of a thread. Their
loads are independent and are all issued before the first is used; with some blocks on each SM,
that is what a memory needs to be busy: latency times bandwidth, about 25 kB for an SM of an H200.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require

WARPS = 4  # of a warpgroup
_LANES = 32  # of a warp
_BYTES = 16  # of the widest access
_ELEMENTS = 64  # of a thread, in float32 registers

#: Rows are handled in multiples of this; others are padded.
COLUMNS = _LANES * WARPS

#: The longest row: 128 registers of each thread, half of those that a thread can have.
LONGEST = 128 * _LANES * WARPS

#: Elements from which all warps share a row.
_SHORT = _LANES * _ELEMENTS


def check(x: jax.Array) -> tuple[int, int]:
    """The number of rows of ``x (..., n)`` and ``n``.

    Raises:
      ValueError: a wrong rank, size or dtype, or rows that are too long.
    """
    if x.ndim == 0:
        raise ValueError("x must have the shape (..., n), but it is a scalar")
    _require.nonempty("x", x)
    dtype("x", x)
    n = x.shape[-1]
    if n > LONGEST:
        raise ValueError(
            f"x must have rows that fit in registers, n at most {LONGEST}, but n is {n}"
        )
    return x.size // n, n


def dtype(name: str, operand: jax.Array) -> None:
    """Raise ValueError unless ``operand`` is float32, bfloat16 or float16."""
    if operand.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(
            f"{name} must be float32, bfloat16 or float16, but its dtype is {operand.dtype}"
        )


def whole(x: jax.Array, fill: float) -> jax.Array:
    """``x`` with ``fill`` to the right, up to a multiple of ``COLUMNS`` columns."""
    extra = -x.shape[-1] % COLUMNS
    if not extra:
        return x
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, extra)], constant_values=fill)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rows of ``n`` elements, at a time.

    Attributes:
      n: elements of a row, a multiple of ``COLUMNS``.
      rows: rows at a time: a multiple of four for short rows.
      itemsize: bytes of the narrowest dtype that is read or written.
    """

    n: int
    rows: int
    itemsize: int

    @staticmethod
    def of(n: int, itemsize: int, rows: int | None = None, *, share: bool = False) -> Plan:
        """The rows of a block; those given, or by the number of registers.

        Args:
          n: elements of a row.
          itemsize: bytes of an element.
          rows: rows at a time, if they are prescribed.
          share: let all warps share a row, however short.
        """
        lanes = _LANES if n <= _SHORT and not share else _LANES * WARPS
        step = WARPS if lanes == _LANES else 1
        return Plan(n, rows or step * max(1, _ELEMENTS * lanes // n), itemsize)

    @property
    def layout(self) -> Any:
        """Who holds what of ``(rows, n)`` elements."""
        short = self.n <= _SHORT and self.rows % WARPS == 0
        lanes = _LANES if short else _LANES * WARPS
        vector = _BYTES // self.itemsize
        while self.n % (lanes * vector):
            vector //= 2
        if short:  # tiles of (4 warps, 32 lanes, vector)
            tiles = ((WARPS, _LANES * vector), (vector,))
        else:  # tiles of (1, 4 warps, 32 lanes, vector)
            tiles = ((1, lanes * vector), (_LANES * vector,), (vector,))
        return plgpu.Layout.TILED(
            plgpu.Tiling(tiles), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1
        )

    def with_rows(self, rows: int) -> Plan:
        """The same, with another number of rows at a time."""
        return dataclasses.replace(self, rows=rows)


def load(ref: Any, layout: Any) -> jax.Array:
    """What is in global memory, in float32."""
    return plgpu.load(ref, layout=layout, optimized=False).astype(jnp.float32)


def store(ref: Any, value: jax.Array) -> None:
    """Write to global memory in the dtype there."""
    value = value.astype(ref.dtype)
    if hasattr(plgpu, "store"):
        plgpu.store(ref, value, optimized=False)
    else:  # before JAX 0.12
        ref[...] = value


def along(values: jax.Array, shape: tuple[int, ...], axis: int = 0) -> jax.Array:
    """A number for each element of ``axis``, as an array of ``shape``."""
    return jax.lax.broadcast_in_dim(values, shape, (axis,))


def over_rows(
    function: Callable[..., jax.Array],
    rows: tuple[jax.Array, ...],
    vectors: tuple[jax.Array, ...] = (),
    *,
    block_rows: int | None = None,
    overlap: bool = False,
    name: str,
) -> jax.Array:
    """``function`` of some rows at a time, as many as a block has.

    Args:
      function: called with float32 blocks ``(r, n)`` of ``rows``, and with all of ``vectors``
        spread over such a block; its result is one block of the output.
      rows: arrays ``(m, n)``; ``n`` is a multiple of ``COLUMNS``.
      vectors: arrays ``(n,)``.
      block_rows: rows of a block; by default from the number of registers.
      overlap: let the blocks be started before the kernel ahead of this one has ended, and those
        of the next one before this one has (programmatic dependent launch).
      name: of the kernel.

    Returns:
      An array like the first of ``rows``.
    """
    m, n = rows[0].shape
    itemsize = min(each.dtype.itemsize for each in rows)
    plan = Plan.of(n, itemsize, block_rows)

    def kernel(*refs: Any) -> None:
        *sources, out = refs
        block = jax.lax.axis_index("block")
        full, tail = divmod(m, plan.rows)
        if overlap:  # nothing may be read or written before
            plgpu.griddepcontrol_wait()

        def some_rows(start: Any, plan: Plan) -> None:
            here, layout = pl.ds(start, plan.rows), plan.layout
            shape = (plan.rows, n)
            blocks = [load(ref.at[here], layout) for ref in sources[: len(rows)]]
            wide = [
                along(load(ref, layout.reduce(0)), shape, axis=1) for ref in sources[len(rows) :]
            ]
            store(out.at[here], function(*blocks, *wide))

        pl.when(block < full)(lambda: some_rows(block * plan.rows, plan))
        if tail:

            @pl.when(block == full)
            def _rows_that_are_left() -> None:
                start = full * plan.rows
                groups = tail // WARPS * WARPS
                if groups:
                    some_rows(start, plan.with_rows(groups))
                for row in range(start + groups, m):
                    some_rows(row, plan.with_rows(1))

        if overlap:
            plgpu.griddepcontrol_launch_dependents()

    kernel.__name__ = name
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), rows[0].dtype),
        grid=(pl.cdiv(m, plan.rows),),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )(*rows, *vectors)
