"""What typed random keys consist of."""

import jax
import numpy as np
import pytest

from pallas_sim.compat import jaxprs as keys
from pallas_sim.compat.jaxprs import composition


@pytest.mark.parametrize(
    ("implementation", "name", "words"),
    [("threefry2x32", "fry", (2,)), ("rbg", "rbg", (4,)), ("unsafe_rbg", "urbg", (4,))],
)
def test_implementations(implementation, name, words):
    key = jax.random.key(3, impl=implementation)
    assert keys.is_key(key.dtype)
    assert keys.key_shape(key.dtype) == words == jax.random.key_data(key).shape
    assert keys.key_implementation(key.dtype) == str(jax.random.key_impl(key))
    assert name in str(key.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.uint32, "int8"])
def test_numbers_are_none(dtype):
    assert not keys.is_key(np.dtype(dtype))


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize(
    "function",
    [
        lambda key: jax.random.key_data(jax.random.split(key, 3)),
        lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
        lambda key: jax.random.bits(key, (5,)),
    ],
    ids=["split", "fold_in", "bits"],
)
def test_operations_are_composed_of_others(function, implementation):
    key = jax.random.key(3, impl=implementation)
    todo, found = list(jax.make_jaxpr(function)(key).eqns), None
    while todo and found is None:
        eqn = todo.pop()
        if eqn.primitive.name in ("random_split", "random_fold_in", "random_bits"):
            found = eqn
        for value in eqn.params.values():
            todo += list(getattr(getattr(value, "jaxpr", value), "eqns", ()))
    assert found is not None
    avals = [atom.aval for atom in found.invars]
    composed = composition(found.primitive, avals, found.params)
    names = {eqn.primitive.name for eqn in composed.jaxpr.eqns}
    assert found.primitive.name not in names
