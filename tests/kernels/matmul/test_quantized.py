"""What the quantized product refuses, and what it promises beyond what its specs draw."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import refuses
from pallas_test_support.simulating import simulating

from reference_kernels.matmul import matmul_quantized

#: One that widens everything, one that widens nothing, and one that widens integers.
CHIPS = ["v4", "v6e", "tpu7x"]


def call(**changed: Any) -> Any:
    operands = {
        "x": np.zeros((2, 3), np.int8),
        "w": np.zeros((3, 4), np.int8),
        "x_scale": np.zeros(2, np.float32),
        "w_scale": np.zeros(4, np.float32),
    }
    return matmul_quantized(**operands | changed)


class TestMisuse:
    def test_sizes(self) -> None:
        refuses(lambda: call(w=np.zeros((5, 4), np.int8)), "w must have the same k as x, 3", "5")
        one = np.zeros(1, np.float32)
        refuses(lambda: call(x_scale=one), "x_scale must have the same m as x, 2", "1")
        refuses(lambda: call(w_scale=one), "w_scale must have the same n as w, 4", "1")

    def test_rank(self) -> None:
        refuses(lambda: call(x=np.zeros(3, np.int8)), "x must have the shape (m, k)", "(3,)")
        scale = np.zeros((2, 1), np.float32)
        refuses(lambda: call(x_scale=scale), "x_scale must have the shape (m,)", "(2, 1)")

    @pytest.mark.parametrize(
        ("x", "w"), [("int4", "int8"), ("float32", "int8"), ("int8", "float8_e5m2")]
    )
    def test_dtypes(self, x: str, w: str) -> None:
        operands = {"x": jnp.zeros((2, 3), x), "w": jnp.zeros((3, 4), w)}
        refuses(lambda: call(**operands), "x and w must be int8 and int8 or int4", x, w)

    def test_scales(self) -> None:
        refuses(lambda: call(x_scale=np.zeros(2, np.int32)), "x_scale must have a floating dtype")
        half = np.zeros(4, np.float16)
        refuses(lambda: call(w_scale=half), "w_scale must have the dtype of x_scale", "float16")

    @pytest.mark.parametrize("name", ["block_m", "block_n", "block_k"])
    def test_block(self, name: str) -> None:
        refuses(lambda: call(**{name: 0}), f"{name} must be a positive integer, but it is 0")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("w", ["int8", "int4"])
def test_extreme_integers_are_exact_on_every_chip(chip: str, w: str) -> None:
    least, length = int(jnp.iinfo(w).min), 70
    with simulating(chip):
        out = matmul_quantized(
            jnp.full((1, length), -128, jnp.int8).at[0, 0].set(-127),
            jnp.full((length, 1), least, w).at[0, 0].set(least + 1),
            jnp.ones(1),
            jnp.ones(1),
        )
    assert np.asarray(out)[0, 0] == (length - 1) * least * -128 + (least + 1) * -127


@pytest.mark.parametrize(("chip", "steps"), [("v4", 2), ("tpu7x", 2), ("v6e", 1)])
def test_float32_adds_at_most_1024_products_of_integers(chip: str, steps: int) -> None:
    x = jnp.zeros((1, 2048), jnp.int8)
    with simulating(chip):
        jaxpr = jax.make_jaxpr(lambda: matmul_quantized(x, x.T, jnp.ones(1), jnp.ones(1)))()
    grids = [eqn.params["grid_mapping"].grid for eqn in jaxpr.eqns if "grid_mapping" in eqn.params]
    assert grids == [(1, 1, steps)]


@pytest.mark.parametrize("chip", CHIPS)
def test_float8_is_multiplied_on_every_chip(chip: str) -> None:
    with simulating(chip):
        x = jnp.array([[448.0, 2.0**-9]], jnp.float8_e4m3fn)
        w = jnp.array([[1.0], [57344.0]], jnp.float8_e5m2)
        out = matmul_quantized(x, w, jnp.ones(1), jnp.ones(1))
    np.testing.assert_array_equal(out, [[448.0 + 112.0]])
