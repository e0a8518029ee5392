"""What is before a buffer is out of bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import BoundsError

X = np.arange(1.0, 1 + 4 * 8 * 128, dtype=np.float32).reshape(4, 8, 128)


def _loaded(i_ref, x_ref, o_ref):
    o_ref[...] = x_ref[i_ref[0]]


def _copied(i_ref, x_ref, o_ref):
    pltpu.sync_copy(x_ref.at[i_ref[0]], o_ref)


def _sliced(i_ref, x_ref, o_ref):
    pltpu.sync_copy(x_ref.at[pl.ds(i_ref[0], 1)].at[0], o_ref)


def _stored(i_ref, x_ref, o_ref):
    o_ref[pl.ds(i_ref[0], 1)] = x_ref[0][:1]


@pytest.mark.pallas(backends=["tpu-interpret"])
@pytest.mark.parametrize("body", [_loaded, _copied, _sliced, _stored])
@pytest.mark.parametrize("index", [-1, -3])
def test_a_negative_index_is_out_of_bounds(pallas_run, body, index):
    """A chip does not count from the end."""

    def kernel(i, x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec()],
        )(i, x)

    np.testing.assert_array_equal(pallas_run(kernel, np.array([0], np.int32), X)[:1], X[0, :1])
    with pytest.raises(BoundsError, match=rf"[xo]_ref.* \[{index}"):
        pallas_run(kernel, np.array([index], np.int32), X)


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
