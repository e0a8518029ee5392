"""Products of ragged groups on Hopper and Blackwell."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental.pallas.ops.gpu import (
    blackwell_matmul_mgpu,
    blackwell_ragged_dot_mgpu,
    ragged_dot_mgpu,
    transposed_ragged_dot_mgpu,
)

from published.failures import ANY_SIZE, BLACKWELL, HOPPER, fails
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst


def _one_hot(sizes: Any, rows: int, dtype: Any) -> Any:
    """Which group each row is of: bool, as numbers."""
    group = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(rows), side="right")
    return (group[:, None] == jnp.arange(len(sizes))).astype(dtype)


def reference(x: Any, w: Any, sizes: Any, *, transpose_rhs: bool = False) -> Any:
    """Rows after the last group are 0."""
    w = jnp.swapaxes(w, 1, 2) if transpose_rhs else w
    wide = jnp.promote_types(x.dtype, jnp.float32)
    each = jnp.einsum("mk,gkn->gmn", x, w, preferred_element_type=wide)
    found = jnp.einsum("mg,gmn->mn", _one_hot(sizes, x.shape[0], wide), each, precision="highest")
    return found.astype(x.dtype)


def transposed_reference(x: Any, y: Any, sizes: Any) -> Any:
    wide = jnp.promote_types(x.dtype, jnp.float32)
    groups = _one_hot(sizes, x.shape[0], x.dtype)
    masked = jnp.einsum("kg,km->gkm", groups, x)
    return jnp.einsum("gkm,kn->gmn", masked, y, preferred_element_type=wide).astype(x.dtype)


BLOCKS: dict[str, Any] = {
    "block_m": 64,
    "block_n": 64,
    "block_k": 64,
    "max_concurrent_steps": 4,
    "grid_block_n": 1,
}


def hopper(x: Any, w: Any, sizes: Any, *, transpose_rhs: bool = False, **blocks: Any) -> Any:
    return ragged_dot_mgpu.ragged_dot(
        x, w, group_sizes=sizes, transpose_rhs=transpose_rhs, **(BLOCKS | blocks)
    )


def transposed(x: Any, y: Any, sizes: Any, **blocks: Any) -> Any:
    return transposed_ragged_dot_mgpu.transposed_ragged_dot(
        x, y, group_sizes=sizes, **(BLOCKS | blocks)
    )


def blackwell(x: Any, w: Any, sizes: Any, *, tile_n: int = 64, collective: bool = False) -> Any:
    config = blackwell_ragged_dot_mgpu.TuningConfig(
        tile_m=128,
        tile_n=tile_n,
        tile_k=64,
        max_concurrent_steps=2,
        collective=collective,
        grid_tile_width=1,
        grid_minor_dim=blackwell_matmul_mgpu.MatmulDimension.N,
    )
    return blackwell_ragged_dot_mgpu.ragged_dot_kernel(x, w, sizes, config)


TUNING = {
    "block_m": st.sampled_from([64, 128]),
    "max_concurrent_steps": st.sampled_from([3, 4]),  # as many as there are; fewer are a race
    "grid_block_n": st.sampled_from([1, 2]),
}
FLOATS = pst.floats("bfloat16", "float16")


def _spec(
    name: str,
    kernel: Any,
    shapes: str,
    *,
    dims: Any,
    tuning: Any,
    full: bool = True,
    rows: str = "m",
    reference: Any = reference,
    backends: Any = HOPPER,
    options: Any = None,
    **rest: Any,
) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": kernel},
        reference=reference,
        backends=backends,
        inputs=pst.arguments(
            pst.arrays(shapes, dtype=FLOATS, dims=dims),
            then=lambda drawn: {
                "sizes": pst.group_sizes(
                    drawn.recipe["g"], total=drawn.recipe[rows] - (not full), full=full, around=64
                )
            },
            options={} if options is None else options,
            tuning=tuning,
        ),
        exact=True,
        vmappable=False,
        **rest,
    )


RACE = "a buffer is filled again while a product may read it: nothing waits for that"

DIMS = {
    "g": [1, 3, 5],
    "m": [64, 65, 200] if ANY_SIZE else [64, 200],
    "k": [64, 192],
    "n": [64, 128],
}

RAGGED_DOT = _spec("hopper_ragged_dot", hopper, "m k, g k n", dims=DIMS, tuning=TUNING)
RAGGED_DOT_TRANSPOSED = _spec(
    "hopper_ragged_dot_transposed",
    hopper,
    "m k, g n k",
    dims=DIMS,
    tuning=TUNING,
    options={"transpose_rhs": True},
    checks=("forward",),
)
RAGGED_DOT_FEW_COLUMNS = _spec(
    "hopper_ragged_dot_few_columns",
    hopper,
    "m k, g k n",
    dims=DIMS | {"n": [40, 72, 136] if ANY_SIZE else [40]},
    tuning=TUNING,
    checks=("forward", "races"),
)
RAGGED_DOT_LESS = _spec(
    "hopper_ragged_dot_less",
    hopper,
    "m k, g k n",
    dims=DIMS,
    tuning=TUNING,
    full=False,
    checks=("forward",),
    xfail=fails("gpu-sim", "rows after the last group are never written", "forward"),
)
REFILLED = {"g": 1, "m": 64, "k": [256, 320], "n": 64}
RAGGED_DOT_REFILLED = _spec(
    "hopper_ragged_dot_refilled",
    hopper,
    "m k, g k n",
    dims=REFILLED,
    tuning={"max_concurrent_steps": st.sampled_from([2, 3])},
    checks=("forward",),
    xfail=fails("gpu-sim", RACE, "forward", hardware=False),
)
TRANSPOSED_RAGGED_DOT = _spec(
    "hopper_transposed_ragged_dot",
    transposed,
    "k m, k n; g >= 1",
    dims={
        "g": [1, 3, 5],
        "m": [64, 128],
        "k": [64, 192, 100] if ANY_SIZE else [64, 192, 200],
        "n": [64, 128],
    },
    tuning={
        "max_concurrent_steps": st.sampled_from([1, 4]),
        "grid_block_n": st.sampled_from([1, 2]),
    },
    rows="k",
    reference=transposed_reference,
)
TRANSPOSED_RAGGED_DOT_REFILLED = _spec(
    "hopper_transposed_ragged_dot_refilled",
    transposed,
    "k m, k n; g >= 1",
    dims=REFILLED,
    tuning={"max_concurrent_steps": st.sampled_from([2, 3])},
    rows="k",
    reference=transposed_reference,
    checks=("forward",),
    xfail=fails("gpu-sim", RACE, "forward", hardware=False),
)
# On a GPU with 4 multiprocessors, a pair of blocks has two tiles of these.
BLACKWELL_RAGGED_DOT = _spec(
    "blackwell_ragged_dot",
    blackwell,
    "m k, g k n",
    dims={"g": [1, 3], "m": [256, 512], "k": [64, 192], "n": 256},
    tuning={"collective": True, "tile_n": 128},
    backends=BLACKWELL,
    checks=("forward", "determinism", "races"),
)
BLACKWELL_RAGGED_DOT_THIRD_TILE = _spec(
    "blackwell_ragged_dot_third_tile",
    blackwell,
    "m k, g k n",
    dims={"g": [1, 3], "m": 512, "k": 64, "n": 512},
    tuning={"collective": True, "tile_n": 64},
    backends=BLACKWELL,
    checks=("forward",),
    xfail=fails(
        "gpu-sim:b200",
        "nothing keeps an accumulator until the other block has stored it",
        "forward",
    ),
)
BLACKWELL_RAGGED_DOT_ALONE = _spec(
    "blackwell_ragged_dot_alone",
    blackwell,
    "m k, g k n",
    dims={"g": 1, "m": 128, "k": 64, "n": 128},
    tuning={"collective": False},
    backends=BLACKWELL,
    checks=("forward",),
    xfail=fails(
        "gpu-sim:b200", "without collective=True the axis of the clusters is missing", "forward"
    ),
)
