"""``determinism``: what may happen in any order happens in another one each time."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.forward import determinism
from pytest_pallas.draw.arguments import Arguments

X = np.arange(64 * 128, dtype=np.int32).reshape(64, 128)


def numbered(x, *, semantics):
    """Each program adds how many came before it, and what the count held at first."""

    def body(x_ref, o_ref, count):
        count[0] = count[0] + 1
        o_ref[...] = x_ref[...] + count[0]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(8,),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.SMEM((1,), np.int32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(x)


def context(semantics):
    return CheckContext(
        kernel=numbered,
        reference=None,
        arguments=Arguments((X,), options={"semantics": semantics}),
        backend=tpu_sim(),
    )


def test_programs_in_another_order():
    found = determinism(context(("parallel",))).failed
    assert found is not None
    assert "of run 2 compared with run 1, with seed 1 of the schedule" in found.where


def test_programs_in_their_order():
    assert determinism(context(("arbitrary",))).failed is None
