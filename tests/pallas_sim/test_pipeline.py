"""The grid: which block is fetched, computed and written back when."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import simulate
from pallas_sim.choices import Choices
from pallas_sim.errors import BoundsError
from pallas_sim.pipeline import divided

ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def array(*shape: int, dtype: Any = np.float32) -> Any:
    size = int(np.prod(shape))
    return np.arange(1, size + 1).reshape(shape).astype(dtype)


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def call(body: Any, x: Any, *, out: Any = None, **options: Any) -> Any:
    return pl.pallas_call(body, out_shape=like(x) if out is None else out, **options)(x)


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def test_a_block_beyond_the_edge_holds_what_was_never_written():
    def total(x_ref, o_ref):
        o_ref[...] = jnp.broadcast_to(jnp.sum(x_ref[...]), (8, 128))

    x = np.ones((12, 128), np.float32)
    found = simulate(lambda x: call(total, x, grid=(2,), in_specs=[ROWS], out_specs=ROWS), x).values
    assert (found[:8] == 8 * 128).all()
    assert np.isnan(found[8:]).all()


def test_a_block_beyond_the_edge_is_written_back_as_far_as_the_array_goes():
    x = array(13, 200)
    spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    found = simulate(
        lambda x: call(double, x, grid=(2, 2), in_specs=[spec], out_specs=spec), x
    ).values
    np.testing.assert_array_equal(found, 2 * x)


def test_an_output_that_no_program_writes_was_never_written():
    x = array(16, 128)
    found = simulate(
        lambda x: call(lambda x_ref, o_ref: None, x, grid=(2,), in_specs=[ROWS], out_specs=ROWS), x
    ).values
    assert np.isnan(found).all()


def test_consecutive_programs_share_the_block_of_an_output():
    def accumulate(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    x = array(24, 128)
    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
    found = simulate(
        lambda x: call(
            accumulate,
            x,
            out=jax.ShapeDtypeStruct((8, 128), np.float32),
            grid=(3,),
            in_specs=[ROWS],
            out_specs=whole,
        ),
        x,
    ).values
    np.testing.assert_array_equal(found, x.reshape(3, 8, 128).sum(0))


def visit_again(mode: Any) -> Any:
    """Adds 1 to blocks 0, 1 and 0 of an output that starts with what they hold."""

    def body(x_ref, o_ref):
        i = pl.program_id(0)

        @pl.when(i < 2)
        def _():
            o_ref[...] = x_ref[...]

        o_ref[...] += 1.0

    spec = pl.BlockSpec((8, 128), lambda i: (jax.lax.rem(i, 2), 0), pipeline_mode=mode)
    plain = pl.BlockSpec((8, 128), lambda i: (jax.lax.rem(i, 2), 0))
    x = array(16, 128)
    return x, simulate(
        lambda x: call(body, x, grid=(3,), in_specs=[plain], out_specs=spec), x
    ).values


def test_a_block_that_is_visited_again_later_is_not_loaded():
    x, found = visit_again(None)
    assert np.isnan(found[:8]).all()
    np.testing.assert_array_equal(found[8:], x[8:] + 1)


@pytest.mark.skipif(not hasattr(pl, "RevisitMode"), reason="this JAX has no pl.RevisitMode")
def test_a_block_is_loaded_again_where_the_operand_asks_for_any_revisit():
    x, found = visit_again(pl.Buffered(1, revisit=pl.RevisitMode.ANY))
    np.testing.assert_array_equal(found[:8], x[:8] + 2)


def test_the_next_block_is_fetched_before_the_body_runs():
    # Each program reads what the one before wrote to the block that both share.
    def body(x_ref, _, o_ref):
        o_ref[...] = x_ref[...] + 1

    def shifted(x):
        return pl.pallas_call(
            body,
            out_shape=like(x),
            grid=(2,),
            in_specs=[ROWS, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((8, 128), lambda i: (1 - i, 0)),
            input_output_aliases={0: 0},
        )(x, x)

    x = array(16, 128)
    found = simulate(shifted, x).values
    np.testing.assert_array_equal(found[8:], x[:8] + 1)
    # Program 1 reads the second block as it was before program 0 wrote it.
    np.testing.assert_array_equal(found[:8], x[8:] + 1)


def test_one_buffer_is_fetched_when_the_program_begins():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(1))
    x = array(16, 128)
    found = simulate(
        lambda x: call(
            body,
            x,
            grid=(2,),
            in_specs=[spec],
            out_specs=pl.BlockSpec((8, 128), lambda i: (1 - i, 0)),
            input_output_aliases={0: 0},
        ),
        x,
    ).values
    np.testing.assert_array_equal(found[8:], x[:8] + 1)
    np.testing.assert_array_equal(found[:8], x[:8] + 2)


def test_the_window_of_an_aliased_output_is_not_loaded():
    def body(x_ref, o_ref):
        o_ref[...] += x_ref[...]

    x = array(8, 128)
    found = simulate(
        lambda x: call(
            body, x, grid=(1,), in_specs=[ROWS], out_specs=ROWS, input_output_aliases={0: 0}
        ),
        x,
    ).values
    assert np.isnan(found).all()


def test_an_aliased_output_keeps_the_blocks_that_no_program_writes():
    x = array(24, 128)
    found = simulate(
        lambda x: call(
            double,
            x,
            grid=(1,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (1, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (1, 0)),
            input_output_aliases={0: 0},
        ),
        x,
    ).values
    np.testing.assert_array_equal(found[8:16], 2 * x[8:16])
    np.testing.assert_array_equal(found[:8], x[:8])
    np.testing.assert_array_equal(found[16:], x[16:])


def test_scratch_lives_as_long_as_the_grid():
    def running_sum(x_ref, o_ref, total):
        @pl.when(pl.program_id(0) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]
        o_ref[...] = total[...]

    x = array(24, 128)
    found = simulate(
        lambda x: call(
            running_sum,
            x,
            grid=(3,),
            in_specs=[ROWS],
            out_specs=ROWS,
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        ),
        x,
    ).values
    np.testing.assert_array_equal(found.reshape(3, 8, 128), np.cumsum(x.reshape(3, 8, 128), 0))


def test_scratch_begins_with_what_was_never_written():
    def read(x_ref, o_ref, scratch):
        o_ref[...] = x_ref[...] + scratch[...]

    x = array(8, 128)
    found = simulate(
        lambda x: call(read, x, scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)]), x
    ).values
    assert np.isnan(found).all()


def prefetched(body: Any, order: Any, x: Any, steps: int) -> Any:
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(steps,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
    )
    shape = jax.ShapeDtypeStruct((8 * steps, 128), x.dtype)
    return pl.pallas_call(body, out_shape=shape, grid_spec=grid)(order, x)


def test_index_maps_read_prefetched_scalars():
    def body(order_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    x = array(24, 128)
    order = np.array([2, 0, 1], np.int32)
    found = simulate(lambda o, x: prefetched(body, o, x, 3), order, x).values
    np.testing.assert_array_equal(found.reshape(3, 8, 128), x.reshape(3, 8, 128)[order])


def test_a_body_that_writes_a_prefetched_scalar_is_seen_by_the_map_after_the_next():
    def body(order_ref, x_ref, o_ref):
        order_ref[1] = 2
        order_ref[2] = 2
        o_ref[...] = x_ref[...]

    x = array(24, 128)
    order = np.zeros(3, np.int32)
    found = simulate(lambda o, x: prefetched(body, o, x, 3), order, x)
    blocks = x.reshape(3, 8, 128)
    # The block of program 1 is chosen before the body of program 0 runs.
    np.testing.assert_array_equal(found.values.reshape(3, 8, 128), blocks[[0, 0, 2]])
    assert not found.findings
    assert (order == 0).all()


def test_a_write_to_the_window_of_an_input_is_a_finding():
    def body(x_ref, o_ref):
        x_ref[0, 0] = 5.0
        o_ref[...] = x_ref[...]

    x = array(8, 128)
    before = x.copy()
    found = simulate(lambda x: call(body, x), x)
    assert found.values[0, 0] == 5
    np.testing.assert_array_equal(x, before)
    [finding] = found.findings
    assert (finding.kind, finding.ref, finding.kernel) == ("input-write", "x_ref", "body")
    assert finding.line.startswith(__file__)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_block_beyond_the_array_is_an_error_that_names_operand_and_program(index):
    spec = pl.BlockSpec((8, 128), lambda i: (i + index, 0))
    x = array(8, 128)
    with pytest.raises(BoundsError, match=r"index map of x_ref.*begins at .*axis 0.*program \(0\)"):
        simulate(lambda x: call(double, x, grid=(1,), in_specs=[spec], out_specs=ROWS), x)


def test_a_grid_without_programs_leaves_the_outputs_unwritten():
    x = array(8, 128)
    found = simulate(
        lambda x: call(double, x, grid=(0,), in_specs=[ROWS], out_specs=ROWS), x
    ).values
    assert np.isnan(found).all()


def test_empty_arrays():
    x = np.zeros((0, 128), np.float32)
    assert simulate(lambda x: call(double, x), x).values.shape == (0, 128)


@pytest.mark.parametrize("space", [pltpu.SMEM, pl.ANY])
@pytest.mark.parametrize("aliased", [False, True])
def test_arrays_of_one_number(space, aliased):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    spec = pl.BlockSpec(memory_space=space)
    aliases = {0: 0} if aliased else {}
    found = simulate(
        lambda x: call(body, x, in_specs=[spec], out_specs=spec, input_output_aliases=aliases),
        np.float32(3),
    )
    assert (found.values.shape, found.values.item()) == ((), 4)


def test_blocks_of_one_number_without_axes():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    spec = pl.BlockSpec((None, None), lambda i, j: (i, j), memory_space=pltpu.SMEM)
    x = array(2, 3)
    found = simulate(lambda x: call(body, x, grid=(2, 3), in_specs=[spec], out_specs=spec), x)
    np.testing.assert_array_equal(found.values, 2 * x)


def test_squeezed_axes_are_not_in_the_body():
    def body(x_ref, o_ref):
        assert x_ref.shape == (8, 128)
        o_ref[...] = x_ref[...] * 2

    spec = pl.BlockSpec((None, 8, 128), lambda b, i: (b, i, 0))
    x = array(3, 12, 128)
    found = simulate(lambda x: call(body, x, grid=(3, 2), in_specs=[spec], out_specs=spec), x)
    np.testing.assert_array_equal(found.values, 2 * x)


def test_element_windows_begin_anywhere_and_are_padded():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[0:8, :] + x_ref[8:16, :]

    window = pl.BlockSpec((pl.Element(16, (8, 8)), pl.Element(128)), lambda i: (i * 8, 0))
    x = array(16, 128)
    found = simulate(
        lambda x: call(
            body,
            x,
            grid=(3,),
            in_specs=[window],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out=jax.ShapeDtypeStruct((24, 128), np.float32),
        ),
        x,
    ).values
    assert np.isnan(found[:8]).all()
    np.testing.assert_array_equal(found[8:16], x[:8] + x[8:])
    assert np.isnan(found[16:]).all()


def test_a_dimension_of_the_grid_may_be_an_operand():
    def total(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    def first(n, x):
        return call(
            total,
            x,
            out=jax.ShapeDtypeStruct((8, 128), np.float32),
            grid=(n,),
            in_specs=[ROWS],
            out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        )

    x = array(24, 128)
    found = simulate(first, np.int32(2), x).values
    np.testing.assert_array_equal(found, x[:8] + x[8:16])


def test_operands_in_any_memory_are_the_arrays_themselves():
    def body(x_ref, o_ref):
        o_ref[pl.ds(pl.program_id(0) * 8, 8), :] = x_ref[pl.ds(8 - pl.program_id(0) * 8, 8), :]

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    x = array(16, 128)
    found = simulate(
        lambda x: call(body, x, grid=(2,), in_specs=[anywhere], out_specs=anywhere), x
    ).values
    np.testing.assert_array_equal(found, np.concatenate([x[8:], x[:8]]))


def test_operands_in_any_memory_under_vmap():
    def body(x_ref, o_ref):
        assert x_ref.shape == (16, 128)
        o_ref[...] = x_ref[...] * 2

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    x = array(3, 16, 128)
    found = simulate(
        jax.vmap(lambda x: call(body, x, in_specs=[anywhere], out_specs=anywhere)), x
    ).values
    np.testing.assert_array_equal(found, 2 * x)


def test_program_ids_do_not_count_the_dimension_of_vmap():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + pl.program_id(0) + 10 * pl.num_programs(0)

    x = array(3, 16, 128)
    found = simulate(
        jax.vmap(lambda x: call(body, x, grid=(2,), in_specs=[ROWS], out_specs=ROWS)), x
    ).values
    np.testing.assert_array_equal(found[:, :8], x[:, :8] + 20)
    np.testing.assert_array_equal(found[:, 8:], x[:, 8:] + 21)


def test_parallel_programs_run_in_an_order_that_the_seed_decides():
    def body(x_ref, o_ref, count):
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _():
            count[0] = 0

        count[0] += 1
        o_ref[...] = jnp.full_like(o_ref, count[0].astype(jnp.float32))

    def ordered(x, kind):
        params = pltpu.CompilerParams(dimension_semantics=(kind,))
        return call(
            body,
            x,
            grid=(6,),
            in_specs=[ROWS],
            out_specs=ROWS,
            scratch_shapes=[pltpu.SMEM((1,), jnp.int32)],
            compiler_params=params,
        )

    x = array(48, 128)

    def numbers(kind: str, seed: int) -> list[float]:
        found = simulate(lambda x: ordered(x, kind), x, seed=seed).values
        return [float(n) for n in found[::8, 0]]

    assert numbers("parallel", 0) == [1, 2, 3, 4, 5, 6]
    assert numbers("parallel", 1) != [1, 2, 3, 4, 5, 6]
    assert numbers("parallel", 1) == numbers("parallel", 1)
    assert numbers("arbitrary", 1) == [1, 2, 3, 4, 5, 6]


def test_cores_divide_the_first_parallel_dimension():
    points = [list(each) for each in divided((2, 3), [1], Choices(), cores=2)]
    assert points == [[(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 2), (1, 2)]]
    assert [list(each) for each in divided((2, 3), [], Choices(), cores=2)] == [
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    ]


def pipelined(x: Any, block: tuple[int, int]) -> Any:
    """Twice ``x``, by blocks that ``emit_pipeline`` copies."""

    def outer(x_ref, o_ref):
        grid = tuple(map(pl.cdiv, x.shape, block))
        spec = pl.BlockSpec(block, lambda i, j: (i, j))
        pltpu.emit_pipeline(double, grid=grid, in_specs=[spec], out_specs=[spec])(x_ref, o_ref)

    whole = pl.BlockSpec(memory_space=pl.ANY)
    return call(outer, x, in_specs=[whole], out_specs=whole)


@pytest.mark.parametrize("shape", [(20, 128), (20, 200), (4, 128), (20, 8), (17, 300)])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_emit_pipeline_copies_its_last_block_with_the_padding_of_tiles(shape, dtype):
    x = array(*shape, dtype=dtype)
    result = simulate(pipelined, x, (16, 128), target="v5e", jit=False)
    np.testing.assert_array_equal(result.values, 2 * x)
    assert not result.findings


@pytest.mark.parametrize(
    ("start", "count", "edge"), [(16, 8, False), (16, 16, True), (24, 8, True)]
)
def test_a_copy_may_end_in_the_padding_of_the_last_tile_only(start, count, edge):
    def body(start_ref, x_ref, o_ref, sem):
        rows = x_ref.at[pl.ds(start_ref[0], count)]
        pltpu.make_async_copy(rows, o_ref, sem).start()
        pltpu.make_async_copy(rows, o_ref, sem).wait()

    x = array(20, 128)
    kernel = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((count, 128), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    at = np.array([start], np.int32)
    if edge:
        with pytest.raises(BoundsError, match=r"copy from x_ref .* beyond its edge"):
            simulate(kernel, at, x)
        return
    values = simulate(kernel, at, x).values
    np.testing.assert_array_equal(values[:4], x[16:])
    assert np.isnan(values[4:]).all()


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_three_steps_later_a_block_may_be_read_through_an_alias(slots, seed):
    def body(x_ref, sum_ref, o_ref):
        o_ref[...] = sum_ref[...] + x_ref[...]

    x, sums = array(96, 128), np.zeros((8 * slots, 128), np.float32)
    slot = pl.BlockSpec((8, 128), lambda i: (i % slots, 0))
    kernel = pl.pallas_call(
        body,
        out_shape=like(sums),
        grid=(12,),
        in_specs=[ROWS, slot],
        out_specs=slot,
        input_output_aliases={1: 0},
    )
    result = simulate(kernel, x, sums, seed=seed)
    kinds = [finding.kind for finding in result.findings]
    if slots < 3:
        # With one block, the window stays: it is neither written back nor fetched in between.
        assert kinds == (["overwritten"] if slots == 2 else [])
    else:
        np.testing.assert_array_equal(result.values, x.reshape(-1, *sums.shape).sum(0))
        assert not kinds
