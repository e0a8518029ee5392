"""Kernels that JAX's GPU interpreter refuses, and the compiler takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.gpu_interpreter import gpu_interpret
from pytest_pallas.backends.protocol import Call

X = np.arange(4 * 128, dtype=np.float32).reshape(4, 128)


def run(function, *args, **rest):
    outcome = gpu_interpret().run(Call(function=function, args=args, timeout=60.0, **rest))
    if outcome.error is not None:
        raise outcome.error
    return np.asarray(outcome.values)


@pytest.mark.skipif(
    not hasattr(plgpu, "dynamic_scheduling_loop"), reason="this JAX has no such loop"
)
def test_a_grid_that_is_scheduled_dynamically():
    def body(o, smem):
        @plgpu.dynamic_scheduling_loop(("block",), thread_axis="warpgroup")
        def _block(info):
            smem[...] = jnp.full((128,), info.index[0], jnp.float32)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem, o.at[info.index[0]])
            plgpu.wait_smem_to_gmem(0)

    def call(_):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((3, 128), jnp.float32),
            scratch_types=[plgpu.SMEM((128,), jnp.float32)],
            grid=(3,),
            grid_names=("block",),
            num_threads=1,
            thread_name="warpgroup",
        )()

    np.testing.assert_array_equal(run(call, X)[:, 0], np.arange(3))


def test_other_inline_code_is_refused_as_before():
    def body(o, smem):
        @plgpu.inline_mgpu()
        def nothing(_):
            pass

        nothing()
        plgpu.copy_smem_to_gmem(smem, o)
        plgpu.wait_smem_to_gmem(0)

    def call(_):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((128,), jnp.float32),
            scratch_types=[plgpu.SMEM((128,), jnp.float32)],
        )()

    with pytest.raises(Exception, match="does not support `inline_mgpu`"):
        run(call, X)
