"""Reduce-scatter and all-reduce on a ring; JAX bundles no kernel to compare them with.

A round of the grid's loop is one turn of one piece of 256 KiB, which is the unit of work. Every
shard is larger than VMEM.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from reference_kernels.collectives import all_reduce_on_mesh, reduce_scatter_on_mesh
from tpu_comparisons.rows import Row, Side
from tpu_comparisons.wire import mesh

SHARD = (16384, 4096)


def _row(name: str, kernel: Any, dtype: str, devices: int, *, gathers: bool, **options: Any) -> Row:
    operand = jax.ShapeDtypeStruct((devices, *SHARD), dtype)
    elements = math.prod(SHARD) * (devices - 1) // devices
    size = jnp.dtype(dtype).itemsize
    # Partial sums travel in float32. Only some programs of the grid send: counted by hand.
    sent = elements * 4 + gathers * elements * size
    turns = (devices - 1) * (1 + gathers)
    call = functools.partial(kernel, mesh=mesh(x=devices), axis_name="x", **options)
    return Row(
        name=f"{name} {dtype}, {devices} devices",
        unit="turn of a piece",
        ours=Side(call=call, args=(operand,), work=1, steps=turns, wire_bytes=sent),
        wire_bound=elements * size * (1 + gathers),
    )


ROWS = [
    row
    for devices in (4, 8)
    for dtype in ("float32", "bfloat16")
    for row in (
        _row("reduce_scatter", reduce_scatter_on_mesh, dtype, devices, gathers=False, tiled=True),
        _row("all_reduce", all_reduce_on_mesh, dtype, devices, gathers=True),
    )
]
