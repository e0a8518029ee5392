"""Each operator makes the mistake that it is named after, and what it makes runs."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from pallas_test_support.mutated import VMEM, X, found, kernel, one, ran, traced

from pallas_sim.dtypes import epsilon
from pallas_sim.errors import KernelError, OptionError
from pytest_pallas import DmaError
from pytest_pallas.mutate import (
    added_operators,
    declared_operators,
    known_operators,
    model,
    mutants_of,
    operator,
)

COLUMNS = 100


def _columns(shape):
    return jax.lax.broadcasted_iota(jnp.int32, shape, 1)


def _answer(body, *args, operator, change, part="", **more):
    """What a kernel answers with its only mutant of a kind."""
    call = kernel(body, (8, 128), **more)
    mutant = one(call, *args, operator=operator, change=change, part=part)
    return ran(call, *args, mutant=mutant).unwrap()


def test_every_operator_says_what_it_is():
    names = [each.name for each in declared_operators()]
    assert len(set(names)) == len(names)
    for each in declared_operators():
        assert each.mistake
        assert each.before != each.after


def test_every_public_function_of_their_modules_is_declared():
    functions = {
        f"{path.stem}.{node.name}"
        for path in Path(model.__file__).parent.glob("*_operators.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    declared = [each.function for each in declared_operators()]
    names = [f"{each.__module__.rpartition('.')[2]}.{each.__name__}" for each in declared]
    assert sorted(names) == sorted(functions)


def _dropped(name):
    return operator(name, mistake="it is left out", before="x + 1", after="x")(lambda at: iter(()))


def test_operators_are_added_for_a_while():
    before = known_operators()
    dropped = _dropped("dropped")
    with added_operators([dropped]):
        assert known_operators() == (*before, dropped)
    assert known_operators() == before


def test_two_operators_of_one_name():
    before = known_operators()
    with (
        pytest.raises(OptionError, match="two mutation operators of the name 'mask'"),
        added_operators([_dropped("dropped"), _dropped("mask")]),
    ):
        pass
    assert known_operators() == before


@pytest.mark.parametrize(
    ("change", "kept"), [("lt -> le", COLUMNS + 1), ("lt -> ge", slice(COLUMNS, None))]
)
def test_comparison(change, kept):
    def body(x_ref, o_ref):
        o_ref[...] = jnp.where(_columns((8, 128)) < COLUMNS, x_ref[...], 0.0)

    kept = slice(None, kept) if isinstance(kept, int) else kept
    wanted = np.zeros_like(X)
    wanted[:, kept] = X[:, kept]
    answer = _answer(body, X, operator="comparison", change=change)
    np.testing.assert_array_equal(answer, wanted)


def test_floats_are_compared_the_other_way_only():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.where(x_ref[...] > 3.0, x_ref[...], 0.0)

    assert found(kernel(body, (8, 128)), X, operators=("comparison",)) == ["comparison: gt -> le"]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("dropped", X),
        ("inverted", np.where(np.arange(128) < COLUMNS, np.float32(0), X)),
    ],
)
def test_mask(change, wanted):
    def body(x_ref, o_ref):
        o_ref[...] = jnp.where(_columns((8, 128)) < COLUMNS, x_ref[...], 0.0)

    np.testing.assert_array_equal(_answer(body, X, operator="mask", change=change), wanted)


def _loads(x_ref, o_ref, *, chosen=False, other=0.0, cast=None):
    """Load the first columns, and choose them again."""
    mask = _columns((8, 128)) < COLUMNS
    x = plgpu.load(x_ref, mask=mask, other=other).astype(cast or jnp.float32)
    o_ref[...] = (jnp.where(mask, x, 0.0) if chosen else x).astype(jnp.float32)


MASKED = np.where(np.arange(128) < COLUMNS, X, np.float32(0))


@pytest.mark.parametrize(
    ("options", "change", "part", "wanted"),
    [
        # Without its mask, a load has no other numbers, either.
        ({}, "dropped", "", X),
        ({"chosen": True}, "dropped", "masked_load mask", MASKED),
        ({"chosen": True}, "dropped", "with the load's mask", X),
        ({"chosen": True, "cast": jnp.bfloat16}, "dropped", "with the load's mask", X),
        # Other numbers in the load: what is chosen again differs, and is left out alone.
        ({"chosen": True, "other": 7.0}, "dropped", "select_n", np.where(MASKED == X, X, 7)),
    ],
)
def test_a_mask_of_a_load_is_dropped_with_other(options, change, part, wanted):
    body = functools.partial(_loads, **options)
    mutants = mutants_of(traced(kernel(body, (8, 128)), X), ("mask",))
    [mutant] = [m for m in mutants if m.change == change and part in m.part]
    np.testing.assert_allclose(
        ran(kernel(body, (8, 128)), X, mutant=mutant).unwrap(), wanted, rtol=2**-7
    )


def test_and_for_or():
    def body(x_ref, o_ref):
        columns = _columns((8, 128))
        o_ref[...] = jnp.where((columns > 2) & (columns < 5), x_ref[...], 0.0)

    answer = _answer(body, X, operator="mask", change="and -> or")
    np.testing.assert_array_equal(answer, X)


def _summing(x_ref, o_ref):
    step = pl.program_id(0)

    @pl.when(step == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


SUMMED = {
    "grid": (4,),
    "blocks": [pl.BlockSpec((8, 128), lambda k: (0, k))],
    "out_block": pl.BlockSpec((8, 128), lambda k: (0, 0)),
}
WIDE = np.arange(8 * 512, dtype=np.float32).reshape(8, 512)
PARTS = [WIDE[:, 128 * k : 128 * (k + 1)] for k in range(4)]


@pytest.mark.parametrize(
    ("operator", "change", "part", "wanted"),
    [
        ("guard", "always", "", PARTS[3]),
        ("guard", "never", "", np.full_like(X, np.nan)),
        ("guard", "of the next index", "", sum(PARTS[1:])),
        ("init", "dropped", "", np.full_like(X, np.nan)),
        ("step", "the last dropped", "", sum(PARTS[:3])),
        ("step", "the first dropped", "", np.full_like(X, np.nan)),
        ("index_map", "constant", "x_ref", 4 * PARTS[0]),
        ("index_map", "one further", "x_ref", sum(PARTS)),
        ("arithmetic", "add -> sub", "", -sum(PARTS)),
    ],
)
def test_a_sum_over_a_grid(operator, change, part, wanted):
    answer = _answer(_summing, WIDE, operator=operator, change=change, part=part, **SUMMED)
    np.testing.assert_array_equal(answer, wanted)


def test_the_partial_block_is_dropped_only_where_there_is_one():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    def call(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(pl.cdiv(x.shape[0], 8),),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        )(x)

    odd, even = WIDE.reshape(-1, 128)[:20], WIDE.reshape(-1, 128)[:16]
    assert not found(call, even, operators=("overhang",))
    mutant = one(call, odd, operator="overhang", change="the partial block dropped")
    answer = ran(call, odd, mutant=mutant).unwrap()
    np.testing.assert_array_equal(answer[:16], odd[:16] + 1)
    assert not np.equal(answer[16:], odd[16:] + 1).any()


@pytest.mark.parametrize("kept", [True, False], ids=["of a column", "of the last column"])
def test_a_last_step_that_writes_everything_may_be_done_always(kept):
    """Unless each step has a block of its own, which keeps what was written too early."""

    def body(x_ref, o_ref, total):
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x_ref[...]

        @pl.when(step == 3)
        def _():
            o_ref[...] = total[...]

    block = (lambda k: (0, 0)) if kept else (lambda k: (0, k))
    call = kernel(
        body,
        (8, 128 if kept else 512),
        grid=(4,),
        blocks=[pl.BlockSpec((8, 128), lambda k: (0, k))],
        out_block=pl.BlockSpec((8, 128), block),
        scratch=[VMEM],
    )
    changes = found(call, WIDE, operators=("guard",))
    assert changes.count("guard: never") == 2
    assert changes.count("guard: always") == (1 if kept else 2)


@pytest.mark.parametrize(("change", "factor"), [("dropped", 1.0), ("squared", 0.25)])
def test_scale(change, factor):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 0.5

    answer = _answer(body, X, operator="scale", change=change)
    np.testing.assert_array_equal(answer, X * np.float32(factor))


def test_a_product_of_two_arrays_has_no_scale():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * x_ref[...]

    assert not found(kernel(body, (8, 128)), X, operators=("scale",))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("operands swapped", lambda x, y: y @ x),
        ("the left operand transposed", lambda x, y: x.T @ y),
        ("the right operand transposed", lambda x, y: x @ y.T),
    ],
)
def test_product(change, wanted):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], precision="highest")

    rng = np.random.default_rng(0)
    x, y = rng.integers(-4, 5, (2, 128, 128)).astype(np.float32)
    call = kernel(body, (128, 128))
    answer = ran(call, x, y, mutant=one(call, x, y, operator="product", change=change)).unwrap()
    np.testing.assert_array_equal(answer, wanted(x, y))


def test_the_axis_summed_over_is_changed_only_where_the_shapes_allow_it():
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...])

    y = np.ones((128, 256), np.float32)
    assert not found(kernel(body, (8, 256)), X, y, operators=("product",))


def test_accumulation():
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    x, y = np.full((8, 128), 1.01, np.float32), np.full((128, 128), 1.0, np.float32)
    call = kernel(body, (8, 128))
    mutant = one(call, x, y, operator="accumulation", change="float32 -> bfloat16")
    right, wrong = ran(call, x, y).unwrap(), ran(call, x, y, mutant=mutant).unwrap()
    error = np.abs(right - wrong).max() / np.abs(right).max()
    assert 0 < error <= epsilon(jnp.bfloat16.dtype)


def test_cast():
    def body(x_ref, o_ref):
        o_ref[...] = (x_ref[...] - 1.0).astype(jnp.bfloat16).astype(jnp.float32)

    x = np.full((8, 128), 1 + 2**-7 + 2**-9, np.float32)
    answer = _answer(body, x, operator="cast", change="to bfloat16 before sub")
    np.testing.assert_array_equal(answer, x.astype(jnp.bfloat16).astype(np.float32) - 1)


def test_a_cast_before_a_product_is_no_mistake():
    """It is a rounding more, which no judgement of rounded answers can tell."""

    def body(x_ref, o_ref):
        o_ref[...] = (x_ref[...] * x_ref[...]).astype(jnp.bfloat16).astype(jnp.float32)

    assert not found(kernel(body, (8, 128)), X, operators=("cast",))


def _slots(x_ref, o_ref, scratch):
    for row in range(8):
        scratch[row] = x_ref[row] * (row + 1.0)
    for row in range(8):
        o_ref[row] = scratch[row]


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("load", np.roll(X * np.arange(1, 9, dtype=np.float32)[:, None], -1, 0)),
        ("store", np.roll(X * np.arange(1, 9, dtype=np.float32)[:, None], 1, 0)),
    ],
)
def test_neighbouring_slots(operator, wanted):
    call = kernel(_slots, (8, 128), scratch=[VMEM])
    # Both loops are a line each; the first is the one that loads from x, or stores to scratch.
    mutants = [m for m in mutants_of(traced(call, X), (operator,)) if m.change == "the next slot"]
    chosen = mutants[-1 if operator == "load" else 0]
    answer = ran(call, X, mutant=chosen).unwrap()
    np.testing.assert_array_equal(answer, wanted)


def test_a_store_is_dropped():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    assert np.isnan(_answer(body, X, operator="store", change="dropped")).all()


def _copying(x_ref, o_ref, sems):
    first = pltpu.make_async_copy(x_ref.at[0:4], o_ref.at[0:4], sems.at[0])
    second = pltpu.make_async_copy(x_ref.at[4:8], o_ref.at[4:8], sems.at[1])
    first.start()
    second.start()
    first.wait()
    second.wait()


@pytest.mark.parametrize(
    ("operator", "change", "error"),
    [("wait", "dropped", DmaError), ("start", "dropped", KernelError)],
)
def test_copies(operator, change, error):
    call = kernel(
        _copying,
        (8, 128),
        scratch=[pltpu.SemaphoreType.DMA((2,))],
        blocks=[pl.BlockSpec(memory_space=pl.ANY)],
        out_block=pl.BlockSpec(memory_space=pl.ANY),
    )
    mutants = mutants_of(traced(call, X), (operator,))
    assert len(mutants) == 2
    for mutant in mutants:
        assert mutant.change == change
        assert isinstance(ran(call, X, mutant=mutant).error, error)


def test_shared_semaphores_are_of_the_slot_that_is_not_the_first():
    call = kernel(
        _copying,
        (8, 128),
        scratch=[pltpu.SemaphoreType.DMA((2,))],
        blocks=[pl.BlockSpec(memory_space=pl.ANY)],
        out_block=pl.BlockSpec(memory_space=pl.ANY),
    )
    mutants = found(call, X, operators=("semaphore",))
    assert set(mutants) == {"semaphore: the first for all"}


def test_an_alias_is_removed():
    def body(x_ref, o_ref, sem):
        copy = pltpu.make_async_copy(x_ref.at[0:4], o_ref.at[4:8], sem)
        copy.start()
        copy.wait()

    call = kernel(
        body,
        (8, 128),
        input_output_aliases={0: 0},
        scratch=[pltpu.SemaphoreType.DMA],
        blocks=[pl.BlockSpec(memory_space=pl.ANY)],
        out_block=pl.BlockSpec(memory_space=pl.ANY),
    )
    mutant = one(call, X, operator="alias", change="removed")
    right, wrong = ran(call, X).unwrap(), ran(call, X, mutant=mutant).unwrap()
    np.testing.assert_array_equal(right, np.concatenate([X[:4], X[:4]]))
    np.testing.assert_array_equal(wrong[4:], X[:4])
    assert np.isnan(wrong[:4]).all()


def _sums(blocks, index_map):
    """``x + y`` by blocks, of which those of ``y`` come in another order."""

    def body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    def call(x, y):
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(blocks,),
            in_specs=[block, pl.BlockSpec((8, 128), index_map)],
            out_specs=block,
        )(x, y)

    return call, np.ones((8 * blocks, 128), np.float32)


def test_an_alias_is_added_only_where_blocks_are_not_the_same():
    call, x = _sums(2, lambda i: (1 - i, 0))
    [mutant] = found(call, x, x, operators=("alias",))
    assert mutant == "alias: added"
    assert one(call, x, x, operator="alias", change="added").part == "input 1 output 0"


def test_no_alias_is_added_where_the_only_block_is_the_same():
    """On a grid of one program ``i`` is 0, whatever the dtype of a literal 0."""
    call, x = _sums(1, lambda i: (0, 0))
    assert found(call, x, x, operators=("alias",)) == []


def test_random_bits_are_reused():
    def body(key_ref, o_ref):
        pltpu.prng_seed(key_ref[0], pl.program_id(0))
        o_ref[...] = jnp.zeros_like(o_ref)

    call = kernel(
        body,
        (16, 128),
        grid=(2,),
        blocks=[pl.BlockSpec(memory_space=pltpu.SMEM)],
        out_block=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )
    assert found(call, np.zeros(1, np.int32), operators=("random",)) == [
        "random: without one of its numbers",
        "random: without one of its numbers",
    ]
