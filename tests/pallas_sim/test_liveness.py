"""Which elements of the outputs of kernels a program uses, and races on the others."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pallas_sim import simulate

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


def with_a_bin(x: Any, *, reads: bool = False, waits: bool = True) -> Any:
    """A copy of ``x``, and below it rows that two copies write at the same time."""

    def body(x_ref, o_ref, done):
        copies = [
            pltpu.make_async_copy(x_ref, o_ref.at[pl.ds(start, 8)], done.at[number])
            for number, start in enumerate((0, 8, 8))
        ]
        for copy in copies:
            copy.start()
        for copy in copies[: 3 if waits else 2]:
            copy.wait()
        if reads:
            pltpu.sync_copy(o_ref.at[pl.ds(8, 8)], o_ref.at[pl.ds(0, 8)])

    out = jax.ShapeDtypeStruct((16, 128), x.dtype)
    scratch = [DMA((3,))]
    return pl.pallas_call(
        body, out_shape=out, in_specs=[ANY], out_specs=ANY, scratch_shapes=scratch
    )(x)


def two_outputs(x: Any) -> Any:
    """A copy of ``x``, and an output that two copies write at the same time."""

    def body(x_ref, o_ref, bin_ref, done):
        copies = [
            pltpu.make_async_copy(x_ref, target, done.at[number])
            for number, target in enumerate((o_ref, bin_ref, bin_ref))
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    return pl.pallas_call(
        body,
        out_shape=[x, x],
        in_specs=[ANY],
        out_specs=[ANY, ANY],
        scratch_shapes=[DMA((3,))],
    )(x)


def on_devices(function: Any) -> Any:
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)


DISCARDED = {
    "rows": lambda x: with_a_bin(x)[:8],
    "rows of a call": lambda x: jax.jit(with_a_bin)(x)[:8],
    "rows in a call": lambda x: jax.jit(lambda x: with_a_bin(x)[:8] + 0)(x),
    "some of these rows": lambda x: with_a_bin(x)[:9][:8][2:],
    "rows, twice": lambda x: with_a_bin(x)[:2] + with_a_bin(x)[6:8],
    "in a branch": lambda x: lax.cond(x[0, 0] < 1, with_a_bin, with_a_bin, x)[:8],
    "an output": lambda x: two_outputs(x)[0],
    "an output of a call": lambda x: jax.jit(two_outputs)(x)[0],
    "an output on devices": lambda x: on_devices(two_outputs)(x)[0],
    "rows on devices": on_devices(lambda x: with_a_bin(x)[:8]),
    "an output of a long call": lambda x: jax.jit(lambda x: long(*two_outputs(x)))(x)[0],
}
KEPT = {
    "all": with_a_bin,
    "a row": lambda x: with_a_bin(x)[:9],
    "every second row": lambda x: with_a_bin(x)[::2],
    "a row by a value": lambda x: lax.dynamic_slice(
        with_a_bin(x), (x[0, 0].astype(int), 0), (8, 128)
    ),
    "a sum": lambda x: jnp.sum(with_a_bin(x)),
    "rows that it reads": lambda x: with_a_bin(x, reads=True)[:8],
    "an output": lambda x: two_outputs(x)[1],
    "an output of one of two calls": lambda x: (
        jax.jit(two_outputs)(x)[0],
        jax.jit(two_outputs)(x)[1],
    ),
    "in a loop": lambda x: lax.fori_loop(0, 2, lambda _, v: with_a_bin(v)[8:], x),
    "on devices": lambda x: on_devices(two_outputs)(x)[1],
}


def long(*values: Any) -> Any:
    """Do so much that a call of it is not inlined."""
    first, *others = values
    for _ in range(80):
        first = first + 1
    return (first, *others)


@pytest.mark.parametrize("program", DISCARDED)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_race_of_writes_to_what_the_caller_discards(program, seed):
    assert kinds(simulate(DISCARDED[program], X, seed=seed)) == []


@pytest.mark.parametrize("program", KEPT)
def test_a_race_on_what_reaches_a_result(program):
    assert "race" in kinds(simulate(KEPT[program], X))


def test_a_copy_must_be_done_at_the_end_whatever_its_target():
    """XLA gives the memory to something else."""
    found = kinds(simulate(lambda x: with_a_bin(x, waits=False)[:8], X))
    assert "unwaited" in found


@pytest.mark.parametrize("kept", [8, 9])
def test_programs_of_a_gpu_that_write_what_the_caller_discards(kept):
    """Each program writes a row of its own, and the last row."""

    def body(x_ref, o_ref):
        i = pl.program_id(0)
        o_ref[i] = x_ref[i]
        o_ref[8] = x_ref[i]

    def function(x):
        out = jax.ShapeDtypeStruct((16, 128), x.dtype)
        return pl.pallas_call(body, out_shape=out, grid=(8,))(x)[:kept]

    found = simulate(function, X, target="h100")
    assert kinds(found) == (["race"] if kept > 8 else [])


@pytest.mark.parametrize("kept", [0, 1])
def test_blocks_that_write_what_the_caller_discards(kept):
    def body(x_gmem, o_gmem, bin_gmem):
        row = pl.ds(jax.lax.axis_index("block") * 2, 2)
        o_gmem[row] = x_gmem[row]
        bin_gmem[pl.ds(0, 2)] = x_gmem[row]

    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    run = plgpu.kernel(body, out_type=[out, out], grid=(4,), grid_names=("block",))
    found = simulate(lambda x: run(x)[kept], X, target="h100")
    assert kinds(found) == (["race"] if kept else [])
