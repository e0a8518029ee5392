"""Products of matrices."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _product(x, y, block_m, block_n, block_k, dtype):
    depth = x.shape[1]
    steps = pl.cdiv(depth, block_k)

    def body(x_ref, y_ref, o_ref, sums):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _():
            sums[...] = jnp.zeros_like(sums)

        rest = depth - step * block_k
        a = jnp.where(jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1) < rest, x_ref[...], 0)
        b = jnp.where(jax.lax.broadcasted_iota(jnp.int32, y_ref.shape, 0) < rest, y_ref[...], 0)
        product = jnp.dot(a, b, preferred_element_type=jnp.float32)
        sums[...] = (sums[...] + product).astype(sums.dtype)

        @pl.when(step == steps - 1)
        def _():
            o_ref[...] = sums[...].astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        grid=(pl.cdiv(x.shape[0], block_m), pl.cdiv(y.shape[1], block_n), steps),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), dtype)],
    )(x, y)


def matmul(x, y, *, block_m=16, block_n=128, block_k=128):
    """x @ y, summed in float32."""
    return _product(x, y, block_m, block_n, block_k, jnp.float32)


def wrong_matmul(x, y, *, block_m=16, block_n=128, block_k=128):
    """Summed in bfloat16 from block to block."""
    return _product(x, y, block_m, block_n, block_k, jnp.bfloat16)
