"""A semaphore of a Mosaic GPU kernel that is a lock: the right ones are accused of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import explore, simulate

X = np.arange(24 * 128, dtype=np.float32).reshape(24, 128)
BLOCKS, ROWS = 3, 8


def added(section: Callable[..., None], *, tokens: int = 1) -> Callable[[Any], Any]:
    """Return a kernel whose blocks add their rows to the output; two warpgroups have each block.

    Args:
      section: gets ``take`` and ``give``, which one warpgroup calls, ``meet`` for both, the rows of
        the warpgroup, those of the output, and the output with shared memory for it.
      tokens: how many may hold the lock.
    """

    def body(x_gmem, zeros_gmem, o_gmem, smem, loaded, met):
        block, warpgroup = jax.lax.axis_index("block"), jax.lax.axis_index("warpgroup")
        lock, done = (pl.get_global(plgpu.SemaphoreType.REGULAR) for _ in range(2))

        @pl.when((block == 0) & (warpgroup == 0))
        def _open():
            o_gmem[...] = zeros_gmem[...]
            pl.semaphore_signal(lock, tokens)

        def meet():
            plgpu.barrier_arrive(met)
            plgpu.barrier_wait(met)

        half = ROWS // 2
        section(
            take=lambda: pl.when(warpgroup == 0)(lambda: pl.semaphore_wait(lock, 1)),
            give=lambda: pl.when(warpgroup == 0)(lambda: pl.semaphore_signal(lock, 1)),
            meet=meet,
            rows=x_gmem.at[pl.ds(block * ROWS + warpgroup * half, half)],
            sums=o_gmem.at[pl.ds(warpgroup * half, half)],
            engine=(warpgroup == 0, o_gmem, smem, loaded),
        )
        meet()
        pl.when(warpgroup == 0)(lambda: pl.semaphore_signal(done, 1))

        @pl.when((block == 0) & (warpgroup == 0))
        def _close():
            pl.semaphore_wait(done, BLOCKS)
            pl.semaphore_wait(lock, tokens)

    def call(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((ROWS, 128), x.dtype),
            grid=(BLOCKS,),
            grid_names=("block",),
            num_threads=2,
            thread_name="warpgroup",
            scratch_types=[
                plgpu.SMEM((ROWS, 128), jnp.float32),
                plgpu.Barrier(),
                plgpu.Barrier(num_arrivals=2),
            ],
        )(x, jnp.zeros((ROWS, 128), x.dtype))

    return call


def right(take, give, meet, rows, sums, engine):
    take()
    meet()
    sums[...] += rows[...]
    meet()
    give()


def twice(**parts):
    right(**parts)
    right(**parts)


def by_copies(take, give, meet, rows, sums, engine, *, waits=True):
    """Copies bring the sum and take it away while the lock is held."""
    first, o_gmem, smem, loaded = engine
    take()

    @pl.when(first)
    def _add():
        plgpu.copy_gmem_to_smem(o_gmem, smem, loaded)
        plgpu.barrier_wait(loaded)
        smem[...] += 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o_gmem)
        if waits:
            plgpu.wait_smem_to_gmem(0)

    give()
    pl.when(first)(lambda: plgpu.wait_smem_to_gmem(0))


def copies_twice(**parts):
    by_copies(**parts)
    by_copies(**parts)


def without_a_lock(take, give, meet, rows, sums, engine):
    sums[...] += rows[...]


def read_before_it_is_taken(take, give, meet, rows, sums, engine):
    old = sums[...]
    take()
    meet()
    sums[...] = old + rows[...]
    meet()
    give()


def written_after_it_is_given(take, give, meet, rows, sums, engine):
    take()
    meet()
    new = sums[...] + rows[...]
    meet()
    give()
    sums[...] = new


def given_while_the_other_adds(take, give, meet, rows, sums, engine):
    take()
    meet()
    sums[...] += rows[...]
    give()


def given_before_a_copy_is_done(**parts):
    by_copies(**parts, waits=False)


def once_without(**parts):
    without_a_lock(**parts)
    right(**parts)


def races(call: Any) -> set[str]:
    return {finding.kind for finding in simulate(call, X, target="h100").findings}


@pytest.mark.parametrize("section", [right, twice, by_copies, copies_twice])
def test_what_a_lock_keeps_apart_is_no_race(section):
    assert not races(added(section))


@pytest.mark.parametrize(
    "section",
    [
        without_a_lock,
        read_before_it_is_taken,
        written_after_it_is_given,
        given_while_the_other_adds,
        given_before_a_copy_is_done,
        once_without,
    ],
)
def test_what_a_lock_does_not_keep_apart(section):
    assert races(added(section)) == {"race"}
    assert explore(added(section), X, target="h100").confirmed


@pytest.mark.parametrize(("tokens", "verdict"), [(1, "proved"), (2, "wrong")])
def test_how_many_may_hold_a_lock(tokens, verdict):
    call = added(right, tokens=tokens)
    assert races(call) == (set() if verdict == "proved" else {"race"})
    assert explore(call, X, target="h100").verdict == verdict
