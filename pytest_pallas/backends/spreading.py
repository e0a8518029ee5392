"""Programs and arrays that are spread over the processes of one JAX program.

A call is spread over the processes if its program has a mesh with devices of all of them
(``spread_of``); each process then makes its own shards of the arguments (``spread_array``), and
holds its own shards of the outputs (``LocalShards``). Other calls run on this process's own
devices, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_sim.dtypes import Array
from pallas_sim.errors import DeviceError
from pallas_sim.traces import open_jaxpr
from pytest_pallas.backends.processes import Gang
from pytest_pallas.errors import GangError
from pytest_pallas.grid.kernel_calls import called_jaxpr, equations


@dataclass(frozen=True)
class Spread:
    """A program over all processes.

    Attributes:
      mesh: with devices of all of them.
      shardings: of each input of the program.
    """

    mesh: Mesh
    shardings: tuple[NamedSharding, ...]


def spread_of(jaxpr: Any, processes: Gang) -> Spread | None:
    """Return how a program is spread over the processes; None if it runs on this process's devices.

    An input has the sharding of the ``shard_map`` that takes it directly, or that of the first
    ``with_sharding_constraint`` on it. Others are replicated: every device has all of them.

    Args:
      jaxpr: the traced call.
      processes: of the program.

    Raises:
      DeviceError: a mesh has devices of several processes, but not of all.
    """
    jaxpr, _ = open_jaxpr(jaxpr)
    meshes = [mesh for mesh in _meshes(jaxpr) if not _is_local(mesh, processes)]
    if not meshes:
        return None
    for mesh in meshes:
        inside = {device.process_index for device in mesh.devices.flat}
        left_out = [n for n in range(processes.count) if n not in inside]
        if left_out:
            raise DeviceError(
                f"mesh {dict(mesh.shape)} leaves out process {', '.join(map(str, left_out))} of "
                f"{processes.count}: a mesh has devices of every process, or only of the process "
                "that runs the call (jax.local_devices()); pallas_mesh makes one over all of them"
            )
    stated = dict(_shardings(jaxpr, {var: n for n, var in enumerate(jaxpr.invars)}))
    replicated = NamedSharding(meshes[0], PartitionSpec())
    shardings = tuple(stated.get(position, replicated) for position in range(len(jaxpr.invars)))
    return Spread(meshes[0], shardings)


def spread_array(array: Any, sharding: NamedSharding) -> jax.Array:
    """Give an argument a sharding; this process makes only the shards on its own devices.

    Args:
      array: a numpy array, equal in all processes; or a JAX array that is spread already.
      sharding: over devices of all processes.
    """
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable:
            return array
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            return _placed_keys(array, sharding)
    host = np.asarray(array)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _placed_keys(keys: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Return typed PRNG keys, whose data have more axes than they."""
    data = np.asarray(jax.random.key_data(keys))
    placed = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(keys))


def _is_local(mesh: Mesh, processes: Gang) -> bool:
    return all(device.process_index == processes.process for device in mesh.devices.flat)


def _meshes(jaxpr: Any) -> Iterator[Mesh]:
    """Yield the meshes with devices that a program names, outside of kernels."""
    for eqn in equations(jaxpr):
        mesh = eqn.params.get("mesh")
        if isinstance(mesh, Mesh) and mesh.size:
            yield mesh
        for name in ("in_shardings", "out_shardings"):  # of jax.jit
            yield from (one.mesh for one in eqn.params.get(name, ()) if _is_concrete(one))
        if _is_concrete(eqn.params.get("sharding")):
            yield eqn.params["sharding"].mesh


def _shardings(jaxpr: Any, inputs: dict[Any, int]) -> Iterator[tuple[int, NamedSharding]]:
    """Yield the position and sharding of inputs of the program; the last ones of a position hold.

    Args:
      jaxpr: a part of the program that is run once.
      inputs: its variables that are inputs of the program, and their positions.
    """
    for eqn in reversed(jaxpr.eqns):
        taken = [(n, inputs[v]) for n, v in enumerate(eqn.invars) if _known(v, inputs)]
        if not taken:
            continue
        if eqn.primitive.name == "shard_map" and isinstance(eqn.params["mesh"], Mesh):
            specs: Sequence[Any] = eqn.params["in_specs"]
            for operand, position in taken:
                yield position, NamedSharding(eqn.params["mesh"], specs[operand])
        elif eqn.primitive.name == "sharding_constraint":
            if _is_concrete(eqn.params["sharding"]):
                yield taken[0][1], eqn.params["sharding"]
        elif (called := called_jaxpr(eqn)) is not None:
            inner, _ = called
            names = dict(zip(inner.invars, eqn.invars, strict=False))
            yield from _shardings(
                inner, {v: inputs[outer] for v, outer in names.items() if _known(outer, inputs)}
            )
            jitted = eqn.params.get("in_shardings", ())
            for operand, position in taken:
                if operand < len(jitted) and _is_concrete(jitted[operand]):
                    yield position, jitted[operand]


def _is_concrete(sharding: Any) -> bool:
    """Return whether a sharding names devices."""
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)


def _known(variable: Any, inputs: dict[Any, int]) -> bool:
    return not hasattr(variable, "val") and variable in inputs


# What one process holds of an array that is spread over several processes.


@dataclass(frozen=True)
class LocalShard:
    """The part of an array on one device of this process.

    Attributes:
      index: a slice for each axis: its place in the whole array.
      device: the name of the device.
      data: its elements.
    """

    index: tuple[slice, ...]
    device: str
    data: Array = field(repr=False)


@dataclass(frozen=True)
class LocalShards:
    """What this process holds of an array that other processes hold parts of, too.

    Where every process holds a whole copy, it converts to numpy; otherwise ``gather()`` makes the
    whole array, which all processes must call.

    Attributes:
      shape: of the whole array.
      dtype: its dtype.
      shards: on the devices of this process, in their order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shards: tuple[LocalShard, ...]
    _array: Any = field(default=None, repr=False, compare=False)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """The whole array, where this process has it, and its copies are equal."""
        del copy
        layers = self.layers()
        if len(layers) > 1:
            raise GangError(
                f"the devices of this process hold different copies of {self._type()}; see .shards"
            )
        values, present = layers[0]
        if not present.all():
            raise GangError(
                f"this process holds only a part of {self._type()}: compare each of .shards with "
                "the same part of what is expected (shard.data, shard.index), or call .gather() in "
                "all processes"
            )
        return values if dtype is None else values.astype(dtype)

    def layers(self) -> list[tuple[Array, Array]]:
        """Return the shards as arrays of the whole shape, each with a mask of its elements.

        One layer is enough unless two devices hold different copies of the same part. Elements that
        are not in a layer are 0.
        """
        layers: list[tuple[Array, Array]] = []
        for shard in self.shards:
            for values, present in layers:
                there = present[shard.index]
                if not there.any():
                    values[shard.index], present[shard.index] = shard.data, True
                    break
                if there.all() and _same_bits(values[shard.index], shard.data):
                    break
            else:
                values = np.zeros(self.shape, self.dtype)
                present = np.zeros(self.shape, np.bool_)
                values[shard.index], present[shard.index] = shard.data, True
                layers.append((values, present))
        if not layers:  # no device of the mesh is here
            layers = [(np.zeros(self.shape, self.dtype), np.zeros(self.shape, np.bool_))]
        return layers

    def holders(self, index: Sequence[int], value: Any = None) -> list[LocalShard]:
        """Return the shards with the element at ``index``, and with ``value`` there, if given."""
        shards = [
            shard
            for shard in self.shards
            if all(_within(i, part) for i, part in zip(index, shard.index, strict=True))
        ]
        if value is None:
            return shards
        same = [shard for shard in shards if _same_bits(_at(shard, index), np.asarray(value))]
        return same or shards

    def gather(self) -> Array:
        """Return the whole array, from all processes. All of them must call it."""
        from jax.experimental import multihost_utils

        layers = self.layers()
        if len(layers) == 1 and layers[0][1].all() and self._array.is_fully_replicated:
            return layers[0][0]
        return np.asarray(multihost_utils.process_allgather(self._array, tiled=True))

    def _type(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def local_shards(array: Any) -> LocalShards:
    """Return what this process holds of a ``jax.Array``."""
    shards = [
        LocalShard(
            _whole_index(shard.index, array.shape), str(shard.device), np.asarray(shard.data)
        )
        for shard in array.addressable_shards
    ]
    return LocalShards(tuple(array.shape), np.dtype(array.dtype), tuple(shards), array)


def describe_index(index: Sequence[slice]) -> str:
    """Return a place in an array: ``[8:16, 0:128]``."""
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in index) + "]"


def _whole_index(index: Sequence[slice], shape: Sequence[int]) -> tuple[slice, ...]:
    """Return an index with its bounds written out."""
    return tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))


def _within(position: int, part: slice) -> bool:
    return part.start <= position < part.stop


def _at(shard: LocalShard, index: Sequence[int]) -> Array:
    inside = (i - part.start for i, part in zip(index, shard.index, strict=True))
    return np.asarray(shard.data[tuple(inside)])


def _same_bits(one: Array, two: Array) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes()
