"""What the products for Hopper share: operands that TMA and ``wgmma`` take, and tiles of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref

Activation = Callable[[Any], Any]

#: Bytes of a row of a tile in shared memory. The swizzle permutes 16-byte parts among eight such
#: rows, so that ``wgmma`` reads a column of a tile without bank conflicts.
SWIZZLE = 128

#: Rows of a tile: those that the swizzle permutes among.
ROWS = 8

_FLOAT8 = jnp.dtype(jnp.float8_e4m3fn)
_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


def transforms(dtype: Any, swizzle: int = SWIZZLE) -> tuple[plgpu.Transform, plgpu.Transform]:
    """How a matrix lies in shared memory: in tiles of ``ROWS`` rows of ``swizzle`` bytes."""
    pallas: Any = plgpu  # whose transforms a type checker takes for abstract classes
    tile = pallas.TilingTransform((ROWS, swizzle // jnp.dtype(dtype).itemsize))
    return tile, pallas.SwizzleTransform(swizzle)


def width(dtype: Any) -> int:
    """Columns of a tile."""
    return SWIZZLE // jnp.dtype(dtype).itemsize


def smem(shape: tuple[int, ...], dtype: Any, swizzle: int = SWIZZLE) -> Any:
    """Shared memory for matrices in tiles, as TMA writes and ``wgmma`` reads them."""
    return plgpu.SMEM(shape, dtype, transforms=transforms(dtype, swizzle))


def aligned(x: jax.Array) -> jax.Array:
    """``x`` with zeros up to whole tiles along its last two axes.

    TMA fills with zeros what a block has beyond the end of an array, but only in whole tiles, and
    the rows of the array must be multiples of 16 bytes. Where sizes are whole tiles, as they are in
    most models, nothing is copied.
    """
    *_, rows, columns = x.shape
    missing = (-rows % ROWS, -columns % width(x.dtype))
    if not any(missing):
        return x
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, each) for each in missing])


def whole(shape: tuple[int, int], dtype: Any) -> tuple[int, int]:
    """``shape`` up to whole tiles, for an output; the caller cuts off what is too much."""
    rows, columns = shape
    return pl.cdiv(rows, ROWS) * ROWS, pl.cdiv(columns, width(dtype)) * width(dtype)


def check_dtype(name: str, operand: jax.Array, *, float8: bool = False) -> None:
    """Raise ValueError unless ``wgmma`` multiplies what ``operand`` holds.

    Float32 is refused: the tensor cores would round it to tf32, which has 10 bits of mantissa.
    """
    wanted = _DTYPES + (_FLOAT8,) * float8
    if operand.dtype not in wanted:
        names = " or ".join(str(each) for each in wanted)
        because = "; tensor cores would round float32 to tf32" * (operand.dtype == jnp.float32)
        raise ValueError(f"{name} must be {names}, but its dtype is {operand.dtype}{because}")


def out_dtype(dtype: Any) -> Any:
    """The dtype of a product of operands of ``dtype``, if nobody asks for another."""
    return jnp.dtype(jnp.bfloat16) if jnp.dtype(dtype).itemsize == 1 else jnp.dtype(dtype)


def check_out_dtype(dtype: Any) -> None:
    """Raise ValueError unless an output can have ``dtype``."""
    wanted = (*_DTYPES, jnp.dtype(jnp.float32))
    if jnp.dtype(dtype) not in wanted:
        names = " or ".join(str(each) for each in wanted)
        raise ValueError(f"out_dtype must be {names}, but it is {jnp.dtype(dtype)}")


def check_blocks(dtype: Any, *, block_m: int, block_n: int, block_k: int, stages: int) -> None:
    """Raise ValueError unless the sizes are what ``wgmma`` and the swizzled tiles allow."""
    _require.positive(block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    for name, size, multiple in (
        ("block_m", block_m, 64),
        ("block_n", block_n, 64),
        ("block_k", block_k, width(dtype)),
    ):
        if size % multiple:
            raise ValueError(f"{name} must be a multiple of {multiple}, but it is {size}")
    if block_n > 256:
        raise ValueError(f"block_n must be at most 256, the widest wgmma, but it is {block_n}")
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")


#: Rows and columns of what ``store`` writes at a time.
PART = (64, 64)


def staging(dtype: Any, *warpgroups: int, slots: int = 2) -> Any:
    """Shared memory for ``store``: ``slots`` parts of a block, for each of some ``warpgroups``."""
    return smem((*warpgroups, slots, *PART), dtype)


def sum_steps(
    shape: tuple[int, int],
    arrived: Ref,
    steps: int | jax.Array,
    *,
    fetch: Callable[[jax.Array, jax.Array], None],
    multiply: Callable[[Ref, jax.Array, jax.Array], None],
) -> jax.Array:
    """The sum of the products of some steps, while the operands of later steps are on their way.

    A step uses a slot of shared memory. One product is always left under way, so that the tensor
    cores have something to do while the next one is issued.

    Args:
      shape: of the sums.
      arrived: a barrier for each slot, at which the copies of a step arrive.
      steps: how many there are.
      fetch: ``fetch(step, slot)`` starts the copies of a step to a slot.
      multiply: ``multiply(acc, step, slot)`` starts to add the product of a step, whose copies have
        arrived in a slot, to ``acc``.

    Returns:
      The sums, float32, in the registers of the warpgroup.
    """
    stages = arrived.shape[0]

    def start(step: jax.Array) -> None:
        fetch(step, jax.lax.rem(step, stages))

    def accumulate(acc: Ref) -> jax.Array:
        @pl.loop(0, steps)
        def _step(step: jax.Array) -> None:
            slot = jax.lax.rem(step, stages)
            plgpu.barrier_wait(arrived.at[slot])
            multiply(acc, step, slot)
            plgpu.wgmma_wait(1)  # the product of the step before is done: its slot is free
            ahead = step + stages - 1
            pl.when(jnp.logical_and(step > 0, ahead < steps))(lambda: start(ahead))

        return acc[...]

    first = min(stages, steps) if isinstance(steps, int) else jnp.minimum(stages, steps)
    pl.loop(0, first)(start)
    return pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))


class Operands(NamedTuple):
    """Blocks of two operands in shared memory, for some steps.

    Attributes:
      x: ``(stages, block_m, block_k)``.
      y: ``(stages, block_k, block_n)``.
      arrived: ``(stages,)``, barriers: both blocks of a step have arrived in a slot.
    """

    x: Ref
    y: Ref
    arrived: Ref


def sum_over(
    x: Ref, y: Ref, blocks: Operands, *, row: Any, column: Any, first: Any, steps: int | jax.Array
) -> jax.Array:
    """The product of a block of rows and one of columns over a range of the terms, in float32.

    Args:
      x: ``(m, k)`` in global memory.
      y: ``(k, n)`` in global memory.
      blocks: room for ``stages`` steps.
      row: the first row.
      column: the first column.
      first: the first step of ``block_k`` terms.
      steps: how many there are.
    """
    _, block_m, block_k = blocks.x.shape
    block_n = blocks.y.shape[2]

    def fetch(step: jax.Array, slot: jax.Array) -> None:
        terms, arrived = pl.ds((first + step) * block_k, block_k), blocks.arrived.at[slot]
        plgpu.copy_gmem_to_smem(x.at[pl.ds(row, block_m), terms], blocks.x.at[slot], arrived)
        plgpu.copy_gmem_to_smem(y.at[terms, pl.ds(column, block_n)], blocks.y.at[slot], arrived)

    def multiply(acc: Ref, step: jax.Array, slot: jax.Array) -> None:
        del step
        plgpu.wgmma(acc, blocks.x.at[slot], blocks.y.at[slot])

    return sum_steps((block_m, block_n), blocks.arrived, steps, fetch=fetch, multiply=multiply)


def store(
    value: jax.Array,
    parts: Ref,
    o_gmem: Ref,
    row: Any,
    column: Any,
    activation: Activation | None = None,
    *,
    reduction: Any = None,
) -> None:
    """Write ``activation(value)`` to ``o_gmem`` from ``row`` and ``column`` on, through ``parts``.

    With ``reduction="add"``, TMA adds it to what is there.

    The activation is applied part by part, so that it needs few registers besides ``value``. While
    TMA copies one part out, the next is written to another slot of ``parts``. TMA leaves out
    what lies beyond the end of ``o_gmem``, unless that has one tile of columns: JAX drops the index
    along such an axis, and the copy would overwrite that tile. So no part begins behind the columns
    that ``o_gmem`` has. The last copies may be under way when this returns.
    """
    rows, columns = PART
    width = min(value.shape[1], o_gmem.shape[-1])
    corners = [(i, j) for i in range(0, value.shape[0], rows) for j in range(0, width, columns)]
    slots = parts.shape[0]
    for count, (i, j) in enumerate(corners):
        part = parts.at[count % slots]
        # The last copies may still read other slots. If those before did not end with the last
        # slot, this one may be among them.
        may_read = 0 if count == 0 and len(corners) % slots else slots - 1
        plgpu.wait_smem_to_gmem(may_read, wait_read_only=True)
        piece = value[i : i + rows, j : j + columns]
        part[...] = (activation(piece) if activation else piece).astype(o_gmem.dtype)
        plgpu.commit_smem()
        here = (pl.ds(row + i, rows), pl.ds(column + j, columns))
        plgpu.copy_smem_to_gmem(part, o_gmem.at[here], reduction_op=reduction)
