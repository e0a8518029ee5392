"""What is before a buffer is out of bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

X = np.arange(1.0, 1 + 4 * 8 * 128, dtype=np.float32).reshape(4, 8, 128)


@pytest.mark.pallas(backends=["gpu-interpret"])
def test_before_the_beginning_a_tma_reads_zeros(pallas_run):
    x = jnp.ones((4, 64, 64), jnp.float32)

    def body(i_ref, x_ref, o_ref, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_ref.at[i_ref[0]], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_ref)
        plgpu.wait_smem_to_gmem(0)

    def kernel(i, x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
            scratch_types={
                "buffer": plgpu.SMEM(x.shape[1:], x.dtype),
                "arrived": plgpu.Barrier(),
            },
        )(i, x)

    for index, value in ((0, 1.0), (-1, 0.0), (4, 0.0)):
        assert set(pallas_run(kernel, np.array([index], np.int32), x).flat) == {value}
