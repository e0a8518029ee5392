"""Kernels over several GPUs: what they refuse, and what their machine code costs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_test_support.operands import f32, i32, refuses

from reference_kernels import _gpu
from reference_kernels.mosaic_gpu.peer_all_gather import peer_all_gather_on_mesh
from reference_kernels.mosaic_gpu.peer_all_gather_matmul import peer_all_gather_matmul_on_mesh
from reference_kernels.mosaic_gpu.peer_all_reduce import peer_all_reduce_on_mesh
from reference_kernels.mosaic_gpu.peer_reduce_scatter import peer_reduce_scatter_on_mesh

HAS_SEMAPHORES = _gpu.has("alloc_semaphore")  # from JAX 0.12 on
KERNELS = [
    peer_all_gather_on_mesh,
    peer_reduce_scatter_on_mesh,
    peer_all_gather_matmul_on_mesh,
    *([peer_all_reduce_on_mesh] if HAS_SEMAPHORES else []),
]


def mesh(*sizes: int) -> jax.sharding.Mesh:
    count = int(np.prod(sizes))
    devices = jax.devices("cpu")[:count]
    if len(devices) < count:
        pytest.skip(f"there are {len(devices)} devices, and {count} are needed")
    return jax.sharding.Mesh(np.array(devices).reshape(sizes), ("x", "y")[: len(sizes)])


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


def on_one(kernel: Callable[..., Any], *shards: Any, **options: Any) -> Callable[[], Any]:
    """A call of ``kernel`` on one device with three blocks."""
    options = {"axis_name": "x", "programs": 3} | options
    return lambda: kernel(*(each[None] for each in shards), mesh=mesh(1), **options)


@pytest.mark.parametrize("kernel", KERNELS)
def test_mesh_and_shards(kernel: Callable[..., Any]) -> None:
    operands = [bf16(1, 2, 3), bf16(1, 3, 4)][: 1 + kernel.__name__.count("matmul")]
    refuses(
        lambda: kernel(*operands, mesh=mesh(1), axis_name="z"),
        "mesh must have an axis 'z', but its axes are ('x',)",
    )
    refuses(
        lambda: kernel(*(each[0] for each in operands), mesh=mesh(1), axis_name="x"),
        "x must have one shard for each of the 1 devices",
    )
    refuses(on_one(kernel, *(each[0] for each in operands), programs=0), "programs must be")


def test_all_gather() -> None:
    kernel = peer_all_gather_on_mesh
    refuses(on_one(kernel, f32(0, 3)), "x must not be empty")
    refuses(on_one(kernel, np.float32(1)), "x must have at least one dimension")
    refuses(on_one(kernel, np.zeros(3, bool)), "x must have elements of 8, 16 or 32 bits", "bool")
    refuses(on_one(kernel, f32(2), schedule="ring"), "schedule must be one of", "'ring'")
    refuses(on_one(kernel, f32(2), block_rows=257), "block_rows must be at most 256", "257")


def test_reduce_scatter() -> None:
    kernel = peer_reduce_scatter_on_mesh
    refuses(on_one(kernel, f32(0, 3)), "x must not be empty")
    refuses(on_one(kernel, np.float32(1)), "x must have a size along axis 0")
    refuses(on_one(kernel, i32(2)), "x must be float32, bfloat16 or float16", "int32")
    refuses(on_one(kernel, f32(2), schedule="ring"), "schedule must be one of", "'ring'")
    refuses(
        lambda: kernel(f32(2, 3, 1), mesh=mesh(2), axis_name="x"),
        "x must have a size along axis 0 that is a multiple of the 2 devices of 'x'",
        "(3, 1)",
    )


@pytest.mark.skipif(not HAS_SEMAPHORES, reason="plgpu.alloc_semaphore came with JAX 0.12")
def test_all_reduce() -> None:
    kernel = peer_all_reduce_on_mesh
    refuses(on_one(kernel, f32(0, 3)), "x must not be empty")
    refuses(on_one(kernel, i32(2)), "x must be float32, bfloat16 or float16", "int32")
    refuses(on_one(kernel, f32(2), schedule="ring"), "schedule must be one of", "'ring'")


def test_all_reduce_needs_a_new_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(plgpu, "alloc_semaphore", raising=False)
    with pytest.raises(NotImplementedError, match=r"needs plgpu.alloc_semaphore, new in JAX 0.12"):
        on_one(peer_all_reduce_on_mesh, f32(2))()


@pytest.mark.parametrize("kernel", [*KERNELS[:2], *KERNELS[3:]])
def test_the_switch_reaches_all_devices_of_the_mesh(kernel: Callable[..., Any]) -> None:
    refuses(
        lambda: kernel(f32(4, 4), mesh=mesh(2, 2), axis_name="x", schedule="switch"),
        "needs axis_name to be the only axis of the mesh",
    )


def test_all_gather_matmul() -> None:
    kernel = peer_all_gather_matmul_on_mesh
    refuses(on_one(kernel, bf16(2), bf16(2, 3)), "x must have the shape (m, k)")
    refuses(on_one(kernel, bf16(2, 3), bf16(4, 5)), "y must have the same k as x, 3")
    refuses(on_one(kernel, f32(2, 3), f32(3, 4)), "x must be bfloat16 or float16", "tf32")
    refuses(on_one(kernel, bf16(2, 3), bf16(3, 4).astype("float16")), "y must have the dtype of x")
    refuses(on_one(kernel, bf16(2, 3), bf16(3, 4), stages=1, movers=1), "stages must be at least 2")
    refuses(on_one(kernel, bf16(2, 3), bf16(3, 4), movers=0), "movers must be a positive integer")
    refuses(
        on_one(kernel, bf16(2, 3), bf16(3, 4), movers=3),
        "movers must be less than the 3 programs, but there are 3",
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_on_two_devices_nothing_spills(pallas_compile: Any, kernel: Callable[..., Any]) -> None:
    shards = [jax.ShapeDtypeStruct((2, 1024, 1024), jnp.bfloat16)]
    shards *= 1 + kernel.__name__.count("matmul")
    call = functools.partial(kernel, mesh=mesh(2), axis_name="x")
    report = pallas_compile(call, *shards, target="h100")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()  # such as that wgmma is serialized
