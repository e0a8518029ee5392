"""Calls of kernels on the devices of a mesh, and what such kernels have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR


def _calls(mesh: Mesh) -> Any:
    dims = {"devices": mesh.shape["x"], "m": [1, 8], "n": [1, 128]}
    return pst.arrays("devices m n", dtype="float32", dims=dims)


#: The spec of a kernel for x ``(devices, m, n)``, a shard of which is ``(1, m, n)``.
on_devices = functools.partial(
    KernelSpec,
    inputs=_calls,
    meshes=({"x": 4},),
    backends=("tpu-sim", "tpu-interpret"),
    exact=True,
    family="collectives",
)


def neighbours() -> tuple[Any, Any]:
    """Return the device to the left, and the one to the right."""
    devices, me = jax.lax.axis_size("x"), jax.lax.axis_index("x")
    return jax.lax.rem(me + devices - 1, devices), jax.lax.rem(me + 1, devices)


def meet(*others: Any, signals: int | None = None) -> None:
    """Signal others, and wait for as many signals, or for ``signals``."""
    barrier = pltpu.get_barrier_semaphore()
    for other in others:
        pl.semaphore_signal(barrier, 1, device_id={"x": other})
    pl.semaphore_wait(barrier, len(others) if signals is None else signals)


def called(body: Callable[..., None], x: jax.Array, *scratch: Any, **options: Any) -> jax.Array:
    """Call a kernel whose operand and result stay in HBM, and have the same shape."""
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=scratch,
        **options,
    )(x)


def on_shards(shard: Callable[[jax.Array], jax.Array], mesh: Mesh, x: jax.Array) -> jax.Array:
    """Call ``shard`` on each device of the mesh."""
    over = PartitionSpec("x")
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=over, out_specs=over, check_vma=False))(
        x
    )


def sharded(body: Callable[..., None], mesh: Mesh, x: jax.Array, *scratch: Any) -> jax.Array:
    """Call the kernel on each device of the mesh, which lets them begin when they like."""
    parameters = pltpu.CompilerParams(collective_id=0)
    return on_shards(lambda x: called(body, x, *scratch, compiler_params=parameters), mesh, x)


def boxes_of(x: jax.Array, count: int) -> Any:
    """Return a number of buffers of the size of a shard."""
    return pltpu.VMEM((count, 1, *x.shape[1:]), x.dtype)


def shard_of(x: jax.Array) -> Any:
    """Return a buffer of the size of a shard."""
    return pltpu.VMEM((1, *x.shape[1:]), x.dtype)
