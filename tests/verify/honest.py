"""Right kernels as people and programs write them: none of them may be refused.

``add_*`` compute ``2 x + y`` of two matrices, ``dot_*`` the product, ``sum_*`` the softmax of rows,
``cum_*`` the cumulative sum of rows, ``att_*`` attention; ``tra_*`` transpose, ``rev_*`` reverse
rows, and ``cop_*`` copy.
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


def dot_tiled(x, w, bm=32, bn=128, bk=128):
    """Tiles along all axes, with the tail of the inner one masked."""
    m, k = x.shape
    n = w.shape[1]

    def body(x_ref, w_ref, o_ref, total):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        left = k - step * bk
        x_inside = jax.lax.broadcasted_iota(jnp.int32, (bm, bk), 1) < left
        w_inside = jax.lax.broadcasted_iota(jnp.int32, (bk, bn), 0) < left
        x_tile = jnp.where(x_inside, x_ref[...], 0)
        w_tile = jnp.where(w_inside, w_ref[...], 0)
        total[...] += jnp.dot(x_tile, w_tile, preferred_element_type=jnp.float32)

        @pl.when(step == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = total[...].astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)),
            pl.BlockSpec((bk, bn), lambda i, j, s: (s, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(x, w)


def dot_on_its_platform(x, w):
    """Another platform than the chip's has jnp."""
    return jax.lax.platform_dependent(x, w, tpu=dot_rows, default=jnp.matmul)


def dot_split(x, w):
    """Two kernels, whose products are added up outside."""
    half = x.shape[1] // 2
    if not half:
        return dot_rows(x, w)
    return dot_rows(x[:, :half], w[:half]) + dot_rows(x[:, half:], w[half:])


def dot_scanned(x, w):
    """A kernel for each eight rows, in a scan."""
    m, k = x.shape
    rows = jnp.pad(x, ((0, -m % 8), (0, 0))).reshape(-1, 8, k)
    _, out = jax.lax.scan(lambda carry, some: (carry, dot_rows(some, w)), None, rows)
    return out.reshape(-1, w.shape[1])[:m]


def sum_in_two_kernels(x):
    """One kernel for maximum and sum, one that divides."""

    def measure(x_ref, most_ref, total_ref):
        values = x_ref[...].astype(jnp.float32)
        most = jnp.max(values, axis=1, keepdims=True)
        most_ref[...] = most
        total_ref[...] = jnp.sum(jnp.exp(values - most), axis=1, keepdims=True)

    def divide(x_ref, most_ref, total_ref, o_ref):
        shifted = jnp.exp(x_ref[...].astype(jnp.float32) - most_ref[...])
        o_ref[...] = (shifted / total_ref[...]).astype(o_ref.dtype)

    grid = (pl.cdiv(x.shape[0], 8),)
    row = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    one = pl.BlockSpec((8, 1), lambda i: (i, 0))
    column = jax.ShapeDtypeStruct((x.shape[0], 1), jnp.float32)
    most, total = pl.pallas_call(
        measure, grid=grid, in_specs=[row], out_specs=[one, one], out_shape=[column, column]
    )(x)
    return pl.pallas_call(
        divide, grid=grid, in_specs=[row, one, one], out_specs=row, out_shape=like(x)
    )(x, most, total)


def cum_of_blocks(x):
    """A kernel adds up blocks of columns, and what is before a block is added outside."""
    m, n = x.shape
    width = 128
    padded = jnp.pad(x, ((0, 0), (0, -n % width))).astype(jnp.float32)

    def body(x_ref, o_ref):
        row = jax.lax.broadcasted_iota(jnp.int32, (width, width), 0)
        column = jax.lax.broadcasted_iota(jnp.int32, (width, width), 1)
        before = (row <= column).astype(jnp.float32)
        o_ref[...] = jnp.dot(x_ref[...], before, precision=jax.lax.Precision.HIGHEST)

    spec = pl.BlockSpec((8, width), lambda i, j: (i, j))
    sums = pl.pallas_call(
        body,
        grid=(pl.cdiv(m, 8), padded.shape[1] // width),
        in_specs=[spec],
        out_specs=spec,
        out_shape=like(padded),
    )(padded)
    blocks = sums.reshape(m, -1, width)
    totals = blocks[:, :, -1]
    offsets = jnp.cumsum(totals, axis=1) - totals
    return (blocks + offsets[:, :, None]).reshape(m, -1)[:, :n].astype(x.dtype)


def tra_in_a_kernel(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...].T

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape[::-1], x.dtype))(x)


def cop_whole(x):
    """To copy is the work."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    return pl.pallas_call(body, out_shape=like(x))(x)


def rev_by_rows(x):
    """To move rows is the work, and the columns are padded outside."""
    m, n = x.shape
    padded = jnp.pad(x, ((0, 0), (0, -n % 128)))

    def body(x_ref, o_ref):
        def row(i, carry):
            o_ref[pl.ds(i, 1), :] = x_ref[pl.ds(m - 1 - i, 1), :]
            return carry

        jax.lax.fori_loop(0, m, row, 0)

    return pl.pallas_call(body, out_shape=like(padded))(padded)[:, :n]


def att_of_rows(q, k, v, causal=False):
    """Attention for eight rows at a time, with all keys."""
    keys, depth = k.shape

    def body(q_ref, k_ref, v_ref, o_ref):
        q_rows, k_rows, v_rows = (ref[...].astype(jnp.float32) for ref in (q_ref, k_ref, v_ref))
        highest = jax.lax.Precision.HIGHEST
        logits = jnp.dot(q_rows, k_rows.T, precision=highest) / np.sqrt(depth)
        if causal:
            row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0) + 8 * pl.program_id(0)
            column = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
            logits = jnp.where(row >= column, logits, -1e30)
        weights = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
        weights /= jnp.sum(weights, axis=1, keepdims=True)
        o_ref[...] = jnp.dot(weights, v_rows, precision=highest).astype(o_ref.dtype)

    rows = pl.BlockSpec((8, depth), lambda i: (i, 0))
    whole = pl.BlockSpec((keys, depth), lambda i: (0, 0))
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(q.shape[0], 8),),
        in_specs=[rows, whole, whole],
        out_specs=rows,
        out_shape=like(q),
    )(q, k, v)


def att_without_options(q, k, v):
    return att_of_rows(q, k, v)
