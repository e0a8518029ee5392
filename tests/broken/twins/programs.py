"""Grids of a GPU, whose programs run at once: sums of what they have in common, and edges."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import twin

_COLUMNS = 16

_spec = functools.partial(
    KernelSpec,
    backends=("gpu-sim",),
    exact=True,
    vmappable=False,
    family="grids of a GPU",
    file=__file__,
)


def _of_rows(*, rows: Sequence[int] = (8, 16, 24), **options: Any) -> KernelSpec:
    """The spec of a kernel that adds up the rows of its operand, one of ``rows`` in number."""
    dims = {"m": [*rows], "n": [_COLUMNS]}
    return _spec(
        reference=lambda x: jnp.sum(x, axis=0),
        inputs=pst.arguments(pst.arrays("m n", dtype="int32", dims=dims), tuning={"block": 4}),
        **options,
    )


def column_sums(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """The sum of the rows of x ``(m, 16)``; ``block`` divides m."""

    def body(x_ref: Any, _zeros: Any, o_ref: Any) -> None:
        part = jnp.sum(x_ref[...], axis=0)
        if wrong == "no atomics":
            o_ref[...] += part
        else:
            jax.ref.addupdate(o_ref, slice(None), part)  # an atomic, on Triton

    whole = pl.BlockSpec((_COLUMNS,), lambda i: (0,))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((_COLUMNS,), x.dtype),
        grid=(x.shape[0] // block,),
        in_specs=[pl.BlockSpec((block, _COLUMNS), lambda i: (i, 0)), whole],
        out_specs=whole,
        input_output_aliases={1: 0},
    )(x, jnp.zeros((_COLUMNS,), x.dtype))


def summed_over_the_grid(x: jax.Array, *, block: int = 4) -> jax.Array:
    """Each program adds its rows to the output, as on a TPU, where they come one by one."""
    return column_sums(x, block=block, wrong="no atomics")


SPEC_SUMMED_OVER_THE_GRID = _of_rows(name="summed_over_the_grid", kernel=summed_over_the_grid)
SPEC_SUMMED_OVER_THE_GRID_RIGHT = twin(SPEC_SUMMED_OVER_THE_GRID, column_sums)


def locked_sums(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """As ``column_sums``; the output is added to under a lock."""

    def body(x_ref: Any, _zeros: Any, _free: Any, o_ref: Any, lock_ref: Any) -> None:
        part = jnp.sum(x_ref[...], axis=0)
        if wrong != "not taken":
            jax.lax.while_loop(
                lambda _: plgpu.atomic_cas(lock_ref, 0, 1) == 1, lambda done: done, 0
            )
        o_ref[...] += part
        if wrong != "not released":
            plgpu.atomic_xchg(lock_ref, (), 0)

    whole, scalar = pl.BlockSpec((_COLUMNS,), lambda i: (0,)), pl.BlockSpec((), lambda i: ())
    return pl.pallas_call(
        body,
        out_shape=[
            jax.ShapeDtypeStruct((_COLUMNS,), x.dtype),
            jax.ShapeDtypeStruct((), jnp.int32),
        ],
        grid=(x.shape[0] // block,),
        in_specs=[pl.BlockSpec((block, _COLUMNS), lambda i: (i, 0)), whole, scalar],
        out_specs=[whole, scalar],
        input_output_aliases={1: 0, 2: 1},
    )(x, jnp.zeros((_COLUMNS,), x.dtype), jnp.int32(0))[0]


def lock_not_taken(x: jax.Array, *, block: int = 4) -> jax.Array:
    """A program adds to the output and then frees the lock, which it has not taken."""
    return locked_sums(x, block=block, wrong="not taken")


SPEC_LOCK_NOT_TAKEN = _of_rows(name="lock_not_taken", kernel=lock_not_taken)
SPEC_LOCK_NOT_TAKEN_RIGHT = twin(SPEC_LOCK_NOT_TAKEN, locked_sums)


def lock_not_released(x: jax.Array, *, block: int = 4) -> jax.Array:
    """The first program keeps the lock, for which all others wait."""
    return locked_sums(x, block=block, wrong="not released")


SPEC_LOCK_NOT_RELEASED = _of_rows(name="lock_not_released", kernel=lock_not_released)


def sums_by_the_last(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """As ``column_sums``; each program writes its sum, and the last one to do so adds them up.

    ``m / block`` is a power of two, as is every array of a kernel for Triton.
    """
    count = x.shape[0] // block

    def body(x_ref: Any, _none: Any, part_ref: Any, drawn_ref: Any, o_ref: Any) -> None:
        part_ref[pl.program_id(0)] = jnp.sum(x_ref[...], axis=0)
        ticket = plgpu.atomic_add(drawn_ref, (0,), 1)
        number = pl.program_id(0) if wrong == "last in the grid" else ticket

        @pl.when(number == count - 1)
        def _() -> None:
            o_ref[...] = jnp.sum(part_ref[...], axis=0)

    parts = pl.BlockSpec((count, _COLUMNS), lambda i: (0, 0))
    one, whole = pl.BlockSpec((1,), lambda i: (0,)), pl.BlockSpec((_COLUMNS,), lambda i: (0,))
    return pl.pallas_call(
        body,
        out_shape=[
            jax.ShapeDtypeStruct((count, _COLUMNS), x.dtype),
            jax.ShapeDtypeStruct((1,), jnp.int32),
            jax.ShapeDtypeStruct((_COLUMNS,), x.dtype),
        ],
        grid=(count,),
        in_specs=[pl.BlockSpec((block, _COLUMNS), lambda i: (i, 0)), one],
        out_specs=[parts, one, whole],
        input_output_aliases={1: 1},
    )(x, jnp.zeros(1, jnp.int32))[2]


def last_in_the_grid(x: jax.Array, *, block: int = 4) -> jax.Array:
    """The program with the highest number adds up what all have written; it may run first."""
    return sums_by_the_last(x, block=block, wrong="last in the grid")


# Triton takes as many programs as are a power of two here: one adds up the parts of all.
SPEC_LAST_IN_THE_GRID = _of_rows(name="last_in_the_grid", kernel=last_in_the_grid, rows=(8, 16, 32))
SPEC_LAST_IN_THE_GRID_RIGHT = twin(SPEC_LAST_IN_THE_GRID, sums_by_the_last)


def product(x: jax.Array, y: jax.Array, *, block: int = 16, wrong: str = "") -> jax.Array:
    """``x @ y`` for x and y, of which ``block`` divides all sizes."""
    (m, k), n = x.shape, y.shape[1]
    out = jax.ShapeDtypeStruct((m, n), jnp.float32)
    tile = (block, block)

    if wrong == "k in the grid":

        def revisited(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
            @pl.when(pl.program_id(2) == 0)
            def _() -> None:
                o_ref[...] = jnp.zeros_like(o_ref)

            o_ref[...] += jnp.dot(x_ref[...], y_ref[...], precision="highest")

        return pl.pallas_call(
            revisited,
            out_shape=out,
            grid=(m // block, n // block, k // block),
            in_specs=[
                pl.BlockSpec(tile, lambda i, j, step: (i, step)),
                pl.BlockSpec(tile, lambda i, j, step: (step, j)),
            ],
            out_specs=pl.BlockSpec(tile, lambda i, j, step: (i, j)),
        )(x, y)

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def step(number: Any, total: jax.Array) -> jax.Array:
            here = pl.ds(number * block, block)
            return total + jnp.dot(x_ref[:, here], y_ref[here, :], precision="highest")

        o_ref[...] = jax.lax.fori_loop(0, k // block, step, jnp.zeros(tile, jnp.float32))

    return pl.pallas_call(
        body,
        out_shape=out,
        grid=(m // block, n // block),
        in_specs=[
            pl.BlockSpec((block, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec(tile, lambda i, j: (i, j)),
    )(x, y)


def sum_in_the_grid(x: jax.Array, y: jax.Array, *, block: int = 16) -> jax.Array:
    """The innermost axis of the grid is summed over: the output's block is visited again."""
    return product(x, y, block=block, wrong="k in the grid")


SPEC_SUM_IN_THE_GRID = _spec(
    name="sum_in_the_grid",
    kernel=sum_in_the_grid,
    reference=jnp.matmul,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype="float32", dims={"m": [16, 32], "k": [32, 48], "n": [16]}),
        tuning={"block": 16},
    ),
)
SPEC_SUM_IN_THE_GRID_RIGHT = twin(SPEC_SUM_IN_THE_GRID, product)


def row_sums(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """The sum of each row of x ``(m, n)``, n at most 16, ``block`` rows a program."""
    m, n = x.shape

    def body(x_ref: Any, o_ref: Any) -> None:
        inside = jnp.broadcast_to(jnp.arange(_COLUMNS) < n, x_ref.shape)
        masked = {} if wrong == "no mask" else {"mask": inside, "other": 0}
        sums = jnp.sum(plgpu.load(x_ref, **masked), axis=1)
        rows = pl.program_id(0) * block + jnp.arange(block)
        plgpu.store(o_ref, sums, mask=rows < m)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, block),),
        in_specs=[pl.BlockSpec((block, _COLUMNS), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((block,), lambda i: (i,)),
    )(x)


def columns_not_masked(x: jax.Array, *, block: int = 4) -> jax.Array:
    """A row's block is a power of two, and what of it is beyond the row is added, too."""
    return row_sums(x, block=block, wrong="no mask")


SPEC_COLUMNS_NOT_MASKED = _spec(
    name="columns_not_masked",
    kernel=columns_not_masked,
    reference=lambda x: jnp.sum(x, axis=1),
    inputs=pst.arguments(
        pst.arrays("m n", dtype="int32", dims={"m": [4, 7], "n": [9, 13, 16]}),
        tuning={"block": 4},
    ),
)
SPEC_COLUMNS_NOT_MASKED_RIGHT = twin(SPEC_COLUMNS_NOT_MASKED, row_sums)


def shifted(x: jax.Array, *, block: int = 4, wrong: str = "") -> jax.Array:
    """Each row of x ``(m, 16)`` is the sum of it and its successor; the last one stays as it is."""
    m = x.shape[0]

    def body(x_ref: Any, o_ref: Any) -> None:
        rows = pl.program_id(0) * block + jnp.arange(block)
        following = plgpu.load(x_ref.at[rows + 1], mask=(rows + 1 < m)[:, None], other=0)
        o_ref[pl.ds(pl.program_id(0) * block, block)] = x_ref[rows] + following

    whole = pl.BlockSpec((m, _COLUMNS), lambda i: (0, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(m // block,),
        in_specs=[whole],
        out_specs=whole,
        input_output_aliases={0: 0} if wrong == "in place" else {},
    )(x)


def neighbours_in_place(x: jax.Array, *, block: int = 4) -> jax.Array:
    """In place: a program reads the first row of the next one, which may have changed it."""
    return shifted(x, block=block, wrong="in place")


SPEC_NEIGHBOURS_IN_PLACE = _spec(
    name="neighbours_in_place",
    kernel=neighbours_in_place,
    reference=lambda x: x + jnp.concatenate([x[1:], jnp.zeros_like(x[:1])]),
    inputs=pst.arguments(
        pst.arrays("m n", dtype="int32", dims={"m": [8, 12], "n": [_COLUMNS]}),
        tuning={"block": 4},
    ),
)
SPEC_NEIGHBOURS_IN_PLACE_RIGHT = twin(SPEC_NEIGHBOURS_IN_PLACE, shifted)


def staged_product(x: jax.Array, y: jax.Array, *, block: int = 128, wrong: str = "") -> jax.Array:
    """The product of x ``(64, k)`` and y ``(k, 128)`` in float32; ``block`` divides k."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def step(i: Any, total: jax.Array) -> jax.Array:
            here = pl.ds(i * block, block)
            part = jnp.dot(x_ref[:, here], y_ref[here, :], preferred_element_type=jnp.float32)
            return total + part

        steps = x_ref.shape[1] // block
        o_ref[...] = jax.lax.fori_loop(0, steps, step, jnp.zeros(o_ref.shape, jnp.float32))

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_stages=5 if wrong == "too far ahead" else 3),
    )(x, y)


def blocks_beyond_shared_memory(x: jax.Array, y: jax.Array, *, block: int = 128) -> jax.Array:
    """Blocks for five steps are loaded ahead: 240 KiB of shared memory; an SM has 227."""
    return staged_product(x, y, block=block, wrong="too far ahead")


SPEC_BLOCKS_BEYOND_SHARED_MEMORY = _spec(
    name="blocks_beyond_shared_memory",
    kernel=blocks_beyond_shared_memory,
    reference=lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32),
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n", dtype="bfloat16", dims={"m": [64], "k": [128, 256, 640], "n": [128]}
        ),
        tuning={"block": 128},
    ),
)
SPEC_BLOCKS_BEYOND_SHARED_MEMORY_RIGHT = twin(SPEC_BLOCKS_BEYOND_SHARED_MEMORY, staged_product)
