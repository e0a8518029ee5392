"""Spec of ``rms_norm``."""

from __future__ import annotations

import dataclasses

import numpy as np

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted, Relation
from reference_kernels.reductions.rms_norm import reference, rms_norm


def _negated(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    del rng
    x, w = arguments.args
    return dataclasses.replace(arguments, args=(-x, w))


SPEC = KernelSpec(
    name="rms_norm",
    kernel=rms_norm,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n, n",
            dtype=pst.dtype_pairs(
                ("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")
            ),
            around={"m": 16, "n": 128},
        ),
        tuning={"block_rows": 16},
    ),
    differentiable=(0, 1),
    batch_axes=(0, None),
    relations=(
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0}, output=1),
        Relation("odd in x", _negated, expect=lambda outputs, _: -outputs, exact=True),
    ),
    typical=(pst.shaped("m n, n", dtype=("bfloat16", "float32"), dims={"m": 4096, "n": 4096}),),
)
