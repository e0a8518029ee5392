"""What the portable kernels refuse, and what they say."""

import jax.numpy as jnp
import pytest

from reference_kernels import portable

X = jnp.zeros((4, 8))
V = jnp.zeros((8,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: portable.portable_add(V, V, block=1000), "block must be a power of two.*1000"),
        (lambda: portable.portable_add(V, V, block=128), "block must be at least 256"),
        (lambda: portable.portable_add(V, jnp.zeros((9,))), "y must have the same length as x, 8"),
        (lambda: portable.portable_matmul(X, X), "y must have the same k as x, 8.* is 4"),
        (lambda: portable.portable_matmul(X, X.T, block_k=96), "block_k must be a power of two"),
        (
            lambda: portable.portable_matmul(X.astype(int), X.T.astype(int)),
            "x must have a floating dtype",
        ),
        (lambda: portable.portable_softmax(V), r"x must have the shape \(m, n\)"),
        (lambda: portable.portable_softmax(X, block_rows=8), "block_rows must be a power of two"),
        (lambda: portable.portable_rms_norm(X, V[:3]), "w must have the same n as x, 8.* is 3"),
        (lambda: portable.portable_layer_norm(X, V, V[:3]), "b must have the same n as x, 8"),
        (
            lambda: portable.portable_flash_attention(X, X, X, block_kv=24),
            "block_kv must be a power of two",
        ),
        (
            lambda: portable.portable_flash_attention(X, X[:, :3], X),
            "k must have the same d as q, 8",
        ),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
