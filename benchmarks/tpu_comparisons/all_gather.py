"""Gathering along a ring, beside the bundled kernel, which sends halves both ways around.

A call is the unit of work. The bundled kernel copies its own shard to the result before it sends
it, and takes ``devices - 1`` steps; ``"both"`` takes ``devices // 2``. Arrays are too large for
VMEM. What DMAs cost is in no column but ``wire``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.all_gather import all_gather as bundled_all_gather
from jax.sharding import PartitionSpec

from reference_kernels.collectives import all_gather
from reference_kernels.collectives.all_gather import Schedule
from tpu_comparisons.rows import Row, Side
from tpu_comparisons.wire import mesh

SHARD = (4096, 4096)
BYTES = 2 * math.prod(SHARD)


def _ours(x: jax.Array, *, devices: int, schedule: Schedule) -> jax.Array:
    gather = functools.partial(all_gather, axis_name="x", tiled=True, schedule=schedule)
    split, everywhere = PartitionSpec("x"), PartitionSpec()
    return jax.shard_map(
        gather, mesh=mesh(x=devices), in_specs=split, out_specs=everywhere, check_vma=False
    )(x)


def _bundled(x: jax.Array, *, devices: int) -> jax.Array:
    return bundled_all_gather(
        x, mesh=mesh(x=devices), axis_name="x", memory_space=pltpu.MemorySpace.HBM
    )


def _row(devices: int, schedule: Schedule) -> Row:
    operand: Any = jax.ShapeDtypeStruct((devices * SHARD[0], SHARD[1]), "bfloat16")
    steps = {"direct": 1, "ring": devices - 1, "both": devices // 2}[schedule]
    ours = functools.partial(_ours, devices=devices, schedule=schedule)
    theirs = functools.partial(_bundled, devices=devices)
    return Row(
        name=f"all_gather {schedule}, {devices} devices",
        unit="call",
        ours=Side(call=ours, args=(operand,), work=1, steps=steps),
        theirs=Side(call=theirs, args=(operand,), work=1, steps=devices - 1),
        wire_bound=(devices - 1) * BYTES,
    )


ROWS = [_row(devices, schedule) for devices in (4, 8) for schedule in ("direct", "ring", "both")]
