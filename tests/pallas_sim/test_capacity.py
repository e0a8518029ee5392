"""Kernels that need more memory than a chip has."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.grid_kernels import analyze

from pallas_sim import simulate
from pallas_sim.evaluation import prepare_equation
from pallas_sim.pallas_calls import PreparedKernel, _taken, kernel_of
from pytest_pallas.grid.overhang import buffers


def doubled(x, *, rows=8, index=lambda i: (i, 0), limit=None, scratch=(), steps=2, **block):
    """Blocks of so many rows, whose body never touches its scratch."""

    def body(x_ref, o_ref, *_):
        o_ref[0:1] = x_ref[0:1] * 2

    spec = pl.BlockSpec((rows, x.shape[1]), index, **block)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(steps,),
        in_specs=[spec],
        out_specs=pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0)),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
    )(x)


X = np.ones((16, 128), np.float32)
MIB = 1 << 20


def capacity(*args, target="v6e", **options):
    found = simulate(doubled, *args, target=target, **options).findings
    return [finding for finding in found if finding.kind == "capacity"]


def scratch(space, mib, *, less=0):
    return [space((int(mib * MIB) // 512 - less, 128), jnp.float32)]


@pytest.mark.parametrize(
    ("target", "mib"), [("v4", 16), ("v5e", 16), ("v5p", 16), ("v6e", 32), ("tpu7x", 32)]
)
def test_vmem_of_a_chip(target, mib):
    """Both blocks take two buffers of 4 KiB; scratch may have the rest."""
    assert not capacity(X, target=target, scratch=scratch(pltpu.VMEM, mib, less=32))
    [finding] = capacity(X, target=target, scratch=scratch(pltpu.VMEM, mib, less=31))
    assert f"{target} gives a kernel {mib}.0 MiB" in finding.message
    assert "Choose smaller blocks" in finding.message
    assert finding.kernel == "body"
    assert __file__ in finding.line


def test_what_a_kernel_asks_for():
    more = scratch(pltpu.VMEM, 33)
    assert capacity(X, scratch=more)
    assert not capacity(X, scratch=more, limit=40 * MIB)
    [finding] = capacity(X, scratch=scratch(pltpu.VMEM, 1), limit=MIB)
    assert "vmem_limit_bytes is 1.0 MiB" in finding.message


@pytest.mark.parametrize("target", ["v4", "v6e"])
def test_smem(target):
    """A core has one MiB, in rows of 128 words."""
    assert not capacity(X, target=target, scratch=scratch(pltpu.SMEM, 1))
    assert not capacity(X, target=target, scratch=[pltpu.SMEM((1 << 18,), jnp.int32)])
    [finding] = capacity(X, target=target, scratch=[pltpu.SMEM((4096, 64), jnp.int32)])
    assert f"2.0 MiB of SMEM, and a core of {target} has 1.0 MiB" in finding.message


def test_what_is_prefetched_is_in_smem():
    def body(table_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def kernel(table, x):
        block = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1, grid=(2,), in_specs=[block], out_specs=block
            ),
        )(table, x)

    assert not simulate(kernel, np.zeros(1 << 18, np.int32), X).findings
    [finding] = simulate(kernel, np.zeros((1 << 18) + 1, np.int32), X).findings
    assert (finding.kind, finding.ref) == ("capacity", "table_ref")


def kernels(function, *args) -> list[PreparedKernel]:
    jaxpr = jax.make_jaxpr(function)(*args)
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return [
        kernel_of(prepare_equation(eqn).equation)
        for eqn in inner.eqns
        if eqn.primitive.name == "pallas_call"
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"index": lambda i: (0, 0)},
        {"index": lambda i: (i // 2 + 1, 0), "steps": 4},
        {"rows": 16, "index": lambda i: (0, 0)},
        {"steps": 1},
        {"pipeline_mode": pl.Buffered(1)},
        {"scratch": [pltpu.VMEM((5, 100), jnp.bfloat16), pltpu.SMEM((3,), jnp.int32)]},
        {"scratch": [pltpu.SemaphoreType.DMA((2,))]},
    ],
)
def test_it_counts_what_the_analysis_of_the_grid_counts(options):
    def function(x):
        return doubled(x, **options)

    x = np.ones((32, 128), np.float32)
    [kernel] = kernels(function, x)
    [call] = analyze(function, x).calls
    taken = sorted(_taken(kernel, ("default", "vmem")), key=lambda buffer: -buffer.total)
    assert [dataclasses.astuple(each) for each in taken] == [
        dataclasses.astuple(each) for each in buffers(call)
    ]


def in_scope(space, mib):
    """A kernel that allocates so much in its body, half of it inside of the other, and twice."""

    def body(x_ref, o_ref):
        half = scratch(space, mib / 2)

        def inner(scratch_ref):
            if space == pltpu.SMEM:
                scratch_ref[0, 0] = x_ref[0, 0]
            else:
                scratch_ref[0:1] = x_ref[0:1]
            o_ref[0:1] = x_ref[0:1]

        for _ in range(2):
            pl.run_scoped(lambda _: pl.run_scoped(inner, *half), *half)

    return lambda x: pl.pallas_call(body, out_shape=x)(x)


def on_a_mesh(space, mib):
    def body(x_ref, o_ref, *_):
        pltpu.sync_copy(x_ref, o_ref)

    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return lambda x: pl.kernel(body, out_type=shape, mesh=mesh, scratch_types=scratch(space, mib))(
        x
    )


@pytest.mark.parametrize("kernel", [in_scope, on_a_mesh])
@pytest.mark.parametrize(("space", "most"), [(pltpu.VMEM, 31), (pltpu.SMEM, 1)])
def test_what_a_body_allocates_and_scratch_of_a_core(kernel, space, most):
    def kinds(mib):
        found = simulate(lambda x: kernel(space, mib)(x), X, target="v6e").findings
        return [finding.kind for finding in found]

    assert kinds(most) == []
    assert kinds(most + 2) == ["capacity"]
