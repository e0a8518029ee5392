"""What a backend cannot run, by the kernels that were traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support import sample_kernels as kernels

from pytest_pallas.grid.kernel_calls import (
    is_mosaic_gpu,
    kernel_calls,
    reaches_devices,
    unsupported,
)

X = jnp.zeros((8, 128))


def of_mosaic(x):
    def body(x_gmem, o_gmem):
        o_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def calling(step):
    """A kernel that copies its input, and takes a step with a semaphore."""

    def body(x_ref, o_ref, semaphore):
        step(x_ref, o_ref, semaphore)

    def call(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    return call


@calling
def to_itself(x_ref, o_ref, semaphore):
    pltpu.async_copy(x_ref, o_ref, semaphore).wait()


@calling
def to_a_neighbor(x_ref, o_ref, semaphore):
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, semaphore, semaphore, device_id=1)
    jax.lax.fori_loop(0, 1, lambda *_: copy.start(), None)


@calling
def to_the_barrier(x_ref, o_ref, semaphore):
    pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1)


def traced(function):
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
    spec = jax.sharding.PartitionSpec()
    whole = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return kernel_calls(jax.make_jaxpr(whole)(X))


@pytest.mark.parametrize(
    ("function", "reaches"),
    [(to_itself, False), (to_a_neighbor, True), (to_the_barrier, True), (of_mosaic, False)],
)
def test_which_kernels_reach_other_devices(function, reaches):
    [kernel] = traced(function)
    assert reaches_devices(kernel) == reaches
    text = unsupported([kernel], "interpret", "any")
    assert (text or "").startswith("needs tpu-sim or tpu-interpret: ") == reaches
    assert unsupported([kernel], "gpu-interpret", "gpu") is None


@pytest.mark.parametrize("shape", [(0, 128), (8, 0)])
def test_interpreters_cannot_run_empty_arrays(shape):
    found = kernel_calls(jax.make_jaxpr(kernels.copy_by_dma)(jnp.zeros(shape)))
    text = unsupported(found, "tpu-interpret", "tpu", interpreting=True)
    assert text is not None
    assert "tpu-interpret cannot run" in text
    assert unsupported(found, "tpu-sim", "tpu") is None


@pytest.mark.parametrize("platform", ["tpu", "any", "gpu"])
def test_which_kernels_need_a_gpu(platform):
    ours, theirs = (kernel_calls(jax.make_jaxpr(f)(X)) for f in (kernels.add_one, of_mosaic))
    assert [is_mosaic_gpu(kernel) for kernel in (*ours, *theirs)] == [False, True]
    assert unsupported(ours, "tpu-sim", platform) is None
    text = unsupported([*ours, *theirs], "tpu-sim", platform)
    needs = "needs a GPU backend such as gpu-sim: body is a Mosaic GPU kernel"
    assert text == (None if platform == "gpu" else needs)
