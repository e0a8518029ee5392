"""What the norms refuse, and what they promise beyond what their specs draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, normal, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.reductions import layer_norm, rms_norm


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with simulating():
        yield


def rms(x: Any, w: Any, **options: Any) -> Any:
    return rms_norm(x, w, **options)


def layer(x: Any, w: Any, **options: Any) -> Any:
    return layer_norm(x, w, f32(*np.shape(w)), **options)


@pytest.mark.parametrize("norm", [rms, layer])
class TestMisuse:
    def test_scalar(self, norm: Any) -> None:
        refuses(lambda: norm(f32(), f32(1)), "x must have the shape (..., n)", "scalar")

    def test_empty(self, norm: Any) -> None:
        refuses(lambda: norm(f32(0, 3), f32(3)), "x must not be empty", "(0, 3)")

    def test_size(self, norm: Any) -> None:
        refuses(lambda: norm(f32(2, 3), f32(4)), "w must have the same n as x, 3", "is 4")
        refuses(lambda: norm(f32(2, 3), f32(1, 3)), "w must have the shape (n,)", "(1, 3)")

    def test_dtype(self, norm: Any) -> None:
        integers = np.zeros((2, 3), np.int32)
        refuses(lambda: norm(integers, f32(3)), "x must have a floating dtype", "int32")
        refuses(lambda: norm(f32(2, 3), integers[0]), "w must have a floating dtype", "int32")

    @pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
    def test_eps(self, norm: Any, eps: float) -> None:
        refuses(lambda: norm(f32(2, 3), f32(3), eps=eps), "eps must be positive", str(eps))

    def test_rows(self, norm: Any) -> None:
        refuses(
            lambda: norm(f32(2, 3), f32(3), block_rows=0),
            "block_rows must be a positive integer, but it is 0",
        )


def test_layer_norm_names_b() -> None:
    refuses(lambda: layer_norm(f32(2, 3), f32(3), f32(4)), "b must have the same n as x, 3")


@pytest.mark.parametrize("shape", [(5,), (2, 1, 3, 5)])
def test_any_number_of_axes(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    ones = jnp.ones(5)
    wanted = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(rms_norm(x, ones), wanted, rtol=1e-5)
    y = layer_norm(x, ones, 0 * ones)
    np.testing.assert_allclose(np.mean(y, axis=-1), np.zeros(shape[:-1]), atol=1e-6)


def test_eps_is_inside_of_the_root() -> None:
    # Mean square and variance are 16: with eps = 9, the root is 5.
    x = jnp.array([[4.0, -4.0]])
    ones = jnp.ones(2)
    np.testing.assert_allclose(rms_norm(x, ones, eps=9.0), x / 5, rtol=1e-6)
    np.testing.assert_allclose(layer_norm(x, ones, ones, eps=9.0), x / 5 + 1, rtol=1e-6)


def test_a_row_without_variance_is_no_nan_and_neither_is_its_gradient() -> None:
    zeros, ones = jnp.zeros((3, 5)), jnp.ones(5)
    np.testing.assert_array_equal(rms_norm(zeros, ones), zeros)
    np.testing.assert_array_equal(layer_norm(zeros + 7, ones, 2 * ones), zeros + 2)
    assert np.isfinite(jax.grad(lambda x: rms_norm(x, ones).sum())(zeros)).all()
    assert np.isfinite(jax.grad(lambda x: layer_norm(x, ones, ones).sum())(zeros)).all()


def test_layer_norm_keeps_a_small_deviation_of_a_large_mean() -> None:
    # In float32, mean(x^2) - mean(x)^2 of these is 0.
    x = jnp.array([[65536.0, 65537.0, 65538.0]])
    y = layer_norm(x, jnp.ones(3), jnp.zeros(3))
    np.testing.assert_allclose(y, [[-1.2247, 0.0, 1.2247]], atol=1e-3)


def test_gradients_of_the_weights_count_each_row_once() -> None:
    # 33 rows in blocks of 16: the last block has 15 rows beyond the end.
    x, w, b = jnp.ones((33, 2)) * jnp.array([1.0, -1.0]), jnp.ones(2), jnp.zeros(2)

    def loss(w: jax.Array, b: jax.Array) -> jax.Array:
        return layer_norm(x, w, b, block_rows=16).sum()

    dw, db = jax.grad(loss, argnums=(0, 1))(w, b)
    np.testing.assert_allclose(dw, [33.0, -33.0], rtol=1e-4)
    np.testing.assert_array_equal(db, [33.0, 33.0])


def test_gradients_have_the_dtypes_of_their_operands() -> None:
    x, w = normal(4, 8).astype(jnp.bfloat16), jnp.ones(8)
    dx, dw = jax.grad(lambda x, w: rms_norm(x, w).sum().astype(jnp.float32), argnums=(0, 1))(x, w)
    assert (dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.float32)
