"""Right kernels as people and programs write them: none of them may be refused.

``add_*`` compute ``2 x + y`` of two matrices, ``dot_*`` the product, ``sum_*`` the softmax of rows.
"""

from __future__ import annotations

import functools
import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

print("honest kernels are imported")  # noqa: T201


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def add_body(x_ref, y_ref, o_ref):
    o_ref[...] = 2 * x_ref[...] + y_ref[...]


def add_whole(x, y):
    return pl.pallas_call(add_body, out_shape=like(x))(x, y)


def add_in_blocks(x, y, rows=8, columns=128, **options):
    spec = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    grid = (pl.cdiv(x.shape[0], rows), pl.cdiv(x.shape[1], columns))
    call = pl.pallas_call(
        add_body, grid=grid, in_specs=[spec, spec], out_specs=spec, out_shape=like(x), **options
    )
    return call(x, y)


def add_large_blocks(x, y):
    return add_in_blocks(x, y, 64, 256)


def add_parallel(x, y):
    params = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))
    return add_in_blocks(x, y, compiler_params=params)


@jax.jit
def add_jitted(x, y):
    return add_in_blocks(x, y)


add_partial = functools.partial(add_in_blocks, rows=16)


def add_in_place(x, y):
    spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    grid = (pl.cdiv(x.shape[0], 8), pl.cdiv(x.shape[1], 128))
    call = pl.pallas_call(
        add_body,
        grid=grid,
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=like(x),
        input_output_aliases={1: 0},
    )
    return call(x, y)


def add_padded(x, y):
    m, n = x.shape
    pads = ((0, -m % 8), (0, -n % 128))
    x, y = jnp.pad(x, pads), jnp.pad(y, pads)
    return add_in_blocks(x, y)[:m, :n]


def add_loop(x, y):
    def body(x_ref, y_ref, o_ref):
        def row(i, carry):
            o_ref[pl.ds(i, 1), :] = 2 * x_ref[pl.ds(i, 1), :] + y_ref[pl.ds(i, 1), :]
            return carry

        jax.lax.fori_loop(0, x.shape[0], row, 0)

    return pl.pallas_call(body, out_shape=like(x))(x, y)


def add_two_kernels(x, y):
    def double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def total(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(total, out_shape=like(x))(pl.pallas_call(double, out_shape=like(x))(x), y)


def add_by_copies(x, y):
    def body(x_ref, y_ref, o_ref, one, two, first, second):
        copies = [
            pltpu.make_async_copy(x_ref, one, first),
            pltpu.make_async_copy(y_ref, two, second),
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        o_ref[...] = 2 * one[...] + two[...]

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        in_specs=[anywhere, anywhere],
        out_shape=like(x),
        scratch_shapes=[
            pltpu.VMEM(x.shape, x.dtype),
            pltpu.VMEM(x.shape, x.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
        ],
    )(x, y)


def add_with_scalars(x, y):
    """The factor is prefetched."""

    def body(factor, x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] * factor[0] + y_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i, j, factor: (i, j))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(pl.cdiv(x.shape[0], 8), pl.cdiv(x.shape[1], 128)),
        in_specs=[spec, spec],
        out_specs=spec,
    )
    factor = jnp.array([2.0], jnp.float32)
    return pl.pallas_call(body, grid_spec=grid, out_shape=like(x))(factor, x, y)


def add_scoped(x, y):
    def body(x_ref, y_ref, o_ref):
        def with_scratch(scratch):
            scratch[...] = 2 * x_ref[...]
            o_ref[...] = scratch[...] + y_ref[...]

        pl.run_scoped(with_scratch, pltpu.VMEM(x.shape, x.dtype))

    return pl.pallas_call(body, out_shape=like(x))(x, y)


def add_fused_bias(x, y):
    """A bias of zeros is added outside: that is little work."""
    return add_in_blocks(x, y)


def add_with_files(x, y):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("notes")
    assert os.environ.get("HOME")
    return add_whole(x, y)


class Kernels:
    """A place for kernels."""

    @staticmethod
    def add_in_class(x, y):
        return add_in_blocks(x, y)


def add_when(x, y):
    def body(x_ref, y_ref, o_ref):
        step = pl.program_id(1)

        @pl.when(step == 0)
        def _():
            o_ref[...] = 2 * x_ref[...]

        @pl.when(step == 1)
        def _():
            o_ref[...] += y_ref[...]

    spec = pl.BlockSpec((8, x.shape[1]), lambda i, s: (i, 0))
    grid = (pl.cdiv(x.shape[0], 8), 2)
    call = pl.pallas_call(body, grid=grid, in_specs=[spec, spec], out_specs=spec, out_shape=like(x))
    return call(x, y)


def dot_rows(x, w, rows=8):
    m, k = x.shape
    n = w.shape[1]

    def body(x_ref, w_ref, o_ref):
        product = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)
        o_ref[...] = product.astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=(pl.cdiv(m, rows),),
        in_specs=[
            pl.BlockSpec((rows, k), lambda i: (i, 0)),
            pl.BlockSpec((k, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, n), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, w)


def dot_columns(x, w):
    return dot_rows(w.T, x.T, 128).T


def dot_highest(x, w):
    def body(x_ref, w_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...], precision=jax.lax.Precision.HIGHEST)

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(body, out_shape=shape)(x, w)


def dot_accumulated(x, w):
    """Blocks of the inner dimension are padded, and added up in scratch."""
    m, k = x.shape
    n = w.shape[1]
    x, w = jnp.pad(x, ((0, 0), (0, -k % 128))), jnp.pad(w, ((0, -k % 128), (0, 0)))
    steps = x.shape[1] // 128

    def body(x_ref, w_ref, o_ref, total):
        @pl.when(pl.program_id(1) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(1) == steps - 1)
        def _():
            o_ref[...] = total[...]

    return pl.pallas_call(
        body,
        grid=(pl.cdiv(m, 8), steps),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, s: (i, s)),
            pl.BlockSpec((128, n), lambda i, s: (s, 0)),
        ],
        out_specs=pl.BlockSpec((8, n), lambda i, s: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((8, n), jnp.float32)],
    )(x, w)


def dot_loop(x, w):
    def body(x_ref, w_ref, o_ref):
        def column(i, total):
            return total + x_ref[:, pl.ds(i, 1)] * w_ref[pl.ds(i, 1), :]

        zeros = jnp.zeros(o_ref.shape, jnp.float32)
        o_ref[...] = jax.lax.fori_loop(0, x.shape[1], column, zeros)

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(body, out_shape=shape)(x, w)


def dot_small_by_jnp(x, w):
    """A fallback for a single row."""
    return x @ w if x.shape[0] == 1 else dot_rows(x, w)


def dot_transposed_weights(x, w):
    def body(x_ref, w_ref, o_ref):
        o_ref[...] = jax.lax.dot_general(x_ref[...], w_ref[...], (((1,), (1,)), ((), ())))

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(body, out_shape=shape)(x, w.T)


@jax.custom_vjp
def dot_with_gradient(x, w):
    return dot_rows(x, w)


dot_with_gradient.defvjp(
    lambda x, w: (dot_rows(x, w), (x, w)),
    lambda kept, g: (dot_rows(g, kept[1].T), dot_rows(kept[0].T, g)),
)


def sum_rows(x, rows=8):
    def body(x_ref, o_ref):
        shifted = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True))
        o_ref[...] = shifted / jnp.sum(shifted, axis=1, keepdims=True)

    spec = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body, grid=(pl.cdiv(x.shape[0], rows),), in_specs=[spec], out_specs=spec, out_shape=like(x)
    )(x)


def sum_whole(x):
    def body(x_ref, o_ref):
        o_ref[...] = jax.nn.softmax(x_ref[...], axis=-1)

    return pl.pallas_call(body, out_shape=like(x))(x)


def sum_masked(x):
    """Columns beyond the array are minus infinity."""
    n = x.shape[1]
    columns = 128 * pl.cdiv(n, 128)

    def body(x_ref, o_ref):
        inside = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1) < n
        values = jnp.where(inside, x_ref[...], -jnp.inf)
        shifted = jnp.exp(values - jnp.max(values, axis=1, keepdims=True))
        o_ref[...] = shifted / jnp.sum(shifted, axis=1, keepdims=True)

    spec = pl.BlockSpec((8, columns), lambda i: (i, 0))
    return pl.pallas_call(
        body, grid=(pl.cdiv(x.shape[0], 8),), in_specs=[spec], out_specs=spec, out_shape=like(x)
    )(x)


def sum_shifted_outside(x):
    return sum_rows(x - jnp.max(x, axis=1, keepdims=True))


def sum_vmapped(x):
    """Each row is a kernel of its own, in a batch."""

    def body(x_ref, o_ref):
        shifted = jnp.exp(x_ref[...] - jnp.max(x_ref[...]))
        o_ref[...] = shifted / jnp.sum(shifted)

    def row(values):
        one = values[None]
        return pl.pallas_call(body, out_shape=like(one))(one)[0]

    return jax.vmap(row)(x)


def sum_wide_rows(x):
    return sum_rows(x, 32)


TABLE = np.ones((8, 128), np.float32)


def sum_with_table(x):
    """A small constant is added, and subtracted again in the kernel."""

    def body(x_ref, t_ref, o_ref):
        shifted = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True)) * t_ref[0, 0]
        o_ref[...] = shifted / jnp.sum(shifted, axis=1, keepdims=True)

    spec = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
    call = pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[spec, whole],
        out_specs=spec,
        out_shape=like(x),
    )
    return call(x, jnp.asarray(TABLE))
