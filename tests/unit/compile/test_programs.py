"""Programs that ``jax.export`` serialized are compiled for other devices than theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pytest_pallas.compile.libtpu import compile_program

X = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)

KINDS = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])


def of(array, mesh=None, *spec):
    sharding = None if mesh is None else NamedSharding(mesh, P(*spec))
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def compiled(function, *avals, **options):
    """The function, exported and compiled for the last of the CPU's devices."""
    program = export.export(jax.jit(function))(*avals, **options)
    return compile_program(
        bytes(program.serialize()), jax.devices("cpu")[-1 : -program.nr_devices - 1 : -1]
    )


def run(executable, *args, **options):
    """Call it; the first argument is the one that names the devices."""
    (first, *rest), given = executable.input_shardings
    assert given == {}
    put = jax.tree.map(jax.device_put, ((np.int32(0), args, options)), (first, *rest))
    return executable(*put)


def mesh_of(kind, **axes):
    devices = np.array(jax.devices("cpu")[: np.prod([*axes.values()])])
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=(kind,) * len(axes))


def test_a_program_without_arguments():
    executable = compiled(lambda: jnp.arange(4))
    assert run(executable).tolist() == [0, 1, 2, 3]


def test_arguments_by_position_and_by_name_and_one_that_is_not_used():
    def scaled(x, unused, *, factor):
        del unused
        return {"scaled": x["it"] * factor}

    executable = compiled(scaled, {"it": of(X)}, of(X), factor=of(np.float32(2)))
    result = run(executable, {"it": X}, X, factor=np.float32(3))
    np.testing.assert_array_equal(result["scaled"], X * 3)


def test_it_is_compiled_for_the_devices_it_is_given():
    last = jax.devices("cpu")[-1]
    assert last != jax.devices("cpu")[0]
    assert run(compiled(lambda x: x + 1, of(X)), X).devices() == {last}


@KINDS
def test_shardings_over_one_axis_are_kept(kind):
    mesh = mesh_of(kind, x=4)
    executable = compiled(lambda x, y: x * y, of(X, mesh, "x"), of(X, mesh, "x"))
    (_, (x, _), _), _ = executable.input_shardings
    assert (dict(x.mesh.shape), x.spec, x.mesh.axis_types) == ({"x": 4}, P("x"), (kind,))
    result = run(executable, X, X)
    assert {shard.data.shape for shard in result.addressable_shards} == {(8, 16)}
    np.testing.assert_array_equal(result, X * X)


@KINDS
def test_shardings_over_two_axes_are_kept(kind):
    mesh = mesh_of(kind, rows=2, columns=4)
    executable = compiled(lambda x, y: x - y, of(X, mesh, "rows", "columns"), of(X))
    result = run(executable, X, X[::-1])
    assert {shard.data.shape for shard in result.addressable_shards} == {(16, 4)}
    np.testing.assert_array_equal(result, X - X[::-1])


@pytest.mark.parametrize("spec", [("x",), ("y",), ("x", "y"), ("y", "x"), (("x", "y"),)])
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
def test_a_mesh_that_only_the_program_knows(spec, sizes):
    mesh = mesh_of(AxisType.Auto, x=sizes[0], y=sizes[1])

    @jax.shard_map(mesh=mesh, in_specs=P(*spec), out_specs=P(*spec))
    def numbered(x):
        return x + sum(jax.lax.axis_index(axis) for axis in jax.tree.leaves(spec))

    result = run(compiled(numbered, of(X)), X)
    np.testing.assert_array_equal(result, numbered(X))
