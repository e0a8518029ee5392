"""TMA copies along axes of one tile, whose index JAX drops: as an H200 does them, and reported."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.simulators import Simulator

#: Array, box and start of the copies that an H200 ran, each as a constant and as a value (JAX
#: 0.11.2). In tiles of 8 x 64 bfloat16 and in tiles of 8 x 32 float32, and without tiles.
BOXES = (
    ((64, 64), (64, 64), (0, 64)),
    ((64, 64), (64, 64), (64, 0)),
    ((64, 64), (64, 64), (64, 64)),
    ((64, 128), (64, 64), (0, 128)),
    ((64, 128), (64, 128), (0, 128)),
    ((128, 64), (64, 64), (0, 64)),
    ((8, 64), (64, 64), (0, 64)),
    ((64, 64), (64, 128), (0, 128)),
    ((64, 64), (64, 64), (0, 32)),
    ((64, 64), (64, 64), (32, 0)),
    ((72, 64), (64, 64), (0, 128)),
    ((64, 192), (64, 64), (0, 192)),
)

#: Those of them, in tiles of bfloat16, that gave the block at column 0. All others gave what is
#: documented: zeros for what is outside. JAX compiles no tiled copy at (0, 32).
AT_ZERO = (0, 5, 6, 10)

KINDS = {
    "tiles of bfloat16": (jnp.bfloat16, (8, 64)),
    "bfloat16": (jnp.bfloat16, None),
    "tiles of float32": (jnp.float32, (8, 32)),
}

CASES = [
    pytest.param(*box, *kind, kind[1] == (8, 64) and number in AT_ZERO, id=f"{number} {name}")
    for name, kind in KINDS.items()
    for number, box in enumerate(BOXES)
    if box[2] != (0, 32) or kind[1] is None
]


def smem(shape: tuple[int, ...], dtype: Any, tiling: tuple[int, ...] | None) -> Any:
    """Shared memory, in tiles that a swizzle of 128 bytes permutes, or without."""
    pallas: Any = plgpu
    if tiling is None:
        return plgpu.SMEM(shape, dtype)
    transforms = (pallas.TilingTransform(tiling), pallas.SwizzleTransform(128))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def slices(starts: Any, box: tuple[int, ...]) -> tuple[Any, ...]:
    """The box that begins at ``starts``; None of them is an integer index."""
    return tuple(
        start if size is None else pl.ds(start, size)
        for start, size in zip(starts, box, strict=True)
    )


def loaded(x: Any, box: Any, starts: Any, tiling: Any = None, *, prefetch: bool = False) -> Any:
    """A box of ``x`` as it is in shared memory, copied by TMA; ``starts`` are values."""
    shape = tuple(size for size in box if size is not None)

    def body(x_gmem, starts_gmem, o_gmem, buffer, arrived):
        here = slices([starts_gmem[axis] for axis in range(len(box))], box)
        if prefetch:
            plgpu.async_prefetch(x_gmem.at[here])
        plgpu.copy_gmem_to_smem(x_gmem.at[here], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    def function(x, starts):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(shape, x.dtype),
            scratch_types=[smem(shape, x.dtype, tiling), plgpu.Barrier()],
        )(x, starts)

    return simulate(function, x, np.asarray(starts, np.int32), target="h100")


def stored(x: Any, shape: tuple[int, ...], starts: Any, tiling: Any = None) -> Any:
    """Zeros of ``shape`` into which a block ``x`` was copied by TMA from ``starts`` on."""

    def body(x_gmem, starts_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem, buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.commit_smem()
        here = slices([starts_gmem[axis] for axis in range(2)], x.shape)
        plgpu.copy_smem_to_gmem(buffer, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)

    def function(x, starts):
        o = jax.new_ref(jnp.zeros(shape, x.dtype))
        plgpu.kernel(
            lambda x, starts, o, *scratch: body(x, starts, o, *scratch),
            out_type=(),
            scratch_types=[smem(x.shape, x.dtype, tiling), plgpu.Barrier()],
        )(x, starts, o)
        return jax.freeze(o)

    return simulate(jax.jit(function), x, np.asarray(starts, np.int32), target="h100")


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    """Small integers, none of which is 0."""
    return (np.arange(np.prod(shape)).reshape(shape) % 255 + 1).astype(jnp.dtype(dtype))


def window(x: Any, box: tuple[int, ...], starts: tuple[int, ...]) -> Any:
    """A box of ``x``, with zeros for what is outside."""
    sizes = [n + start + size for n, start, size in zip(x.shape, starts, box, strict=True)]
    whole = np.zeros(sizes, x.dtype)
    whole[tuple(slice(n) for n in x.shape)] = x
    return whole[tuple(slice(start, start + size) for start, size in zip(starts, box, strict=True))]


@pytest.mark.parametrize(("shape", "box", "starts", "dtype", "tiling", "at_zero"), CASES)
def test_loads_give_what_an_h200_gave(shape, box, starts, dtype, tiling, at_zero):
    x = numbers(shape, dtype)
    found = loaded(x, box, starts, tiling)
    expected = window(x, box, (starts[0], 0) if at_zero else starts)
    np.testing.assert_array_equal(found.values, expected)
    assert [finding.kind for finding in found.findings] == ["bounds"] * at_zero


def bounds(found: Any) -> Any:
    """The only finding of its kind."""
    (finding,) = [each for each in found.findings if each.kind == "bounds"]
    return finding


def test_the_finding_says_where_and_what_to_do():
    found = bounds(loaded(numbers((64, 64), jnp.bfloat16), (64, 64), (0, 128), (8, 64)))
    assert (found.ref, found.index, found.shape) == ("x_gmem", (0, 128), (64, 64))
    assert "test_unit_axes.py" in found.line
    assert "it starts at 128 of axis 1, which has 64 elements in one tile of 64" in found.message
    assert "reads the block at 0, where it should read zeros" in found.message
    assert "Skip the copy where it starts outside (pl.when, predicate=)" in found.message
    (access,) = found.accesses
    assert (access.kind, access.index) == ("read", ((0, 64), (0, 64)))


@pytest.mark.parametrize(
    ("shape", "starts", "at_zero"),
    [
        ((64, 64), (0, 64), True),
        ((128, 64), (64, 64), True),
        ((64, 128), (0, 128), False),
        ((64, 64), (64, 0), False),
        ((64, 64), (64, 64), False),
    ],
)
def test_a_store_overwrites_the_tile_at_0(shape, starts, at_zero):
    block = numbers((64, 64), jnp.bfloat16)
    found = stored(block, shape, starts, (8, 64))
    expected = np.zeros(shape, block.dtype)
    if at_zero:
        expected[starts[0] : starts[0] + 64, :64] = block
    np.testing.assert_array_equal(found.values, expected)
    if at_zero:
        assert "overwrites the block at 0" in bounds(found).message
    else:
        assert not found.findings


def test_it_races_with_what_the_tile_at_0_holds():
    """What is overwritten is the region that the monitors of races see."""
    block = numbers((64, 64), jnp.bfloat16)

    def body(x_gmem, starts_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem, buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.commit_smem()
        for column in range(2):
            here = pl.ds(starts_gmem[column], 64)
            plgpu.copy_smem_to_gmem(buffer, o_gmem.at[:, here])
        plgpu.wait_smem_to_gmem(0)

    def function(x, starts):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_types=[smem(x.shape, x.dtype, (8, 64)), plgpu.Barrier()],
        )(x, starts)

    found = simulate(function, block, np.array([0, 64], np.int32), target="h100")
    race = next(each for each in found.findings if each.kind == "race")
    assert race.accesses[0].index == ((0, 64), (0, 64))


@pytest.mark.parametrize(
    ("shape", "box", "starts", "at"),
    [
        ((1, 128), (1, 128), (1, 0), 0),  # an axis of one element
        ((1, 128), (1, 128), (-1, 0), 0),  # as far before the beginning
        ((1, 16, 128), (None, 16, 128), (3, 0, 0), 0),  # a batch of one
        ((2, 16, 128), (None, 16, 128), (3, 0, 0), None),  # of two: outside, as documented
        ((1, 16, 128), (None, 16, 128), (0, 16, 0), None),  # nothing is left along the other axes
        ((8, 128), (1, 128), (9, 0), None),
        ((1, 128), (2, 128), (1, 0), None),  # a window that is no single tile
    ],
)
def test_axes_of_one_element_need_no_tiles(shape, box, starts, at):
    x = numbers(shape, jnp.float32)
    found = loaded(x, box, starts)
    expected = np.zeros_like(np.asarray(found.values))
    if at is not None:
        expected[...] = x.reshape(expected.shape)
        assert f"starts at {starts[0]} of axis 0, which has 1 element" in bounds(found).message
    np.testing.assert_array_equal(found.values, expected)
    assert len(found.findings) == (at is not None)


def test_a_prefetch_changes_nothing():
    x = numbers((1, 128), jnp.float32)
    found = loaded(x, (1, 128), (0, 0), prefetch=True)
    np.testing.assert_array_equal(found.values, x)
    assert not found.findings


def test_listed_rows_keep_their_index():
    x = numbers((1, 128), jnp.float32)

    def body(x_gmem, rows_gmem, o_gmem, buffer, arrived):
        rows = plgpu.load(rows_gmem, layout=plgpu.Layout.TMA_INDICES)
        plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    def function(x, rows):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((16, 128), x.dtype),
            scratch_types=[plgpu.SMEM((16, 128), x.dtype), plgpu.Barrier()],
        )(x, rows)

    rows = np.array([0, 1, *[2] * 14], np.int32)
    found = simulate(function, x, rows, target="b200")
    np.testing.assert_array_equal(found.values, np.where(rows[:, None] == 0, x, 0))
    assert not found.findings


def test_a_slot_and_a_transposed_view_keep_their_tiles():
    from pallas_sim.gpu.windows import tiles_of
    from pallas_sim.transforms import AxisSlice, Indexed, Operand, Transposed, Untiled

    slot = Indexed((Operand(1), AxisSlice(0, 16, 1), AxisSlice(0, 64, 1)), (2, 16, 64), ())
    assert tiles_of((Untiled((8, 64)), slot)) == (8, 64)
    assert tiles_of((Untiled((8, 64)), slot, Transposed((1, 0)))) == (64, 8)
    row = Indexed((0, AxisSlice(0, 64, 1)), (16, 64), ())
    assert tiles_of((Untiled((8, 64)), slot, row)) == (64,)
    assert tiles_of((slot,)) == ()


@pytest.mark.parametrize(("columns", "drops"), [(64, True), (128, False)])
def test_blocks_of_a_pair_divide_the_window_before(columns, drops):
    """``PARTITIONED``: each block's half is one tile, and so loses its index."""
    x = numbers((64, columns), jnp.bfloat16)

    def body(x_gmem, o_gmem, buffer, arrived):
        member = jax.lax.axis_index("pair")
        plgpu.copy_gmem_to_smem(
            x_gmem.at[:, pl.ds(member * 0, 128)],
            buffer,
            arrived,
            collective_axes="pair",
            leader_tracked=plgpu.CopyPartition.PARTITIONED(1),
        )
        pl.when(member == 0)(lambda: plgpu.barrier_wait(arrived))
        plgpu.copy_smem_to_gmem(buffer, o_gmem.at[member])
        plgpu.wait_smem_to_gmem(0)

    def function(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((2, 64, 64), x.dtype),
            scratch_types=[smem((64, 64), x.dtype, (8, 64)), plgpu.Barrier()],
            cluster=(2,),
            cluster_names=("pair",),
        )(x)

    found = simulate(function, x, target="b200")
    assert [each.kind for each in found.findings if each.kind == "bounds"] == ["bounds"] * drops
    if drops:
        assert "starts at 64 of axis 1" in bounds(found).message


def rounded(*, semantics: Any = None) -> Any:
    """Sums of ``wgmma``, written part by part through memory whose tiles the kernel leaves out."""
    params = {} if semantics is None else {"lowering_semantics": semantics}

    def body(x_gmem, o_gmem, x_smem, y_smem, o_smem, arrived):
        for operand in (x_smem, y_smem):
            plgpu.copy_gmem_to_smem(x_gmem, operand, arrived)
            plgpu.barrier_wait(arrived)

        def multiply(sums):
            plgpu.wgmma(sums, x_smem, y_smem)
            return sums[...]

        value = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
        o_smem[...] = value.astype(o_smem.dtype)
        plgpu.commit_smem()
        first = jax.lax.axis_index("part") * 64
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[:, pl.ds(first, 64)])
        plgpu.wait_smem_to_gmem(0)

    def function(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 64), x.dtype),
            scratch_types=[
                *[smem((64, 64), x.dtype, (8, 64))] * 2,
                plgpu.SMEM((64, 64), x.dtype),
                plgpu.Barrier(),
            ],
            grid=(2,),
            grid_names=("part",),
            compiler_params=plgpu.CompilerParams(**params),
        )(x)

    return function


def test_tiles_that_jax_chooses_for_a_store_from_registers():
    """``ragged_dot`` was so: an H200 overwrote its only tile of columns."""
    found = simulate(rounded(), numbers((64, 64), jnp.bfloat16), target="h100")
    assert "which has 64 elements in one tile of 64" in bounds(found).message
    assert not found.notes


def test_lanes_have_the_tiles_that_the_kernel_names():
    lanes = rounded(semantics=plgpu.LoweringSemantics.Lane)
    assert not simulate(lanes, numbers((64, 64), jnp.bfloat16), target="h100").findings


def test_a_kernel_that_jax_does_not_lower_is_noted(monkeypatch):
    from pallas_sim.gpu import mosaic_kernels as kernels

    def refuse(*args):
        raise NotImplementedError

    monkeypatch.setattr(kernels, "inferred_tiles", refuse)
    found = simulate(rounded(), numbers((64, 64), jnp.bfloat16), target="h100")
    assert not found.findings
    (note,) = found.notes
    assert "is not lowered (NotImplementedError)" in note


@pytest.mark.parametrize("used", [False, True])
def test_a_load_is_an_error_where_the_answer_needs_it(used):
    """What is fetched ahead beyond the end, and not used, is right on a chip."""

    def kernel(x: jax.Array) -> jax.Array:
        def body(x_gmem, o_gmem, buffer, arrived):
            for step in range(2):
                first = (jax.lax.axis_index("one") + step) * 64
                plgpu.copy_gmem_to_smem(
                    x_gmem.at[:, pl.ds(first, 64)], buffer.at[step], arrived.at[step]
                )
            for step in range(2):
                plgpu.barrier_wait(arrived.at[step])
            plgpu.copy_smem_to_gmem(buffer.at[int(used)], o_gmem)
            plgpu.wait_smem_to_gmem(0)

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 64), x.dtype),
            scratch_types=[
                smem((2, 64, 64), x.dtype, (8, 64)),
                plgpu.Barrier(num_barriers=2),
            ],
            grid=(1,),
            grid_names=("one",),
        )(x)

    x = numbers((64, 64), jnp.bfloat16)
    outcome = Simulator(name="gpu-sim", platform="gpu").run(Call(function=kernel, args=(x,)))
    assert isinstance(outcome.error, BoundsError) == used
    if not used:
        assert not outcome.findings
        np.testing.assert_array_equal(outcome.values, x)
