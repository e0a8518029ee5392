"""Mosaic GPU: ``x + y`` through shared memory by TMA, whose copies arrive at barriers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import twin

_COLUMNS = 128


def add(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """``x + y`` for x and y ``(m, n)``, in blocks of ``block x 128``, which divide m and n."""
    m, n = x.shape

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, x_smem: Any, y_smem: Any, arrived: Any) -> None:
        row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
        here = (pl.ds(row * block, block), pl.ds(column * _COLUMNS, _COLUMNS))
        there = (here[0], pl.ds(0, _COLUMNS)) if wrong == "same columns" else here
        plgpu.copy_gmem_to_smem(x_gmem.at[here], x_smem, arrived)
        plgpu.copy_gmem_to_smem(y_gmem.at[there], y_smem, arrived)
        if wrong != "no wait":
            plgpu.barrier_wait(arrived)
        x_smem[...] = x_smem[...] + y_smem[...]
        if wrong != "not committed":
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[here])
        if wrong != "store not waited for":
            plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[
            plgpu.SMEM((block, _COLUMNS), x.dtype),
            plgpu.SMEM((block, _COLUMNS), x.dtype),
            plgpu.Barrier(num_arrivals=1 if wrong == "one arrival" else 2),
        ],
        grid=(m // block, n // _COLUMNS),
        grid_names=("row", "column"),
    )(x, y)


_spec = functools.partial(
    KernelSpec,
    reference=jnp.add,
    inputs=pst.arguments(
        pst.arrays("m n, m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256]}),
        tuning={"block": 8},
    ),
    backends=("gpu-interpret",),
    exact=True,
    vmappable=False,
    family="Mosaic GPU",
    file=__file__,
)


def no_wait(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """Nobody waits at the barrier: shared memory is read while copies are under way."""
    return add(x, y, block=block, wrong="no wait")


SPEC_NO_WAIT = _spec(name="no_wait", kernel={"gpu": no_wait})
SPEC_NO_WAIT_RIGHT = twin(SPEC_NO_WAIT, add)


def one_arrival(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """The barrier opens after one of two copies."""
    return add(x, y, block=block, wrong="one arrival")


SPEC_ONE_ARRIVAL = _spec(name="one_arrival", kernel={"gpu": one_arrival})


def not_committed(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """What threads wrote to shared memory is not made visible to the copy engine."""
    return add(x, y, block=block, wrong="not committed")


SPEC_NOT_COMMITTED = _spec(name="not_committed", kernel={"gpu": not_committed})


def store_not_waited_for(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """A block ends while the copy out of its shared memory is under way."""
    return add(x, y, block=block, wrong="store not waited for")


SPEC_STORE_NOT_WAITED_FOR = _spec(name="store_not_waited_for", kernel={"gpu": store_not_waited_for})


def same_columns(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """Every block adds the first columns of y."""
    return add(x, y, block=block, wrong="same columns")


SPEC_SAME_COLUMNS = _spec(name="same_columns", kernel={"gpu": same_columns})
