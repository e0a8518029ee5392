"""What the GPU interpreter takes of barriers, and the hardware does not."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.gpu_interpreter import gpu_interpret
from pytest_pallas.backends.protocol import Call

X = np.arange(4 * 128, dtype=np.float32).reshape(4, 128)


def copied(x, o, smem, barriers, wait, start=0):
    plgpu.copy_gmem_to_smem(x, smem, barriers.at[start])
    plgpu.barrier_wait(barriers.at[wait])
    plgpu.copy_smem_to_gmem(smem, o)
    plgpu.wait_smem_to_gmem(0)


def run(body, barriers=2):
    def call(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier(num_barriers=barriers)],
            grid=(1,),
            grid_names=("block",),
        )(x)

    outcome = gpu_interpret().run(Call(function=call, args=(X,), timeout=60.0))
    if outcome.error is not None:
        raise outcome.error
    return np.asarray(outcome.values)


def dynamic(index):
    """The number, as what the kernel computes."""
    return jax.lax.axis_index("block") * 0 + index


@pytest.mark.parametrize("index", [0, 1])
def test_barriers_that_are_there(index):
    def body(*refs):
        copied(*refs, dynamic(index), dynamic(index))

    np.testing.assert_array_equal(run(body), X)


@pytest.mark.parametrize(("start", "wait"), [(1, -1), (-1, 1), (2, 1), (1, 2)])
def test_a_barrier_outside_of_its_array(start, wait):
    def body(*refs):
        copied(*refs, dynamic(wait), dynamic(start))

    wrong = wait if wait not in (0, 1) else start
    with pytest.raises(Exception, match="Out-of-bounds barrier at ") as raised:
        run(body)
    assert f"index {wrong} of 2" in str(raised.value)
    assert "test_barriers_gpu.py" in str(raised.value)


def test_a_copy_that_is_under_way_when_the_block_ends():
    def body(x, o, smem, barriers):
        copied(x, o, smem, barriers, 0)
        plgpu.copy_gmem_to_smem(x, smem, barriers.at[1])

    with pytest.raises(Exception, match=r"test_barriers_gpu.*is under way when its block ends"):
        run(body)


def test_the_barrier_of_an_earlier_copy_was_waited_for_and_that_of_a_later_was_not():
    def body(x, o, smem, barriers):
        copied(x, o, smem, barriers, 0)
        plgpu.copy_gmem_to_smem(x, smem, barriers.at[0])

    # JAX 0.11.2 sees this one itself, since a thread had waited for that barrier before.
    own = "had only observed barrier up to phase 0"
    with pytest.raises(Exception, match=f"is under way when its block ends|{own}"):
        run(body)


def test_another_thread_waits_for_the_copy():
    def body(x, o, smem, barriers):
        @pl.when(jax.lax.axis_index("warpgroup") == 0)
        def _fetch():
            plgpu.copy_gmem_to_smem(x, smem, barriers.at[0])

        @pl.when(jax.lax.axis_index("warpgroup") == 1)
        def _store():
            plgpu.barrier_wait(barriers.at[0])
            plgpu.copy_smem_to_gmem(smem, o)
            plgpu.wait_smem_to_gmem(0)

    def call(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier(num_barriers=1)],
            num_threads=2,
            thread_name="warpgroup",
        )(x)

    outcome = gpu_interpret().run(Call(function=call, args=(X,), timeout=60.0))
    assert outcome.error is None
    assert jnp.array_equal(outcome.values, X)


@pytest.mark.parametrize("waits", [1, 2])
def test_a_block_of_a_cluster_that_ends_before_another_arrives(waits):
    """Two blocks arrive twice at each other's barrier, and wait ``waits`` times at their own."""

    def body(x, o, smem, turns):
        for turn in range(2):
            plgpu.barrier_arrive(turns)
            if turn < waits:
                plgpu.barrier_wait(turns)
        block = jax.lax.axis_index("block")
        smem[...] = jnp.full(smem.shape, block, smem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o.at[block])
        plgpu.wait_smem_to_gmem(0)

    def call(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((2, *x.shape), x.dtype),
            scratch_types=[
                plgpu.SMEM(x.shape, x.dtype),
                plgpu.ClusterBarrier(collective_axes=("block",)),
            ],
            cluster=(2,),
            cluster_names=("block",),
        )(x)

    outcome = gpu_interpret().run(Call(function=call, args=(X,), timeout=60.0))
    if waits == 2:
        assert outcome.error is None, outcome.error
        return
    own = "had only observed barrier up to phase 0"  # of JAX 0.11.2
    said = r"may have ended when another one arrives at its barrier at \S*test_barriers_gpu.py"
    assert re.search(f"{said}|{own}", str(outcome.error))
