"""Windows of TMA copies that reach beyond an array."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas import compat

ROWS = 16
X = np.arange(1, 1 + 32 * 128, dtype=np.float32).reshape(32, 128)


def _loaded(i_ref, x_ref, o_ref, buffer, arrived):
    plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(i_ref[0], ROWS), pl.ds(i_ref[1], 64)], buffer, arrived)
    plgpu.barrier_wait(arrived)
    plgpu.copy_smem_to_gmem(buffer, o_ref.at[pl.ds(0, ROWS), pl.ds(0, 64)])
    plgpu.wait_smem_to_gmem(0)


def _stored(i_ref, x_ref, o_ref, buffer, arrived):
    plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(0, ROWS), pl.ds(0, 64)], buffer, arrived)
    plgpu.barrier_wait(arrived)
    plgpu.copy_smem_to_gmem(buffer, o_ref.at[pl.ds(i_ref[0], ROWS), pl.ds(i_ref[1], 64)])
    plgpu.wait_smem_to_gmem(0)


def _call(body, i, x, before):
    out = jax.new_ref(before)
    plgpu.kernel(
        body,
        out_type=(),
        scratch_types={
            "buffer": plgpu.SMEM((ROWS, 64), x.dtype),
            "arrived": plgpu.Barrier(),
        },
    )(i, x, out)
    return out[...]


CORNERS = [(0, 0), (-3, 0), (0, -5), (-1, -63), (30, 100), (30, -5), (-16, 0), (-40, 0), (5, 7)]


@pytest.mark.pallas(backends=["gpu-interpret"])
@pytest.mark.parametrize("corner", CORNERS)
def test_outside_of_the_array_are_zeros(pallas_run, corner):
    """Whether the window begins before the array or ends beyond it."""
    padded = np.pad(X, ((64, 64), (128, 128)))
    top, left = corner[0] + 64, corner[1] + 128
    before = jnp.full((ROWS, 64), -1, jnp.float32)
    found = pallas_run(_call, _loaded, np.array(corner, np.int32), X, before)
    np.testing.assert_array_equal(found, padded[top : top + ROWS, left : left + 64])


@pytest.mark.pallas(backends=["gpu-interpret"])
@pytest.mark.parametrize("corner", CORNERS)
def test_outside_of_the_array_nothing_is_stored(pallas_run, corner):
    padded = np.zeros((160, 384), np.float32)
    top, left = corner[0] + 64, corner[1] + 128
    padded[top : top + ROWS, left : left + 64] = X[:ROWS, :64]
    found = pallas_run(
        _call, _stored, np.array(corner, np.int32), X, jnp.zeros((32, 128), jnp.float32)
    )
    np.testing.assert_array_equal(found, padded[64:96, 128:256])


def test_no_getitem_is_replaced():
    """CPython 3.13 has a thousand versions of a class, and then keeps to the one that it cached.

    Seen in a process that had run hundreds of kernels: zeros everywhere.
    """
    memory = importlib.import_module("jax._src.pallas.mosaic.interpret.shared_memory")
    before = memory.Buffer.__getitem__
    with compat.negative_indices_refused(), compat.tma_windows_from_before():
        assert memory.Buffer.__getitem__ is before
