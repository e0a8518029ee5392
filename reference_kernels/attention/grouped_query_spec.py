"""Specs of ``grouped_query``."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted, Relation
from reference_kernels._gaps import batches_fail
from reference_kernels.attention.flash_attention import flash_attention
from reference_kernels.attention.flash_attention_spec import EQUIVALENT
from reference_kernels.attention.grouped_query import (
    grouped_query_attention,
    grouped_query_attention_by_vmap,
    mqa,
    mqa_reference,
    reference,
)


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


def _groups_moved(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """The heads of keys in another order, and the heads of queries that read them with them."""
    q, k, v = arguments.args
    order = rng.permutation(k.shape[1])
    grouped = q.reshape(k.shape[0], k.shape[1], -1, *q.shape[2:])
    recipe = {**arguments.recipe, "order": tuple(order.tolist())}
    args = (grouped[:, order].reshape(q.shape), k[:, order], v[:, order])
    return dataclasses.replace(arguments, args=args, recipe=recipe)


def _outputs_moved(outputs: Any, changed: pst.Arguments) -> Any:
    order = list(changed.recipe["order"])
    grouped = outputs.reshape(outputs.shape[0], len(order), -1, *outputs.shape[2:])
    return grouped[:, order].reshape(outputs.shape)


SPEC = KernelSpec(
    name="grouped_query_attention",
    kernel=grouped_query_attention,
    xfail=batches_fail("cross"),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "b h q d, b g k d, b g k e; h = g*r",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"b": 2, "g": [1, 2], "r": [1, 3], "q": 17, "k": [16, 33], "d": 40, "e": 24},
        ),
        options={"causal": st.booleans()},
        tuning={"block_q": 16, "block_kv": 16},
    ),
    differentiable=(0, 1, 2),
    batch_axes=(0, 0, 0),
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({1: 2, 2: 2}, when=_is_not_causal),
        Relation("groups moved", _groups_moved, _outputs_moved),
    ),
    implementations={"vmap": grouped_query_attention_by_vmap},
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "b h q d, b g k d, b g k e",
            dtype="bfloat16",
            dims={"b": 2, "h": 32, "g": 8, "q": 1024, "k": 1024, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)

SPEC_MQA = KernelSpec(
    name="mqa",
    kernel=mqa,
    xfail=batches_fail("cross"),
    reference=mqa_reference,
    inputs=pst.arguments(
        pst.arrays(
            "h q d, k d, k e",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"h": [1, 3], "q": 17, "k": [15, 33], "d": 40, "e": 24},
        ),
        options={"causal": st.booleans()},
        tuning={"block_q": 16, "block_kv": 16},
    ),
    differentiable=(0, 1, 2),
    batch_axes=(0, None, None),
    relations=(
        Linear(2),
        Permuted({0: 0}, output=0),
        Permuted({1: 0, 2: 0}, when=_is_not_causal),
    ),
    implementations={
        "vmap": lambda q, k, v, **settings: jax.vmap(
            functools.partial(flash_attention, **settings), in_axes=(0, None, None)
        )(q, k, v)
    },
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "h q d, k d, k e",
            dtype="bfloat16",
            dims={"h": 8, "q": 1024, "k": 1024, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)
