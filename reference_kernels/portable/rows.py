"""Softmax, RMS norm and layer norm of rows, by kernels for TPUs and GPUs.

Shapes: ``x`` and ``o`` are ``(m, n)``; ``w`` and ``b`` are ``(n,)``. Dtypes: float32, bfloat16 or
float16, computed in float32 and rounded once.

A program has whole rows, padded to a power of two: what Triton's blocks are, and so many lanes of
a TPU. The padding must not reach the result: for the softmax it is ``-inf``, whose weight is zero;
sums are divided by ``n`` and not by the width; and the deviations from a mean are set to zero
there, as the mean itself is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels import _require
from reference_kernels.portable._blocks import (
    LEAST_COLUMNS,
    LEAST_ROWS,
    padded,
    power_of_two,
    require_power_of_two,
)
from reference_kernels.portable._claims import BACKENDS
from reference_kernels.reductions.layer_norm import CANCELLING
from reference_kernels.reductions.layer_norm import reference as layer_norm_reference
from reference_kernels.reductions.rms_norm import reference as rms_norm_reference
from reference_kernels.reductions.softmax import reference as softmax_reference


def _softmax_kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32)
    top = jnp.max(x, axis=1, keepdims=True)
    weights = jnp.exp(x - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=1, keepdims=True)
    o_ref[...] = (weights / jnp.where(total == 0.0, 1.0, total)).astype(o_ref.dtype)


def _rms_norm_kernel(x_ref: Any, w_ref: Any, o_ref: Any, *, n: int, eps: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    mean = jnp.sum(x * x, axis=1, keepdims=True) / n
    o = x * jax.lax.rsqrt(mean + eps) * w_ref[...].astype(jnp.float32)
    o_ref[...] = o.astype(o_ref.dtype)


def _layer_norm_kernel(
    x_ref: Any, w_ref: Any, b_ref: Any, o_ref: Any, *, n: int, eps: float
) -> None:
    x = x_ref[...].astype(jnp.float32)
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < n
    centered = jnp.where(inside, x - jnp.sum(x, axis=1, keepdims=True) / n, 0.0)
    variance = jnp.sum(centered * centered, axis=1, keepdims=True) / n
    o = centered * jax.lax.rsqrt(variance + eps)
    o = o * w_ref[...].astype(jnp.float32) + b_ref[...].astype(jnp.float32)
    o_ref[...] = o.astype(o_ref.dtype)


def _by_rows(
    kernel: Callable[..., None],
    x: jax.Array,
    *weights: jax.Array,
    block_rows: int,
    padding: float = 0.0,
) -> jax.Array:
    """Run ``kernel`` over blocks of whole rows; each has all of the ``weights``, a row each."""
    m, n = _require.axes("x", x, "m n")
    _require.floating("x", x)
    require_power_of_two(block_rows=block_rows)
    width = power_of_two(n, LEAST_COLUMNS)
    x = padded(x, block_rows, width, value=padding)
    rows = pl.BlockSpec((block_rows, width), lambda i: (i, 0))
    row = pl.BlockSpec((1, width), lambda i: (0, 0))
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // block_rows,),
        in_specs=[rows, *(row for _ in weights)],
        out_specs=rows,
    )(x, *(padded(weight[None], 1, width) for weight in weights))
    return out[:m, :n]


def _check_weights(x: jax.Array, **weights: jax.Array) -> None:
    _, n = _require.axes("x", x, "m n")
    for name, weight in weights.items():
        (size,) = _require.axes(name, weight, "n")
        _require.same_size("n", ("x", n), (name, size))
        _require.floating(name, weight)


def portable_softmax(x: jax.Array, *, block_rows: int = LEAST_ROWS) -> jax.Array:
    """Softmax of each row; a row that is all ``-inf`` becomes all zeros.

    Args:
      x: ``(m, n)``, floating. A block, ``n`` rounded up to a power of two, is in registers on a
        GPU: with 16 rows of 1024 a thread of 128 has 128 of them.
      block_rows: rows in a block, a power of two of at least 16.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or not floating, or ``block_rows`` is no such
        number.
    """
    return _by_rows(_softmax_kernel, x, block_rows=block_rows, padding=-jnp.inf)


def portable_rms_norm(
    x: jax.Array, w: jax.Array, *, eps: float = 1e-6, block_rows: int = LEAST_ROWS
) -> jax.Array:
    """``x / sqrt(mean(x^2) + eps) * w`` for each row.

    Args:
      x: ``(m, n)``, floating.
      w: ``(n,)``, floating.
      eps: added to the mean square.
      block_rows: as of ``portable_softmax``.

    Raises:
      ValueError: as ``portable_softmax``, or ``w`` does not fit ``x``.
    """
    _check_weights(x, w=w)
    kernel = functools.partial(_rms_norm_kernel, n=x.shape[1], eps=eps)
    return _by_rows(kernel, x, w, block_rows=block_rows)


def portable_layer_norm(
    x: jax.Array, w: jax.Array, b: jax.Array, *, eps: float = 1e-5, block_rows: int = LEAST_ROWS
) -> jax.Array:
    """``(x - mean) / sqrt(variance + eps) * w + b`` for each row.

    Args:
      x: ``(m, n)``, floating.
      w: ``(n,)``, floating.
      b: ``(n,)``, floating.
      eps: added to the variance.
      block_rows: as of ``portable_softmax``.

    Raises:
      ValueError: as ``portable_softmax``, or ``w`` or ``b`` does not fit ``x``.
    """
    _check_weights(x, w=w, b=b)
    kernel = functools.partial(_layer_norm_kernel, n=x.shape[1], eps=eps)
    return _by_rows(kernel, x, w, b, block_rows=block_rows)


def _with_masked_entries(drawn: pst.Drawn) -> pst.Drawn:
    """Every third row of ``x`` gets ``-inf`` in its even columns; every sixth is all ``-inf``."""
    x = np.array(drawn[0])
    x[2::3, ::2] = -np.inf
    x[5::6] = -np.inf
    return pst.Drawn((x,), {**drawn.recipe, "masked": True}, declared=drawn.declared)


_DTYPES = pst.floats("bfloat16", "float32")
_AROUND = {"m": 16, "n": 128}
_TYPICAL = {"m": 4096, "n": 1024}

#: exp overflows at 89, which only wide values reach.
_SOFTMAX_OF = pst.arrays(
    "m n", dtype=_DTYPES, around=_AROUND, values=("normal", "integers", "wide")
)

#: Besides what is usual, one that is not lost beside a mean square of 1.
_EPS = st.sampled_from([1e-6, 0.25])

SPEC_SOFTMAX = KernelSpec(
    name="portable_softmax",
    kernel=portable_softmax,
    backends=BACKENDS,
    reference=softmax_reference,
    inputs=st.one_of(_SOFTMAX_OF, _SOFTMAX_OF.map(_with_masked_entries)),
    batch_axes=(0,),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    typical=(pst.shaped("m n", dtype="float32", dims=_TYPICAL),),
)

SPEC_RMS_NORM = KernelSpec(
    name="portable_rms_norm",
    kernel=portable_rms_norm,
    backends=BACKENDS,
    reference=rms_norm_reference,
    inputs=pst.arguments(
        pst.arrays("m n, n", dtype=_DTYPES, around=_AROUND), options={"eps": _EPS}
    ),
    batch_axes=(0, None),
    relations=(Linear(1), Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}, output=1)),
    typical=(pst.shaped("m n, n", dtype="float32", dims=_TYPICAL),),
)

SPEC_LAYER_NORM = KernelSpec(
    name="portable_layer_norm",
    kernel=portable_layer_norm,
    backends=BACKENDS,
    reference=layer_norm_reference,
    inputs=pst.arguments(
        st.one_of(pst.arrays("m n, n, n", dtype=_DTYPES, around=_AROUND), CANCELLING),
        options={"eps": _EPS},
    ),
    batch_axes=(0, None, None),
    relations=(Linear((1, 2)), Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0, 2: 0}, output=1)),
    typical=(pst.shaped("m n, n, n", dtype="float32", dims=_TYPICAL),),
)
