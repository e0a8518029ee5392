"""Products of the Triton route that have fewer terms than an instruction of the tensor core."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim.errors import KernelError
from pallas_sim.simulation import simulate


def multiply(terms, dtype, precision=None, target="h100"):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.dot(
            x_ref[...], y_ref[...], precision=precision, preferred_element_type=o_ref.dtype
        )

    out = jnp.int32 if dtype == "int8" else jnp.float32
    x, y = (np.ones(shape, jnp.dtype(dtype)) for shape in ((16, terms), (terms, 16)))
    shape = jax.ShapeDtypeStruct((16, 16), out)
    return simulate(pl.pallas_call(body, out_shape=shape), x, y, target=target).values


@pytest.mark.parametrize(
    ("dtype", "precision", "least"),
    [
        ("bfloat16", None, 16),
        ("bfloat16", "highest", 16),
        ("float16", None, 16),
        ("float8_e4m3fn", None, 16),
        ("int8", None, 32),
        ("float32", None, 8),
        ("float32", "high", 8),
        ("float32", "BF16_BF16_F32", 16),
        ("float32", "TF32_TF32_F32", 8),
    ],
)
@pytest.mark.parametrize("target", ["a100", "h100", "b200"])
def test_a_product_needs_as_many_terms_as_an_instruction(dtype, precision, least, target):
    assert (multiply(least, dtype, precision, target) == least).all()
    with pytest.raises(KernelError, match="the result is twice the product") as raised:
        multiply(least // 2, dtype, precision, target)
    assert "test_short_products.py" in str(raised.value)
    assert f"Use blocks of {least}" in str(raised.value)
    with pytest.raises(KernelError, match="Triton cannot compile it"):
        multiply(least // 4, dtype, precision, target)


@pytest.mark.parametrize("precision", ["highest", "F32_F32_F32"])
def test_products_in_float32_may_be_short(precision):
    assert (multiply(2, "float32", precision) == 2).all()


def test_a_tpu_has_no_such_limit():
    assert (multiply(8, "bfloat16", target="v6e") == 8).all()
