"""Grids of programs on a GPU: their memory, their edges, their order, and their races."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu

from pallas_sim import Machine, simulate
from pallas_sim.chips import GPUS
from pallas_sim.errors import BoundsError, DeadlockError, SimulationError
from pallas_sim.gpu import portable_grids as programs

SEEDS = (0, 1, 2)
X = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
ROWS = pl.BlockSpec((8, 16), lambda i: (i, 0))
SAME = pl.BlockSpec((8, 16), lambda i: (0, 0))


def on_gpu(function: Any, *args: Any, **options: Any) -> Any:
    found = simulate(function, *args, **{"target": "h100", **options})
    assert not found.fallbacks
    return found


def called(body: Any, x: Any, *, shape: Any = None, out: Any = ROWS, **options: Any) -> Any:
    """A call of ``body(x_ref, o_ref)`` for each 8 rows of x."""
    given = {"grid": (pl.cdiv(x.shape[0], 8),), "in_specs": [ROWS], "out_specs": out, **options}
    shape = jax.ShapeDtypeStruct(shape or x.shape, x.dtype)
    return pl.pallas_call(body, out_shape=shape, **given)(x)


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def line_of(function: Any, offset: int) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + offset}"


class TestMemory:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("target", ["a100", "h100", "h200", "b200"])
    def test_blocks(self, target, seed):
        found = on_gpu(lambda x: called(double, x), X, target=target, seed=seed)
        np.testing.assert_array_equal(found.values, X * 2)
        assert found.findings == ()

    def test_an_aliased_operand_is_one_memory(self):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] + 1
            o_ref[...] = x_ref[...] * 2

        def function(x):
            return called(body, x, input_output_aliases={0: 0})

        np.testing.assert_array_equal(on_gpu(function, X).values, (X + 1) * 2)
        assert X[0, 0] == 0  # the caller's array stays as it is

    def test_a_write_to_an_input_is_reported(self):
        def body(x_ref, o_ref):
            x_ref[...] = x_ref[...] * 2
            o_ref[...] = x_ref[...]

        before = X.copy()
        found = on_gpu(lambda x: called(body, x), X)
        np.testing.assert_array_equal(X, before)
        assert [(each.kind, each.ref) for each in found.findings] == [("input-write", "x_ref")]

    def test_what_nobody_writes_is_nan(self):
        def body(x_ref, o_ref):
            o_ref[:4] = x_ref[:4]

        values = on_gpu(lambda x: called(body, x), X).values.reshape(4, 8, 16)
        assert np.isnan(values[:, 4:]).all()
        np.testing.assert_array_equal(values[:, :4], X.reshape(4, 8, 16)[:, :4])

    def test_a_squeezed_axis_and_a_scalar(self):
        def body(s_ref, x_ref, o_ref):
            o_ref[...] = x_ref[...] + s_ref[...]

        row = pl.BlockSpec((None, 16), lambda i: (i, 0))
        scalar = pl.BlockSpec((), lambda i: ())

        def function(s, x):
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            specs = {"in_specs": [scalar, row], "out_specs": row}
            return pl.pallas_call(body, out_shape=shape, grid=(32,), **specs)(s, x)

        found = on_gpu(function, np.float32(3), X, seed=1)
        np.testing.assert_array_equal(found.values, X + 3)
        assert found.findings == ()

    def test_blocks_by_element(self):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...]

        window = pl.BlockSpec((pl.Element(8), 16), lambda i: (3 * i, 0))
        found = on_gpu(
            lambda x: called(body, x, in_specs=[window], grid=(4,), shape=(32, 16)), X
        ).values
        for program in range(4):
            np.testing.assert_array_equal(
                found[8 * program : 8 * program + 8], X[3 * program : 3 * program + 8]
            )

    @pytest.mark.parametrize("seed", SEEDS)
    def test_vmap_adds_an_axis_that_the_body_does_not_count(self, seed):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] + pl.program_id(0) + 10 * pl.num_programs(0)

        x = np.stack([X, X + 1])
        found = on_gpu(jax.vmap(lambda x: called(body, x)), x, seed=seed)
        np.testing.assert_array_equal(
            found.values, x + np.repeat(np.arange(4), 8)[:, None].astype(np.float32) + 40
        )
        assert found.findings == ()

    def test_an_empty_grid(self):
        assert np.isnan(on_gpu(lambda x: called(double, x, grid=(0,)), X).values).all()

    def test_no_grid_at_all(self):
        def function(x):
            return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        np.testing.assert_array_equal(on_gpu(function, X).values, X * 2)

    def test_several_kernels_one_after_the_other_are_ordered(self):
        def function(x):
            return called(double, called(double, x))

        found = on_gpu(function, X)
        np.testing.assert_array_equal(found.values, X * 4)
        assert found.findings == ()

    def test_eager_mode(self):
        found = on_gpu(lambda x: called(double, x) if x[0, 0] == 0 else x, X, jit=False)
        np.testing.assert_array_equal(found.values, X * 2)


class TestEdges:
    @pytest.fixture(params=[True, False], ids=["masked", "unmasked"])
    def masks(self, request, monkeypatch):
        """JAX's lowering masks what is beyond an edge since 0.12."""
        monkeypatch.setattr(programs, "masks_edges", lambda: request.param)
        return request.param

    def test_jax_masks_them_or_not(self):
        """Its lowering computes a mask with the offsets, or the offsets alone."""
        lowering = importlib.import_module("jax._src.pallas.triton.lowering")
        assert programs.masks_edges() == ("bounds_mask" in inspect.getsource(lowering))

    def test_a_load_beyond_the_edge_gives_anything(self, masks):
        def body(x_ref, o_ref):
            o_ref[...] = jnp.sum(x_ref[...], axis=0, keepdims=True)

        row = pl.BlockSpec((1, 16), lambda i: (i, 0))
        values = on_gpu(lambda x: called(body, x, shape=(3, 16), out=row), X[:20]).values
        np.testing.assert_array_equal(values[:2], X[:16].reshape(2, 8, 16).sum(1))
        assert np.isnan(values[2]).all()

    def test_a_mask_of_ones_own(self, masks):
        def body(x_ref, o_ref):
            rows = pl.program_id(0) * 8 + jnp.arange(8)[:, None]
            x = plgpu.load(x_ref, mask=rows < 20, other=-1.0)
            o_ref[...] = jnp.sum(x, axis=0, keepdims=True)

        row = pl.BlockSpec((1, 16), lambda i: (i, 0))
        values = on_gpu(lambda x: called(body, x, shape=(3, 16), out=row), X[:20]).values
        np.testing.assert_array_equal(values[2], X[16:20].sum(0) - 4)

    def test_a_store_beyond_the_edge_is_masked_or_refused(self, masks):
        if masks:
            found = on_gpu(lambda x: called(double, x), X[:20])
            np.testing.assert_array_equal(found.values, X[:20] * 2)
            assert found.findings == ()
            return
        with pytest.raises(BoundsError) as caught:
            on_gpu(lambda x: called(double, x), X[:20])
        finding = caught.value.finding
        assert (finding.kind, finding.ref, finding.program) == ("bounds", "o_ref", (2,))
        assert finding.line == line_of(double, 1)
        assert "JAX 0.11 does not mask" in finding.message

    def test_a_masked_store_beyond_the_edge(self, masks):
        def body(x_ref, o_ref):
            rows = pl.program_id(0) * 8 + jnp.arange(8)[:, None]
            mask = jnp.broadcast_to(rows < 20, (8, 16))
            plgpu.store(o_ref, plgpu.load(x_ref, mask=mask) * 2, mask=mask)

        found = on_gpu(lambda x: called(body, x), X[:20])
        np.testing.assert_array_equal(found.values, X[:20] * 2)

    def test_columns_beyond_the_edge_are_no_part_of_the_next_row(self, masks):
        wide = pl.BlockSpec((8, 16), lambda i: (i, 0))

        def body(x_ref, o_ref):
            mask = jnp.broadcast_to(jnp.arange(16) < 11, (8, 16))
            plgpu.store(o_ref, x_ref[...] * 2, mask=mask)

        x = np.ascontiguousarray(X[:, :11])
        found = on_gpu(lambda x: called(body, x, in_specs=[wide], out=wide), x)
        np.testing.assert_array_equal(found.values, x * 2)
        assert found.findings == ()

    def test_a_block_in_no_array_is_refused_where_it_is_accessed(self, masks):
        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) < 3)
            def _():
                o_ref[...] = x_ref[...]

        ahead = pl.BlockSpec((8, 16), lambda i: (i + 1, 0))
        found = on_gpu(lambda x: called(body, x, in_specs=[ahead]), X)
        np.testing.assert_array_equal(found.values[:24], X[8:])
        with pytest.raises(BoundsError, match=r"load from x_ref beyond the edge of its array") as e:
            on_gpu(lambda x: called(double, x, in_specs=[ahead]), X)
        assert e.value.finding.program == (3,)

    def test_an_index_beyond_the_block(self):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 2, 8)]

        with pytest.raises(BoundsError, match=r"indices 2 to 9 of axis 0, which has 8 elements"):
            on_gpu(lambda x: called(body, x), X)

    def test_a_mask_may_hide_indices_beyond_the_block(self):
        def body(x_ref, o_ref):
            rows = jnp.arange(16)
            x = plgpu.load(x_ref.at[rows], mask=(rows < 8)[:, None], other=0.0)
            o_ref[...] = jnp.sum(x.reshape(2, 8, 16), axis=0)

        np.testing.assert_array_equal(on_gpu(lambda x: called(body, x), X).values, X)


class TestRaces:
    def accumulate(self, x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_sum_carried_from_program_to_program(self, seed):
        found = on_gpu(lambda x: called(self.accumulate, x, shape=(8, 16), out=SAME), X, seed=seed)
        (finding, *_) = found.findings
        assert {each.kind for each in found.findings} == {"race"}
        assert "a TPU would allow it, where the grid is a loop" in finding.message
        later, earlier = finding.accesses
        assert (later.ref, earlier.ref) == ("o_ref", "o_ref")
        assert "write" in (later.kind, earlier.kind)
        assert later.program != earlier.program
        assert later.index == ((0, 8), (0, 16))
        assert {later.line, earlier.line} <= {
            line_of(self.accumulate, 3),
            line_of(self.accumulate, 5),
        }
        assert finding.seed == seed

    def test_it_is_none_on_a_tpu(self):
        found = simulate(
            lambda x: called(self.accumulate, x, shape=(8, 16), out=SAME), X, target="v6e"
        )
        assert found.findings == ()

    def test_an_output_that_two_programs_write(self):
        def function(x):
            return called(
                double, x, shape=(16, 16), out=pl.BlockSpec((8, 16), lambda i: (i // 2, 0))
            )

        (finding,) = on_gpu(function, X).findings
        assert [each.kind for each in finding.accesses] == ["write", "write"]
        assert [each.program for each in finding.accesses] == [(1,), (0,)]

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("ahead", [True, False])
    def test_in_place_neighbours(self, ahead, seed):
        """The program reads a row that another one writes, before or after it."""

        def body(x_ref, o_ref):
            row = pl.program_id(0) + (1 if ahead else -1)
            row = jnp.clip(row, 0, 3)
            o_ref[pl.program_id(0)] = x_ref[row] + 1

        whole = pl.BlockSpec((4, 16), lambda i: (0, 0))

        def function(x):
            given = {"in_specs": [whole], "out": whole, "grid": (4,)}
            return called(body, x, **given, input_output_aliases={0: 0})

        found = on_gpu(function, X[:4], seed=seed)
        assert {each.kind for each in found.findings} == {"race"}
        assert {each.ref for each in found.findings[0].accesses} == {"x_ref", "o_ref"}

    @pytest.mark.parametrize("seed", SEEDS)
    def test_elements_in_turns_are_no_race(self, seed):
        def body(x_ref, o_ref):
            rows = jnp.arange(8) * 4 + pl.program_id(0)
            o_ref[rows] = x_ref[rows] * 2

        whole = pl.BlockSpec((32, 16), lambda i: (0, 0))
        found = on_gpu(
            lambda x: called(body, x, in_specs=[whole], out=whole, grid=(4,)), X, seed=seed
        )
        np.testing.assert_array_equal(found.values, X * 2)
        assert found.findings == ()

    def test_one_element_too_many_is_one(self):
        def body(x_ref, o_ref):
            first = pl.program_id(0) * 8
            o_ref[pl.ds(first, 8)] = x_ref[pl.ds(first, 8)]
            o_ref[first + 8] = x_ref[first + 8]

        whole = pl.BlockSpec((33, 16), lambda i: (0, 0))
        x = np.zeros((33, 16), np.float32)
        found = on_gpu(lambda x: called(body, x, in_specs=[whole], out=whole, grid=(4,)), x)
        assert found.findings[0].accesses[0].index == ((8, 9), (0, 16))

    def test_at_the_edge_too(self):
        """Blocks that hang over the edge are followed element by element."""
        block = pl.BlockSpec((8, 16), lambda i: (i // 2, 0))
        x = np.zeros((4, 10), np.float32)
        if not programs.masks_edges():
            pytest.skip("JAX 0.11 does not mask edges")

        found = on_gpu(lambda x: called(double, x, in_specs=[block], out=block, grid=(2,)), x)
        assert found.findings[0].accesses[0].index == ((0, 4), (0, 10))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_reader_between_two_others(self, seed):
        """Of many readers, each is in conflict with a program that writes."""

        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 1)
            def _():
                o_ref[0] = x_ref[0]

            @pl.when(pl.program_id(0) != 1)
            def _():
                o_ref[pl.program_id(0) + 1] = o_ref[0]

        whole = pl.BlockSpec((8, 16), lambda i: (0, 0))
        given = {"in_specs": [whole], "out": whole, "grid": (4,)}
        found = on_gpu(lambda x: called(body, x, **given), X[:8], seed=seed)
        assert found.findings[0].kind == "race"


def take(lock_ref):
    jax.lax.while_loop(lambda _: plgpu.atomic_cas(lock_ref, 0, 1) == 1, lambda done: done, 0)


def locked(x_ref, _start, _free, o_ref, lock_ref, *, takes=True, frees=True):
    if takes:
        take(lock_ref)
    o_ref[...] += x_ref[...]
    if frees:
        plgpu.atomic_xchg(lock_ref, (), 0)


def under_lock(x, **how):
    scalar = pl.BlockSpec((), lambda i: ())
    return pl.pallas_call(
        functools.partial(locked, **how),
        out_shape=[jax.ShapeDtypeStruct((8, 16), x.dtype), jax.ShapeDtypeStruct((), jnp.int32)],
        grid=(x.shape[0] // 8,),
        in_specs=[ROWS, SAME, scalar],
        out_specs=[SAME, scalar],
        input_output_aliases={1: 0, 2: 1},
    )(x, jnp.zeros((8, 16), x.dtype), jnp.int32(0))[0]


class TestWaiting:
    @pytest.mark.parametrize("seed", range(6))
    def test_a_lock_orders_what_is_done_under_it(self, seed):
        found = on_gpu(under_lock, X, seed=seed)
        np.testing.assert_array_equal(found.values, X.reshape(4, 8, 16).sum(0))
        assert found.findings == ()

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_lock_that_is_not_taken(self, seed):
        found = on_gpu(functools.partial(under_lock, takes=False), X, seed=seed)
        assert {each.kind for each in found.findings} == {"race"}
        assert found.findings[0].line == line_of(locked, 3)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_lock_that_is_not_released(self, seed):
        with pytest.raises(DeadlockError) as caught:
            on_gpu(functools.partial(under_lock, frees=False), X, seed=seed)
        (finding,) = caught.value.findings
        assert finding.message.startswith("deadlock: every program and thread waits")
        assert {each.on for each in finding.waits if each.on} == {"lock_ref"}
        assert finding.line == line_of(take, 1)

    def test_a_lock_that_is_released_by_a_plain_store(self):
        def body(x_ref, _start, _free, o_ref, lock_ref):
            take(lock_ref)
            o_ref[...] += x_ref[...]
            lock_ref[...] = 0

        scalar = pl.BlockSpec((), lambda i: ())

        def function(x):
            return pl.pallas_call(
                body,
                out_shape=[
                    jax.ShapeDtypeStruct((8, 16), x.dtype),
                    jax.ShapeDtypeStruct((), jnp.int32),
                ],
                grid=(4,),
                in_specs=[ROWS, SAME, scalar],
                out_specs=[SAME, scalar],
                input_output_aliases={1: 0, 2: 1},
            )(x, jnp.zeros((8, 16), x.dtype), jnp.int32(0))[0]

        assert "lock_ref" in {each.ref for each in on_gpu(function, X).findings}

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_loop_that_gives_up(self, seed):
        """No program frees the lock, and one that does not get it goes on without."""

        def body(_free, o_ref, lock_ref):
            def cond(state):
                tries, got = state
                return (tries < 9) & ~got

            def again(state):
                return state[0] + 1, plgpu.atomic_cas(lock_ref, 0, 1) == 0

            tries, got = jax.lax.while_loop(cond, again, (0, False))
            o_ref[...] = (tries * (1 - got.astype(jnp.int32))).reshape(1)

        scalar, one = pl.BlockSpec((), lambda i: ()), pl.BlockSpec((1,), lambda i: (i,))

        def function():
            return pl.pallas_call(
                body,
                out_shape=[
                    jax.ShapeDtypeStruct((3,), jnp.int32),
                    jax.ShapeDtypeStruct((), jnp.int32),
                ],
                grid=(3,),
                in_specs=[scalar],
                out_specs=[one, scalar],
                input_output_aliases={0: 1},
            )(jnp.int32(0))[0]

        found = on_gpu(function, seed=seed)
        assert sorted(found.values.tolist()) == [0, 9, 9]
        assert found.findings == ()

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_flag_that_another_program_sets(self, seed):
        """Program 1 waits by volatile loads; its atomic learns what program 0 did before."""

        def body(_zero, o_ref, flag_ref):
            @pl.when(pl.program_id(0) == 1)
            def _():
                o_ref[0] = 7
                plgpu.atomic_xchg(flag_ref, (0,), 1)

            @pl.when(pl.program_id(0) == 0)
            def _():
                def unset(_):
                    return plgpu.load(flag_ref.at[0], volatile=True) == 0

                # A loop whose result is not used and that writes nothing is removed by JAX.
                tries = jax.lax.while_loop(unset, lambda tries: tries + 1, 0)
                one = plgpu.atomic_add(flag_ref, (0,), 0)
                plgpu.atomic_add(flag_ref, (0,), one)
                o_ref[1] = o_ref[0] + (tries < 1000).astype(jnp.int32)

        whole = [pl.BlockSpec((2,), lambda i: (0,)), pl.BlockSpec((1,), lambda i: (0,))]

        def function():
            return pl.pallas_call(
                body,
                out_shape=[jax.ShapeDtypeStruct((n,), jnp.int32) for n in (2, 1)],
                grid=(2,),
                in_specs=[whole[1]],
                out_specs=whole,
                input_output_aliases={0: 1},
            )(jnp.zeros(1, jnp.int32))[0]

        found = on_gpu(function, seed=seed)
        assert found.values.tolist() == [7, 8]
        assert found.findings == ()

    @staticmethod
    def barrier(_zero, o_ref, count_ref, *, count):
        plgpu.atomic_add(count_ref, (0,), 1)

        def early(_):
            return plgpu.atomic_add(count_ref, (0,), 0) < count

        jax.lax.while_loop(early, lambda done: done, 0)
        o_ref[...] = jnp.ones_like(o_ref)

    def meeting(self, count):
        one = pl.BlockSpec((1,), lambda i: (0,))
        return pl.pallas_call(
            functools.partial(self.barrier, count=count),
            out_shape=[jax.ShapeDtypeStruct((n,), jnp.int32) for n in (count, 1)],
            grid=(count,),
            in_specs=[one],
            out_specs=[pl.BlockSpec((1,), lambda i: (i,)), one],
            input_output_aliases={0: 1},
            compiler_params=plgpu.CompilerParams(num_warps=32),
        )(jnp.zeros(1, jnp.int32))[0]

    def test_programs_that_all_meet_must_have_room_on_the_chip(self, monkeypatch):
        monkeypatch.setitem(GPUS, "h100", dataclasses.replace(GPUS["h100"], cores=2))
        assert on_gpu(lambda: self.meeting(4)).values.tolist() == [1] * 4
        with pytest.raises(DeadlockError) as caught:
            on_gpu(lambda: self.meeting(5))
        assert len(caught.value.findings[0].waits) == 4


class TestOrder:
    @staticmethod
    def numbered(_zero, o_ref, count_ref):
        o_ref[...] = jnp.full((1,), plgpu.atomic_add(count_ref, (0,), 1))

    def order(self, seed, count=16):
        one = pl.BlockSpec((1,), lambda i: (0,))

        def function():
            return pl.pallas_call(
                self.numbered,
                out_shape=[jax.ShapeDtypeStruct((n,), jnp.int32) for n in (count, 1)],
                grid=(count,),
                in_specs=[one],
                out_specs=[pl.BlockSpec((1,), lambda i: (i,)), one],
                input_output_aliases={0: 1},
            )(jnp.zeros(1, jnp.int32))[0]

        return on_gpu(function, seed=seed).values.tolist()

    def test_the_seed_decides_it(self):
        plain, first, again, other = (self.order(seed) for seed in (0, 1, 1, 2))
        assert plain == list(range(16))
        assert first == again
        assert sorted(first) == sorted(other) == plain
        assert len({*map(tuple, (plain, first, other))}) == 3

    def test_two_programs_change_places(self):
        assert {tuple(self.order(seed, 2)) for seed in (1, 2, 3)} == {(1, 0)}


class TestPlatforms:
    def test_a_kernel_for_tpus_is_refused(self):
        params = pltpu.CompilerParams(dimension_semantics=("parallel",))
        with pytest.raises(SimulationError, match=r"written for TPUs.*h100.*use tpu-sim"):
            on_gpu(lambda x: called(double, x, compiler_params=params), X)

    def test_a_kernel_for_triton_is_refused_on_a_tpu(self):
        params = plgpu.CompilerParams(num_warps=4)
        with pytest.raises(SimulationError, match=r"written for Triton.*v6e.*use gpu-sim"):
            simulate(lambda x: called(double, x, compiler_params=params), X, target="v6e")
        found = on_gpu(lambda x: called(double, x, compiler_params=params), X)
        np.testing.assert_array_equal(found.values, X * 2)

    @pytest.mark.parametrize(("target", "value"), [("h100", 1), ("v6e", 2), ("b200", 1)])
    def test_platform_dependent(self, target, value):
        def function():
            return jax.lax.platform_dependent(
                cuda=lambda: 1, tpu=lambda: 2, cpu=lambda: 3, default=lambda: 4
            )

        assert simulate(function, target=target).values == value

    def test_the_default_branch(self):
        def function():
            return jax.lax.platform_dependent(tpu=lambda: 2, default=lambda: 4)

        assert simulate(function, target="h100").values == 4


def test_a_watched_reference_and_a_timeline(tmp_path, capsys):
    path = tmp_path / "trace.json"
    found = on_gpu(lambda x: called(double, x), X, watch="o_ref", trace=path)
    assert [each.kind for each in found.watched] == ["new", "store"] * 4
    assert "double" in path.read_text()
    capsys.readouterr()


def test_memory_holds_what_the_machine_fills_it_with():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.sum(x_ref[...], axis=0, keepdims=True)

    row = pl.BlockSpec((1, 16), lambda i: (i, 0))
    machine = Machine(target="h100", fill=lambda dtype, place: 5 if place == "padding" else None)
    values = on_gpu(
        lambda x: called(body, x, shape=(3, 16), out=row), X[:20], machine=machine
    ).values
    np.testing.assert_array_equal(values[2], X[16:20].sum(0) + 20)
