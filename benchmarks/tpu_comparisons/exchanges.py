"""Kernels that move shards between eight devices. There is nothing bundled to compare them with.

``ragged_all_to_all`` is counted for runs of equal size: how much is sent is known at run time only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from reference_kernels.collectives import all_to_all, ppermute, ragged_all_to_all, right_permute
from tpu_comparisons.rows import Row, Side
from tpu_comparisons.wire import mesh

DEVICES = 8
SHARD = (4096, 16, 128)
BYTES = 2 * math.prod(SHARD)


def _on_mesh(function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    split = PartitionSpec("x")
    body = functools.partial(function, axis_name="x", **options)
    return jax.shard_map(
        body, mesh=mesh(x=DEVICES), in_specs=split, out_specs=split, check_vma=False
    )(*operands)


def _row(
    function: Callable[..., Any],
    *more: tuple[int, ...],
    bound: int,
    sent: int | None = None,
    **options: Any,
) -> Row:
    rows = (DEVICES * SHARD[0], *SHARD[1:])
    args = [jax.ShapeDtypeStruct(rows, "bfloat16")]
    args += [jax.ShapeDtypeStruct(s, "int32" if len(s) == 1 else "bfloat16") for s in more]
    call = functools.partial(_on_mesh, function, **options)
    return Row(
        name=f"{function.__name__}, {DEVICES} devices",
        unit="call",
        ours=Side(call=call, args=tuple(args), work=1, steps=1, wire_bytes=sent),
        wire_bound=bound,
    )


PARTS = BYTES * (DEVICES - 1) // DEVICES

ROWS = [
    _row(right_permute, bound=BYTES),
    _row(ppermute, perm=tuple((i, i + 1) for i in range(DEVICES - 1)), bound=BYTES),
    _row(all_to_all, split_axis=0, concat_axis=0, tiled=True, bound=PARTS),
    _row(
        ragged_all_to_all,
        (DEVICES * SHARD[0], *SHARD[1:]),
        *[(DEVICES * DEVICES,)] * 4,
        bound=PARTS,
        sent=PARTS,
    ),
]
