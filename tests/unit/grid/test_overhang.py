"""Blocks beyond the edge of an array, reduced over without a mask: and with one."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu
from pallas_test_support.grid_kernels import F32, Shape, call, kinds, only

#: 40 columns in blocks of 16: the last block has 8.
X = Shape((8, 40), F32)
LENGTH, BLOCK = 40, 16


def columns(body, *, scratch=(), x=X, dtype=F32, grid=(3,)):
    """``body(x_ref, o_ref, *scratch)`` over blocks of columns, into one block (8, 16)."""

    def function(*arrays):
        return pl.pallas_call(
            body,
            grid=grid,
            in_specs=[pl.BlockSpec((8, BLOCK), lambda k: (0, k)) for _ in arrays],
            out_specs=pl.BlockSpec((8, BLOCK), lambda k: (0, 0)),
            out_shape=Shape((8, BLOCK), dtype),
            scratch_shapes=scratch,
        )(*arrays)

    return function


def inside(shape=(8, BLOCK), axis=1):
    place = pl.program_id(0) * BLOCK + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    return place < LENGTH


def last():
    return pl.program_id(0) == pl.num_programs(0) - 1


WRONG = {}
RIGHT = {}


def wrong(body):
    WRONG[body.__name__] = body
    return body


def right(body):
    RIGHT[body.__name__] = body
    return body


@wrong
def sums(x_ref, o_ref):
    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)


@wrong
def sums_beside_an_operation_without_results(x_ref, o_ref):
    pl.debug_print("{}", jnp.sum(x_ref[...]))
    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)


@wrong
def maximum(x_ref, o_ref):
    o_ref[...] = jnp.maximum(o_ref[...], jnp.max(x_ref[...], axis=1, keepdims=True))


@wrong
def product(x_ref, o_ref):
    o_ref[...] += jax.lax.dot_general(x_ref[...], jnp.ones((16, BLOCK)), (((1,), (0,)), ((), ())))


@wrong
def weighted_by_zero(x_ref, o_ref):
    o_ref[...] += jnp.sum(x_ref[...] * inside().astype(F32), axis=1, keepdims=True)


@wrong
def after_arithmetic(x_ref, o_ref):
    x = jnp.exp(x_ref[...] - 1.0).T.reshape(BLOCK, 8, 1)
    o_ref[...] += jnp.sum(x, axis=(0, 2))[:, None]


@wrong
def masked_by_itself(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] += jnp.sum(jnp.where(x > 0, x, 0.0), axis=1, keepdims=True)


@wrong
def in_a_branch(x_ref, o_ref):
    @pl.when(last())
    def _():
        sums(x_ref, o_ref)


@wrong
def in_a_loop(x_ref, o_ref):
    def add(_, total):
        return total + jnp.sum(x_ref[...], axis=1, keepdims=True)

    o_ref[...] += jax.lax.fori_loop(0, 4, add, jnp.zeros((8, 1)))


@wrong
def in_a_function(x_ref, o_ref):
    o_ref[...] += jax.jit(lambda x: jax.nn.softmax(x, axis=1))(x_ref[...])


@wrong
def in_a_scope(x_ref, o_ref):
    def scoped(kept_ref):
        kept_ref[...] = x_ref[...]
        o_ref[...] += jnp.sum(kept_ref[...], axis=1, keepdims=True)

    pl.run_scoped(scoped, pltpu.VMEM((8, BLOCK), F32))


@wrong
def from_the_other_end(x_ref, o_ref):
    o_ref[...] += jax.lax.cumsum(x_ref[...], axis=1, reverse=True)


@wrong
def for_the_wrong_program(x_ref, o_ref):
    x = jnp.where(pl.program_id(0) == 0, 0.0, x_ref[...])
    o_ref[...] += jnp.sum(x, axis=1, keepdims=True)


@right
def masked(x_ref, o_ref):
    o_ref[...] += jnp.sum(jnp.where(inside(), x_ref[...], 0), axis=1, keepdims=True)


@right
def masked_in_the_last_program(x_ref, o_ref):
    @pl.when(last())
    def _():
        masked(x_ref, o_ref)

    @pl.when(jnp.logical_not(last()))
    def _():
        sums(x_ref, o_ref)


@right
def masked_sum_chosen(x_ref, o_ref):
    x = x_ref[...]
    some = jnp.sum(jnp.where(inside(), x, 0), axis=1, keepdims=True)
    o_ref[...] += jnp.where(last(), some, jnp.sum(x, axis=1, keepdims=True))


@right
def masked_by_lax_cond(x_ref, o_ref):
    x = jax.lax.cond(last(), lambda x: jnp.where(inside(), x, 0), lambda x: x, x_ref[...])
    o_ref[...] += jnp.sum(x, axis=1, keepdims=True)


@right
def masked_in_place(x_ref, o_ref):
    x_ref[...] = jnp.where(inside(), x_ref[...], 0)
    sums(x_ref, o_ref)


@right
def tail_cleared_in_place(x_ref, o_ref):
    @pl.when(last())
    def _():
        x_ref[:, LENGTH % BLOCK :] = jnp.zeros((8, BLOCK - LENGTH % BLOCK))

    sums(x_ref, o_ref)


@right
def only_what_is_there(x_ref, o_ref):
    @pl.when(last())
    def _():
        o_ref[...] += jnp.sum(x_ref[:, : LENGTH % BLOCK], axis=1, keepdims=True)

    @pl.when(pl.program_id(0) < 2)
    def _():
        sums(x_ref, o_ref)


@right
def over_rows(x_ref, o_ref):
    o_ref[...] = jnp.sum(x_ref[...], axis=0, keepdims=True) + jnp.zeros((8, BLOCK))


@right
def cumulative(x_ref, o_ref):
    o_ref[...] = jax.lax.cumsum(x_ref[...], axis=1)


@right
def sum_that_is_not_kept(x_ref, o_ref):
    total = jnp.sum(x_ref[...], axis=1, keepdims=True)
    o_ref[...] = jnp.where(inside(), x_ref[...], 0) + jnp.where(last(), 0, total)


@right
def as_far_as_it_goes(x_ref, o_ref):
    def add(i, total):
        return total + jnp.sum(x_ref[:, pl.ds(8 * i, 8)], axis=1, keepdims=True)

    steps = jnp.minimum(2, (LENGTH - pl.program_id(0) * BLOCK) // 8)
    o_ref[...] += jax.lax.fori_loop(0, steps, add, jnp.zeros((8, 1)))


@right
def copied_over(x_ref, o_ref):
    def scoped(kept_ref):
        kept_ref[...] = x_ref[...]
        kept_ref[...] = jnp.where(inside(), kept_ref[...], 0)
        o_ref[...] += jnp.sum(kept_ref[...], axis=1, keepdims=True)

    pl.run_scoped(scoped, pltpu.VMEM((8, BLOCK), F32))


@pytest.mark.parametrize("name", list(WRONG))
def test_found(name):
    finding = only(columns(WRONG[name]), X)
    assert (finding.kind, finding.operand, finding.programs) == ("overhang", "x_ref", ((2,),))
    assert "axis 1 of the array has 40 elements" in finding.message
    assert "test_overhang.py:" in finding.message or "cumsum" in name
    assert "broadcasted_iota" in finding.remedy


@pytest.mark.parametrize("name", list(RIGHT))
def test_not_found(name):
    assert kinds(columns(RIGHT[name]), X) == []


@pytest.mark.parametrize("name", list(WRONG))
def test_blocks_that_fit_are_never_found(name):
    assert kinds(columns(WRONG[name]), Shape((8, 48), F32)) == []


def test_zero_times_an_integer_is_zero():
    def body(x_ref, o_ref):
        o_ref[...] += jnp.sum(x_ref[...] * inside().astype(jnp.int32), axis=1, keepdims=True)

    assert kinds(columns(body, dtype=jnp.int32), Shape((8, 40), jnp.int32)) == []


def test_a_product_of_one_masked_operand():
    def body(mask):
        def inner(x_ref, y_ref, o_ref):
            x, y = x_ref[...], y_ref[...]
            x = jnp.where(inside(), x, 0)
            y = jnp.where(inside(), y, 0) if mask else y
            o_ref[:, :8] += jax.lax.dot_general(x, y, (((1,), (1,)), ((), ())))

        return columns(inner)

    assert kinds(body(mask=False), X, X) == [("overhang", "y_ref")]
    assert kinds(body(mask=True), X, X) == []


def test_a_mask_that_is_an_operand():
    def body(x_ref, mask_ref, o_ref):
        x = jnp.where(mask_ref[...] != 0, x_ref[...], 0)
        o_ref[...] += jnp.sum(x, axis=1, keepdims=True)

    def function(x, mask):
        spec = ((8, BLOCK), lambda k: (0, k))
        return call(body, (3,), [spec, spec], ((8, BLOCK), lambda k: (0, 0)), (8, BLOCK))(x, mask)

    # 48 columns of the mask: none beyond the edge.
    assert kinds(function, X, Shape((8, 48), jnp.int32)) == []


def test_padding_of_windows_in_elements():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 0 + jnp.sum(x_ref[...], axis=0, keepdims=True)

    def function(padding):
        def inner(x):
            spec = ((pl.Element(8, padding), pl.Element(128)), lambda i: (i * 8, 0))
            return call(body, (8 + sum(padding) // 8,), [spec], ((8, 128), lambda i: (i, 0)),
                        (64 + sum(padding), 128))(x)  # fmt: skip

        return inner

    assert kinds(function((0, 0)), Shape((64, 128), F32)) == []
    finding = only(function((4, 4)), Shape((64, 128), F32))
    assert finding.programs == ((0,), (8,))


def test_a_masked_load():
    def body(mask):
        def inner(x_ref, o_ref):
            x = plgpu.load(x_ref, mask=inside() if mask else None, other=0.0 if mask else None)
            o_ref[...] = jnp.sum(x, axis=1, keepdims=True) + jnp.zeros((8, BLOCK))

        def function(x):
            specs = ((8, BLOCK), lambda k: (0, k)), ((8, BLOCK), lambda k: (k, 0))
            return call(inner, (3,), specs[:1], specs[1], (24, BLOCK))(x)

        return function

    assert kinds(body(mask=True), X) == []
    assert kinds(body(mask=False), X) == [("overhang", "x_ref")]


def test_a_guard_by_a_length_that_is_prefetched():
    def body(count_ref, x_ref, o_ref):
        @pl.when(pl.program_id(0) < count_ref[0])
        def _():
            sums(x_ref, o_ref)

    def function(count, x):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, BLOCK), lambda k, count: (0, k))],
            out_specs=pl.BlockSpec((8, BLOCK), lambda k, count: (0, 0)),
        )
        return pl.pallas_call(body, grid_spec=spec, out_shape=Shape((8, BLOCK), F32))(count, x)

    counted = lambda n: jnp.array([n], jnp.int32)  # noqa: E731
    assert kinds(function, counted(2), X) == []
    assert kinds(function, counted(3), X) == [("overhang", "x_ref")]
    assert kinds(function, Shape((1,), jnp.int32), X) == []


def test_a_dim_of_vmap_is_not_counted_by_the_body():
    batch = Shape((3, 8, 40), F32)
    assert kinds(jax.vmap(columns(sums)), batch) == [("overhang", "x_ref")]
    assert kinds(jax.vmap(columns(masked)), batch) == []
    assert kinds(jax.vmap(columns(masked_in_the_last_program)), batch) == []
