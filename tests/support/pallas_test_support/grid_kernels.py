"""Kernels whose grids are right or wrong, for the tests of the analysis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.backends.analyzing import analyze

Shape = jax.ShapeDtypeStruct
F32 = jnp.float32


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def call(body, grid, in_specs, out_specs, out_shape, **rest):
    """A ``pallas_call`` from shapes and (block, index map) pairs."""
    return pl.pallas_call(
        body,
        grid=grid,
        in_specs=[pl.BlockSpec(*spec) for spec in in_specs],
        out_specs=pl.BlockSpec(*out_specs),
        out_shape=Shape(out_shape, F32),
        **rest,
    )


def semantics(*words):
    return pltpu.CompilerParams(dimension_semantics=words)


def rows(body, shape, block=8, *, grid=None, out=None, **rest):
    """``body`` over blocks of rows of an array, into blocks of rows of another."""
    out = shape if out is None else out
    grid = (pl.cdiv(shape[0], block),) if grid is None else grid
    in_spec = ((block, shape[1]), lambda i: (i, 0))
    out_spec = ((block, out[1]), lambda i: (i, 0))
    return call(body, grid, [in_spec], out_spec, out, **rest)


def kinds(function, *args, severity="error"):
    """Kinds and operands of the findings of a function."""
    found = analyze(function, *args).findings
    return [(f.kind, f.operand) for f in found if f.severity == severity]


def only(function, *args):
    """The one finding of a function that is an error."""
    (finding,) = analyze(function, *args).errors
    return finding
