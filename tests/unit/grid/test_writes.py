"""Blocks that are not written, written twice, come back to, or lie outside."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from pallas_test_support.grid_kernels import F32, Shape, call, copy, kinds, only, rows, semantics

from pytest_pallas.backends.analyzing import analyze

X = Shape((64, 128), F32)
TALL = Shape((60, 128), F32)


def floor_grid(x):
    return rows(copy, x.shape, grid=(x.shape[0] // 8,))(x)


def test_rows_that_no_program_writes():
    assert kinds(floor_grid, X) == []
    finding = only(floor_grid, TALL)
    assert (finding.kind, finding.operand, finding.kernel) == ("never-written", "o_ref", "copy")
    assert "no program writes [56:60, 0:128]" in finding.message
    assert finding.source.rpartition(":")[0].endswith("test_writes.py")
    assert "pl.cdiv" in finding.remedy


def test_every_other_block():
    def skips(x):
        spec = ((8, 128), lambda i: (2 * i, 0))
        return call(copy, (4,), [spec], spec, x.shape)(x)

    assert "[8:16, 0:128] and 3 more blocks" in only(skips, X).message


def test_two_blocks_that_no_program_writes():
    def shorter(x):
        return rows(copy, x.shape, grid=(6,))(x)

    assert "[48:56, 0:128] and 1 more block" in only(shorter, X).message
    assert "1 more blocks" not in only(shorter, X).message


def test_what_is_cut_off_need_not_be_written():
    def padded(keep):
        def function(x):
            return rows(copy, (64, 128), grid=(7,))(x)[:keep]

        return function

    assert kinds(padded(56), X) == []
    assert kinds(padded(57), X) == [("never-written", "o_ref")]


def test_what_may_be_left_out_is_a_doubt():
    def function(x, take):
        return floor_grid(x)[take]

    args = TALL, Shape((3,), jnp.int32)
    assert kinds(function, *args) == []
    assert kinds(function, *args, severity="warning") == [("never-written", "o_ref")]
    assert kinds(lambda x: floor_grid(x) * 2, TALL) == [("never-written", "o_ref")]


@pytest.mark.parametrize("kept", [1, 2])
def test_an_output_that_is_scratch(kept):
    """Before there was scratch, outputs served for it: nothing uses what they hold."""

    def body(x_ref, o_ref, sum_ref):
        sum_ref[...] = x_ref[...]
        o_ref[...] = sum_ref[...]

    def function(x):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        outputs = pl.pallas_call(
            body, grid=(8,), in_specs=[spec],
            out_specs=[spec, pl.BlockSpec((8, 128), lambda i: (0, 0))],
            out_shape=[x, x], compiler_params=semantics("parallel"),
        )(x)  # fmt: skip
        return outputs[:kept]

    both = [("never-written", "sum_ref"), ("parallel-write", "sum_ref")]
    assert kinds(function, X) == (both if kept == 2 else [])


def test_an_aliased_output_has_the_rest_already():
    def some(x):
        return rows(copy, x.shape, grid=(3,), input_output_aliases={0: 0})(x)

    assert kinds(some, X) == []


def test_windows_in_elements():
    def function(step):
        def inner(x):
            spec = ((pl.Element(8), pl.Element(128)), lambda i: (i * step, 0))
            return call(copy, (7,), [spec], spec, (56, 128))(x)

        return inner

    assert kinds(function(8), Shape((56, 128), F32)) == []
    assert kinds(function(7), Shape((56, 128), F32)) == [("never-written", "o_ref")]


@pytest.mark.parametrize("words", [("parallel", "arbitrary"), ("arbitrary", "parallel")])
def test_a_block_written_along_a_parallel_dim(words):
    def add(x_ref, o_ref):
        o_ref[...] += x_ref[...]

    def function(x):
        specs = ((8, 128), lambda i, k: (k, 0)), ((8, 128), lambda i, k: (i, 0))
        return call(add, (2, 4), specs[:1], specs[1], (16, 128), compiler_params=semantics(*words))(
            x
        )

    found = kinds(function, Shape((32, 128), F32))
    assert found == ([("parallel-write", "o_ref")] if words[1] == "parallel" else [])


def test_the_programs_that_write_a_block_at_once_are_named():
    def function(x):
        specs = ((8, 128), lambda i, j: (i, 0)), ((8, 128), lambda i, j: (j, 0))
        params = semantics("parallel", "parallel")
        return call(copy, (2, 2), specs[:1], specs[1], (16, 128), compiler_params=params)(x)

    finding = only(function, Shape((16, 128), F32))
    assert finding.programs == ((0, 0), (1, 0))
    assert "differ along dim 0, and that is 'parallel'" in finding.message


def test_a_block_that_is_come_back_to():
    def accumulate(order):
        def add(x_ref, o_ref):
            o_ref[...] += x_ref[...]

        def function(x):
            if order == "k last":
                specs = ((8, 128), lambda i, k: (i, k)), ((8, 128), lambda i, k: (i, 0))
                return call(add, (2, 3), specs[:1], specs[1], (16, 128))(x)
            specs = ((8, 128), lambda k, i: (i, k)), ((8, 128), lambda k, i: (i, 0))
            return call(add, (3, 2), specs[:1], specs[1], (16, 128))(x)

        return function

    wide = Shape((16, 384), F32)
    assert kinds(accumulate("k last"), wide) == []
    finding = only(accumulate("k first"), wide)
    assert (finding.kind, finding.operand) == ("revisited", "o_ref")
    assert finding.programs == ((0, 0), (0, 1), (1, 0))


def test_a_batch_dim_of_vmap_is_no_conflict():
    def function(x):
        return rows(copy, x.shape, compiler_params=semantics("arbitrary"))(x)

    batched = jax.vmap(function)
    (window, _) = analyze(batched, Shape((3, 16, 128), F32)).calls[0].windows
    assert window.shape == (3, 16, 128)
    assert kinds(batched, Shape((3, 16, 128), F32)) == []


class TestOutOfRange:
    @staticmethod
    def beyond(x):
        specs = ((8, 128), lambda i: (i + 1, 0)), ((8, 128), lambda i: (i, 0))
        return call(copy, (8,), specs[:1], specs[1], x.shape)(x)

    def test_named_with_its_program(self):
        finding = only(self.beyond, X)
        assert (finding.kind, finding.operand, finding.programs) == (
            "out-of-range", "x_ref", ((7,),),
        )  # fmt: skip
        assert (
            "program (7,) reads the block [64:72, 0:128] of an array [64, 128]" in finding.message
        )

    def test_overhanging_is_not_outside(self):
        assert kinds(lambda x: rows(copy, x.shape)(x), TALL) == []

    @pytest.mark.parametrize("before", [-1, -2])
    def test_negative(self, before):
        def function(x):
            specs = ((8, 128), lambda i: (i + before, 0)), ((8, 128), lambda i: (i, 0))
            return call(copy, (8,), specs[:1], specs[1], x.shape)(x)

        assert len(only(function, X).programs) == -before

    def test_clamped(self):
        def function(x):
            specs = ((8, 128), lambda i: (jnp.minimum(i + 1, 7), 0)), ((8, 128), lambda i: (i, 0))
            return call(copy, (8,), specs[:1], specs[1], x.shape)(x)

        assert kinds(function, X) == []

    def test_beyond_padding_of_elements(self):
        def function(x):
            spec = ((pl.Element(8, (4, 4)), pl.Element(128)), lambda i: (i * 8, 0))
            return call(copy, (9,), [spec], ((8, 128), lambda i: (i, 0)), (72, 128))(x)

        assert kinds(function, X) == []


class TestAliases:
    @staticmethod
    def shifted(by):
        def function(x):
            specs = ((8, 128), lambda i: ((i + by) % 8, 0)), ((8, 128), lambda i: (i, 0))
            return call(copy, (8,), specs[:1], specs[1], x.shape, input_output_aliases={0: 0})(x)

        return function

    def test_read_after_it_was_written(self):
        finding = only(self.shifted(-1), X)
        assert (finding.kind, finding.operand) == ("alias", "x_ref")
        assert finding.programs == ((0,), (1,))
        assert "o_ref" in finding.message

    def test_read_where_it_is_written(self):
        assert kinds(self.shifted(0), X) == []

    def test_what_was_written_three_steps_before_is_there(self):
        assert kinds(self.shifted(1), X) == []  # the last program reads what the first one wrote
        assert kinds(self.shifted(-3), X) == []
        assert only(self.shifted(-2), X).programs == ((0,), (2,))

    def test_what_another_core_wrote_may_come_later(self):
        def function(x):
            specs = (
                ((8, 128), lambda i, j: ((4 * i + j + 4) % 8, 0)),
                (
                    (8, 128),
                    lambda i, j: (4 * i + j, 0),
                ),
            )
            return call(
                copy, (2, 4), specs[:1], specs[1], x.shape, input_output_aliases={0: 0},
                compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
            )(x)  # fmt: skip

        assert only(function, X).programs == ((0, 0), (1, 0))

    def test_more_buffers_are_filled_more_steps_ahead(self):
        def function(x):
            deep = pl.BlockSpec((8, 128), lambda i: ((i - 3) % 8, 0), pipeline_mode=pl.Buffered(3))
            rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
            return pl.pallas_call(
                copy, grid=(8,), in_specs=[deep], out_specs=rows, input_output_aliases={0: 0},
                out_shape=x,
            )(x)  # fmt: skip

        assert ("alias", "x_ref") in kinds(function, X)

    def test_blocks_of_two_sizes(self):
        def body(x_ref, y_ref, o_ref):
            o_ref[...] = x_ref[8:] + y_ref[...]

        def function(x, y):
            specs = ((16, 128), lambda i: (7 - i, 0)), ((8, 128), lambda i: (i, 0))
            return call(
                body, (8,), specs, ((8, 128), lambda i: (i, 0)), x.shape,
                input_output_aliases={0: 0},
            )(x, y)  # fmt: skip

        assert ("alias", "x_ref") in kinds(function, Shape((128, 128), F32), X)

    def test_an_operand_that_the_body_ignores(self):
        def body(x_ref, y_ref, o_ref):
            o_ref[...] = y_ref[...]

        def function(x, y):
            specs = ((8, 128), lambda i: (7 - i, 0)), ((8, 128), lambda i: (i, 0))
            return call(body, (8,), specs, specs[1], x.shape, input_output_aliases={0: 0})(x, y)

        assert kinds(function, X, X) == []


class TestGpu:
    """Programs of a grid run at the same time."""

    params = plgpu.CompilerParams(num_warps=4)

    def sums(self, body, block):
        def function(x):
            specs = ((16, 128), lambda i: (i, 0)), block
            return call(body, (4,), specs[:1], specs[1], (16, 128), compiler_params=self.params)(x)

        return function

    def test_one_block_of_all_programs(self):
        def body(x_ref, o_ref):
            o_ref[...] = o_ref[...] + x_ref[...]

        finding = only(self.sums(body, ((16, 128), lambda i: (0, 0))), X)
        assert (finding.kind, finding.operand) == ("parallel-write", "o_ref")
        assert "at the same time on a GPU" in finding.message

    def test_each_program_writes_a_part_of_its_own(self):
        def body(x_ref, o_ref):
            i = pl.program_id(0)
            o_ref[pl.ds(4 * i, 4), :] = x_ref[:4]

        assert kinds(self.sums(body, ((16, 128), lambda i: (0, 0))), X) == []

    def test_only_one_program_writes(self):
        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 0)
            def _():
                o_ref[...] = x_ref[...]

        assert kinds(self.sums(body, ((16, 128), lambda i: (0, 0))), X) == []

    def test_a_later_program_writes_a_part_of_what_one_reads(self):
        def body(x_ref, o_ref):
            block = x_ref[...]
            o_ref[...] = block[:8] + block[8:]

        def function(params):
            def function(x):
                specs = ((16, 128), lambda i: (i, 0)), ((8, 128), lambda i: (i, 0))
                return call(
                    body, (4,), specs[:1], specs[1], x.shape,
                    input_output_aliases={0: 0}, compiler_params=params,
                )(x)  # fmt: skip

            return function

        (finding,) = [f for f in analyze(function(self.params), X).errors if f.kind == "alias"]
        assert finding.programs == ((1,), (0,))
        assert "may run at the same time, writes [8:16, 0:128] there" in finding.message
        assert ("alias", "x_ref") not in kinds(function(None), X)  # each is fetched before

    def test_programs_may_order_themselves_by_atomics(self):
        def body(x_ref, lock_ref, o_ref):
            def taken(_):
                return plgpu.atomic_cas(lock_ref, 0, 1) == 1

            jax.lax.while_loop(taken, lambda done: done, 0)
            o_ref[...] = o_ref[...] + x_ref[...]
            plgpu.atomic_xchg(lock_ref, (), 0)

        def function(x):
            blocks = pl.BlockSpec((16, 128), lambda i: (i, 0)), pl.BlockSpec((), lambda i: ())
            return pl.pallas_call(
                body,
                grid=(4,),
                in_specs=blocks,
                out_specs=pl.BlockSpec((16, 128), lambda i: (0, 0)),
                out_shape=Shape((16, 128), F32),
                compiler_params=self.params,
            )(x, jnp.int32(0))

        assert kinds(function, X) == []

    def test_no_vmem_and_no_tiles(self):
        def function(x):
            return rows(copy, x.shape, 2, compiler_params=self.params)(x)

        assert analyze(function, X).findings == ()


class TestLargeGrids:
    """Grids that are not looked at as a whole: what their index maps say."""

    SHAPE = (8 * 1024, 128 * 1024)

    def function(self, grid, in_map, out_map, words=("arbitrary", "arbitrary")):
        def inner(x):
            specs = ((8, 128), in_map), ((8, 128), out_map)
            params = semantics(*words)
            return call(copy, grid, specs[:1], specs[1], x.shape, compiler_params=params)(x)

        return inner

    @pytest.mark.parametrize(
        ("grid", "in_map", "out_map", "words", "kind"),
        [
            ((1024, 1024), lambda i, j: (i, j), lambda i, j: (i, j), "aa", None),
            ((1024, 1024), lambda i, j: (i, j + 1), lambda i, j: (i, j), "aa", "out-of-range"),
            ((1024, 1000), lambda i, j: (i, j), lambda i, j: (i, j), "aa", "never-written"),
            ((1024, 1024), lambda i, j: (i, j), lambda i, j: (i, 0), "ap", "parallel-write"),
            ((1024, 1024), lambda i, j: (i, j), lambda i, j: (j, 0), "aa", "revisited"),
        ],
    )
    def test_finding(self, grid, in_map, out_map, words, kind):
        words = tuple({"a": "arbitrary", "p": "parallel"}[word] for word in words)
        function = self.function(grid, in_map, out_map, words)
        analysis = analyze(function, Shape(self.SHAPE, F32))
        assert not analysis.calls[0].complete
        found = {finding.kind for finding in analysis.errors}
        assert (kind in found) if kind else not found


def test_no_blocks_in_memory_that_the_body_copies_from():
    def body(x_ref, o_ref, semaphore):
        pltpu.make_async_copy(x_ref, o_ref, semaphore).start()

    def function(x):
        spec = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body, grid=(4, 2), in_specs=[spec], out_specs=spec, out_shape=x,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
            compiler_params=semantics("parallel", "arbitrary"),
        )(x)  # fmt: skip

    assert analyze(function, X).findings == ()


def test_an_empty_grid_writes_nothing():
    def function(x):
        return rows(copy, x.shape, grid=(0,))(x)

    assert kinds(function, X) == [("never-written", "o_ref")]
