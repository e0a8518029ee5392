"""Calls that mean the same share one trace; those that do not, do not."""

import functools
import gc

import jax.numpy as jnp
import numpy as np

from pytest_pallas.backends import Call
from pytest_pallas.backends.tracing import apply, identity, jitted, split

X = np.ones((8, 128), np.float32)


def run(call):
    static, arrays = split(call)
    return jitted(static)(static, arrays)


def test_partials_made_anew_are_traced_once():
    traces = []

    def function(x, *, block):
        traces.append(block)
        return x * block

    for _ in range(3):
        static, arrays = split(Call(function=functools.partial(function, block=2), args=(X,)))
        jitted(static)(static, arrays)
    assert traces == [2]


def test_other_options_are_other_programs():
    def function(x, *, by):
        return x * by

    results = [
        run(Call(function=function, args=(X,), options={"by": by}))
        for by in (1, 1.5, True)
    ]
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
    assert jitted(static)(static, arrays).shape == (8, 128)


def test_an_unhashable_leaf_is_passed_on():
    class Settings:
        __hash__ = None

    settings = Settings()

    def function(x, given):
        assert given is settings
        return jnp.sum(x)

    assert run(Call(function=function, args=(X, settings))) == X.sum()
