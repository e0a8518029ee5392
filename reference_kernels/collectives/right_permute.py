"""Each device sends its shard to its right neighbour: ``o_{(i + 1) mod devices} = x_i``.

Shapes: ``x`` and ``o`` are ``(devices, m, n)``, sharded over the first axis by the mesh axis
``"x"``, so that a device holds ``(1, m, n)``. Dtypes: any.

A remote DMA writes into the output buffer of another device, so that device must have entered the
kernel: before, the buffer may still belong to something else. So every device first tells its left
neighbour, the one that writes to it, and waits for the same word from its right neighbour. One
signal from the one device that matters is exact. With a signal from each neighbour, two signals of
one neighbour that ran ahead into its next call would look like one of each.

The copy signals two semaphores: the sender's when the data has left, the receiver's when it has
arrived. Waiting for both means that no device returns before its output is complete and its input
may be reused.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels import _require

_AXIS = "x"
# Kernels that may run at the same time need different barrier semaphores, which this id selects.
_COLLECTIVE_ID = 0


def _permute_kernel(x_ref: Any, o_ref: Any, send_semaphore: Any, receive_semaphore: Any) -> None:
    devices = jax.lax.axis_size(_AXIS)
    me = jax.lax.axis_index(_AXIS)
    left = jax.lax.rem(me + devices - 1, devices)
    right = jax.lax.rem(me + 1, devices)

    ready = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(ready, 1, device_id={_AXIS: left})
    pl.semaphore_wait(ready, 1)

    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, send_semaphore, receive_semaphore, device_id={_AXIS: right}
    )
    copy.start()
    copy.wait()


def _permute_shard(x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        _permute_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=_COLLECTIVE_ID),
    )(x)


def right_permute(x: jax.Array, *, mesh: jax.sharding.Mesh) -> jax.Array:
    """``x`` with every shard moved to the next device of the ring.

    Args:
      x: ``(devices, m, n)``, of any dtype.
      mesh: a mesh with an axis ``"x"`` of ``devices`` devices.

    Returns:
      ``(devices, m, n)``, sharded like ``x``.

    Raises:
      ValueError: the mesh has no axis ``"x"``, or ``x`` has a wrong rank or first dimension.
    """
    devices = _devices(mesh)
    first, _, _ = _require.axes("x", x, "devices m n")
    _require.same_size("devices", ("mesh", devices), ("x", first))
    shards = PartitionSpec(_AXIS)
    # A pallas_call does not say over which mesh axes its output varies, so the check is off.
    permute = jax.shard_map(
        _permute_shard, mesh=mesh, in_specs=shards, out_specs=shards, check_vma=False
    )
    return permute(x)


def _devices(mesh: jax.sharding.Mesh) -> int:
    if _AXIS not in mesh.shape:
        raise ValueError(f"mesh must have an axis 'x', but its axes are {mesh.axis_names}")
    return mesh.shape[_AXIS]


def reference(x: jax.Array, *, mesh: jax.sharding.Mesh) -> jax.Array:
    """``x`` rolled by one along its first axis."""
    del mesh
    return jnp.roll(x, 1, axis=0)


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arrays(
        "devices m n",
        dtype=pst.dtypes("bfloat16", "float32", "int32"),
        dims={"devices": mesh.shape[_AXIS], "m": [1, 8, 9, 16], "n": [1, 128, 130]},
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"devices": mesh.shape[_AXIS], "m": 256, "n": 1024}
    return (pst.shaped("devices m n", dtype="bfloat16", dims=dims),)


SPEC = KernelSpec(
    name="right_permute",
    kernel=right_permute,
    reference=reference,
    inputs=_inputs,
    meshes=({"x": 4}, {"x": 8}),
    backends=("tpu-interpret", "tpu-compile", "tpu"),  # the portable interpreter has no remote DMA
    exact=True,
    relations=(Linear(0), Permuted({0: 1}, output=1, exact=True)),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
