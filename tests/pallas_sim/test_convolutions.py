"""Convolutions of the simulator against those of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.rules_of_jax import assert_same_bits

from pallas_sim.machine import Machine
from pallas_sim.simulation import evaluate

IMAGES = ("NHWC", "HWIO", "NHWC")
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "images": ((2, 6, 7, 3), (3, 2, 3, 4), {"dimension_numbers": IMAGES}),
    "channels first": ((2, 3, 6, 7), (4, 3, 3, 2), {}),
    "mixed": ((7, 2, 3, 6), (3, 4, 2, 3), {"dimension_numbers": ("WNCH", "IOHW", "HCNW")}),
    "strides": ((2, 3, 8, 9), (4, 3, 3, 2), {"window_strides": (2, 3)}),
    "same": ((2, 3, 8, 9), (4, 3, 3, 2), {"padding": "SAME"}),
    "padding": ((2, 3, 5, 6), (4, 3, 3, 2), {"padding": ((1, 2), (0, 3))}),
    "cropping": ((2, 3, 7, 8), (4, 3, 3, 2), {"padding": ((-1, 2), (1, -2))}),
    "dilated": ((2, 3, 7, 8), (4, 3, 3, 2), {"rhs_dilation": (2, 3)}),
    "spread": ((2, 3, 4, 5), (4, 3, 3, 2), {"lhs_dilation": (2, 3), "padding": ((0, 0), (0, 0))}),
    "spread and cropped": (
        (1, 2, 4, 5),
        (3, 2, 2, 2),
        {"lhs_dilation": (3, 2), "padding": ((-2, -1), (-1, 3))},
    ),
    "everything": (
        (2, 4, 7, 6),
        (6, 2, 3, 2),
        {
            "lhs_dilation": (1, 2),
            "rhs_dilation": (2, 1),
            "padding": ((2, 1), (-1, 2)),
            "window_strides": (2, 3),
            "feature_group_count": 2,
        },
    ),
    "feature groups": ((2, 6, 5, 4), (6, 2, 2, 3), {"feature_group_count": 3}),
    "depthwise": (
        (2, 5, 6, 3),
        (2, 3, 1, 6),
        {"feature_group_count": 3, "dimension_numbers": IMAGES},
    ),
    "batch groups": ((6, 2, 5, 4), (9, 2, 2, 3), {"batch_group_count": 3}),
    "a line": ((2, 3, 9), (4, 3, 3), {"window_strides": (2,)}),
    "no place": ((2, 3), (4, 3), {"window_strides": ()}),
    "a volume": ((1, 2, 4, 5, 3), (2, 2, 2, 3, 2), {"window_strides": (1, 2, 1)}),
    "one tap": ((2, 5, 6, 3), (1, 1, 3, 4), {"dimension_numbers": IMAGES}),
    "one product": ((2, 1, 3, 3), (2, 1, 1, 1), {}),
    "nothing": ((2, 3, 2, 2), (4, 3, 3, 3), {}),
}


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(3)


def operands(rng: np.random.Generator, case: str, dtype: str) -> tuple[Any, Any, dict[str, Any]]:
    """Small integers, and the parameters."""
    lhs, rhs, options = CASES[case]
    rank = len(lhs) - 2
    x, w = (rng.integers(-3, 4, shape).astype(jnp.dtype(dtype)) for shape in (lhs, rhs))
    return x, w, {"window_strides": (1,) * rank, "padding": "VALID", **options}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions(case: str, dtype: str, rng: np.random.Generator) -> None:
    """Strides, padding, dilations and groups, in any layout."""
    x, w, options = operands(rng, case, dtype)
    assert_same_bits(lambda x, w: lax.conv_general_dilated(x, w, **options), x, w)


@pytest.mark.parametrize(
    ("dtype", "preferred"), [("int8", "int32"), ("int32", None), ("bfloat16", "float32")]
)
def test_dtypes_of_convolutions(
    dtype: str, preferred: str | None, rng: np.random.Generator
) -> None:
    """As those of products."""
    x, w, options = operands(rng, "padding", dtype)
    if dtype == "int8":
        x, w = x * np.int8(31), w * np.int8(31)
    if dtype == "int32":
        x, w = x * np.int32(10**8 + 7), w * np.int32(123_456)
    assert_same_bits(
        lambda x, w: lax.conv_general_dilated(x, w, preferred_element_type=preferred, **options),
        x,
        w,
    )


def simulated(function: Any, *args: Any) -> Any:
    """What the simulator gives for a function that JAX evaluates on a TPU only."""
    (found,) = evaluate(jax.make_jaxpr(function)(*args), Machine(), args)
    return found


@pytest.mark.parametrize("case", ["images", "strides", "padding", "dilated", "feature groups"])
def test_conv_of_pallas(case: str, rng: np.random.Generator) -> None:
    """``pltpu.conv`` is a convolution, too."""
    x, w, options = operands(rng, case, "float32")
    options.setdefault("dimension_numbers", ("NCHW", "OIHW", "NCHW"))
    wanted = np.asarray(lax.conv_general_dilated(x, w, **options))
    found = simulated(lambda x, w: pltpu.conv(x, w, **options), x, w)
    assert found.dtype == wanted.dtype
    assert (found == wanted).all()
    total = rng.integers(-9, 9, wanted.shape).astype(np.float32)
    found = simulated(lambda x, w, t: pltpu.conv(x, w, t, **options), x, w, total)
    assert (found == wanted + total).all()


def test_conv_of_pallas_turned_around(rng: np.random.Generator) -> None:
    """``window_reversal`` turns the filter, and an accumulator of bfloat16 is rounded to once."""
    x, w, options = operands(rng, "images", "bfloat16")
    x = x * x.dtype.type(37)
    turned = w[::-1]
    wanted = lax.conv_general_dilated(x, turned, preferred_element_type=jnp.float32, **options)
    total = np.full(wanted.shape, 257, np.float32).astype(jnp.bfloat16)
    exact = np.asarray(wanted) + total.astype(np.float32)

    def function(x: Any, w: Any, total: Any) -> Any:
        return pltpu.conv(x, w, total, window_reversal=(True, False), **options)

    found = simulated(function, x, w, total)
    assert found.dtype == jnp.bfloat16
    assert (found == exact.astype(jnp.bfloat16)).all()
    found = simulated(lambda x, w: pltpu.conv(x, w, window_reversal=(1, 0), **options), x, w)
    assert (found == np.asarray(wanted).astype(jnp.bfloat16)).all()
