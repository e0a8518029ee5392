import math

import jax
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractDevice, AbstractMesh

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.draw.blocks import tile_rows
from pytest_pallas.draw.dtypes import SUPPORTED


def lower(shape, block, dtype):
    """What the Pallas TPU lowering says to a copy in such blocks."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def copy(x):
        spec = pl.BlockSpec(block, lambda *programs: programs)
        grid = tuple(-(-size // of_block) for size, of_block in zip(shape, block, strict=True))
        out = jax.ShapeDtypeStruct(shape, dtype)
        return pl.pallas_call(body, out_shape=out, grid=grid, in_specs=[spec], out_specs=spec)(x)

    device = AbstractDevice(device_kind="TPU v6 lite", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(copy).trace(jax.ShapeDtypeStruct(shape, dtype))
        traced.lower(lowering_platforms=("tpu",))


CASES = [
    ((300, 256), "float32"),
    ((40, 300), "bfloat16"),
    ((3, 100, 130), "int8"),
    ((3000,), "float32"),
    ((100,), "bfloat16"),
]


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_pallas_accepts_what_is_legal(draws, shape, dtype):
    for block in set(draws(pst.block_sizes(shape, dtype), 30)):
        lower(shape, block, dtype)


@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_pallas_refuses_what_is_not(draws, shape, dtype):
    for block in set(draws(pst.block_sizes(shape, dtype, legal=False), 15)):
        with pytest.raises(ValueError, match="currently requires that"):
            lower(shape, block, dtype)


def test_boundaries_within_100_examples(draws):
    drawn = set(draws(pst.block_sizes((300, 300), "float32")))
    for dim, tile in ((0, 8), (1, 128)):
        found = {block[dim] for block in drawn}
        assert 300 in found  # the array itself
        assert tile in found  # one tile
        assert max(found) > 300  # reaches beyond it
        assert any(300 % size for size in found if size < 300)  # a last block that is not full
    assert len(drawn) > 10


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [("float32", 8), ("bfloat16", 16), ("int8", 32), ("bool", 32), ("int4", 64), ("float64", 8)],
)
def test_whole_tiles_of_each_dtype(draws, dtype, rows):
    assert tile_rows(SUPPORTED[dtype]) == rows
    found = {block[0] for block in draws(pst.block_sizes((256, 128), dtype))}
    assert min(found) == rows
    assert all(size % rows == 0 for size in found)


def test_blocks_keep_to_their_limits(draws):
    for block in draws(pst.block_sizes((512, 512), "float32", max_blocks=10, max_bytes=2**18)):
        assert math.prod(block) * 4 <= 2**18
        assert math.ceil(512 / block[0]) * math.ceil(512 / block[1]) <= 10


@pytest.mark.parametrize("target", ["gpu", "h100"])
def test_gpu_blocks_are_powers_of_two(draws, target):
    drawn = draws(pst.block_sizes((300, 100), "bfloat16", target=target))
    assert {size for block in drawn for size in block} <= {2**power for power in range(9)}
    assert {block[1] for block in drawn} == {8, 16, 32, 64, 128}
    assert max(block[0] for block in drawn) == 256
    wrong = draws(pst.block_sizes((300, 100), "bfloat16", target=target, legal=False))
    assert all(math.prod(block) & (math.prod(block) - 1) for block in wrong)


def test_shrinks_to_one_block(shrunk):
    strategy = pst.block_sizes((300, 256), "float32")
    assert "args=(300, 256)" in shrunk(strategy, lambda _: True)
    assert "args=(152, 256)" in shrunk(strategy, lambda block: block[0] < 300)


def test_grids_keep_to_their_limits_and_shrink(draws, shrunk):
    drawn = draws(pst.grids(rank=2, max_programs=20))
    assert {grid[0] for grid in drawn} == {grid[1] for grid in drawn} == {1, 2, 3, 4, 5, 7}
    assert all(math.prod(grid) <= 20 for grid in drawn)
    assert "args=(1, 1, 1)" in shrunk(pst.grids(rank=3), lambda _: True)
    assert "args=(1, 2)" in shrunk(pst.grids(rank=2), lambda grid: grid[1] > 1)
    assert draws(pst.grids(rank=0)) == [()]


def test_empty_grids_only_if_asked_for(draws):
    assert all(min(grid) >= 1 for grid in draws(pst.grids(rank=2)))
    assert any(min(grid) == 0 for grid in draws(pst.grids(rank=2, min_size=0)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.block_sizes((), "float32"), "shape: a scalar has no blocks"),
        (lambda: pst.block_sizes((0, 3), "float32"), "shape must be an integer of at least 1"),
        (lambda: pst.block_sizes((8,), "float31"), "dtype: 'float31' is not"),
        (
            lambda: pst.block_sizes((8,), "int8", target="v3"),
            "target: 'v3' must be one of tpu, gpu",
        ),
        (lambda: pst.block_sizes((8,), "int8", max_blocks=0), "max_blocks must be"),
        (lambda: pst.block_sizes((8,), "int8", max_bytes=4), "no legal block of .* raise one"),
        (lambda: pst.grids(rank=-1), "rank must be"),
        (lambda: pst.grids(rank=7), "at most 6 axes"),
        (lambda: pst.grids(max_programs=0), "max_programs must be"),
        (lambda: pst.grids(min_size=9), "no grid of 2 axes of at least 9"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()
