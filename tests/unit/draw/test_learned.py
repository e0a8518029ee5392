"""Sizes around the blocks of a kernel, for dims about which a strategy says nothing."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from jax.experimental import pallas as pl

import pytest_pallas
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.draw.covering import Goal
from pytest_pallas.draw.dims import STEP, around, probing
from pytest_pallas.draw.examples import ExampleSource, choose
from pytest_pallas.record import Aspect
from pytest_pallas.run.backends import learned


def sizes(draws, strategy, name):
    return {drawn.recipe[name] for drawn in draws(strategy)}


def test_dims_without_sizes_are_drawn_around_learned_blocks(draws):
    strategy = around(pst.arrays("m n"), {"m": (128,)})
    assert {1, 127, 128, 129, 255, 256, 257} <= sizes(draws, strategy, "m")
    assert max(sizes(draws, strategy, "n")) < 20


@pytest.mark.parametrize("said", [{"around": {"m": 4}}, {"dims": {"m": [3, 5]}}])
def test_what_a_strategy_says_holds(draws, said):
    strategy = around(pst.arrays("m n", **said), {"m": (128,)})
    assert max(sizes(draws, strategy, "m")) < 20


def test_blocks_beyond_the_largest_allowed_size_are_forgotten(draws):
    strategy = around(pst.arrays("m n", max_dim=100), {"m": (128,)})
    assert max(sizes(draws, strategy, "m")) <= 100


def test_without_learned_blocks_the_same_sizes_are_drawn(draws):
    strategy = pst.arrays("m n")
    assert set(sizes(draws, around(strategy, {}), "m")) == set(sizes(draws, strategy, "m"))


def test_the_kinds_of_sizes_that_are_learned_can_be_missed():
    drawn = draw_once(around(pst.arrays("m n"), {"m": (128,)}))
    assert drawn.declared.kinds["m"][129] == "tile+1"
    assert draw_once(pst.arrays("m n")).declared.kinds["m"][17] == "prime"


class TestProbe:
    def test_arrays_are_abstract_and_their_dims_differ(self):
        with probing() as probe:
            x, w, b = draw_once(pst.arrays("m k, k n, n", dtype="float32")).args
        assert sorted(probe.sizes.values()) == [STEP, 2 * STEP, 3 * STEP]
        assert x.shape == (probe.sizes["m"], probe.sizes["k"])
        assert w.shape == (*x.shape[1:], *b.shape)
        assert isinstance(x, jax.ShapeDtypeStruct)

    def test_dims_with_sizes_keep_these(self):
        with probing() as probe:
            (x,) = draw_once(pst.arrays("m n", around={"n": 8})).args
        assert list(probe.sizes) == ["m"]
        assert x.shape == (STEP, 8)

    def test_sizes_obey_constraints(self):
        with probing() as probe:
            q, k = draw_once(pst.arrays("h q, g k; h = 4*g, k < q")).args
        assert q.shape[0] == 4 * k.shape[0]
        assert probe.sizes["k"] < probe.sizes["q"]

    def test_what_is_drawn_afterwards_is_real(self):
        strategy = pst.arrays("m n")
        with probing():
            draw_once(strategy)
        assert draw_once(strategy).args[0].nbytes


class TestLongAxes:
    """An axis of more elements than 16 bits count, where few programs and no loop make it cheap."""

    @staticmethod
    def long(function, inputs=None):
        inputs = pst.arrays("m n", dtype="float32") if inputs is None else inputs
        spec = KernelSpec(name="x", kernel=function, reference=function, inputs=inputs)
        return learned(spec, inputs, None)[2]

    def test_one_example_is_long_and_not_among_the_first(self):
        for seed in range(3):
            strategy = around(pst.arrays("m n", around={"n": 1024}), {}, ("n", 2**16))
            calls = [*choose(strategy, seed=seed, examples=32).values()]
            [position] = [at for at, call in enumerate(calls) if call.recipe["n"] > 2**16]
            assert position > 5
            recipe = calls[position].recipe
            assert (recipe["m"], recipe["n"]) == (1, 2**16 + 513)
            assert set(calls[position].declared.kinds["n"].values()) >= {"tile+1", "2 tiles"}

    @pytest.mark.parametrize(
        ("arguments", "size"),
        [
            ({"multiple_of": {"n": 1024}}, 2**16 + 1024),
            ({"max_dim": 2048}, None),
            ({"max_elements": 2**16}, None),
            ({"dims": {"n": [8, 16]}}, None),
        ],
    )
    def test_what_the_strategy_says_holds(self, arguments, size):
        strategy = around(pst.arrays("m n", **arguments), {}, ("n", 2**16), stretches=True)
        drawn = draw_once(strategy).recipe["n"]
        assert drawn == size if size else drawn <= 2048

    def test_constraints_hold(self):
        strategy = around(pst.arrays("m n; n <= m"), {}, ("n", 2**16), stretches=True)
        drawn = draw_once(strategy)
        assert drawn.recipe["n"] <= drawn.recipe["m"] < 2**16

    def test_kernels_of_few_programs_without_loops_are_cheap(self):
        def tiled(rows, columns):
            def kernel(x):
                block = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
                grid = (pl.cdiv(x.shape[0], rows), pl.cdiv(x.shape[1], columns))
                return pl.pallas_call(double, x, grid=grid, in_specs=[block], out_specs=block)(x)

            return kernel

        def double(x, out):
            out[...] = x[...] * 2

        def rows(x, out):
            def step(i, _):
                out[i] = x[i]

            jax.lax.fori_loop(0, x.shape[0], step, None)

        assert self.long(tiled(8, 2048)) == ("n", 2**16)
        assert self.long(tiled(8, 128)) is None
        assert self.long(tiled(1024, 128)) == ("m", 2**16)
        assert self.long(lambda x: pl.pallas_call(double, x)(x)) == ("n", 2**16)
        assert self.long(lambda x: pl.pallas_call(rows, x)(x)) is None

    def test_a_long_column_takes_much_of_a_tpus_memory(self):
        """A row of one element takes a register of 128 lanes."""

        def double(x, out):
            out[...] = x[...] * 2

        inputs = pst.arrays("m 1", dtype="float32")
        assert self.long(lambda x: pl.pallas_call(double, x)(x), inputs) is None

    def test_a_python_loop_over_the_rows_is_not_unrolled_thousands_of_times(self):
        traced = []

        def unrolled(x):
            def body(x_ref, o_ref):
                for start in range(0, x.shape[0], 8):
                    o_ref[start : start + 8] = x_ref[start : start + 8]

            traced.append(x.shape[0])
            return pl.pallas_call(body, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        assert self.long(unrolled, pst.arrays("m 8", dtype="float32")) is None
        assert max(traced) == STEP

    def test_an_index_of_16_bits_dies(self):
        def double(x, out):
            first = pl.program_id(0).astype(jnp.int16) * jnp.int16(2048)
            at = jnp.arange(2048, dtype=jnp.int16) + first
            out[...] = jnp.where(at >= 0, x[...] * 2, 0)

        def kernel(x):
            block = pl.BlockSpec((2048,), lambda i: (i,))
            grid = pl.cdiv(x.shape[0], 2048)
            return pl.pallas_call(double, x, grid=(grid,), in_specs=[block], out_specs=block)(x)

        def reference(x):
            return x * 2

        inputs = pst.arrays("n", dtype="float32")
        spec = KernelSpec(name="short", kernel=kernel, reference=reference, inputs=inputs)
        with pytest.raises(pytest_pallas.MismatchError, match=r"float32\[65\d\d\d\]"):
            pytest_pallas.check(spec, checks=["forward"], backend="tpu-sim")

    @pytest.mark.parametrize("dtype", [jnp.int16, jnp.int32])
    def test_an_index_that_ends_with_fewer_rows_dies(self, dtype):
        """The number of an element, of rows of 128: 16 bits end at row 256."""

        def doubled(x):
            def body(x_ref, o_ref):
                def step(row, start):
                    at = start + jax.lax.broadcasted_iota(dtype, (1, 128), 1)
                    o_ref[pl.ds(row, 1)] = jnp.where(at >= 0, x_ref[pl.ds(row, 1)] * 2, 0)
                    return start + dtype(128)

                jax.lax.fori_loop(0, x.shape[0], step, dtype(0))

            return pl.pallas_call(body, x)(x)

        inputs = pst.arrays("m 128", dtype="float32")
        assert self.long(doubled, inputs) == (("m", 256) if dtype == jnp.int16 else None)
        spec = KernelSpec(name="flat", kernel=doubled, reference=lambda x: x * 2, inputs=inputs)
        with contextlib.ExitStack() as stack:
            if dtype == jnp.int16:
                stack.enter_context(pytest.raises(pytest_pallas.MismatchError, match=">= 256 of"))
            pytest_pallas.check(spec, checks=["forward"], backend="tpu-sim")


def doubled_by_blocks(x, *, block, wrong=0):
    """Twice x, or one more from the second block on if the block is wrong."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2 + (pl.program_id(0) > 0) * (block == wrong)

    spec = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (pl.cdiv(x.shape[0], block),)
    return pl.pallas_call(body, shape, grid=grid, in_specs=[spec], out_specs=spec)(x)


def tuned(wrong=0):
    """A spec of ``doubled_by_blocks`` whose blocks are drawn."""

    def kernel(x, *, block):
        return doubled_by_blocks(x, block=block, wrong=wrong)

    inputs = pst.arguments(
        pst.arrays("m n", dtype="float32"), tuning={"block": st.sampled_from([8, 16, 128])}
    )
    return KernelSpec(name="tuned", kernel=kernel, reference=lambda x: 2 * x, inputs=inputs)


def test_the_largest_block_of_tuning_is_learned():
    spec = tuned()
    assert learned(spec, spec.inputs, None)[0] == {"m": (8, 128)}


@pytest.mark.parametrize("wrong", [8, 16, 128])
def test_each_block_of_tuning_is_exceeded(wrong):
    with pytest.raises(pytest_pallas.MismatchError, match=f"block={wrong}"):
        pytest_pallas.check(tuned(wrong), checks=["forward"], backend="tpu-sim")


def test_an_example_has_the_choices_that_it_is_to_have():
    """Hypothesis begins with the simplest example, whatever the plan is."""
    source = ExampleSource(tuned().inputs)
    block = Aspect("tuning", "block")
    drawn, _ = source.aimed(0, Goal({"m": 1, "n": 1}, {block: "128"}))
    assert drawn.tuning == {"block": 128}
