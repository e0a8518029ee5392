"""Rules of the Triton route, by definition, and against JAX where it evaluates them."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_sim import simulate
from pallas_sim.errors import MissingRuleError, SimulationError
from pallas_sim.machine import default_fill
from pallas_sim.rules import triton

OPERATIONS = {
    "add": lambda old, value: old + value,
    "max": max,
    "min": min,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "xchg": lambda old, value: value,
}


def atomically(
    name: str, start: Any, value: Any, index: Any = slice(None), mask: Any = None
) -> Any:
    """What a kernel leaves of ``start``, and what its atomic operation gives."""
    operation = getattr(plgpu, f"atomic_{name}")

    def body(_start, value_ref, o_ref, old_ref):
        where = index(value_ref.shape) if callable(index) else (index,) * len(value_ref.shape)
        old_ref[...] = operation(o_ref, where, value_ref[...], mask=mask and mask())

    def function(start, value):
        return pl.pallas_call(
            body,
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (start, value)],
            input_output_aliases={0: 0},
        )(start, value)

    found = simulate(function, start, value, target="h100")
    assert not found.fallbacks
    assert found.findings == ()
    return found.values


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integers(name, dtype):
    if triton.adds_integers_as_floats() and name in ("add", "max", "min"):
        with pytest.raises(SimulationError, match="JAX"):  # max and min are not lowered
            atomically(name, np.ones(4, dtype), np.ones(4, dtype))
        return
    random = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    start, value = (
        random.integers(limits.min, limits.max, 64, dtype, endpoint=True) for _ in range(2)
    )
    after, old = atomically(name, start, value)
    wanted = [
        (OPERATIONS[name](int(a), int(b)) - limits.min) % 2**32 + limits.min
        for a, b in zip(start, value, strict=True)
    ]
    np.testing.assert_array_equal(after, np.array(wanted, dtype))
    np.testing.assert_array_equal(old, start)
    assert after.dtype == dtype


@pytest.mark.parametrize("name", ["add", "max", "min", "xchg"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats(name, dtype):
    if dtype == np.float64:
        with jax.enable_x64(True):
            floats(name, dtype)
    else:
        floats(name, dtype)


def floats(name, dtype):
    values = [0.5, -0.5, 3, -3, math.inf, -math.inf, 1e-3, -1e30]
    start, value = (x.ravel().astype(dtype) for x in np.meshgrid(values, values))
    after, old = atomically(name, start, value)
    wanted = {"add": np.add, "max": np.maximum, "min": np.minimum, "xchg": lambda a, b: b}
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(after, wanted[name](start, value))
    np.testing.assert_array_equal(old, start)


def test_jax_adds_integers_or_floats():
    """Its lowering looks at the type of the elements, or at that of the array."""
    lowering = inspect.getsource(importlib.import_module("jax._src.pallas.triton.primitives"))
    by_array = "isinstance(val.type, ir.IntegerType)" in lowering
    assert triton.adds_integers_as_floats() == by_array


def test_integers_that_would_be_added_as_floats(monkeypatch):
    monkeypatch.setattr(triton, "adds_integers_as_floats", lambda: True)
    with pytest.raises(SimulationError, match=r"adds int32\[4\] atomically as floats.*:\d+$"):
        atomically("add", np.zeros(4, np.int32), np.full(4, -3, np.int32))
    after, _ = atomically("add", np.zeros(4, np.float32), np.full(4, -3, np.float32))
    np.testing.assert_array_equal(after, np.full(4, -3))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32])
def test_an_output_begins_with_anything(dtype):
    """Whatever is added to it: only one that aliases an input begins with what that holds."""

    def body(x_ref, o_ref):
        jax.ref.addupdate(o_ref, slice(None), x_ref[...])

    def added(x, aliases=None):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        given = (x,) if aliases is None else (x, jnp.zeros_like(x))
        kernel = body if aliases is None else lambda x_ref, _, o_ref: body(x_ref, o_ref)
        call = pl.pallas_call(kernel, out_shape=out, input_output_aliases=aliases or {})
        return call(*given)

    x = np.arange(8).astype(dtype)
    start = default_fill(np.dtype(dtype))
    assert start != 0
    found = simulate(added, x, target="h100").values
    np.testing.assert_array_equal(found, x + start)
    np.testing.assert_array_equal(simulate(added, x, aliases={1: 0}, target="h100").values, x)


def test_halves_are_added_in_float32_and_rounded_once():
    start = np.array([2048, 1, 60000, 0], np.float16)
    after, _ = atomically("add", start, np.array([1, 2.0**-12, 60000, 0], np.float16))
    np.testing.assert_array_equal(after, np.array([2048, 1, np.inf, 0], np.float16))


@pytest.mark.parametrize(
    ("name", "start", "value", "wanted"),
    [
        ("max", 1.0, math.nan, math.nan),  # a NaN is larger than all floats, as an integer
        ("max", math.nan, 1.0, math.nan),
        ("max", math.nan, -1.0, math.nan),
        ("min", math.nan, -1.0, -1.0),
        ("min", 1.0, math.nan, 1.0),
        ("min", math.nan, 1.0, 1.0),
        ("max", 0.0, -0.0, 0.0),
        ("max", -0.0, 0.0, 0.0),
        ("min", 0.0, -0.0, -0.0),
        ("min", -0.0, 0.0, -0.0),
    ],
)
def test_the_order_of_floats_is_that_of_their_bits(name, start, value, wanted):
    after, _ = atomically(name, np.full(1, start, np.float32), np.full(1, value, np.float32))
    assert (math.isnan(after[0]) and math.isnan(wanted)) or (
        after[0] == wanted and math.copysign(1, after[0]) == math.copysign(1, wanted)
    )


def test_a_mask_leaves_elements_as_they_are():
    start, value = np.arange(8, dtype=np.float32), np.full(8, 100, np.float32)
    after, old = atomically("add", start, value, mask=lambda: jnp.arange(8) % 2 == 0)
    np.testing.assert_array_equal(after, start + [100, 0] * 4)
    np.testing.assert_array_equal(old[::2], start[::2])
    assert np.isnan(old[1::2]).all()  # nothing can be assumed of these


def test_an_element_that_is_named_several_times():
    start, value = np.array([5, 0, 0], np.float32), np.array([1, 2, 4, 8], np.float32)

    def index(_):
        return (jnp.arange(4) % 2 * 2,)

    after, old = atomically("add", start, value, index)
    np.testing.assert_array_equal(after, [10, 0, 10])
    np.testing.assert_array_equal(old, [5, 0, 6, 2])


@pytest.mark.parametrize("name", ["add", "max", "min"])
def test_as_jax_evaluates_it(name):
    start = np.arange(-16, 16, dtype=np.float32).reshape(4, 8)
    value = np.full((2, 8), 1.5, np.float32)
    operation = getattr(plgpu, f"atomic_{name}")

    def body(_start, value_ref, o_ref):
        operation(o_ref, (pl.ds(1, 2), slice(None)), value_ref[...])

    def function(start, value, interpret=False):
        shape = jax.ShapeDtypeStruct(start.shape, start.dtype)
        call = pl.pallas_call(
            body, out_shape=shape, input_output_aliases={0: 0}, interpret=interpret
        )
        return call(start, value)

    found = simulate(function, start, value, target="h100").values
    np.testing.assert_array_equal(found, jax.jit(function, static_argnums=2)(start, value, True))


@pytest.mark.parametrize(("expected", "after"), [(3, 9), (4, 3)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_compare_and_swap(expected, after, dtype):
    def body(_start, o_ref, old_ref):
        old_ref[...] = plgpu.atomic_cas(o_ref, dtype(expected), dtype(9))

    def function(start):
        scalar = jax.ShapeDtypeStruct((), dtype)
        return pl.pallas_call(body, out_shape=[scalar] * 2, input_output_aliases={0: 0})(start)

    found = simulate(function, np.array(3, dtype), target="h100")
    assert [int(x) for x in found.values] == [after, 3]
    assert found.findings == ()


def summed(x, *, tickets="used", atomic=True, seed=0):
    """The sum of all rows: each program adds its own, and the last one doubles it."""
    count = x.shape[0]

    def body(x_ref, _zeros, _none, part_ref, count_ref, o_ref):
        if atomic:
            plgpu.atomic_add(part_ref, (0, slice(None)), x_ref[0])
        else:
            part_ref[pl.program_id(0)] = x_ref[0]
        number = plgpu.atomic_add(count_ref, (0,), 1)
        last = number if tickets == "used" else pl.program_id(0)

        @pl.when(last == count - 1)
        def _():
            o_ref[...] = 2 * jnp.sum(part_ref[...], axis=0, keepdims=True)

    whole = pl.BlockSpec((1 if atomic else count, 16), lambda i: (0, 0))
    one = pl.BlockSpec((1,), lambda i: (0,))
    row = pl.BlockSpec((1, 16), lambda i: (0, 0))
    found = simulate(
        lambda x: pl.pallas_call(
            body,
            out_shape=[
                jax.ShapeDtypeStruct((1 if atomic else count, 16), x.dtype),
                jax.ShapeDtypeStruct((1,), jnp.int32),
                jax.ShapeDtypeStruct((1, 16), x.dtype),
            ],
            grid=(count,),
            in_specs=[pl.BlockSpec((1, 16), lambda i: (i, 0)), whole, one],
            out_specs=[whole, one, row],
            input_output_aliases={1: 0, 2: 1},
        )(x, jnp.zeros((1 if atomic else count, 16), x.dtype), jnp.zeros(1, jnp.int32))[2],
        x,
        target="h100",
        seed=seed,
    )
    return found


class TestWhatAtomicsOrder:
    X = np.arange(128, dtype=np.float32).reshape(8, 16)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("atomic", [True, False])
    def test_who_draws_the_last_ticket_knows_what_all_have_done(self, atomic, seed):
        found = summed(self.X, atomic=atomic, seed=seed)
        np.testing.assert_array_equal(found.values[0], 2 * self.X.sum(0))
        assert found.findings == ()

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_ticket_that_nobody_looks_at_orders_nothing(self, atomic, seed):
        """In the plain order the answer is right: the last program comes last."""
        found = summed(self.X, atomic=atomic, tickets="ignored", seed=seed)
        assert {each.kind for each in found.findings} == {"race"}
        assert found.findings[0].ref == "part_ref"
        if seed == 0:
            np.testing.assert_array_equal(found.values[0], 2 * self.X.sum(0))

    @pytest.mark.parametrize("seed", range(3))
    def test_a_plain_access_beside_an_atomic_one(self, seed):
        def body(_zeros, o_ref):
            @pl.when(pl.program_id(0) == 1)
            def _():
                o_ref[0] = 1

            @pl.when(pl.program_id(0) != 1)
            def _():
                plgpu.atomic_add(o_ref, (0,), 1)

        one = pl.BlockSpec((1,), lambda i: (0,))

        def function():
            return pl.pallas_call(
                body,
                out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
                grid=(3,),
                in_specs=[one],
                out_specs=one,
                input_output_aliases={0: 0},
            )(jnp.zeros(1, jnp.int32))

        found = simulate(function, target="h100", seed=seed)
        assert [each.kind for each in found.findings[0].accesses] == ["write", "write"]

    @pytest.mark.parametrize("seed", range(3))
    def test_what_is_only_added_to_needs_no_order(self, seed):
        """``jax.ref.addupdate`` is an atomic on this route (``_addupdate_lowering_rule``)."""

        def body(x_ref, _zeros, o_ref):
            jax.ref.addupdate(o_ref, (slice(None), slice(None)), x_ref[...])

        row = pl.BlockSpec((1, 16), lambda i: (0, 0))

        def function(x):
            return pl.pallas_call(
                body,
                out_shape=jax.ShapeDtypeStruct((1, 16), x.dtype),
                grid=(8,),
                in_specs=[pl.BlockSpec((1, 16), lambda i: (i, 0)), row],
                out_specs=row,
                input_output_aliases={1: 0},
            )(x, jnp.zeros((1, 16), x.dtype))

        found = simulate(function, self.X, target="h100", seed=seed)
        np.testing.assert_array_equal(found.values[0], self.X.sum(0))
        assert found.findings == ()


def elementwise(function: Any, x: Any, dtype: Any = None) -> Any:
    def body(x_ref, o_ref):
        o_ref[...] = function(x_ref[...])

    shape = jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)
    found = simulate(pl.pallas_call(body, out_shape=shape), x, target="h100")
    assert not found.fallbacks
    return found.values


#: Relative and absolute errors of ``tanh.approx`` in NVIDIA's PTX ISA.
TANH = {jnp.float32: (2**-11, 0), jnp.float16: (0, 2**-10.987), jnp.bfloat16: (0, 2**-8)}


@pytest.mark.parametrize("dtype", TANH)
def test_approximate_tanh(dtype):
    x = np.concatenate([np.linspace(-6, 6, 250), [0, -0.0, 1e-5, 30, -30, np.nan]]).astype(dtype)
    found = elementwise(plgpu.approx_tanh, x).astype(np.float64)
    exact = np.tanh(x.astype(np.float64))
    relative, absolute = TANH[dtype]
    error = np.abs(found - exact)[:-1]
    assert (error <= np.maximum(relative * np.abs(exact[:-1]), absolute)).all()
    assert np.isnan(found[-1])
    assert error.max() > 2**-13  # it is no exact one
    assert math.copysign(1, found[251]) == -1


@pytest.mark.parametrize(("kind", "dtype"), [("f16x2", jnp.float16), ("bf16x2", jnp.bfloat16)])
def test_approximate_tanh_of_pairs(kind, dtype):
    def paired(x):
        (found,) = plgpu.elementwise_inline_asm(
            f"tanh.approx.{kind} $0, $1;",
            args=[x],
            constraints="=r,r",
            pack=2,
            result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
        )
        return found

    x = np.linspace(-3, 3, 64).astype(dtype)
    np.testing.assert_array_equal(elementwise(paired, x), elementwise(plgpu.approx_tanh, x))


def test_other_inline_assembly_is_refused():
    def body(x_ref, o_ref):
        (o_ref[...],) = plgpu.elementwise_inline_asm(
            "ex2.approx.f32 $0, $1;",
            args=[x_ref[...]],
            constraints="=f,f",
            pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct((8,), jnp.float32)],
        )

    call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(MissingRuleError, match=r"inline assembly cannot be simulated.*ex2") as e:
        simulate(call, np.ones(8, np.float32), target="h100")
    assert "test_triton.py" in str(e.value)


def test_hints_change_nothing():
    def hinted(x):
        return plgpu.max_contiguous(pl.multiple_of(x, 8), 8) + 1

    np.testing.assert_array_equal(
        elementwise(hinted, np.arange(8, dtype=np.int32)), np.arange(1, 9)
    )


def test_the_barrier_is_one_of_threads_and_orders_no_programs():
    def body(x_ref, o_ref):
        o_ref[pl.program_id(0)] = x_ref[pl.program_id(0)]
        plgpu.debug_barrier()
        o_ref[pl.program_id(0)] += o_ref[(pl.program_id(0) + 1) % 2]

    whole = pl.BlockSpec((2, 16), lambda i: (0, 0))
    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((2, 16), jnp.float32),
        grid=(2,),
        in_specs=[whole],
        out_specs=whole,
    )
    found = simulate(call, np.ones((2, 16), np.float32), target="h100")
    assert {each.kind for each in found.findings} == {"race"}


@pytest.mark.parametrize("other", [None, 7.0])
def test_masked_loads_and_stores(other):
    def body(x_ref, o_ref):
        mask = jnp.arange(8) % 3 == 0
        x = plgpu.load(x_ref, mask=mask, other=other)
        o_ref[...] = jnp.zeros((8,), jnp.float32)
        plgpu.store(o_ref, x, mask=mask | (other is not None) & (jnp.arange(8) < 4))

    x = np.arange(10, 18, dtype=np.float32)
    call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))
    wanted = np.where(np.arange(8) % 3 == 0, x, 0)
    if other is not None:
        wanted[[1, 2]] = other
    np.testing.assert_array_equal(simulate(call, x, target="h100").values, wanted)


def test_a_masked_load_without_other_gives_anything():
    def body(x_ref, o_ref):
        o_ref[...] = plgpu.load(x_ref, mask=jnp.arange(8) < 5)

    x = np.arange(8, dtype=np.float32)
    call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32))
    values = simulate(call, x, target="h100").values
    np.testing.assert_array_equal(values[:5], x[:5])
    assert np.isnan(values[5:]).all()


def test_dot_of_the_triton_route():
    x, y = np.ones((16, 32), np.float32), np.full((32, 16), 0.5, np.float32)

    def body(x_ref, y_ref, o_ref):
        o_ref[...] = plgpu.dot(x_ref[...], y_ref[...])

    shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    found = simulate(functools.partial(pl.pallas_call(body, out_shape=shape), x), y, target="h100")
    np.testing.assert_array_equal(found.values, x @ y)
