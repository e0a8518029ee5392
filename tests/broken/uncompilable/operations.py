"""Operations that Mosaic does not lower."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from uncompilable.common import TPUS, Case, Shape, X, sort, with_start


def sort_in_loop(x):
    def sort_again(x_ref, o_ref):
        def step(i, rows):
            return jnp.sort(rows) + i

        o_ref[...] = lax.fori_loop(0, 4, step, x_ref[...])

    return pl.pallas_call(sort_again, out_shape=x)(x)


def cumsum(x):
    def running(x_ref, o_ref):
        o_ref[...] = jnp.cumsum(x_ref[...], axis=-1)

    return pl.pallas_call(running, out_shape=x)(x)


def fft(x):
    def spectrum(x_ref, o_ref):
        o_ref[...] = jnp.abs(jnp.fft.fft(x_ref[...]))

    return pl.pallas_call(spectrum, out_shape=x)(x)


def dynamic_slice_of_value(start, x):
    def slice_it(start_ref, x_ref, o_ref):
        o_ref[...] = lax.dynamic_slice(x_ref[...], (0, start_ref[0]), (8, 128))

    return with_start(slice_it)(start, x)


def reverse(x):
    def reverse_lanes(x_ref, o_ref):
        o_ref[...] = x_ref[...][:, ::-1]

    return pl.pallas_call(reverse_lanes, out_shape=x)(x)


def strided(x):
    def every_third(x_ref, o_ref):
        o_ref[...] = x_ref[...][:, ::3]

    return pl.pallas_call(every_third, out_shape=X)(x)


def float_iota(x):
    def add_positions(x_ref, o_ref):
        o_ref[...] = x_ref[...] + jnp.arange(128, dtype=jnp.float32)  # of integers it would do

    return pl.pallas_call(add_positions, out_shape=x)(x)


def odd_reshape(x):
    def reshape(x_ref, o_ref):
        o_ref[...] = x_ref[...].reshape(6, 20)

    return pl.pallas_call(reshape, out_shape=Shape((6, 20), x.dtype))(x)


def scan_of_rows(x):
    def scan(x_ref, o_ref):
        def step(total, row):
            return total + row, total

        o_ref[...] = lax.scan(step, jnp.zeros((128,), jnp.float32), x_ref[...])[1]

    return pl.pallas_call(scan, out_shape=x)(x)


def product(x):
    def multiply(x_ref, o_ref):
        o_ref[...] = jnp.prod(x_ref[...], axis=0, keepdims=True)

    return pl.pallas_call(multiply, out_shape=Shape((1, 128), x.dtype))(x)


CASES = (
    Case("sort", sort, (X,), "tpu", TPUS, (": sort", "= jnp.sort(x_ref[...])")),
    Case("sort_in_loop", sort_in_loop, (X,), "tpu", TPUS, (": sort", "return jnp.sort(rows) + i")),
    Case("cumsum", cumsum, (X,), "tpu", TPUS, (": cumsum", "= jnp.cumsum(x_ref[...]")),
    Case("fft", fft, (X,), "tpu", TPUS, ("Invalid type", "jnp.fft.fft(x_ref[...])")),
    Case(
        "dynamic_slice_of_value",
        dynamic_slice_of_value,
        (Shape((1,), jnp.int32), Shape((8, 512), jnp.float32)),
        "tpu",
        TPUS,
        (": dynamic_slice", "lax.dynamic_slice(x_ref[...]"),
    ),
    Case("reverse", reverse, (X,), "tpu", TPUS, (": rev", "x_ref[...][:, ::-1]")),
    Case(
        "strided",
        strided,
        (Shape((8, 384), jnp.float32),),
        "tpu",
        TPUS,
        ("expected strides to be confined to [1, 2)", "(f32[8,384])", "x_ref[...][:, ::3]"),
    ),
    Case(
        "float_iota",
        float_iota,
        (X,),
        "tpu",
        TPUS,
        ("tpu.iota", "must be vector of integer", "jnp.arange(128, dtype=jnp.float32)"),
    ),
    Case(
        "odd_reshape",
        odd_reshape,
        (Shape((8, 15), jnp.float32),),
        "tpu",
        TPUS,
        ("unsupported shape cast", "tpu.reshape(f32[8,15]) -> f32[6,20]", ".reshape(6, 20)"),
    ),
    Case("scan_of_rows", scan_of_rows, (X,), "tpu", TPUS, ("extensive output", "lax.scan(step")),
    Case("product", product, (X,), "tpu", TPUS, (": reduce_prod", "jnp.prod(x_ref[...]")),
)
