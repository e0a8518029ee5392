"""`all_gather`, `reduce_scatter` and a product of gathered rows, over several GPUs."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental.pallas.ops.gpu import (
    all_gather_mgpu,
    collective_matmul_mgpu,
    hopper_matmul_mgpu,
    reduce_scatter_mgpu,
)
from jax.sharding import PartitionSpec

from published.failures import HOPPER, fails
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst


def gathered(x: Any, *, mesh: jax.sharding.Mesh, axis: int = 0, num_blocks: int = 2) -> Any:
    gather = functools.partial(
        all_gather_mgpu.all_gather, axis_name="x", gather_dimension=axis, num_blocks=num_blocks
    )
    parts = PartitionSpec(*(None,) * axis, "x")
    return jax.shard_map(
        gather, mesh=mesh, in_specs=parts, out_specs=PartitionSpec(), check_vma=False
    )(x)


def gathered_reference(x: Any, *, mesh: jax.sharding.Mesh, axis: int = 0) -> Any:
    del mesh, axis
    return x


def _gathered_inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"m": [mesh.size * 4, mesh.size * 16], "n": [mesh.size * 128, mesh.size * 256]},
        ),
        options={"axis": st.sampled_from([0, 1])},
        tuning={"num_blocks": st.sampled_from([1, 3])},
    )


ALL_GATHER = KernelSpec(
    name="gpu_all_gather",
    kernel={"gpu": gathered},
    reference=gathered_reference,
    backends=HOPPER,
    meshes={"x": (2, 4, 8)},  # its tiles are powers of two
    inputs=_gathered_inputs,
    exact=True,
    vmappable=False,
)


def scattered(
    x: Any,
    *,
    mesh: jax.sharding.Mesh,
    axis: int | None = 0,
    reduction: Any = "add",
    num_blocks: int = 2,
) -> Any:
    """Of [devices, m, n]: each device has a part of the sum, or without ``axis`` all of it."""

    def local(x: Any) -> Any:
        return reduce_scatter_mgpu.reduce_scatter(
            x[0], axis_name="x", scatter_dimension=axis, reduction=reduction, num_blocks=num_blocks
        )

    parts = PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, "x")
    return jax.shard_map(
        local, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=parts, check_vma=False
    )(x)


def scattered_reference(
    x: Any, *, mesh: jax.sharding.Mesh, axis: int | None = 0, reduction: str = "add"
) -> Any:
    del mesh, axis
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32)) if x.dtype.kind != "i" else x
    found = {"add": jnp.sum, "min": jnp.min, "max": jnp.max}[reduction](wide, axis=0)
    return found.astype(x.dtype)


def _scattered_inputs(dtypes: Any, reductions: list[str]) -> Any:
    def inputs(mesh: jax.sharding.Mesh) -> Any:
        return pst.arguments(
            pst.arrays(
                "devices m n",
                dtype=dtypes,
                dims={
                    "devices": mesh.size,
                    "m": [mesh.size * 4, mesh.size * 16],
                    "n": [mesh.size * 128, mesh.size * 256],
                },
            ),
            options={
                "axis": st.sampled_from([0, 1, None]),
                "reduction": st.sampled_from(reductions),
            },
            tuning={"num_blocks": st.sampled_from([1, 3])},
        )

    return inputs


def _scatter(name: str, dtypes: Any, reductions: list[str], **rest: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": scattered},
        reference=scattered_reference,
        backends=HOPPER,
        meshes={"x": (2, 4, 8)},  # its tiles are powers of two
        inputs=_scattered_inputs(dtypes, reductions),
        exact=True,
        vmappable=False,
        **rest,
    )


REDUCE_SCATTER = _scatter("gpu_reduce_scatter", pst.dtypes("float32", "int32"), ["add"])
REDUCE_SCATTER_HALVES = _scatter(
    "gpu_reduce_scatter_halves", pst.dtypes("bfloat16", "float16"), ["add", "min", "max"]
)


def multiplied(x: Any, y: Any, *, mesh: jax.sharding.Mesh, dtype: Any = None, **config: Any) -> Any:
    """Each device has rows of x and columns of y, and gets its columns of the product."""
    defaults: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}
    tuning = hopper_matmul_mgpu.TuningConfig(**(defaults | config))
    product = functools.partial(
        collective_matmul_mgpu.all_gather_lhs_matmul,
        axis_name="x",
        config=tuning,
        dtype=x.dtype if dtype is None else dtype,
    )
    # It wants as many devices as the mesh has.
    with (
        mock.patch.object(jax, "device_count", return_value=mesh.size),
        mock.patch.object(jax, "local_device_count", return_value=mesh.size),
    ):
        return jax.shard_map(
            product,
            mesh=mesh,
            in_specs=(PartitionSpec("x"), PartitionSpec(None, "x")),
            out_specs=PartitionSpec(None, "x"),
            check_vma=False,
        )(x, y)


def multiplied_by_two(x: Any, y: Any, *, mesh: jax.sharding.Mesh, **rest: Any) -> Any:
    """``multiplied``, for the number of devices on which one semaphore is enough."""
    if mesh.size > 2:
        raise ValueError(f"all_gather_lhs_matmul is for 2 devices here, not {mesh.size}")
    return multiplied(x, y, mesh=mesh, **rest)


def multiplied_reference(x: Any, y: Any, *, mesh: jax.sharding.Mesh, dtype: Any = None) -> Any:
    del mesh
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = jnp.matmul(x, y, preferred_element_type=wide)
    return product.astype(x.dtype if dtype is None else dtype)


def _multiplied(
    name: str,
    dtype: Any,
    *,
    kernel: Any = multiplied_by_two,
    meshes: Any = ({"x": 2},),
    options: Any = None,
    **rest: Any,
) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": kernel},
        reference=multiplied_reference,
        backends=HOPPER,
        meshes=meshes,
        inputs=lambda mesh: pst.arguments(
            pst.arrays(
                "m k, k n",
                dtype=dtype,
                dims={"m": mesh.size * 64, "k": [64, 192], "n": mesh.size * 128},
            ),
            options={} if options is None else options,
        ),
        exact=True,
        vmappable=False,
        checks=("forward",),
        **rest,
    )


COLLECTIVE_MATMUL = _multiplied("gpu_all_gather_matmul", pst.floats("bfloat16", "float16"))
COLLECTIVE_MATMUL_RING = _multiplied(
    "gpu_all_gather_matmul_ring",
    "bfloat16",
    kernel=multiplied,
    meshes={"x": (3, 4)},
    xfail=fails(
        "gpu-sim",
        "a block that is a step ahead signals in place of one that has not sent its rows yet",
        "forward",
        hardware=False,
    ),
)
COLLECTIVE_MATMUL_MIXED = _multiplied(
    "gpu_all_gather_matmul_mixed",
    "bfloat16",
    options={"dtype": jnp.float16},
    xfail=fails(
        "gpu-sim", "rows are sent in the dtype of the output, and not their own", "forward"
    ),
)
