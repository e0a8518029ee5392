"""What TPU kernels share: whole tiles, VMEM to ask for, the precision of the matrix unit."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

#: Rows of a whole tile of 16-bit elements; whole tiles of 32-bit ones too.
ROWS = 16

#: Elements in the last dimension of a tile.
LANES = 128

#: What Mosaic gives a kernel on every chip without being asked for more.
DEFAULT_VMEM = 16 * 2**20


def fit(block: int, size: int, tile: int) -> int:
    """``block``, but not more than ``size`` rounded up to whole tiles.

    A block of a single row would be legal for an array of one row, but Mosaic turns a product with
    it into a sum of products, which fails for bfloat16 (JAX 0.12.0.1).
    """
    return min(block, pl.cdiv(size, tile) * tile)


def chip_at_hand() -> pltpu.TpuInfo:
    """The TPU that is computed on, or a v5e where there is none, as under an interpreter."""
    if pltpu.is_tpu_device():
        return pltpu.get_tpu_info()
    return pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V5E, 1)


def divisor(block: int, size: int) -> int:
    """``block``, or a size down to half of it that cuts ``size`` without a rest, if there is one.

    Without a rest nothing has to be masked.
    """
    whole = [b for b in range(block, block // 2, -LANES) if size % b == 0]
    return whole[0] if whole else block


def fit_axis(block: int, size: int, *, last: bool) -> int:
    """``block`` in whole tiles along the last axis of an array or another, at most all of it."""
    tile = LANES if last else ROWS
    return fit(pl.align_to(block, tile), size, tile)


def vmem_limit(*operands: tuple[tuple[int, ...], Any], scratch: int = 0) -> int | None:
    """The VMEM to ask for, or None if the default will do.

    Args:
      *operands: shape and dtype of each block that is copied; the pipeline keeps two of each.
      scratch: bytes that the kernel has besides.
    """
    blocks = sum(jnp.dtype(dtype).itemsize * math.prod(shape) for shape, dtype in operands)
    needed = 2 * blocks + scratch
    room = 5 * needed // 4  # for registers that the compiler spills
    return room if room > DEFAULT_VMEM else None


def precision_for(dtype: Any) -> jax.lax.Precision:
    """The precision that multiplies operands of ``dtype`` without rounding them first.

    By default a TPU rounds float32 operands to bfloat16, so those need ``HIGHEST``. Products of
    bfloat16 are exact in float32 as they are, and Mosaic refuses ``HIGHEST`` for them ("Bad lhs
    type", JAX 0.12.0.1).
    """
    wide = jnp.dtype(dtype).itemsize >= 4
    return jax.lax.Precision.HIGHEST if wide else jax.lax.Precision.DEFAULT


def product(x: jax.Array, y: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Axis ``axes[0]`` of ``x`` contracted with axis ``axes[1]`` of ``y``, in float32."""
    return jax.lax.dot_general(
        x,
        y,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision_for(x.dtype),
        preferred_element_type=jnp.float32,
    )
