"""What a ``pallas_call`` says of its grid and blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.compat.grids import grid_facts, in_body

X = jax.ShapeDtypeStruct((100, 256), jnp.float32)


def body(x_ref, o_ref):
    o_ref[0, :] = x_ref[...].reshape(-1, 128)[0]


def facts(function, *args):
    (eqn,) = jax.make_jaxpr(function)(*args).eqns
    return grid_facts(eqn)


def blocked(dims=(8, 128), index_map=lambda i, j: (i, j), **options):
    spec = pl.BlockSpec(dims, index_map)
    options = {"grid": (13, 2), "in_specs": [spec], "out_specs": spec} | options
    return pl.pallas_call(body, out_shape=X, **options)


def test_grids_and_blocks():
    found = facts(blocked(), X)
    assert found.grid == (13, 2)
    assert (found.sizes, found.scalars, found.aliases, found.vmapped) == ((), (), (), ())
    (block,) = found.inputs
    assert (block.name, block.shape, block.dtype) == ("x_ref", (100, 256), np.float32)
    assert block.dims == (("Blocked", 8, (0, 0)), ("Blocked", 128, (0, 0)))
    assert [output.name for output in found.outputs] == ["o_ref"]
    assert found.written_for == ""


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (None, ("Squeezed", 1, (0, 0))),
        (8, ("Blocked", 8, (0, 0))),
        (pl.Element(8, (2, 1)), ("Element", 8, (2, 1))),
        (pl.BoundedSlice(8), ("BoundedSlice", 8, (0, 0))),
    ],
)
def test_kinds_of_axes(dim, expected):
    def index_map(i, j):
        return (pl.ds(i, 8) if isinstance(dim, pl.BoundedSlice) else i, j)

    specs = [pl.BlockSpec((dim, 128), index_map)]
    (block,) = facts(blocked(in_specs=specs), X).inputs
    assert block.dims == (expected, ("Blocked", 128, (0, 0)))


def test_operands_of_a_dynamic_grid_with_scalars():
    def scaled(s_ref, x_ref, o_ref, acc_ref):
        o_ref[...] = x_ref[...] * s_ref[0]

    def function(n, s, x):
        spec = pl.BlockSpec((8, 128), lambda i, s: (i, 0))
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n,),
            in_specs=[spec],
            out_specs=spec,
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        )
        return pl.pallas_call(scaled, out_shape=X, grid_spec=grid, input_output_aliases={1: 0})(
            s, x
        )

    found = facts(function, jnp.int32(3), jnp.ones(1, jnp.int32), X)
    assert (found.grid, found.sizes, found.scalars) == ((None,), (0,), (1,))
    assert found.aliases == ((0, 0),)
    assert [name for name, _ in found.scratch] == ["acc_ref"]
    assert found.written_for == "TPUs"


def test_what_a_kernel_is_written_for():
    gpu = blocked(compiler_params=plgpu.CompilerParams())
    assert facts(gpu, X).written_for == "Mosaic GPU"
    assert facts(blocked(compiler_params=pltpu.CompilerParams()), X).written_for == "TPUs"


def test_index_maps_and_dims_of_vmap():
    found = facts(jax.vmap(blocked()), jax.ShapeDtypeStruct((3, *X.shape), X.dtype))
    assert (found.grid, found.vmapped) == ((3, 13, 2), (0,))
    (block,) = found.inputs
    indices = jax.core.eval_jaxpr(block.index_map.jaxpr, block.index_map.consts, 2, 1, 0)
    assert [int(index) for index in block.of_dims(indices)] == [2, 1, 0]


def test_what_is_traced_in_a_body_may_ask_for_the_grid():
    (eqn,) = jax.make_jaxpr(blocked())(X).eqns
    with in_body(eqn, {"devices": 4}):
        jaxpr = jax.make_jaxpr(lambda: (pl.num_programs(0), jax.lax.axis_size("devices")))()
    assert [int(getattr(out, "val", 0)) for out in jaxpr.jaxpr.outvars] == [13, 4]
