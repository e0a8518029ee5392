"""What ``report`` prints."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.grid_kernels import F32, Shape, analyze, call, copy, rows

WIDE = Shape((64, 128), F32)


def lines(function, *args):
    text = analyze(function, *args).report()
    assert max(map(len, text.splitlines())) <= 100
    return [line.strip() for line in text.splitlines()]


def test_grid_blocks_and_programs():
    found = lines(lambda x: rows(copy, x.shape, 32)(x), WIDE)
    assert "grid      (2) = 2 programs; (arbitrary) on TPU" in found
    assert "x_ref     reads float32[64, 128] in blocks (32, 128): 2 of 2, fetched 2 times" in found
    assert "o_ref     writes float32[64, 128] in blocks (32, 128): 2 of 2, written 2 times" in found
    assert "(1,)     [32:64, 0:128]  [32:64, 0:128]" in found
    assert found[-1] == "no findings"


def test_a_long_name_is_followed_by_a_space():
    def body(x_ref, the_output_of_it_ref):
        the_output_of_it_ref[...] = x_ref[...]

    found = lines(lambda x: rows(body, x.shape, 32)(x), Shape((64, 128), F32))
    assert any(line.strip().startswith("the_output_of_it_ref writes ") for line in found)


def test_a_large_grid_is_cut():
    found = lines(lambda x: rows(copy, x.shape, 8)(x), Shape((8 * 100, 128), F32))
    assert "... 88 more" in found
    assert "(99,)    [792:800, 0:128]  [792:800, 0:128]" in found
    found = lines(lambda x: rows(copy, x.shape, 8)(x), Shape((8 * 70_000, 128), F32))
    assert any("by the first 65,536 programs" in line for line in found)


def test_many_operands_go_below_each_other():
    def body(*refs):
        refs[-1][...] = sum(ref[...] for ref in refs[:-1])

    def function(*arrays):
        spec = ((8, 128), lambda i: (i, 0))
        return call(body, (8,), [spec] * len(arrays), spec, (64, 128))(*arrays)

    found = lines(function, *[WIDE] * 7)
    assert len([line for line in found if line.startswith("program ")]) == 2
    assert sum("[8:16, 0:128]" in line for line in found) == 2


def test_aliases_scratch_and_memory_without_blocks():
    def body(x_ref, y_ref, o_ref, kept_ref, semaphore):
        o_ref[...] = x_ref[...]

    def function(x, y):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body, grid=(8,), in_specs=[spec, pl.BlockSpec(memory_space=pl.ANY)], out_specs=spec,
            out_shape=x, input_output_aliases={0: 0},
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.bfloat16), pltpu.SemaphoreType.DMA],
        )(x, y)  # fmt: skip

    found = " ".join(lines(function, WIDE, WIDE))
    assert "fetched 8 times; shares memory with o_ref" in found
    assert "y_ref     float32[64, 128] in ANY, not in blocks" in found
    assert "kept_ref  scratch bfloat16[8, 128] in vmem" in found


def test_a_kernel_without_blocks_and_one_inside_of_others():
    make = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh  # JAX 0.11
    mesh = make(axis_name="core", num_cores=1)

    def by_copies(x):
        kernel = pl.kernel(
            lambda x_ref, o_ref: pltpu.sync_copy(x_ref, o_ref), out_type=x, mesh=mesh
        )
        return kernel(x)

    def function(x):
        return jax.jit(lambda x: rows(copy, x.shape, 32)(by_copies(x)))(x)

    found = lines(function, WIDE)
    assert "no blocks: the body copies what it needs" in found
    assert any(line.endswith(", in jit") for line in found)


def test_a_dynamic_grid():
    def function(x, n):
        return rows(copy, x.shape, 8, grid=(n,))(x)

    assert "grid      (?) = ? programs; (arbitrary) on TPU" in lines(
        function, WIDE, Shape((), jnp.int32)
    )
    assert "grid      (8) = 8 programs; (arbitrary) on TPU" in lines(function, WIDE, jnp.int32(8))
