"""Blocks and memory that a TPU's compiler refuses; the numbers are those of libtpu 0.0.51."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.grid_kernels import F32, Shape, analyze, call, copy, rows

from pallas_sim.chips import TPUS, padded
from pytest_pallas.grid.analysis import analyze_jaxpr
from pytest_pallas.grid.overhang import buffers

MIB = 2**20


def kinds(function, *args):
    return [(f.kind, f.severity, f.operand) for f in analyze(function, *args).findings]


@pytest.mark.parametrize(
    ("block", "shape", "legal"),
    [
        ((8, 128), (64, 512), True),
        ((16, 256), (64, 512), True),
        ((4, 128), (64, 512), False),
        ((8, 64), (64, 512), False),
        ((64, 64), (64, 64), True),
        ((5, 128), (5, 512), True),
        ((1, 128), (64, 512), False),
    ],
)
def test_the_last_two_dims(block, shape, legal):
    def function(x):
        spec = (block, lambda i, j: (i, j))
        grid = tuple(n // b for n, b in zip(shape, block, strict=True))
        return call(copy, grid, [spec], spec, shape)(x)

    refused = [("tile", "warning", "x_ref"), ("tile", "warning", "o_ref")]
    assert kinds(function, Shape(shape, F32)) == ([] if legal else refused)


@pytest.mark.parametrize(
    ("block", "dtype", "legal"),
    [
        (1024, F32, True),
        (128, F32, True),
        (384, F32, False),
        (128, jnp.bfloat16, False),
        (256, jnp.bfloat16, True),
        (3072, F32, True),
    ],
)
def test_one_dim(block, dtype, legal):
    def function(x):
        spec = pl.BlockSpec((block,), lambda i: (i,))
        return pl.pallas_call(
            copy, grid=(9216 // block,), in_specs=[spec], out_specs=spec, out_shape=x
        )(x)

    assert (kinds(function, Shape((9216,), dtype)) == []) == legal


@pytest.mark.parametrize("count", [1, 2, 3])
def test_buffers_of_a_block(count):
    def function(x):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(count))
        out = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(copy, grid=(8,), in_specs=[spec], out_specs=out, out_shape=x)(x)

    analysis = analyze(function, Shape((64, 128), F32))
    assert [f.operand for f in analysis.findings] == (["x_ref"] if count == 3 else [])
    assert {b.name: b.count for b in buffers(analysis.calls[0])} == {"x_ref": count, "o_ref": 2}


def test_a_block_that_stays_has_one_buffer():
    def add(x_ref, y_ref, o_ref, kept_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    def function(x, y):
        specs = ((8, 128), lambda i: (i, 0)), ((8, 128), lambda i: (0, 0))
        scratch = [pltpu.VMEM((16, 128), F32), pltpu.SMEM((4,), jnp.int32)][:1]
        return call(add, (8,), specs, specs[0], x.shape, scratch_shapes=scratch)(x, y)

    (found,) = analyze(function, Shape((64, 128), F32), Shape((8, 128), F32)).calls
    assert {b.name: (b.nbytes, b.count) for b in buffers(found)} == {
        "x_ref": (4096, 2),
        "y_ref": (4096, 1),
        "o_ref": (4096, 2),
        "kept_ref": (8192, 1),
    }


@pytest.mark.parametrize(
    ("shape", "dtype", "nbytes"),
    [
        ((8, 128), "float32", 4096),
        ((9, 129), "float32", 4 * 4096),
        ((1, 128), "float32", 512),
        ((1, 128), "bfloat16", 512),
        ((3, 100), "bfloat16", 1024),
        ((1, 128), "int8", 512),
        ((3, 100), "int8", 512),
        ((16, 128), "bfloat16", 4096),
        ((5, 8, 128), "float32", 5 * 4096),
    ],
)
def test_bytes_with_padding(shape, dtype, nbytes):
    assert padded(shape, jnp.dtype(dtype)) == nbytes


def doubled(nbytes, *, chip, **params):
    """Findings for two windows (each twice) of ``nbytes`` in all."""

    def function(x):
        options = {"compiler_params": pltpu.CompilerParams(**params)} if params else {}
        return rows(copy, x.shape, nbytes // 4 // 512, **options)(x)

    x = Shape((4 * (nbytes // 4 // 512), 128), F32)
    return analyze_jaxpr(jax.make_jaxpr(function)(x), [x], chip=chip).findings


@pytest.mark.parametrize("chip", list(TPUS))
def test_the_limit_of_a_chip(chip):
    limit = TPUS[chip].vmem_limit
    assert doubled(limit, chip=chip) == ()
    (finding,) = doubled(limit + 4 * 4096, chip=chip)
    assert (finding.kind, finding.severity) == ("vmem", "warning")
    assert f"{chip} gives a kernel {limit // MIB}.0 MiB" in finding.message
    assert "x_ref 2 x " in finding.message


def test_the_limit_that_a_kernel_asks_for():
    assert doubled(40 * MIB, chip="v6e", vmem_limit_bytes=64 * MIB) == ()
    (finding,) = doubled(4 * MIB, chip="v6e", vmem_limit_bytes=2 * MIB)
    assert "vmem_limit_bytes is 2.0 MiB" in finding.message
    # More than the chip has does not help.
    (finding,) = doubled(40 * MIB, chip="v4", vmem_limit_bytes=64 * MIB)
    assert "16.0 MiB" in finding.message
