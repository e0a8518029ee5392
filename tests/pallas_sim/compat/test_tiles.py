"""The tiles that JAX chooses for shared memory."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh, PartitionSpec

from pallas_sim.compat.compilers import inferred_tiles, infers_tiles, key_of
from pallas_sim.compat.jaxprs import sub_jaxprs

X = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
BUFFER = plgpu.SMEM((64, 64), jnp.bfloat16)
COPIES = ("copy_gmem_to_smem", "copy_smem_to_gmem")


def equations(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn):
            yield from equations(inner)


def tiles(function: Any, axes: dict[str, int] | None = None) -> list[tuple[int, ...] | None]:
    """The tiles of each copy of the only kernel of a function, in its order."""
    every = list(equations(jax.make_jaxpr(function)(X).jaxpr))
    (kernel,) = [eqn for eqn in every if eqn.primitive.name == "mpmd_map"]
    found = inferred_tiles(kernel.params, [var.aval for var in kernel.invars], axes or {})
    return [found.get(key_of(eqn.params)) for eqn in every if eqn.primitive.name in COPIES]


def product(x_gmem: Any, o_gmem: Any, x_smem: Any, y_smem: Any, o_smem: Any, arrived: Any) -> None:
    """Load operands of a wgmma, and store its sums."""
    for operand in (x_smem, y_smem):
        plgpu.copy_gmem_to_smem(x_gmem, operand, arrived)
        plgpu.barrier_wait(arrived)

    def multiply(sums: Any) -> jax.Array:
        plgpu.wgmma(sums, x_smem, y_smem)
        return sums[...]

    o_smem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32)).astype(jnp.bfloat16)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, o_gmem)
    plgpu.wait_smem_to_gmem(0)


def test_operands_and_sums_of_a_product_are_tiled():
    kernel = plgpu.kernel(product, out_type=X, scratch_types=[*[BUFFER] * 3, plgpu.Barrier()])
    assert tiles(kernel) == [(8, 64)] * 3


def moved(x_gmem: Any, o_gmem: Any, buffer: Any, arrived: Any) -> None:
    plgpu.copy_gmem_to_smem(x_gmem, buffer, arrived)
    plgpu.barrier_wait(arrived)
    plgpu.copy_smem_to_gmem(buffer, o_gmem)
    plgpu.wait_smem_to_gmem(0)


def test_what_is_only_copied_is_not():
    assert tiles(plgpu.kernel(moved, out_type=X, scratch_types=[BUFFER, plgpu.Barrier()])) == [
        (),
        (),
    ]


def test_memory_that_a_kernel_is_given():
    def function(x: Any) -> Any:
        o = jax.new_ref(jnp.zeros_like(x))
        plgpu.kernel(moved, out_type=(), scratch_types=[BUFFER, plgpu.Barrier()])(x, o)
        return jax.freeze(o)

    assert tiles(function) == [(), ()]


def test_the_memory_of_another_device():
    def sent(x_gmem: Any, o_gmem: Any, buffer: Any, arrived: Any) -> None:
        moved(x_gmem, plgpu.remote_ref(o_gmem, 1 - lax.axis_index("x")), buffer, arrived)

    kernel = plgpu.kernel(sent, out_type=X, scratch_types=[BUFFER, plgpu.Barrier()])
    function = jax.shard_map(
        kernel,
        mesh=AbstractMesh((2,), ("x",)),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    assert tiles(function, {"x": 2}) == [(), ()]


def test_lanes_choose_nothing():
    lanes = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)
    assert infers_tiles(None)
    assert infers_tiles(plgpu.CompilerParams())
    assert not infers_tiles(lanes)
