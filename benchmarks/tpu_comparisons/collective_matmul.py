"""Products over a ring, beside the matmul of one device at the same blocks.

The unit of work is the product of a block, which a round of either grid's loop does. What the ratio
exceeds 1.00 by is code to send, receive and fetch. Most of it is in branches, all of which count in
every round: of a sum of 8 blocks, the one that rounds or sends runs once.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels.collective_matmul import (
    all_gather_matmul_on_mesh,
    matmul_reduce_scatter_on_mesh,
)
from reference_kernels.matmul import matmul
from tpu_comparisons.rows import Row, Side
from tpu_comparisons.wire import mesh

ROWS_OF_A_DEVICE, LENGTH, COLUMNS = 1024, 4096, 4096
BLOCKS = {"block_m": 512, "block_n": 1024, "block_k": 512}


def _row(name: str, kernel: Any, devices: int, rows: int, sent: int, least: int) -> Row:
    x = jax.ShapeDtypeStruct((devices, rows, LENGTH), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((devices, LENGTH, COLUMNS), jnp.bfloat16)
    ours = functools.partial(kernel, mesh=mesh(x=devices), axis_name="x", **BLOCKS)
    theirs = functools.partial(matmul, **BLOCKS)
    whole = (
        jax.ShapeDtypeStruct((devices * ROWS_OF_A_DEVICE, LENGTH), jnp.bfloat16),
        jax.ShapeDtypeStruct((LENGTH, COLUMNS), jnp.bfloat16),
    )
    return Row(
        name=f"{name}, {devices} devices / matmul of one",
        unit="block of 512 x 1024 x 512",
        ours=Side(call=ours, args=(x, w), work=1, steps=devices - 1, wire_bytes=sent),
        theirs=Side(call=theirs, args=whole, work=1, steps=0, wire_bytes=0),
        wire_bound=least,
    )


def _rows(devices: int) -> list[Row]:
    gathered = 2 * (devices - 1) * ROWS_OF_A_DEVICE * LENGTH
    sums = (devices - 1) * ROWS_OF_A_DEVICE * COLUMNS
    # Partial sums travel in float32; in bfloat16 they would be half of the bytes.
    return [
        _row(
            "all_gather_matmul",
            all_gather_matmul_on_mesh,
            devices,
            ROWS_OF_A_DEVICE,
            gathered,
            gathered,
        ),
        _row(
            "matmul_reduce_scatter",
            matmul_reduce_scatter_on_mesh,
            devices,
            devices * ROWS_OF_A_DEVICE,
            4 * sums,
            2 * sums,
        ),
    ]


ROWS = [row for devices in (4, 8) for row in _rows(devices)]
