"""Specs of ``flash_attention``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted, Relation
from reference_kernels.attention._operands import reference
from reference_kernels.attention._operands_spec import lowered
from reference_kernels.attention.flash_attention import (
    flash_attention,
    segmented_attention,
    segmented_reference,
)


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


def _keys_twice(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """Every key and value twice, in any order."""
    q, k, v = arguments.args
    order = rng.permutation(2 * len(k)) % len(k)
    return dataclasses.replace(arguments, args=(q, k[order], v[order]))


_TYPICAL = pst.shaped(
    "q d, k d, k e",
    dtype="bfloat16",
    dims={"q": 2048, "k": 2048, "d": 128, "e": 128},
    options={"causal": True},
)

#: Mutants of whoever asks which blocks are seen and whole.
EDGES = (
    EquivalentMutant(
        operator="comparison",
        change="le -> lt",
        source="self.block_kv <= self.kv_len",
        reason="asked only where the blocks do not divide the keys, so no block ends with them",
    ),
    EquivalentMutant(
        operator="comparison",
        change="le -> lt",
        source="answer = (j + 1) * self.block_kv - 1 <= i * self.block_q + self.diagonal",
        reason="a whole block that counts as one at an edge is masked, but nothing in it is hidden",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="sub -> add",
        source="answer = (j + 1) * self.block_kv - 1 <= i * self.block_q + self.diagonal",
        reason="likewise, two keys before the edge",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="sub -> add",
        source="return j * self.block_kv <= (i + 1) * self.block_q - 1 + self.diagonal",
        reason="a block that counts as seen two keys too early is masked, and all of it is hidden",
    ),
)

#: Mutants of the forward kernel.
_FORWARD = (
    *EDGES,
    EquivalentMutant(
        operator="guard",
        change="always",
        source="pl.when(j == pl.num_programs(2) - 1)",
        reason="earlier steps write the block that the last one writes again",
    ),
)

#: Mutants of every spec whose gradients are asked about.
EQUIVALENT = (
    *_FORWARD,
    EquivalentMutant(
        operator="guard",
        change="always",
        source="@pl.when(last)",
        reason="likewise",
    ),
    EquivalentMutant(
        operator="mask",
        change="and -> or",
        source="last = jnp.logical_and(head ==",
        reason="likewise",
    ),
    EquivalentMutant(
        operator="comparison",
        change="le -> lt",
        source="self.block_q <= self.q_len",
        reason="asked only where the blocks do not divide the queries",
    ),
)


def _inputs(keys: Sequence[int], **options: Any) -> Any:
    return pst.arguments(
        pst.arrays(
            "q d, k d, k e",
            dtype=pst.floats("bfloat16", "float32"),
            # The diagonal of 32 by 39 or 129 is not that of the blocks.
            dims={"q": [33, 32, 1], "k": keys, "d": [40], "e": [24, 128]},
        ),
        options={"causal": st.booleans(), **options},
        tuning={"block_q": 16, "block_kv": st.sampled_from([16, 128])},
    )


SPEC = KernelSpec(
    name="flash_attention",
    kernel=flash_attention,
    reference=reference,
    inputs=_inputs([39, 129]),
    differentiable=(0, 1, 2),
    relations=(
        Linear(2),
        Permuted({0: 0}, output=0, when=_is_not_causal),
        Permuted({1: 0, 2: 0}, when=_is_not_causal),
        Relation("keys twice", _keys_twice, when=_is_not_causal),
    ),
    equivalent=EQUIVALENT,
    typical=(_TYPICAL,),
)


SPEC_SHARP = KernelSpec(
    name="flash_attention_sharp",
    kernel=flash_attention,
    reference=reference,
    # Weights overflow unless the maximum is taken off the scores. They are all but 0 and 1, so that
    # gradients are differences of equal numbers, all rounding, and not asked about.
    # The first queries see none of 16 keys, which are whole blocks, nor of 1.
    inputs=_inputs([39, 129, 16, 1], scale=8.0),
    relations=(Permuted({1: 0, 2: 0}, when=_is_not_causal),),
    equivalent=_FORWARD,
    typical=(dataclasses.replace(_TYPICAL, options={"causal": True, "scale": 8.0}),),
)


def _renamed(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """Every segment under another id."""
    *qkv, q_ids, kv_ids = arguments.args
    count = 1 + max(q_ids.max(initial=0), kv_ids.max(initial=0))
    names = rng.permutation(np.arange(-count, count, dtype=np.int32))
    return dataclasses.replace(arguments, args=(*qkv, names[q_ids], names[kv_ids]))


SPEC_SEGMENTS = KernelSpec(
    name="flash_attention_segments",
    kernel=segmented_attention,
    reference=segmented_reference,
    inputs=pst.arguments(
        pst.arrays(
            "q d, k d, k e",
            # In bfloat16, gradients for queries that see few keys are mostly the rounding of ``o``.
            dtype="float32",
            dims={"q": [33, 32], "k": [129, 16, 33], "d": 40, "e": 24},
        ),
        then=lambda drawn: {
            "q_ids": pst.segment_ids(len(drawn[0])),
            "kv_ids": pst.segment_ids(len(drawn[1])),
        },
        options={"causal": st.sampled_from([True, False])},
        tuning={"block_q": 16, "block_kv": st.sampled_from([16, 128])},
    ).map(lowered),
    differentiable=(0, 1, 2),
    relations=(
        Linear(2),
        Permuted({0: 0, 3: 0}, output=0, when=_is_not_causal),
        Permuted({1: 0, 2: 0, 4: 0}, when=_is_not_causal),
        Relation("segments renamed", _renamed, exact=True),
    ),
    equivalent=EQUIVALENT,
    typical=(
        dataclasses.replace(
            _TYPICAL, args=(*_TYPICAL.args, *2 * (jax.ShapeDtypeStruct((2048,), jnp.int32),))
        ),
    ),
)
