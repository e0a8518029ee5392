"""What may hang or end a process is read off a jaxpr, and a loop that counts is none of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.grid.kernel_calls import hazards

X = jax.ShapeDtypeStruct((8, 128), jnp.float32)
N = jax.ShapeDtypeStruct((), jnp.int32)
LOOP = ("a while loop without a bound",)


def found(function, *args):
    return hazards(jax.make_jaxpr(function)(*args))


def kernel(body, **options):
    return lambda x: pl.pallas_call(body, out_shape=X, **options)(x)


def while_loop(condition, step, start):
    return lambda n: lax.while_loop(lambda c: condition(c, n), lambda c: step(c, n), start)


COUNTING = {
    "fori_loop": lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0),
    "upwards": while_loop(lambda c, n: c[0] < n, lambda c, n: (c[0] + 1, c[1] * 2), (0, 1)),
    "downwards": while_loop(lambda c, n: c > 0, lambda c, n: c - 1, 9),
}
ENDLESS = {
    "doubling": while_loop(lambda c, n: c < n, lambda c, n: c * 2, 1),
    "no step": while_loop(lambda c, n: c < n, lambda c, n: c + 0, 1),
    "no condition": while_loop(lambda c, n: True, lambda c, n: c + 1, 1),
    "moving bound": while_loop(lambda c, n: c[0] < c[1], lambda c, n: (c[0] + 1, c[1] + 1), (0, 1)),
}


@pytest.mark.parametrize("name", sorted(COUNTING))
def test_loops_that_count_are_bounded(name):
    assert found(COUNTING[name], N) == ()


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_loops_that_do_not_are_not(name):
    assert found(ENDLESS[name], N) == LOOP


def test_loops_in_kernels():
    def endless(x_ref, o_ref):
        o_ref[...] = x_ref[...] + lax.while_loop(lambda c: c < 1.0, lambda c: c * 0.5, 0.0)

    def counting(x_ref, o_ref):
        o_ref[...] = lax.fori_loop(0, 9, lambda i, c: c + 1, x_ref[...])

    assert found(jax.jit(kernel(endless)), X) == LOOP
    assert found(jax.jit(kernel(counting)), X) == ()


def test_semaphores():
    def body(x_ref, o_ref, semaphore):
        pl.semaphore_signal(semaphore, 1)
        o_ref[...] = x_ref[...]

    scratch = [pltpu.SemaphoreType.REGULAR]
    assert found(kernel(body, scratch_shapes=scratch), X) == ("semaphores, DMAs or barriers",)


def test_callbacks():
    assert found(lambda x: jax.pure_callback(lambda y: y, X, x), X) == ("a callback",)


def test_large_arrays():
    def make(bytes_):
        return lambda x: jnp.broadcast_to(x, (bytes_ // 4096, 8, 128))

    assert found(make(2**30), X) == ()
    assert found(make(2**30 + 4096), X) == ("an array of more than 1 GiB",)
