"""Functions that may end their process are found by their code, which does not run."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from os import _exit as leave

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.isolate.policy import process_call_of


def helper():
    os.abort()


class Caller:
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


def through_a_closure():
    inner = helper

    def outer(x):
        inner()
        return x

    return outer


def through_an_import(x):
    from os import kill

    kill(os.getpid(), 9)
    return x


@jax.custom_jvp
def with_a_rule(x):
    helper()
    return x


ENDING = {
    "attribute": lambda x: os._exit(1),
    "name": lambda x: leave(1),
    "library": lambda x: ctypes.string_at(0),
    "signal": lambda x: signal.raise_signal(signal.SIGKILL),
    "stack": lambda x: sys.setrecursionlimit(10**9),
    "helper": lambda x: helper(),
    "inner function": lambda x: [os._exit(1) for _ in x],
    "closure": through_a_closure(),
    "import": through_an_import,
    "partial": functools.partial(lambda act, x: act(), helper),
    "wrapped": functools.wraps(helper)(lambda x: x),
    "jit": jax.jit(lambda x: helper()),
    "custom_jvp": with_a_rule,
    "instance": Caller(lambda x: helper()),
    "strategy": pst.arrays("m n").map(lambda drawn: helper()),
}


@pytest.mark.parametrize("name", ENDING)
def test_found(name):
    assert process_call_of([ENDING[name]])


def kernel(x, *, block=8):
    if os.environ.get("MODE") == "slow":
        x = jnp.asarray(np.asarray(x.shape).prod()) + x
    body = lambda x_ref, out_ref: out_ref.__setitem__(..., x_ref[...])  # noqa: E731
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@pytest.mark.parametrize(
    "value",
    [kernel, jax.jit(kernel), functools.partial(kernel, block=4), pst.arrays("m n"), jnp.sin, None],
)
def test_ordinary_functions_are_not(value):
    assert process_call_of([value]) is None


def test_recursion_ends():
    def again(x):
        return again(x)

    assert process_call_of([again]) is None
