"""What the published kernels should compute, in jnp, and the arrays they are tried on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: What every kernel is tried on: dtype and class of values.
DATA = [
    ("float32", "normal"),
    ("float32", "integers"),
    ("bfloat16", "normal"),
    ("bfloat16", "integers"),
]


def draw(rng: np.random.Generator, shape: tuple[int, ...], data: tuple[str, str]) -> Any:
    """An array of unit normals, or of integers from -3 to 3, rounded to a dtype."""
    dtype, values = data
    if values == "integers":
        return rng.integers(-3, 4, shape).astype(jnp.dtype(dtype))
    return rng.standard_normal(shape).astype(jnp.dtype(dtype))


def wide(dtype: Any) -> Any:
    """The dtype to compute in: float32, or float64 for the oracle."""
    return jnp.promote_types(dtype, jnp.float32)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
) -> jax.Array:
    """Softmax attention of q [h, q, d] with k and v [g, k, d], of which g divides h.

    The soft cap comes before the mask; a query without any key gives 0.
    """
    k, v = (jnp.repeat(x, q.shape[0] // k.shape[0], axis=0) for x in (k, v))
    dtype = wide(q.dtype)
    logits = scale * jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=dtype)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    weights = softmax(logits, mask)
    out = jnp.einsum("hqk,hkd->hqd", weights, v.astype(dtype), preferred_element_type=dtype)
    return out.astype(q.dtype)


def softmax(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Softmax of the last axis where ``mask`` is True; 0 in rows without any True."""
    if mask is None:
        return jax.nn.softmax(logits, axis=-1)
    top = jnp.max(logits, axis=-1, keepdims=True, where=mask, initial=-1e30)
    terms = jnp.where(mask, jnp.exp(jnp.where(mask, logits - top, 0)), 0)
    total = jnp.sum(terms, axis=-1, keepdims=True)
    return terms / jnp.where(total > 0, total, 1)
