"""What the reference kernels promise beyond what their specs draw."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import normal
from pallas_test_support.simulating import simulating

import reference_kernels
from pytest_pallas.spec import KernelSpec
from reference_kernels.attention import flash_attention
from reference_kernels.matmul import matmul
from reference_kernels.reductions import softmax
from reference_kernels.sparse import block_dynamic_slice


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels: what lies beyond an end is NaN."""
    with simulating():
        yield


def specs() -> list[KernelSpec]:
    modules = pkgutil.walk_packages(reference_kernels.__path__, "reference_kernels.")
    return [
        value
        for module in modules
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, KernelSpec)
    ]


def test_names_of_specs_are_unique_and_families_are_packages() -> None:
    names = [spec.name for spec in specs()]
    assert len(names) == len(set(names)) > 60
    assert {spec.family for spec in specs()} == {
        package.name.removeprefix("reference_kernels.")
        for package in pkgutil.iter_modules(reference_kernels.__path__, "reference_kernels.")
        if package.ispkg
    }


def test_matmul_applies_an_activation_with_a_kink() -> None:
    x, y = normal(5, 7), normal(7, 3)
    out = matmul(x, y, activation=jax.nn.relu)
    np.testing.assert_allclose(out, np.maximum(np.asarray(x) @ np.asarray(y), 0), atol=1e-5)


def test_matmul_applies_the_activation_before_it_rounds() -> None:
    # 257 is no bfloat16; taking 256 away from the sum must leave 1, not 0.
    ones = jnp.ones((1, 257), jnp.bfloat16)
    assert matmul(ones, ones.T, activation=lambda total: total - 256)[0, 0] == 1


def test_softmax_takes_any_number_of_axes() -> None:
    for shape in ((3,), (2, 3), (2, 1, 4, 5)):
        x = normal(*shape)
        np.testing.assert_allclose(softmax(x), jax.nn.softmax(x), atol=1e-6)


def test_softmax_of_a_row_of_minus_infinity_is_zero_and_so_is_its_gradient() -> None:
    x = jnp.array([[-jnp.inf, -jnp.inf], [0.0, -jnp.inf]])
    np.testing.assert_array_equal(softmax(x), [[0.0, 0.0], [1.0, 0.0]])
    gradient = jax.grad(lambda x: softmax(x)[:, 0].sum())(x)
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))


def test_softmax_of_large_entries_does_not_overflow() -> None:
    np.testing.assert_array_equal(softmax(jnp.array([1e38, 1e38])), [0.5, 0.5])


def test_causal_attention_is_aligned_at_the_bottom_right() -> None:
    v = jnp.arange(1.0, 4.0)[:, None]
    k = jnp.zeros((3, 2))
    # Equal scores, so each query sees the mean of the values that are visible to it.
    few = flash_attention(jnp.zeros((2, 2)), k, v, causal=True)
    np.testing.assert_allclose(few[:, 0], [1.5, 2.0], rtol=1e-6)
    many = flash_attention(jnp.zeros((5, 2)), k, v, causal=True)
    np.testing.assert_allclose(many[:, 0], [0.0, 0.0, 1.0, 1.5, 2.0], rtol=1e-6)


def test_causal_attention_skips_blocks_without_leaving_a_query_out() -> None:
    q, k, v = normal(40, 8), normal(40, 8), normal(40, 8)
    by_blocks = flash_attention(q, k, v, causal=True, block_q=8, block_kv=16)
    at_once = flash_attention(q, k, v, causal=True)
    np.testing.assert_allclose(by_blocks, at_once, atol=1e-5)


@pytest.mark.parametrize(("start", "first"), [(-3, 0), (1, 8), (2, 16), (9, 16)])
def test_block_dynamic_slice_moves_a_start_back_into_range(start: int, first: int) -> None:
    x = jnp.arange(26 * 4.0).reshape(26, 4)
    starts = jnp.array([start, 0], jnp.int32)
    out = block_dynamic_slice(x, starts, sizes=(9, 4), block=(8, 4))
    np.testing.assert_array_equal(out, x[first : first + 9])
