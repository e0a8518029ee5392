"""Run calls in a program of several processes: arguments by shards, and a start that all agree on.

A call is spread over the processes if its program has a mesh with devices of all of them. Other
calls run on this process's own devices, whatever the others do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_sim.errors import DeviceError
from pallas_sim.traces import open_jaxpr, sub_jaxprs
from pytest_pallas.backends.execution import Preparer, Runner, digest, trace
from pytest_pallas.backends.processes import Gang, agree
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import StaticPart, jitted, on_host, signature, split
from pytest_pallas.grid.kernel_calls import KernelCall, called_jaxpr

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


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
    """How a program is spread over the processes; None if it runs on this process's devices.

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
    wanted = dict(_shardings(jaxpr, {var: n for n, var in enumerate(jaxpr.invars)}))
    replicated = NamedSharding(meshes[0], PartitionSpec())
    found = tuple(wanted.get(position, replicated) for position in range(len(jaxpr.invars)))
    return Spread(meshes[0], found)


def place(array: Any, sharding: NamedSharding) -> jax.Array:
    """An argument with a sharding; this process makes only the shards on its own devices.

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
    """Typed PRNG keys, whose data have more axes than they."""
    data = np.asarray(jax.random.key_data(keys))
    placed = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(keys))


def prepared(
    call: Call,
    processes: Gang,
    kernels: tuple[KernelCall, ...],
    run: Runner,
    prepare: Preparer,
) -> tuple[StaticPart, list[Any], tuple[KernelCall, ...], Runner]:
    """A call in two parts, its kernels and its runner, when all processes are ready to run it.

    Args:
      call: the call; if it is spread, all processes must have an equal one, values included.
      processes: of the program.
      kernels: the kernels of the call, if they are known already.
      run: runs it.
      prepare: compiles it.

    Raises:
      Exception: tracing, compiling or placing the arguments failed in this process.
      PeerError: it failed in another process.
      GangError: the processes have different calls, or one did not come.
      DeviceError: see ``spread_of``.
    """
    if not call.jit:
        if call.devices > 1:  # what it is spread over is not known before it runs
            agree("run", subject=words_of(call), timeout=call.timeout)
        static, arrays = split(call)
        return static, arrays, kernels or trace(call, static, arrays), run
    static, arrays = on_host(call)
    spread: Spread | None = None
    problem: Exception | None = None
    try:
        traced = jitted(static).trace(arrays)
        spread = spread_of(traced.jaxpr, processes)
        kernels = kernels or trace(call, static, arrays)
        if spread is None:
            static, arrays = split(call)
            return static, arrays, kernels, run
        arrays = [place(each, s) for each, s in zip(arrays, spread.shardings, strict=True)]
        run = _compiled(prepare, static, arrays)
    except Exception as error:  # it is raised below, when the others know
        problem = error
    if spread is None and problem is not None:
        raise problem  # before anything is known of the others
    agree(
        "run",
        subject=words_of(call),
        problem="" if problem is None else f"{type(problem).__name__}: {problem}",
        kernel_raised=problem is not None,
        timeout=call.timeout,
    )
    if problem is not None:
        vars(problem)["shared"] = True  # see PallasError
        raise problem
    return static, arrays, kernels, run


def _compiled(prepare: Preparer, static: StaticPart, arrays: list[Any]) -> Runner:
    """A runner that has compiled the call, so that it can only fail while it runs."""
    compiled = prepare(static, arrays)
    return lambda _, given: compiled(given)


def words_of(call: Call) -> str:
    """The name, the shapes and a digest of the values of a call."""
    function: Any = getattr(call.function, "func", call.function)
    name = getattr(function, "__name__", type(function).__name__)
    leaves = [leaf for leaf in jax.tree.leaves(call.args) if _has_values(leaf)]
    shown = _ADDRESS.sub("", signature(call))  # of an object, which differs between processes
    found = hashlib.blake2b(repr(digest(leaves)).encode(), digest_size=6).hexdigest()
    return f"{name}({shown}), values {found}"


def _has_values(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array):
        return leaf.is_fully_addressable
    return isinstance(leaf, np.ndarray | np.generic | int | float | complex)


def _is_local(mesh: Mesh, processes: Gang) -> bool:
    return all(device.process_index == processes.process for device in mesh.devices.flat)


def _meshes(jaxpr: Any) -> Iterator[Mesh]:
    """The meshes with devices that a program names, outside of kernels."""
    for eqn in jaxpr.eqns:
        mesh = eqn.params.get("mesh")
        if isinstance(mesh, Mesh) and mesh.size:
            yield mesh
        for name in ("in_shardings", "out_shardings"):  # of jax.jit
            yield from (each.mesh for each in eqn.params.get(name, ()) if _is_concrete(each))
        if _is_concrete(eqn.params.get("sharding")):
            yield eqn.params["sharding"].mesh
        for inner in sub_jaxprs(eqn):
            yield from _meshes(inner)


def _shardings(jaxpr: Any, inputs: dict[Any, int]) -> Iterator[tuple[int, NamedSharding]]:
    """The position and sharding of inputs of the program; the last ones of a position hold.

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
            given = eqn.params.get("in_shardings", ())
            for operand, position in taken:
                if operand < len(given) and _is_concrete(given[operand]):
                    yield position, given[operand]


def _is_concrete(sharding: Any) -> bool:
    """Whether a sharding names devices."""
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)


def _known(variable: Any, inputs: dict[Any, int]) -> bool:
    return not hasattr(variable, "val") and variable in inputs
