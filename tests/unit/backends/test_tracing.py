"""Calls that mean the same share one trace; those that do not, do not."""

import functools
import gc
import importlib
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas.backends import tracing
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import JittedCalls, apply, identity, jitted, split

X = np.ones((8, 128), np.float32)


def run(call):
    static, arrays = split(call)
    return jitted(static)(arrays)


def test_partials_made_anew_are_traced_once():
    traces = []

    def function(x, *, block):
        traces.append(block)
        return x * block

    for _ in range(3):
        static, arrays = split(Call(function=functools.partial(function, block=2), args=(X,)))
        jitted(static)(arrays)
    assert traces == [2]


def test_other_options_are_other_programs():
    def function(x, *, by):
        return x * by

    results = [run(Call(function=function, args=(X,), options={"by": by})) for by in (1, 1.5, True)]
    assert [float(r[0, 0]) for r in results] == [1.0, 1.5, 1.0]


def test_one_and_true_are_not_one_key():
    assert identity(1) != identity(True)
    assert identity(1) != identity(1.0)


def test_unhashable_objects_are_equal_to_themselves_only():
    class Unhashable:
        __hash__ = None

    one, another = Unhashable(), Unhashable()
    assert identity(one) == identity(one)
    assert identity(one) != identity(another)
    # The key keeps the object, so that its id is not given to another one.
    assert any(referrer is one for referrer in gc.get_referents(identity(one)))


def test_leaves_that_are_no_arrays_are_not_traced():
    def function(x, names, flag):
        assert flag is True
        return x if names["axis"] == "rows" else x.T

    static, arrays = split(Call(function=function, args=(X, {"axis": "rows"}, True)))
    assert len(arrays) == 1
    assert apply(static, arrays).shape == (8, 128)
    assert jitted(static)(arrays).shape == (8, 128)


def test_an_unhashable_leaf_is_passed_on():
    class Settings:
        __hash__ = None

    settings = Settings()

    def function(x, given):
        assert given is settings
        return jnp.sum(x)

    assert run(Call(function=function, args=(X, settings))) == X.sum()


def functions(count):
    """Functions that differ, as tests make them that define one inside."""
    return [lambda x, n=n: x + n for n in range(count)]


@pytest.fixture
def four(monkeypatch):
    calls = JittedCalls(most=4)
    monkeypatch.setattr(tracing, "_JITTED", calls)
    return calls


def test_traces_of_the_last_static_parts_are_kept(four):
    made = functions(10)
    alive = [weakref.ref(function) for function in made]
    kept = []
    for function in made:
        static, arrays = split(Call(function=function, args=(X,)))
        kept.append(weakref.ref(jitted(static).trace(arrays).jaxpr))
    assert (len(four), four.traces) == (4, 4)
    del made, function, static, arrays
    gc.collect()
    assert [ref() is not None for ref in kept] == [False] * 6 + [True] * 4
    assert [ref() is not None for ref in alive] == [False] * 6 + [True] * 4


def test_traces_of_one_function_with_many_shapes_are_limited(four):
    def function(x):
        return x + 1

    for size in range(1, 30):
        run(Call(function=function, args=(X[:, :size],)))
        assert four.traces <= 5  # one more than the limit before it is looked at
    assert len(four) == 1


def test_a_call_that_is_used_again_is_not_dropped(four):
    traces = []

    def function(x):
        traces.append(x.shape)
        return x

    for other in functions(10):
        run(Call(function=function, args=(X,)))
        run(Call(function=other, args=(X,)))
    assert len(traces) == 1


def test_traces_of_inner_functions_are_limited(monkeypatch):
    """JAX keeps one of ``jnp.tanh`` for each shape."""
    cache = importlib.import_module("jax._src.interpreters.partial_eval").trace_to_jaxpr
    cache.cache_clear()
    monkeypatch.setattr(tracing, "MOST_OF_JAX", 16)
    sizes = [
        (run(Call(function=lambda x: jnp.tanh(x), args=(X[:, :n],))), cache.cache_info().currsize)
        for n in range(1, 60)
    ]
    assert max(size for _, size in sizes) <= 16 + 3  # a call, what it calls, what that calls
