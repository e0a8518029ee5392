"""What a masked load gives where its mask does not hold, in the portable interpreter."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import compat
from pytest_pallas.backends.interpreters import interpret
from pytest_pallas.backends.protocol import Call

MASK = np.arange(8 * 128).reshape(8, 128) % 3 > 0


def loaded(x: Any, **keywords: Any) -> Any:
    def body(x_ref: Any, mask_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.load(x_ref, mask=mask_ref[...], **keywords)

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return np.asarray(pl.pallas_call(body, out_shape=shape, interpret=True)(x, MASK))


@pytest.mark.parametrize(("dtype", "there"), [("float32", np.nan), ("int32", -(2**31))])
def test_nothing_that_was_there(dtype, there):
    x = np.ones((8, 128), dtype)
    with compat.masked_loads_unspecified():
        out = loaded(x)
    np.testing.assert_array_equal(out, np.where(MASK, x, there))


def test_afterwards_it_is_as_before():
    x = np.ones((8, 128), np.float32)
    with compat.masked_loads_unspecified():
        loaded(x)
    np.testing.assert_array_equal(loaded(x), x)


def test_a_kernel_that_uses_what_it_masked_fails_on_the_backend():
    """It is right where the mask is ignored, and on no chip."""

    def body(x_ref: Any, o_ref: Any) -> None:
        inside = jax.lax.broadcasted_iota(int, x_ref.shape, 0) < 4
        o_ref[...] = pltpu.load(x_ref, mask=inside)

    def kernel(x: Any) -> Any:
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    call = Call(function=kernel, args=(np.ones((8, 128), np.float32),))
    [out] = jax.tree.leaves(interpret().run(call).values)
    assert np.isnan(out[4:]).all()
    np.testing.assert_array_equal(out[:4], 1)
