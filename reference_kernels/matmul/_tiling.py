"""How large the blocks of a product should be on the chip at hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._blocks import LANES, ROWS, fit

#: What Mosaic gives a kernel on every chip without being asked for more.
DEFAULT_VMEM = 16 * 2**20


class Blocks(NamedTuple):
    """Rows and columns of a block of the output, and how much of the sums a program contracts."""

    rows: int
    columns: int
    length: int


def chip_at_hand() -> pltpu.TpuInfo:
    """The TPU that is computed on, or a v5e where there is none, as under an interpreter."""
    if pltpu.is_tpu_device():
        return pltpu.get_tpu_info()
    return pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V5E, 1)


def default_blocks(dtype: Any, chip: pltpu.TpuInfo) -> Blocks:
    """Blocks that keep the matrix unit of ``chip`` busy with operands of ``dtype``.

    In a step, a block of the output takes ``2 rows columns length`` operations for
    ``(rows + columns) length`` elements that are copied. That has to be more operations a byte than
    the chip can do, 240 on a v5e and 561 on a v6e, or the unit waits for HBM. Float32 takes six
    products of bfloat16 for one, so it is far from that limit; there, VMEM is.
    """
    if jnp.dtype(dtype).itemsize >= 4:
        return Blocks(512, 1024, 256)
    square = Blocks(1024, 1024, 512)
    operations = 2 * square.rows * square.columns
    copied = (square.rows + square.columns) * jnp.dtype(dtype).itemsize
    if operations / copied < chip.bf16_ops_per_second / chip.mem_bw_bytes_per_second:
        return Blocks(2 * square.rows, square.columns, square.length)
    return square


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
    blocks = sum(jnp.dtype(dtype).itemsize * _product(shape) for shape, dtype in operands)
    needed = 2 * blocks + scratch
    room = 5 * needed // 4  # for registers that the compiler spills
    return room if room > DEFAULT_VMEM else None


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
