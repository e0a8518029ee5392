"""How a traced call is spread over the processes of a program."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pallas_sim.errors import DeviceError
from pytest_pallas.backends.execution import describe_call
from pytest_pallas.backends.processes import Gang
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.spreading import spread_array, spread_of

P = PartitionSpec
X, Y = np.ones((8, 128), np.float32), np.ones((4, 128), np.float32)

#: The devices of this process are those of process 0, and seem to be of another one.
OTHER = Gang(process=1, count=1, host="h")


@pytest.fixture
def mesh():
    return jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )


def specs(function, *args):
    spread = spread_of(jax.jit(function).trace(*args).jaxpr, OTHER)
    return None if spread is None else [sharding.spec for sharding in spread.shardings]


def mapped(mesh, *in_specs):
    def body(*parts):
        return jax.lax.psum(sum(part.sum() for part in parts), ("x", "y"))

    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P(), check_vma=False)


def test_a_call_without_a_mesh_is_local():
    assert specs(lambda x: x + 1, X) is None


def test_a_mesh_of_this_process_is_local(mesh):
    jaxpr = jax.jit(mapped(mesh, P("x"))).trace(X).jaxpr
    assert spread_of(jaxpr, Gang(process=0, count=2, host="h")) is None


def test_an_argument_has_the_sharding_of_the_shard_map_that_takes_it(mesh):
    assert specs(mapped(mesh, P("x"), P(None, "y")), X, Y) == [P("x"), P(None, "y")]


def test_also_inside_other_jits(mesh):
    inner = jax.jit(mapped(mesh, P("x"), P("y")))
    assert specs(lambda x, y: jax.jit(inner)(y, x), X, Y) == [P("y"), P("x")]


def test_what_is_changed_before_is_replicated(mesh):
    assert specs(lambda x, y: mapped(mesh, P("x"), P("y"))(x * 2, y), X, Y) == [P(), P("y")]


def test_a_sharding_constraint_decides(mesh):
    def function(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("y"))) + 1

    assert specs(function, X) == [P("y")]


def test_the_shardings_of_jit_decide(mesh):
    function = jax.jit(lambda x: x + 1, in_shardings=NamedSharding(mesh, P(("x", "y"))))
    assert specs(lambda x: function(x), X) == [P(("x", "y"))]


def test_a_mesh_that_leaves_out_a_process_is_an_error(mesh):
    jaxpr = jax.jit(mapped(mesh, P("x"))).trace(X).jaxpr
    with pytest.raises(DeviceError, match="leaves out process 1, 2 of 3"):
        spread_of(jaxpr, Gang(process=1, count=3, host="h"))


def test_only_the_shards_of_own_devices_are_made(mesh):
    placed = spread_array(X, NamedSharding(mesh, P("x", "y")))
    assert placed.sharding.spec == P("x", "y")
    assert {shard.data.shape for shard in placed.addressable_shards} == {(4, 64)}
    np.testing.assert_array_equal(placed, X)


def test_random_keys_are_placed(mesh):
    keys = jax.random.split(jax.random.key(1), 3)
    placed = spread_array(keys, NamedSharding(mesh, P()))
    assert placed.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(placed), jax.random.key_data(keys))


def test_a_call_in_words_has_shapes_and_values_and_no_addresses():
    def function(x, *, then):
        return then(x)

    def of(array):
        then = functools.partial(lambda x: x)
        return describe_call(Call(function=function, args=(array,), options={"then": then}))

    assert of(X) == of(X.copy())
    assert of(X).startswith("function(float32[8,128] then=")
    assert of(X) != of(2 * X)
    assert of(X) != of(jnp.asarray(Y))
