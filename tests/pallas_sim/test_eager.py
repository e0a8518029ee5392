"""Operation by operation: functions that look at values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim.errors import BoundsError, SimulationError
from pallas_sim.machine import Machine
from pallas_sim.simulation import run_eagerly

X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def eagerly(function: Any, *args: Any) -> Any:
    machine = Machine()
    values = run_eagerly(function, machine, args)
    assert not machine.fallbacks
    return values


def twice(x: Any) -> Any:
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_branches_on_values():
    def function(x):
        if x[0, 0] > 0 and bool(jnp.any(x == 12)):
            return x * int(x[0, 1])
        return x * 0

    np.testing.assert_array_equal(eagerly(function, X), X * 2)


def test_numpy_and_python_see_the_values():
    def function(x):
        rows = np.asarray(x).sum(axis=1)
        return x[int(np.argmax(rows))] + float(x[0, 0]) + x.tolist()[0][1] + x[0, 2].item()

    np.testing.assert_array_equal(eagerly(function, X), X[3] + 6)


def test_kernels():
    np.testing.assert_array_equal(eagerly(lambda x: twice(twice(x)), X), 4 * X)


def test_shard_map():
    def function(x):
        mapped = jax.shard_map(twice, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        return mapped(x) if x[0, 0] > 0 else x

    mesh = Mesh(jax.devices()[:2], ("x",))
    np.testing.assert_array_equal(eagerly(function, X), 2 * X)


def test_gradients():
    def function(x):
        value, pullback = jax.vjp(lambda x: jnp.sum(x * x), x)
        if value > 100:
            return pullback(jnp.ones_like(value))[0]
        return x

    np.testing.assert_array_equal(eagerly(function, X), 2 * X)


def test_vmap_of_a_kernel():
    np.testing.assert_array_equal(eagerly(jax.vmap(twice), X), 2 * X)


def test_jit_inside():
    np.testing.assert_array_equal(eagerly(lambda x: jax.jit(twice)(x) + 1, X), 2 * X + 1)


def test_functions_with_gradients_of_their_own():
    @jax.custom_vjp
    def double(x):
        return twice(x)

    double.defvjp(lambda x: (double(x), None), lambda _, ct: (ct * 7,))
    found = eagerly(lambda x: (double(x), jax.grad(lambda x: jnp.sum(double(x)))(x)), X)
    np.testing.assert_array_equal(found[0], 2 * X)
    np.testing.assert_array_equal(found[1], np.full_like(X, 7))
    np.testing.assert_array_equal(eagerly(jax.nn.relu, -X), np.zeros_like(X))


def test_constants_and_pytrees():
    found = eagerly(lambda x: {"a": jnp.arange(3) + x[0].astype(jnp.int32), "b": (x, 1)}, X)
    np.testing.assert_array_equal(found["a"], [1, 3, 5])
    np.testing.assert_array_equal(found["b"][0], X)


def test_an_error_of_a_kernel_comes_out():
    def body(x_ref, i_ref, o_ref):
        o_ref[...] = x_ref[...]
        o_ref[i_ref[0]] = x_ref[0]

    def function(x, i):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, out_shape=shape)(x, i)

    with pytest.raises(BoundsError, match="index 4 of axis 0"):
        eagerly(function, X, np.array([4], np.int32))


def test_a_number_becomes_an_array_as_in_jax():
    real, whole = eagerly(lambda x: (jnp.asarray(2.0), jnp.asarray(3)), X)
    assert (real.dtype, whole.dtype) == (np.float32, np.int32)


SPACES = [
    None,
    *(space for space in pl.MemorySpace if space.name in ("ANY", "HOST")),
    *(space for space in pltpu.MemorySpace if space.name in ("HBM", "VMEM", "SMEM", "SEMAPHORE")),
    *plgpu.MemorySpace,
]


def reference_in(space: Any) -> Any:
    return lambda x: jax.freeze(jax.new_ref(x, memory_space=space))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_references_are_made_where_jax_makes_them(space: Any) -> None:
    function = reference_in(space)
    try:
        function(X)
    except NotImplementedError:
        with pytest.raises(SimulationError) as refusal:
            eagerly(function, X)
        text = str(refusal.value)
        assert f"JAX refuses jax.new_ref(memory_space={space}) outside of jax.jit" in text
        assert "wrap the function that makes the reference" in text
        line = reference_in.__code__.co_firstlineno + 1
        assert text.endswith(f"at {__file__}:{line}")
    else:
        np.testing.assert_array_equal(eagerly(function, X), X)
    np.testing.assert_array_equal(eagerly(jax.jit(function), X), X)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: jax.new_ref(x, pin=True), id="pinned"),
        pytest.param(lambda x: jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype)), id="empty"),
        pytest.param(lambda x: pl.empty_ref_like(pltpu.HBM(x.shape, x.dtype)), id="like"),
    ],
)
def test_references_that_jax_makes_inside_of_jit_only(make: Any) -> None:
    with pytest.raises(NotImplementedError):
        make(jnp.asarray(X))
    with pytest.raises(SimulationError, match=r"outside of jax\.jit"):
        eagerly(lambda x: jax.freeze(make(x)), X)


def test_an_error_names_the_line_of_the_caller() -> None:
    def function(x, i):
        return jax.new_ref(x)[i]  # the line to be named

    with pytest.raises(BoundsError, match=rf"{__file__}:{function.__code__.co_firstlineno + 1}"):
        eagerly(function, X, np.array([5], np.int32))
