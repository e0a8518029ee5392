"""Every order of what threads, engines and programs of a GPU do."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_test_support.gpu_orders import disagreement

from pallas_sim import explore, simulate


@pytest.mark.parametrize("seed", range(300))
def test_all_orders_of_small_programs(seed):
    assert disagreement(seed) == ""


def locked(x, *, tokens):
    """Return the sum of the blocks of x ``(m, 128)``, which add to the output under a lock.

    Args:
      x: the array.
      tokens: how many may hold the lock at once.
    """
    blocks = x.shape[0] // 8

    def body(x_gmem, zeros_gmem, o_gmem):
        block = jax.lax.axis_index("block")
        lock, done = (pl.get_global(plgpu.SemaphoreType.REGULAR) for _ in range(2))

        @pl.when(block == 0)
        def _open():
            o_gmem[...] = zeros_gmem[...]
            pl.semaphore_signal(lock, tokens)

        part = x_gmem[pl.ds(block * 8, 8)]
        pl.semaphore_wait(lock, 1)
        o_gmem[...] = part + o_gmem[...]
        pl.semaphore_signal(lock, 1)
        pl.semaphore_signal(done, 1)

        @pl.when(block == 0)
        def _close():
            pl.semaphore_wait(done, blocks)
            pl.semaphore_wait(lock, tokens)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((8, 128), x.dtype),
        grid=(blocks,),
        grid_names=("block",),
    )(x, jnp.zeros((8, 128), x.dtype))


@pytest.mark.parametrize(("tokens", "verdict"), [(1, "proved"), (2, "wrong")])
def test_a_semaphore_that_is_a_lock(tokens, verdict):
    """The proof of order does not know who holds it; all orders do."""
    x = np.arange(24 * 128, dtype=np.float32).reshape(24, 128)
    function = functools.partial(locked, tokens=tokens)
    assert [finding.kind for finding in simulate(function, x, target="h100").findings] == ["race"]
    assert explore(function, x, target="h100").verdict == verdict
