"""Right kernels of the kinds that a judge is tempted to accuse: a suite for `false_alarms.py`.

Gradients from a stored log-sum-exp, references that compute in float32 only or refuse float64, rows
that must stay in a range, lists for tuples, wrappers with `**kwargs`, defaults that do not fit,
rejected examples, buffers for outputs, and positions in int16 of a kernel that rejects long rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst

F32 = jnp.float32
FLOATS = pst.floats("float32", "bfloat16")
dot = functools.partial(jnp.dot, preferred_element_type=F32, precision="highest")


def call(body: Callable[..., None], out: Any, *arrays: Any) -> Any:
    """Run a kernel in one program, of whole arrays."""
    return pl.pallas_call(body, out_shape=out)(*arrays)


def by_rows(body: Callable[..., None], x: Any, *others: Any, rows: int = 8) -> Any:
    """Run a kernel on blocks of rows of an array; ``others`` are whole."""
    wholes = [pl.BlockSpec(other.shape, lambda i: (0, 0)) for other in others]
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(x.shape[0], rows),),
        in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)), *wholes],
        out_specs=pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, *others)


def log_sum_exp(x: Any) -> tuple[Any, Any]:
    """Return the exponentials, and the logarithm of their sums."""
    largest = jnp.max(x, axis=1, keepdims=True)
    e = jnp.exp(x - largest)
    return e, largest + jnp.log(jnp.sum(e, axis=1, keepdims=True))


def softmax() -> Callable[..., Any]:
    """A softmax whose backward pass recomputes it from a stored log-sum-exp."""

    def forward_body(x_ref: Any, o_ref: Any, lse_ref: Any) -> None:
        e, lse_ref[...] = log_sum_exp(x_ref[...].astype(F32))
        o_ref[...] = (e / jnp.sum(e, axis=1, keepdims=True)).astype(o_ref.dtype)

    def backward_body(x_ref: Any, lse_ref: Any, ct_ref: Any, g_ref: Any) -> None:
        p, ct = jnp.exp(x_ref[...].astype(F32) - lse_ref[...]), ct_ref[...].astype(F32)
        g_ref[...] = (p * (ct - jnp.sum(p * ct, axis=1, keepdims=True))).astype(g_ref.dtype)

    def forward(x: Any) -> Any:
        out, lse = call(forward_body, [x, jax.ShapeDtypeStruct((len(x), 1), F32)], x)
        return out, (x, lse)

    function = jax.custom_vjp(lambda x: forward(x)[0])
    function.defvjp(forward, lambda kept, ct: (call(backward_body, ct, *kept, ct),))
    return function


def attention() -> Callable[..., Any]:
    """Attention of one head, with ``sum(o * do)`` and 2^x in the backward pass."""

    def scores(q: Any, k: Any) -> Any:
        return dot(q, k.T) * q.shape[1] ** -0.5

    def forward_body(q: Any, k: Any, v: Any, o: Any, lse: Any) -> None:
        e, lse[...] = log_sum_exp(scores(q[...].astype(F32), k[...].astype(F32)))
        total = jnp.sum(e, axis=1, keepdims=True)
        o[...] = (dot(e, v[...].astype(F32)) / total).astype(o.dtype)

    def backward_body(*refs: Any) -> None:
        q, k, v, o, lse, ct = (ref[...].astype(F32) for ref in refs[:6])
        base = np.log2(np.e)
        p = jnp.exp2(scores(q, k) * base - lse * base)
        delta = jnp.sum(ct * o, axis=1, keepdims=True)
        ds = p * (dot(ct, v.T) - delta) * q.shape[1] ** -0.5
        for ref, gradient in zip(refs[6:], (dot(ds, k), dot(ds.T, q), dot(p.T, ct)), strict=True):
            ref[...] = gradient.astype(ref.dtype)

    def forward(*qkv: Any) -> Any:
        q = qkv[0]
        out, lse = call(forward_body, [q, jax.ShapeDtypeStruct((len(q), 1), F32)], *qkv)
        return out, (*qkv, out, lse)

    function = jax.custom_vjp(lambda *qkv: forward(*qkv)[0])
    function.defvjp(forward, lambda kept, ct: call(backward_body, [*kept[:3]], *kept, ct))
    return function


def attention_by_hand(q: Any, k: Any, v: Any) -> Any:
    """Attention, whose softmax subtracts the largest score with its gradient."""
    s = jnp.dot(q, k.T, precision="highest") * q.shape[1] ** -0.5
    e = jnp.exp(s - s.max(axis=1, keepdims=True))
    return jnp.dot(e / e.sum(axis=1, keepdims=True), v, precision="highest")


def log_softmax(x: Any) -> Any:
    """``x - lse``."""

    def body(x_ref: Any, o_ref: Any) -> None:
        values = x_ref[...].astype(F32)
        o_ref[...] = (values - log_sum_exp(values)[1]).astype(o_ref.dtype)

    return by_rows(body, x)


def layer_norm(x: Any) -> Any:
    """With the variance of numbers around their mean."""

    def body(x_ref: Any, o_ref: Any) -> None:
        centered = x_ref[...].astype(F32)
        centered -= jnp.mean(centered, axis=1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=1, keepdims=True)
        o_ref[...] = (centered * jax.lax.rsqrt(variance + 1e-3)).astype(o_ref.dtype)

    return by_rows(body, x)


def layer_norm_in_float32(x: Any) -> Any:
    """With ``E[x^2] - E[x]^2``, in float32 whatever it gets."""
    y = x.astype(F32)
    mean = y.mean(axis=1, keepdims=True)
    variance = jnp.maximum((y * y).mean(axis=1, keepdims=True) - mean * mean, 0)
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-3)).astype(x.dtype)


def running_sum(x: Any) -> Any:
    """By a product with a triangle of ones."""

    def body(x_ref: Any, o_ref: Any) -> None:
        columns = jnp.arange(x_ref.shape[1])
        triangle = (columns[:, None] <= columns[None, :]).astype(F32)
        o_ref[...] = dot(x_ref[...].astype(F32), triangle).astype(o_ref.dtype)

    return by_rows(body, x)


def scanned(x: Any) -> Any:
    """With a carry in float32, which a float64 is not."""

    def step(total: Any, column: Any) -> Any:
        return (total + column,) * 2

    start = jnp.zeros(len(x), F32)
    return jax.lax.scan(step, start, x.T)[1].T


def asserting(x: Any) -> Any:
    """A softmax that refuses float64."""
    assert x.dtype in (jnp.float32, jnp.bfloat16), "no float64"
    return jax.nn.softmax(x.astype(F32), axis=1).astype(x.dtype)


def in_numpy(x: Any) -> Any:
    """Running sums that JAX cannot trace, in float32."""
    return np.cumsum(np.asarray(x, np.float32), axis=1)


def twice_and_square(x: Any) -> Any:
    """Two outputs, in a list."""

    def body(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]
        s_ref[...] = x_ref[...] * x_ref[...]

    return call(body, [x, x], x)


def scaled(x: Any, *, block: int = 32) -> Any:
    """By rows, whose number must be a multiple of the block."""
    if x.shape[0] % block:
        raise ValueError(f"rows must be a multiple of {block}")
    return by_rows(lambda x_ref, o_ref: o_ref.set(3 * x_ref[...]), x, rows=block)


def passes_on(x: Any, **tuning: Any) -> Any:
    """``scaled``, whose default its signature does not show."""
    return scaled(x, **tuning)


def normalized(x: Any, variance: Any) -> Any:
    """Rows by given variances, which are positive."""

    def body(x_ref: Any, v_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * jax.lax.rsqrt(v_ref[...])

    return by_rows(body, x, variance)


def picky(x: Any) -> Any:
    """Add one, and reject examples of other rows."""
    if x.shape[0] % 8:
        reject()
    return by_rows(lambda x_ref, o_ref: o_ref.set(x_ref[...] + 1), x)


def into(x: Any, buffer: Any) -> Any:
    """Add one, and write it to a buffer."""

    def body(x_ref: Any, _: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(body, out_shape=buffer, input_output_aliases={1: 0})(x, buffer)


def positions(x: Any) -> Any:
    """Add the number of each column, in int16, which is right for short rows."""
    if x.shape[1] > 32_768 - 128:
        raise ValueError("too many columns for int16")

    def body(x_ref: Any, o_ref: Any) -> None:
        first = (pl.program_id(0) * 128).astype(jnp.int16)
        columns = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1).astype(jnp.int16)
        o_ref[...] = x_ref[...] + (first + columns).astype(F32)

    block = pl.BlockSpec((x.shape[0], 128), lambda i: (0, i))
    return pl.pallas_call(
        body, grid=(pl.cdiv(x.shape[1], 128),), in_specs=[block], out_specs=block, out_shape=x
    )(x)


def matrices(dtype: Any = FLOATS, **sizes: Any) -> Any:
    """Draw a matrix."""
    return pst.arrays("m n", around={"m": 8, "n": 128}, dtype=dtype, max_dim=300, **sizes)


def spread(arrays: Any, scale: float, shift: float) -> Any:
    """Draw arrays with larger numbers."""
    return arrays.map(
        lambda drawn: tuple((a.astype("float32") * scale + shift).astype(a.dtype) for a in drawn)
    )


def variances(drawn: Any) -> tuple[Any, Any]:
    """Make the second array positive."""
    x, v = drawn
    return x, (1 + np.abs(v)).astype(v.dtype)


QKV = pst.arrays(
    "q d, k d, k d", around={"q": 8, "k": 16}, dims={"d": [16, 32]}, dtype=FLOATS, max_dim=64
)
rows_softmax = functools.partial(jax.nn.softmax, axis=1)
rows_log_softmax = functools.partial(jax.nn.log_softmax, axis=1)

SPECS = [
    KernelSpec(name=name, kernel=kernel, reference=reference, inputs=inputs, **more)
    for name, kernel, reference, inputs, more in (
        ("softmax", softmax(), rows_softmax, matrices(), {"differentiable": (0,)}),
        (
            *("softmax_of_large", softmax(), rows_softmax, spread(matrices("float32"), 20, 300)),
            {"differentiable": (0,)},
        ),
        ("attention", attention(), attention_by_hand, QKV, {"differentiable": (0, 1, 2)}),
        ("log_softmax", log_softmax, rows_log_softmax, matrices(), {}),
        ("layer_norm", layer_norm, layer_norm_in_float32, matrices(), {}),
        ("scan", running_sum, scanned, matrices("float32"), {}),
        ("asserting", softmax(), asserting, matrices(), {}),
        ("numpy", running_sum, in_numpy, matrices("float32"), {}),
        ("containers", twice_and_square, lambda x: (2 * x, x * x), matrices(), {}),
        (
            *("passes_on", passes_on, lambda x: 3 * x),
            pst.arguments(
                pst.arrays("m n", multiple_of={"m": 8}, dims={"n": [128]}, dtype=FLOATS),
                tuning={"block": st.just(8)},
            ),
            {},
        ),
        (
            *("normalized", normalized, lambda x, v: x * jax.lax.rsqrt(v)),
            pst.arrays("m n, 1 n", around={"m": 8, "n": 128}, dtype="float32").map(variances),
            {},
        ),
        ("picky", picky, lambda x: x + 1, matrices(), {}),
        (
            *("into", into, lambda x, _: x + 1),
            pst.arrays("m n, m n", around={"m": 8, "n": 128}, dtype=FLOATS),
            {},
        ),
        (
            *("positions", positions, lambda x: x + jnp.arange(x.shape[1], dtype=x.dtype)),
            *(matrices("float32"), {}),
        ),
    )
]
