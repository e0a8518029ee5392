"""``checks.gradient``: gradients that a kernel computes from what its forward pass stored."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pytest_pallas import MismatchError, check


def softmax_of(x_ref, o_ref, lse_ref):
    x = x_ref[...]
    largest = jnp.max(x, axis=1, keepdims=True)
    e = jnp.exp(x - largest)
    total = jnp.sum(e, axis=1, keepdims=True)
    o_ref[...] = e / total
    lse_ref[...] = largest + jnp.log(total)


def gradient_of(x_ref, lse_ref, ct_ref, g_ref, *, base, factor):
    """``p * (ct - sum(p * ct))``, with ``p`` from the stored log-sum-exp."""
    if base == 2:
        p = jnp.exp2(x_ref[...] * np.log2(np.e) - lse_ref[...] * np.log2(np.e))
    else:
        p = jnp.exp(x_ref[...] - lse_ref[...])
    ct = ct_ref[...]
    g_ref[...] = p * (ct - factor * jnp.sum(p * ct, axis=1, keepdims=True))


def softmax(base=np.e, factor=1.0):
    """A softmax whose backward pass recomputes it; ``factor`` makes that wrong."""

    def forward(x):
        column = jax.ShapeDtypeStruct((len(x), 1), x.dtype)
        out, lse = pl.pallas_call(softmax_of, out_shape=[x, column])(x)
        return out, (x, lse)

    def backward(residuals, ct):
        body = functools.partial(gradient_of, base=base, factor=factor)
        return (pl.pallas_call(body, out_shape=ct)(*residuals, ct),)

    function = jax.custom_vjp(lambda x: forward(x)[0])
    function.defvjp(forward, backward)
    return function


def by_hand(x):
    e = jnp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("scale", "shift"), [(30, 0), (3, -1000)], ids=["sharp", "far from zero"])
@pytest.mark.parametrize("reference", [by_hand, functools.partial(jax.nn.softmax, axis=1)])
def test_a_softmax_is_recomputed_from_a_stored_log_sum_exp(reference, scale, shift):
    """Its error is that of rounding the log-sum-exp, which the reference need not store."""
    x = np.random.default_rng(0).standard_normal((16, 128)) * scale + shift
    gradient = functools.partial(
        check, reference=reference, checks=["gradient"], differentiable=(0,), backend="tpu-sim"
    )
    for base in (np.e, 2):
        gradient(softmax(base), x.astype(np.float32))
    with pytest.raises(MismatchError):
        gradient(softmax(factor=1.01), x.astype(np.float32))
