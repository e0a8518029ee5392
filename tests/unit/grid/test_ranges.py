"""Positions in narrow integers: where they wrap around."""

import functools
import random

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from pallas_sim.traces import KernelConditions, equations_inside
from pytest_pallas import GridError, KernelSpec, analyze, check
from pytest_pallas import strategies as pst

B = 128


def positions(x, at):
    """Store what ``at`` computes of the number of the program."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + at(pl.program_id(0)).astype(jnp.float32)

    block = pl.BlockSpec((1, B), lambda i: (0, i))
    grid = (pl.cdiv(x.shape[1], B),)
    return pl.pallas_call(body, grid=grid, in_specs=[block], out_specs=block, out_shape=x)(x)


def columns(dtype):
    return jax.lax.broadcasted_iota(jnp.int32, (1, B), 1).astype(dtype)


def looped(i, dtype, body):
    zero = jnp.zeros((1, B), dtype)
    return jax.lax.fori_loop(0, 300, lambda j, total: total + body(i, j).astype(dtype), zero)


WRAPPING = {
    "product": lambda i: (i * B).astype(jnp.int16) + columns(jnp.int16),
    "sum": lambda i: (i * 127).astype(jnp.int16) + columns(jnp.int16),
    "in int16": lambda i: i.astype(jnp.int16) * jnp.int16(B) + columns(jnp.int16),
    "uint16": lambda i: (2 * i * B).astype(jnp.uint16),
    "int8": lambda i: i.astype(jnp.int8),
    "branch": lambda i: jnp.where(i > 2, (i * B).astype(jnp.int16), jnp.int16(0)),
    "loop": lambda i: looped(i, jnp.int16, lambda i, j: (i + j).astype(jnp.int8)),
    "minus": lambda i: (-2 * B * i).astype(jnp.int16),
    "shift": lambda i: (i << 7).astype(jnp.int16),
}
HOLDING = {
    "int32": lambda i: i * B + columns(jnp.int32),
    "small": lambda i: i.astype(jnp.int16),
    "rest": lambda i: (i * B % 1024).astype(jnp.int16),
    "bits": lambda i: (i & 127).astype(jnp.int8),
    "least": lambda i: jnp.minimum(i * B, 30_000).astype(jnp.int16),
    "clipped": lambda i: jnp.clip(i, 0, 100).astype(jnp.int8),
    "quotient": lambda i: (i * B // 64).astype(jnp.int16),
    "loop": lambda i: looped(i, jnp.int32, lambda i, j: (i + j).astype(jnp.int16)),
}


def kinds(function, columns):
    return [
        one.kind
        for one in analyze(function, jax.ShapeDtypeStruct((1, columns), "float32")).findings
    ]


@pytest.mark.parametrize("at", WRAPPING.values(), ids=WRAPPING)
def test_a_position_that_wraps_around(at):
    assert "overflow" in kinds(functools.partial(positions, at=at), 300 * B)


@pytest.mark.parametrize("at", HOLDING.values(), ids=HOLDING)
def test_a_position_that_does_not(at):
    assert kinds(functools.partial(positions, at=at), 300 * B) == []


def test_a_position_that_an_index_map_computes():
    def doubled(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] * 2

        def first(i):
            return 0, (i.astype(jnp.int16) * jnp.int16(B) // jnp.int16(B)).astype(jnp.int32)

        here, there = pl.BlockSpec((1, B), first), pl.BlockSpec((1, B), lambda i: (0, i))
        grid = (pl.cdiv(x.shape[1], B),)
        return pl.pallas_call(body, x, grid=grid, in_specs=[here], out_specs=there)(x)

    assert "overflow" not in kinds(doubled, 256 * B)
    assert "overflow" in kinds(doubled, 257 * B)


@pytest.mark.parametrize("size", [2, 256])
def test_it_is_right_as_long_as_it_fits(size):
    assert kinds(functools.partial(positions, at=WRAPPING["product"]), size * B) == []


def test_nothing_is_known_of_what_wrapped_around_before():
    def hashed(i):
        return (i * 0x9E3779B).astype(jnp.int16)

    assert kinds(functools.partial(positions, at=hashed), 300 * B) == []


def test_the_line_and_the_numbers_are_named():
    function = functools.partial(positions, at=WRAPPING["product"])
    [finding] = analyze(function, jax.ShapeDtypeStruct((1, 300 * B), "float32")).findings
    assert finding.operand.startswith(f"{__file__}:")
    assert "in a grid of (300,) this is a number from 0 to 38272, but int16 holds" in str(finding)


def spec(kernel, **shape):
    inputs = pst.arrays("one n", dtype="float32", **({"dims": {"one": [1]}} | shape))
    return KernelSpec(name="k", kernel=kernel, reference=lambda x: x, inputs=inputs)


def checked(kernel, **shape):
    check(spec(kernel, **shape), backend="tpu-sim", checks=["grid"], max_examples=6)


AROUND = {"around": {"n": B}}


@pytest.mark.parametrize("at", WRAPPING.values(), ids=WRAPPING)
def test_a_spec_need_not_draw_such_sizes(at):
    with pytest.raises(GridError, match=r"(?s)overflow: .*in a grid of \(\d+,\) this is"):
        checked(functools.partial(positions, at=at), **AROUND)


@pytest.mark.parametrize("at", HOLDING.values(), ids=HOLDING)
def test_right_kernels_pass(at):
    checked(functools.partial(positions, at=at), **AROUND)


def test_a_spec_of_given_sizes_is_not_asked_for_others():
    function = functools.partial(positions, at=WRAPPING["product"])
    checked(function, dims={"one": [1], "n": [B, 2 * B, 3 * B]})
    with pytest.raises(GridError, match=r"with n=65\d\d\d, in a grid of \(51\d,\)"):
        checked(function, **AROUND)


def test_a_kernel_may_reject_sizes_or_choose_a_dtype():
    def rejecting(x):
        if x.shape[1] > 32_767:
            raise ValueError("too many columns")
        return positions(x, WRAPPING["product"])

    def choosing(x):
        dtype = jnp.int16 if x.shape[1] <= 32_768 - B else jnp.int32
        return positions(x, lambda i: (i * B).astype(dtype) + columns(dtype))

    checked(rejecting, **AROUND)
    checked(choosing, **AROUND)


SIZE = 40

#: Operations on numbers that a kernel computes of the number of its program.
OPERATIONS = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: (a % 50) * (b % -50),
    lambda a, b: a // jnp.maximum(abs(b), 1),
    lambda a, b: jax.lax.div(a, jnp.where(b > -3, 3, -b)),
    lambda a, b: a % 7,
    lambda a, b: jax.lax.rem(a, jnp.int32(-5)),
    lambda a, b: jnp.minimum(a, b),
    lambda a, b: jnp.clip(a, -9, b),
    lambda a, b: a & 15,
    lambda a, b: a >> 2,
    lambda a, b: jax.lax.rem(a, jnp.int32(99)) << 3,
    lambda a, b: jax.lax.shift_right_logical(a, 1),
    lambda a, b: jnp.where(a > b, a, -b),
    lambda a, b: (a.astype(jnp.float32) / 2).astype(jnp.int32),
)


@pytest.mark.parametrize("seed", range(60))
def test_every_number_is_within_its_range(seed):
    draw = random.Random(seed)
    start = draw.choice([1, -1, 3])
    steps = [
        (draw.choice(OPERATIONS), draw.randint(0, at), draw.randint(0, at)) for at in range(1, 6)
    ]

    def computed(i):
        values = [i, i * start - 9]
        for operation, first, second in steps:
            values.append(operation(values[first], values[second]))
        return values[-1]

    def body(o_ref):
        o_ref[...] = jnp.full((1, B), computed(pl.program_id(0)))

    def run():
        block = pl.BlockSpec((1, B), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct((SIZE, B), "int32")
        return pl.pallas_call(body, grid=(SIZE,), out_specs=block, out_shape=shape)()

    [kernel] = jax.make_jaxpr(run)().eqns
    [store] = [eqn for eqn in kernel.params["jaxpr"].eqns if eqn.primitive.name == "swap"]
    known = KernelConditions(kernel, [SIZE]).of_operand(store, 1)
    numbers = jax.vmap(computed)(jnp.arange(SIZE, dtype=jnp.int32))
    assert known.low <= int(numbers.min())
    assert int(numbers.max()) <= known.high


@pytest.mark.parametrize(("start", "step"), [(100, 1), (5, 3), (5, -2)])
def test_a_second_counter_of_a_loop_has_a_range_of_its_own(start, step):
    """Of ``fori_loop`` with a bound that is known at run time: at most ``SIZE`` rounds."""

    def body(o_ref):
        def store(_, counter):
            o_ref[...] = jnp.full((1, B), counter)
            return counter + step

        jax.lax.fori_loop(0, pl.program_id(0) + 1, store, jnp.int32(start))

    def run():
        block = pl.BlockSpec((1, B), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct((SIZE, B), "int32")
        return pl.pallas_call(body, grid=(SIZE,), out_specs=block, out_shape=shape)()

    [kernel] = jax.make_jaxpr(run)().eqns
    [store] = [eqn for eqn in equations_inside(kernel) if eqn.primitive.name == "swap"]
    known = KernelConditions(kernel, [SIZE]).of_operand(store, 1)
    assert {known.low, known.high} == {start, start + step * (SIZE - 1)}
