"""Products of float32 on TPUs, in the passes that libtpu makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim import simulate

Array = np.ndarray[Any, Any]

TARGETS = ["v4", "v5e", "v5p", "v6e", "tpu7x"]


def product(precision: Any = None) -> Callable[[Any, Any], Any]:
    """A kernel: ``x @ y``."""

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = jnp.dot(x[...], y[...], precision=precision, preferred_element_type=jnp.float32)

    def call(x: Any, y: Any) -> Any:
        shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32)
        return pl.pallas_call(body, out_shape=shape)(x, y)

    return call


def on_chip(precision: Any, x: Array, y: Array, target: str = "v6e") -> Array:
    """Return what the kernel computes with the chip's arithmetic."""
    kernel = product(precision)
    return np.asarray(simulate(kernel, x, y, target=target, arithmetic="chip").values)


def upper(x: Array) -> Array:
    """The upper 16 bits of float32."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def narrow(x: Array) -> Array:
    """Float32 rounded to bfloat16."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.fixture
def operands() -> tuple[Array, Array]:
    """Columns and rows of one number: products without sums."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(16, 1)).astype(np.float32), rng.normal(size=(1, 24)).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("precision", [None, "default"])
def test_one_pass_by_default(precision: Any, target: str, operands: Any) -> None:
    x, y = operands
    assert (on_chip(precision, x, y, target) == narrow(x) * narrow(y)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_high_is_three_passes(target: str, operands: Any) -> None:
    x, y = operands
    high, rest = upper(x) * upper(y), (x - upper(x), y - upper(y))
    wanted = narrow(rest[0]) * upper(y) + upper(x) * narrow(rest[1]) + high
    assert (on_chip("high", x, y, target) == wanted).all()


@pytest.mark.parametrize("target", TARGETS)
def test_highest_is_six_passes(target: str, operands: Any) -> None:
    """The least ones first."""
    x, y = operands
    (a, b), (c, d) = [(rest := array - upper(array), rest - upper(rest)) for array in (x, y)]
    wanted = upper(b) * upper(y) + upper(x) * upper(d)
    wanted = wanted + narrow(a) * narrow(c)
    wanted = wanted + upper(a) * upper(y) + upper(x) * upper(c) + upper(x) * upper(y)
    assert (on_chip("highest", x, y, target) == wanted).all()
    assert np.abs(wanted / (x.astype(np.float64) * y) - 1).max() < 2.0**-21


def test_errors_of_sums() -> None:
    """Relative to the largest: bfloat16, about 16 bits, and float32."""
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    exact = x.astype(np.float64) @ y
    errors = [
        np.abs(on_chip(precision, x, y) - exact).max() / np.abs(exact).max()
        for precision in (None, "high", "highest")
    ]
    assert 2.0**-10 < errors[0] < 2.0**-7
    assert 2.0**-18 < errors[1] < 2.0**-14
    assert errors[2] < 2.0**-20


def test_infinities() -> None:
    """What remains of an infinity is NaN, which the code does not avoid."""
    x, y = np.full((8, 1), np.inf, np.float32), np.ones((1, 8), np.float32)
    assert np.isposinf(on_chip(None, x, y)).all()
    for precision in ("high", "highest"):
        assert np.isnan(on_chip(precision, x, y)).all()


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float32", "bfloat16")])
def test_narrow_operands(dtypes: tuple[str, str], operands: Any) -> None:
    """They are exact in the one pass that they have."""
    x, y = (array.astype(jnp.dtype(dtype)) for array, dtype in zip(operands, dtypes, strict=True))
    wanted = narrow(x.astype(np.float32)) * y.astype(np.float32)
    assert (on_chip(None, x, y) == wanted).all()


def test_only_where_it_is_asked_for(operands: Any) -> None:
    """Nor around kernels, nor in those of GPUs."""
    x, y = operands
    assert (np.asarray(simulate(product(), x, y, target="v6e").values) == x * y).all()
    around = simulate(jnp.dot, x, y, target="v6e", arithmetic="chip").values
    assert (np.asarray(around) == x * y).all()


def test_batches(operands: Any) -> None:
    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = jnp.einsum("bij,bjk->bik", x[...], y[...])

    x, y = (np.stack([array, 2 * array, array + 1]) for array in operands)
    shape = jax.ShapeDtypeStruct((3, 16, 24), jnp.float32)
    kernel = pl.pallas_call(body, out_shape=shape)
    values = np.asarray(simulate(kernel, x, y, target="v5e", arithmetic="chip").values)
    assert (values == narrow(x) * narrow(y)).all()
