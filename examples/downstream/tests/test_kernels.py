"""Our own kernel, and two that come with JAX, each against a few lines of jnp."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention
from jax.experimental.pallas.ops.tpu.matmul import matmul
from norm_kernels import rms_norm

from pytest_pallas import ExpectedFailure, KernelSpec, PallasCheck, suite
from pytest_pallas import strategies as pst


def rms_norm_reference(x, weight, *, eps=1e-6):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean_square = jnp.mean(wide**2, axis=-1, keepdims=True)
    return (wide / jnp.sqrt(mean_square + eps) * weight).astype(x.dtype)


def attention_reference(q, k, v, bias=None, segment_ids=None, *, causal=False, sm_scale=1.0):
    wide = jnp.promote_types(q.dtype, jnp.float32)
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
    if bias is not None:
        logits += bias
    mask = jnp.ones(logits.shape[-2:], bool)
    if causal:
        mask = jnp.tril(mask)
    if segment_ids is not None:
        mask = mask & (segment_ids.q[:, None, :, None] == segment_ids.kv[:, None, None, :])
    weights = jax.nn.softmax(jnp.where(mask, logits * sm_scale, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=wide).astype(q.dtype)


def matmul_reference(x, y):
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.matmul(x, y, preferred_element_type=wide).astype(x.dtype)


# --- Our own kernel ---------------------------------------------------------------------------

ROWS = pst.arrays("m n, n", around={"m": 16, "n": 128})


@pytest.mark.pallas(backends=["tpu-sim", "interpret", "tpu"], reason="written for TPUs")
@given(args=ROWS, eps=st.sampled_from([1e-6, 0.1]))
def test_rms_norm(pallas_check: PallasCheck, args, eps):
    pallas_check(
        rms_norm,
        *args,
        reference=rms_norm_reference,
        options={"eps": eps},
        tuning={"block_rows": 16},
    )


RMS_NORM = KernelSpec(
    name="rms_norm",
    kernel=rms_norm,
    reference=rms_norm_reference,
    inputs=pst.arguments(ROWS, tuning={"block_rows": st.sampled_from([8, 16])}),
)


# --- Flash attention, as bundled with JAX -----------------------------------------------------

# The kernel wants whole blocks of 128 keys, but any number of queries from 128 on.
ATTENTION = pst.arrays(
    "b h q d, b h k d, b h k d",
    around={"q": 128},
    multiple_of={"k": 128},
    dims={"b": [1, 2], "h": [1, 2], "d": [64, 128]},
    min_dim=128,
    max_elements=2**17,
)


def with_segments(drawn, length):
    """Segments of ``length`` positions, the last one longer: no query is without a key."""
    (batch, _, q_len, _), kv_len = drawn[0].shape, drawn[1].shape[2]
    last = (min(q_len, kv_len) - 1) // length
    ids: list[Any] = [  # of numpy, where JAX's annotations ask for its own arrays
        np.tile(np.minimum(np.arange(n) // length, last), (batch, 1)).astype(np.int32)
        for n in (q_len, kv_len)
    ]
    return pst.Drawn((*drawn, None, SegmentIds(*ids)), {**drawn.recipe, "segments": length})


SEGMENTED = st.builds(with_segments, ATTENTION, st.sampled_from([128, 37, 100]))


def attention_spec(name, **rest):
    return KernelSpec(
        name=name,
        family="jax",
        kernel=flash_attention,
        reference=attention_reference,
        backends=("tpu-sim",),
        **rest,
    )


FLASH_ATTENTION = attention_spec(
    "flash_attention",
    inputs=pst.arguments(ATTENTION, options={"causal": True, "sm_scale": 0.125}),
)
FLASH_ATTENTION_SEGMENTS = attention_spec(
    "flash_attention_segments",
    inputs=pst.arguments(SEGMENTED, options={"causal": st.booleans(), "sm_scale": 0.125}),
    checks=("forward",),
)

# Backwards, the kernel wants whole blocks of queries too. conftest.py says how exact it must be.
FLASH_ATTENTION_GRADIENT = attention_spec(
    "flash_attention_gradient",
    inputs=pst.arguments(
        pst.arrays(
            "1 h q 64, 1 h k 64, 1 h k 64",
            multiple_of={"q": 128, "k": 128},
            dims={"h": [1, 2]},
            max_dim=256,
            dtype=pst.floats("bfloat16", "float32"),
            values="normal",
        ),
        options={"causal": True, "sm_scale": 0.125},
    ),
    differentiable=(0, 1, 2),
    checks=("gradient",),
)


# --- The matrix product bundled with JAX ------------------------------------------------------


def matmul_spec(name, **rest):
    return KernelSpec(
        name=name,
        family="jax",
        kernel=matmul,
        reference=matmul_reference,
        backends=("tpu-sim",),
        exact=True,
        **rest,
    )


BLOCKS = {"block_shape": (64, 128), "block_k": 128}
MATMUL = matmul_spec(
    "matmul",
    inputs=pst.arguments(
        pst.arrays("m k, k n", multiple_of={"m": 64, "k": 128, "n": 128}), tuning=BLOCKS
    ),
)

# Its grid has whole blocks only (m // block_m, and so on), and nothing stops a caller with other
# sizes. The plugin finds that; the day that JAX mends it, these expected failures are noticed.
MATMUL_ANY_SIZE = matmul_spec(
    "matmul_any_size",
    inputs=pst.arguments(
        pst.arrays("m k, k n", around={"m": 64, "k": 128, "n": 128}), tuning=BLOCKS
    ),
    checks=("forward",),
    xfail={
        "tpu-sim": ExpectedFailure(
            reason="what is over after the last whole block is left out", jax="0.12.0.1"
        )
    },
)

test_kernels = suite(
    RMS_NORM,
    FLASH_ATTENTION,
    FLASH_ATTENTION_SEGMENTS,
    FLASH_ATTENTION_GRADIENT,
    MATMUL,
    MATMUL_ANY_SIZE,
)


def check_product(
    pallas_check: PallasCheck, rng: np.random.Generator, m: int, k: int, n: int, *, name: str
):
    """One product with the kernel's usual blocks, of 128 rows, 128 columns and 128 between."""
    x, y = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    blocks = {"block_shape": (128, 128), "block_k": 128}
    pallas_check(matmul, x, y, reference=matmul_reference, tuning=blocks, name=name)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_matmul_of_whole_blocks(pallas_check: PallasCheck, pallas_rng: np.random.Generator):
    check_product(pallas_check, pallas_rng, 256, 256, 128, name="matmul of whole blocks")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.pallas_xfail("tpu-sim", reason="rows 128 to 199 are never written: NaN (JAX 0.12.0.1)")
def test_matmul_of_200_rows(pallas_check: PallasCheck, pallas_rng: np.random.Generator):
    check_product(pallas_check, pallas_rng, 200, 256, 256, name="matmul of 200 rows")


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.pallas_xfail(
    "tpu-sim", reason="128 of 200 products are summed: partial sums (JAX 0.12.0.1)"
)
def test_matmul_over_200_products(pallas_check: PallasCheck, pallas_rng: np.random.Generator):
    check_product(pallas_check, pallas_rng, 256, 200, 256, name="matmul over 200 products")
