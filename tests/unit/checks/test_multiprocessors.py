"""``forward`` runs a kernel that asks for the multiprocessors of a GPU also on a part of it."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.simulators import gpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.forward import forward
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import RaceError

X = np.ones((320, 64), np.float32)


def multiprocessors():
    return jax.devices()[0].core_count


def doubled(x, *, waits=True, sums=False, programs=multiprocessors, cluster=1):
    """Twice ``x``, by programs that each have a tile of 64 rows, and then the next.

    Args:
      x: float32 ``(m, 64)``.
      waits: whether a store has left its buffer before the next tile overwrites that.
      sums: whether a tile gets the number of its round added.
      programs: returns how many there are.
      cluster: blocks of a cluster, which have the same tile.
    """
    tiles = x.shape[0] // 64

    def body(x_gmem, o_gmem, taken, made, arrived):
        @plgpu.nd_loop((tiles,), collective_axes="sm")
        def _(info):
            rows = pl.ds(info.index[0] * 64, 64)
            plgpu.copy_gmem_to_smem(x_gmem.at[rows], taken, arrived)
            plgpu.barrier_wait(arrived)
            if waits:
                plgpu.wait_smem_to_gmem(0)
            made[...] = taken[...] * 2 + (info.local_index if sums else 0)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(made, o_gmem.at[rows])

        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(programs() // cluster,),
        grid_names=("sm",),
        scratch_types=[
            plgpu.SMEM((64, 64), x.dtype),
            plgpu.SMEM((64, 64), x.dtype),
            plgpu.Barrier(),
        ],
    )(x)


def ask(**options):
    def kernel(x):
        return doubled(x, **options)

    arguments = Arguments((X,))
    context = CheckContext(
        kernel=kernel, reference=lambda x: 2 * x, arguments=arguments, backend=gpu_sim()
    )
    return forward(context), len(context.run_seconds)


def test_a_right_kernel_passes_on_both():
    result, runs = ask()
    assert result.failed is None
    assert runs == 2
    assert len(result.comparisons) == 2


def test_a_kernel_that_does_not_ask_runs_once():
    result, runs = ask(programs=lambda: 132)
    assert result.failed is None
    assert runs == 1


def test_a_buffer_of_the_tile_before_is_a_race():
    with pytest.raises(RaceError, match=r"(?s)race on made.*on a GPU with 4 multiprocessors"):
        ask(waits=False)


def test_a_wrong_answer_says_on_how_many():
    result, _ = ask(sums=True)
    assert result.failed is not None
    assert "on a GPU with 4 multiprocessors" in str(result.failed.explanation)


def test_a_kernel_that_needs_more_of_them_gets_more():
    result, runs = ask(cluster=8)
    assert (result.failed, runs) == (None, 2)
    result, runs = ask(cluster=32)  # no program at all
    assert (result.failed, runs) == (None, 1)


def test_a_kernel_that_refuses_so_few_runs_on_the_whole_chip():
    def most():
        assert multiprocessors() > 100, "for large GPUs"
        return multiprocessors()

    result, runs = ask(programs=most)
    assert (result.failed, runs) == (None, 1)
