"""Products of matrices on Hopper (`wgmma`) and Blackwell (`tcgen05`)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental.pallas.ops.gpu import (
    blackwell_matmul_mgpu,
    hopper_matmul_mgpu,
    hopper_mixed_type_matmul_mgpu,
)

from published.failures import BLACKWELL, HOPPER, fails
from pytest_pallas import KernelSpec, Linear, Permuted
from pytest_pallas import strategies as pst

M, N = hopper_matmul_mgpu.MatmulDimension


def reference(a: Any, b: Any, c: Any = None) -> Any:
    wide = jnp.promote_types(b.dtype, jnp.float32)
    product = jnp.matmul(a.astype(b.dtype), b, preferred_element_type=wide)
    return product.astype(b.dtype) if c is None else (product + c).astype(c.dtype)


def hopper(a: Any, b: Any, c: Any = None, **config: Any) -> Any:
    defaults: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}
    return hopper_matmul_mgpu.matmul(
        a, b, c, hopper_matmul_mgpu.TuningConfig(**(defaults | config))
    )


def mixed(a: Any, b: Any, **config: Any) -> Any:
    module = hopper_mixed_type_matmul_mgpu
    sides = {"wg_dimension", "cluster_dimension", "grid_minor_dim"} & config.keys()
    same: dict[str, Any] = {
        name: None if config[name] is None else module.MatmulDimension(config[name])
        for name in sides
    }
    defaults: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}
    return module.mixed_matmul_kernel(
        a, b, out_dtype=b.dtype, config=module.TuningConfig(**(defaults | config | same))
    )


def blackwell(a: Any, b: Any, **config: Any) -> Any:
    module = blackwell_matmul_mgpu
    defaults: dict[str, Any] = {
        "tile_m": 128,
        "tile_n": 64,
        "tile_k": 64,
        "max_concurrent_steps": 2,
    }
    config = defaults | {"collective": False} | config
    return module.matmul_kernel(a, b, config=module.TuningConfig(**config))


HOPPER_TUNING = {
    "max_concurrent_steps": st.sampled_from([2, 3]),
    "wg_dimension": st.sampled_from([M, N]),
    "cluster_dimension": st.sampled_from([None, M, N]),
    "grid_tile_width": st.sampled_from([1, 2]),
    "grid_minor_dim": st.sampled_from([M, N]),
    "tile_n": st.sampled_from([64, 128]),
}
#: Of what a cluster of two blocks of two warpgroups computes at once, whole numbers.
HOPPER_SIZES = {"m": [256, 512], "n": [512], "k": [64, 192]}


def _spec(
    name: str,
    kernel: Any,
    shapes: str,
    *,
    dtype: Any,
    dims: Any,
    tuning: Any,
    backends: Any = HOPPER,
    **rest: Any,
) -> KernelSpec:
    rest.setdefault("exact", True)
    return KernelSpec(
        name=name,
        kernel={"gpu": kernel},
        reference=reference,
        backends=backends,
        inputs=pst.arguments(pst.arrays(shapes, dtype=dtype, dims=dims), tuning=tuning),
        vmappable=False,
        **rest,
    )


FLOATS = pst.floats("bfloat16", "float16")

HOPPER_MATMUL = _spec(
    "hopper_matmul",
    hopper,
    "m k, k n",
    dtype=FLOATS,
    dims=HOPPER_SIZES,
    tuning=HOPPER_TUNING,
    relations=(Linear(0), Permuted({0: 1, 1: 0})),
)
HOPPER_MATMUL_ADDED = _spec(
    "hopper_matmul_added",
    hopper,
    "m k, k n, m n",
    dtype=FLOATS,
    dims=HOPPER_SIZES,
    tuning=HOPPER_TUNING,
    checks=("forward", "races"),
    exact=False,  # it rounds the product, and the sum again
)
HOPPER_MATMUL_NARROW = _spec(
    "hopper_matmul_narrow",
    hopper,
    "m k, k n",
    dtype=FLOATS,
    dims={"m": 128, "n": 192, "k": 64},
    tuning={"tile_n": st.sampled_from([32, 96])},
    checks=("forward",),
    xfail=fails("gpu-sim", "columns after the last whole epi_tile_n are never written", "forward"),
)
HOPPER_MIXED = _spec(
    "hopper_mixed_matmul",
    mixed,
    "m k, k n",
    dtype=("int8", "bfloat16"),
    dims=HOPPER_SIZES,
    tuning=HOPPER_TUNING,
)
BLACKWELL_TUNING = {
    "max_concurrent_steps": st.sampled_from([2, 3]),
    "grid_tile_width": st.sampled_from([1, 2]),
    "tile_n": st.sampled_from([64, 128]),
}
BLACKWELL_MATMUL = _spec(
    "blackwell_matmul",
    blackwell,
    "m k, k n",
    dtype=FLOATS,
    dims={"m": [256, 512], "n": [256], "k": [64, 192]},
    tuning=BLACKWELL_TUNING,
    backends=BLACKWELL,
    checks=("forward",),
    xfail=fails(
        "gpu-sim:b200",
        "a block ends before its last copy has read its memory",
        "forward",
        hardware=False,
    ),
)
BLACKWELL_MATMUL_PAIRS = _spec(
    "blackwell_matmul_pairs",
    blackwell,
    "m k, k n",
    dtype=FLOATS,
    dims={"m": [256, 512], "n": [512], "k": [64, 192]},
    tuning=BLACKWELL_TUNING | {"collective": True},
    backends=BLACKWELL,
    checks=("forward",),
    xfail=fails(
        "gpu-sim:b200", "both blocks of a pair ask for the next tile", "forward", hardware=False
    ),
)
