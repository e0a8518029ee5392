"""Branches and loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas_test_support.rules_of_jax import assert_same_bits

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_a_branch_beyond_the_last_is_the_last(index):
    def function(i, x):
        return lax.switch(i, [lambda x: x + 1, lambda x: x * 2, lambda x: -x], x)

    assert_same_bits(function, np.int32(index), X)


@pytest.mark.parametrize("taken", [True, False])
def test_cond_takes_its_branch(taken):
    def function(taken, x):
        return lax.cond(taken, lambda x: (x + 1, x), lambda x: (x, -x), x)

    assert_same_bits(function, np.bool_(taken), X)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_while_loops_with_what_they_capture(steps):
    def function(n, x):
        return lax.while_loop(
            lambda state: state[0] < n, lambda state: (state[0] + 1, state[1] + x), (0, x)
        )

    assert_same_bits(function, np.int32(steps), X)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_carries_and_stacks(reverse):
    def function(x, y):
        return lax.scan(
            lambda carry, row: (carry + row * y, (carry, row + carry[0])),
            jnp.zeros(3, jnp.float32),
            x,
            reverse=reverse,
        )

    assert_same_bits(function, X, np.float32(3))


def test_scan_of_no_steps():
    def function(x):
        return lax.scan(lambda carry, row: (carry + row, carry * 2), jnp.ones(3), x)

    assert_same_bits(function, X[:0])


def test_scan_without_anything_to_scan_over():
    def function(x):
        return lax.scan(lambda carry, _: (carry * 2, carry[0]), x, None, length=3)

    assert_same_bits(function, X)


def test_scan_stacks_keys():
    def function(key):
        def step(carry, _):
            carry, used = jax.random.split(carry)
            return carry, used

        last, used = lax.scan(step, key, None, length=3)
        return jax.random.key_data(last), jax.random.key_data(used)

    assert_same_bits(function, jax.random.key(3))


def test_loops_within_loops():
    def function(x):
        def outer(i, total):
            return lax.fori_loop(0, i, lambda j, inner: inner + x[i] * j, total)

        return lax.fori_loop(0, 4, outer, jnp.zeros(3, jnp.float32))

    assert_same_bits(function, X)


def test_functions_with_gradients_of_their_own():
    @jax.custom_vjp
    def double(x):
        return x * 2

    double.defvjp(lambda x: (double(x), x), lambda x, ct: (ct * x,))

    @jax.custom_jvp
    def triple(x):
        return x * 3

    triple.defjvp(lambda primals, tangents: (triple(*primals), tangents[0] * 5))

    def function(x):
        value = lambda x: jnp.sum(double(x) + triple(x))  # noqa: E731
        return value(x), jax.grad(value)(x), jax.checkpoint(value)(x)

    assert_same_bits(function, X)


def test_loops_that_end_at_different_times_under_vmap():
    def function(n, x):
        return lax.while_loop(
            lambda state: state[0] < n, lambda state: (state[0] + 1, state[1] * 2 + x), (0, x)
        )

    assert_same_bits(jax.vmap(function), np.array([0, 3, 1, 5], np.int32), X)
    assert_same_bits(jax.vmap(function, in_axes=(0, None)), np.array([0, 3], np.int32), X)
