"""Whether kernels do more than one program, or more than one turn of a loop over copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.grid.kernel_calls import kernel_calls, one_program, one_step

X = jax.ShapeDtypeStruct((256, 128), jnp.float32)


def kernels(function):
    return kernel_calls(jax.make_jaxpr(function)(X))


def copied(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def in_blocks(rows, index_map=lambda i: (i, 0), body=copied):
    spec = pl.BlockSpec((rows, 128), index_map)
    grid = (256 // rows,)
    return lambda x: pl.pallas_call(body, grid=grid, in_specs=[spec], out_specs=spec, out_shape=x)(
        x
    )


def by_id(x_ref, o_ref):
    o_ref[...] = x_ref[...] + pl.program_id(0)


def by_copies(turns, grid=()):
    def body(x_ref, o_ref, semaphore):
        def step(i, _):
            rows = pl.ds(i * 8, 8)
            pltpu.async_copy(x_ref.at[rows], o_ref.at[rows], semaphore).wait()
            return 0

        if turns:
            jax.lax.fori_loop(0, turns, step, 0)
        else:
            pltpu.async_copy(x_ref, o_ref, semaphore).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return lambda x: pl.pallas_call(
        body,
        grid=grid,
        in_specs=[anywhere],
        out_specs=anywhere,
        out_shape=x,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (in_blocks(256), "copied has one program: grid (1,)"),
        (in_blocks(128), None),
        (in_blocks(256, lambda i: (0, 0)), None),
        (in_blocks(256, lambda i: (0, 0), by_id), "by_id has one program: grid (1,)"),
        (lambda x: in_blocks(128)(in_blocks(256)(x)), None),
        (jnp.sin, None),
    ],
    ids=["one", "two", "meant so", "by its id", "one of two kernels", "no kernel"],
)
def test_one_program(function, reason):
    assert one_program(kernels(function)) == reason


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (by_copies(1), "the loop of body over its copies has one turn"),
        (by_copies(2), None),
        (by_copies(0), None),
        (by_copies(1, grid=(2,)), None),
        (in_blocks(256), "copied has one program: grid (1,)"),
    ],
    ids=["one turn", "two turns", "no loop", "two programs", "no copies"],
)
def test_one_step(function, reason):
    assert one_step(kernels(function)) == reason
