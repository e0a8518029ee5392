"""Products of infinities in the GPU interpreter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.gpu_interpreter import gpu_interpret
from pytest_pallas.backends.protocol import Call


def _product(a, b):
    def body(a_ref, b_ref, o_ref, stored):
        def multiply(sums):
            plgpu.wgmma(sums, a_ref, b_ref)
            plgpu.wgmma_wait(0)
            return sums[...]

        stored[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(stored, o_ref)
        plgpu.wait_smem_to_gmem(0)

    swizzled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        lambda a_gmem, b_gmem, o_gmem, a_smem, b_smem, stored, barrier: (
            plgpu.copy_gmem_to_smem(a_gmem, a_smem, barrier),
            plgpu.barrier_wait(barrier),
            plgpu.copy_gmem_to_smem(b_gmem, b_smem, barrier),
            plgpu.barrier_wait(barrier),
            body(a_smem, b_smem, o_gmem, stored),
            None,
        )[-1],
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[
            plgpu.SMEM((64, 64), jnp.bfloat16, transforms=swizzled),
            plgpu.SMEM((64, 64), jnp.bfloat16, transforms=swizzled),
            plgpu.SMEM((64, 64), jnp.float32),
            plgpu.Barrier(),
        ],
    )(a, b)


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_a_product_of_what_is_not_finite_is_no_error(special):
    a = np.ones((64, 64), jnp.bfloat16)
    a[3, 5] = special
    b = np.eye(64).astype(jnp.bfloat16)
    outcome = gpu_interpret().run(Call(function=_product, args=(a, b)))
    assert outcome.error is None
    [out] = jax.tree.leaves(outcome.values)
    assert np.isfinite(out[:3]).all()
    assert not np.isfinite(out[3]).any()
