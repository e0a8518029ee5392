"""Blocks that Mosaic refuses."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental import pallas as pl

from uncompilable.common import TPUS, Case, Shape, copy, double


def tile_8_48(x):
    spec = pl.BlockSpec((8, 48), lambda i, j: (i, j))  # 48 lanes are no multiple of 128
    return pl.pallas_call(double, out_shape=x, grid=(8, 10), in_specs=[spec], out_specs=spec)(x)


def half_tile_of_output(x):
    def first_lanes(x_ref, o_ref):
        o_ref[...] = x_ref[:, :48]

    return pl.pallas_call(
        first_lanes,
        out_shape=Shape((64, 96), x.dtype),
        grid=(8,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 48), lambda i: (i, 0)),
    )(x)


def block_1d(x):
    spec = pl.BlockSpec((100,), lambda i: (i,))
    return pl.pallas_call(double, out_shape=x, grid=(10,), in_specs=[spec], out_specs=spec)(x)


def element_window_unaligned(x):
    return pl.pallas_call(
        copy,
        out_shape=Shape((32, 128), x.dtype),
        grid=(4,),
        in_specs=[pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (i * 3, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )(x)


def element_window_between_lanes(x):
    return pl.pallas_call(
        copy,
        out_shape=Shape((8, 512), x.dtype),
        grid=(4,),
        in_specs=[pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (0, i * 100))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, i)),
    )(x)


def triple_buffered(x):
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(3))
    return pl.pallas_call(copy, out_shape=x, grid=(8,), in_specs=[spec], out_specs=spec)(x)


TILES = "last two dimensions of your block shape are divisible by 8 and 128"

CASES = (
    Case(
        "tile_8_48",
        tile_8_48,
        (Shape((64, 480), jnp.float32),),
        "tpu",
        TPUS,
        ("args[0] (x_ref)", "block shape (8, 48)", TILES, "pl.pallas_call(double, out_shape=x"),
    ),
    Case(
        "half_tile_of_output",
        half_tile_of_output,
        (Shape((64, 128), jnp.float32),),
        "tpu",
        TPUS,
        ("outputs (o_ref)", "block shape (8, 48)", "array shape (64, 96)", TILES),
    ),
    Case(
        "block_1d",
        block_1d,
        (Shape((1000,), jnp.float32),),
        "tpu",
        TPUS,
        ("args[0] (x_ref)", "block shape (100,)", "rank 1 block shapes", "multiple of 1024"),
    ),
    Case(
        "element_window_unaligned",
        element_window_unaligned,
        (Shape((64, 128), jnp.float32),),
        "tpu",
        TPUS,
        ("input 0 (x_ref)", "tiling (8)", "on dimension 0", "return pl.pallas_call("),
    ),
    Case(
        "element_window_between_lanes",
        element_window_between_lanes,
        (Shape((8, 512), jnp.float32),),
        "tpu",
        TPUS,
        ("input 0 (x_ref)", "tiling (128)", "on dimension 1", "return pl.pallas_call("),
    ),
    Case(
        "triple_buffered",
        triple_buffered,
        (Shape((64, 128), jnp.float32),),
        "tpu",
        TPUS,
        ("Only single (1) and double (2) buffering are supported. Got 3", "pl.pallas_call(copy"),
    ),
)
