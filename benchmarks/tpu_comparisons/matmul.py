"""The tiled matmul at its default blocks, beside a plain one and the bundled one with the same."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.matmul import matmul as bundled_matmul

from reference_kernels.matmul import matmul
from reference_kernels.matmul.matmul import Blocks, default_blocks
from tpu_comparisons.rows import Row, Side

SIZE = 8192

CHIPS = {
    "v5e": pltpu.ChipVersion.TPU_V5E,
    "v5p": pltpu.ChipVersion.TPU_V5P,
    "v6e": pltpu.ChipVersion.TPU_V6E,
}


def _plain_kernel(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    """What a tutorial would write: clear, add, round."""

    @pl.when(pl.program_id(2) == 0)
    def _clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _round() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def _plain(x: jax.Array, y: jax.Array, *, blocks: Blocks) -> jax.Array:
    rows, columns, length = blocks
    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        _plain_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // rows, n // columns, k // length),
        in_specs=[
            pl.BlockSpec((rows, length), lambda i, j, step: (i, step)),
            pl.BlockSpec((length, columns), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=32 * 2**20,
        ),
    )(x, y)


def _bundled(x: jax.Array, y: jax.Array, *, blocks: Blocks) -> jax.Array:
    rows, columns, length = blocks
    return bundled_matmul(x, y, block_shape=(rows, columns), block_k=length)


def _row(name: str, theirs: Any, blocks: Blocks, chip: str) -> Row:
    operand = jax.ShapeDtypeStruct((SIZE, SIZE), "bfloat16")
    rows, columns, length = blocks
    ours = functools.partial(matmul, block_m=rows, block_n=columns, block_k=length)
    return Row(
        name=f"matmul {rows}x{columns}x{length} / {name}",
        unit="block",
        ours=Side(call=ours, args=(operand, operand), work=1),
        theirs=Side(call=functools.partial(theirs, blocks=blocks), args=(operand, operand), work=1),
        chips=(chip,),
    )


ROWS = [
    _row(name, theirs, default_blocks("bfloat16", pltpu.get_tpu_info_for_chip(version, 1)), chip)
    for chip, version in CHIPS.items()
    for name, theirs in (("plain", _plain), ("bundled", _bundled))
]
