"""One call of each kernel, as in a first test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import copies, products, rows


def drawn(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kernel", [rows.layer_norm, rows.wrong_layer_norm])
def test_layer_norm(pallas_check, kernel):
    pallas_check(kernel, drawn(40, 128), reference=rows.layer_norm_reference)


@pytest.mark.parametrize("kernel", [rows.softmax, rows.wrong_softmax])
def test_softmax(pallas_check, kernel):
    x = np.arange(1, 25)[:, None] * 10 * drawn(24, 128)  # rows of different sizes
    pallas_check(kernel, x.astype(np.float32), reference=jax.nn.softmax)


@pytest.mark.parametrize("kernel", [products.matmul, products.wrong_matmul])
def test_matmul(pallas_check, kernel):
    pallas_check(kernel, drawn(24, 300), drawn(300, 130), reference=jnp.matmul)


@pytest.mark.parametrize("kernel", [copies.doubled, copies.wrong_doubled])
def test_doubled(pallas_check, kernel):
    pallas_check(kernel, drawn(32, 128), reference=lambda x: x * 2)


def test_shifted(pallas_check):
    pallas_check(copies.shifted, drawn(32, 128), reference=copies.shifted_reference, mesh={"x": 4})
