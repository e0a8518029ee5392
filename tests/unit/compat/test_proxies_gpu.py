"""What threads write to shared memory is there for wgmma once it is committed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.gpu_interpreter import gpu_interpret
from pytest_pallas.backends.protocol import Call

A = np.eye(64).astype(jnp.bfloat16)
B = (np.arange(64 * 64).reshape(64, 64) % 13).astype(jnp.bfloat16)


def product(a, b, *, stored, by, committed):
    """``a @ b``, where warpgroup ``by`` copies the operand ``stored`` from memory to memory."""

    def body(a_gmem, b_gmem, o_gmem, a_smem, b_smem, copy_smem, o_smem, arrived, ready):
        warpgroup = jax.lax.axis_index("warpgroup")

        @pl.when(warpgroup == 0)
        def _fetch():
            plgpu.copy_gmem_to_smem(a_gmem, a_smem, arrived)
            plgpu.copy_gmem_to_smem(b_gmem, b_smem, arrived)

        plgpu.barrier_wait(arrived)

        @pl.when(warpgroup == by)
        def _store():
            copy_smem[...] = (a_smem if stored == "a" else b_smem)[...]
            if committed:
                plgpu.commit_smem()
            plgpu.barrier_arrive(ready)

        @pl.when(warpgroup == 0)
        def _multiply():
            plgpu.barrier_wait(ready)

            def multiply(sums):
                operands = {"a": a_smem, "b": b_smem} | {stored: copy_smem}
                plgpu.wgmma(sums, operands["a"], operands["b"])
                plgpu.wgmma_wait(0)
                return sums[...]

            o_smem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_smem, o_gmem)
            plgpu.wait_smem_to_gmem(0)

    swizzled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[
            *([plgpu.SMEM((64, 64), jnp.bfloat16, transforms=swizzled)] * 3),
            plgpu.SMEM((64, 64), jnp.float32),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(),
        ],
        num_threads=2,
        thread_name="warpgroup",
    )(a, b)


def run(**options):
    return gpu_interpret().run(Call(function=product, args=(A, B), options=options))


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("stored", ["a", "b"])
def test_committed(stored, by):
    outcome = run(stored=stored, by=by, committed=True)
    assert outcome.error is None, outcome.error
    np.testing.assert_array_equal(outcome.values, A.astype(np.float32) @ B.astype(np.float32))


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("stored", ["a", "b"])
def test_not_committed(stored, by):
    outcome = run(stored=stored, by=by, committed=False)
    assert "read of a ref in SMEM" in str(outcome.error)
    assert "test_proxies_gpu.py" in str(outcome.error)
