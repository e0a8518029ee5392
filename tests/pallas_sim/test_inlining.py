"""Calls whose equations stand in the program that calls, and what that must not change."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_sim import simulate
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import prepare


def primitives(fn, *args):
    return [step.equation.name for step in prepare(jax.make_jaxpr(fn)(*args)).steps]


@jax.jit
def halved(x):
    return x // 2


@jax.jit
def swapped(x, y):
    return y, x


def test_a_call_of_a_call_becomes_its_equations():
    names = primitives(lambda x: jax.jit(halved)(x) + 1, np.int32(5))
    assert "add" in names
    assert not {"jit", "pjit"} & set(names)


def test_a_long_call_is_called():
    """Calls in calls would make programs as long as all that they do."""

    @jax.jit
    def long(x):
        for _ in range(100):
            x = x + 1
        return x

    assert primitives(lambda x: long(x) * long(x + 1), 0) == ["jit", "add", "jit", "mul"]
    assert simulate(lambda x: long(x) * long(x + 1), 0).values == 10_100


def test_results_that_are_inputs_or_constants():
    @jax.jit
    def passes(x, y):
        return y, 3, x, y

    def fn(x, y):
        a, b, c, d = passes(x, y)
        return a - b, c, passes(c, d)[0], swapped(*swapped(a, c))

    x, y = np.arange(4), np.arange(4) * 10
    got = simulate(fn, x, y).values
    np.testing.assert_array_equal(got[0], y - 3)
    np.testing.assert_array_equal(got[1], x)
    np.testing.assert_array_equal(got[2], y)
    np.testing.assert_array_equal(got[3], (y, x))


def test_a_large_result_lives_as_long_as_any_of_its_names():
    """A call that gives back what it got makes two names of one array, which ends with the last."""
    size = 1 << 16

    def fn(x):
        doubled = x * 2
        same, _ = swapped(x, doubled)
        total = same.sum()
        return total, doubled + 1

    x = np.ones(size, np.float32)
    total, more = simulate(fn, x).values
    assert total == 2 * size
    np.testing.assert_array_equal(more, np.full(size, 3, np.float32))
    program = prepare(jax.make_jaxpr(fn)(x))
    multiplied = next(step.outs[0] for step in program.steps if step.equation.name == "mul")
    (last,) = (step.equation.name for step in program.steps if multiplied in step.dead)
    assert last == "add"


def test_the_same_call_twice_has_results_of_its_own():
    got = simulate(lambda x: halved(x) * 100 + halved(x + 8), np.int32(6)).values
    assert got == 307


def test_an_error_inside_names_its_own_line():
    @jax.jit
    def inner(x):
        return lax.linalg.cholesky(x)

    def fails(value):
        raise ValueError("no")

    @jax.jit
    def calls_back(x):
        return jax.pure_callback(fails, jax.ShapeDtypeStruct((), jnp.float32), x)  # here

    def fn(x):
        return calls_back(inner(x)[0, 0])

    with pytest.raises(SimulationError, match=r"test_inlining.py:\d+") as raised:
        simulate(fn, np.eye(2, dtype=np.float32))
    number = int(str(raised.value).rpartition("test_inlining.py:")[2].split()[0])
    lines = Path(__file__).read_text().splitlines()
    assert lines[number - 1].endswith("# here")
