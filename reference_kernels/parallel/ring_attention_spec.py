"""Specs of ``ring_attention``."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted, Relation
from reference_kernels._gaps import REACHING, without
from reference_kernels.attention.flash_attention_spec import EDGES, EQUIVALENT
from reference_kernels.parallel.ring_attention import reference, ring_attention_on_mesh


def _inputs(mesh: jax.sharding.Mesh, **options: Any) -> Any:
    def drawn(causal: bool) -> Any:
        return pst.arguments(
            pst.arrays(
                "devices h q d, devices g k d, devices g k e",
                dtype=pst.floats("bfloat16", "float32"),
                # Few shapes, since each takes seconds to compile; blocks of each, and a rest.
                dims={
                    "devices": mesh.size,
                    "h": 2,
                    "g": [1, 2],
                    "q": 49 if causal else 17,
                    "k": 49 if causal else 18,
                    "d": 40,
                    "e": 24,
                },
            ),
            options={"causal": causal, "axis_name": "x", **options},
            tuning={"block_q": 16, "block_kv": 16},
        )

    return st.booleans().flatmap(drawn)


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


def _turned(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    """Keys and values of every device on the next one."""
    del rng
    q, k, v = arguments.args
    return dataclasses.replace(arguments, args=(q, np.roll(k, 1, axis=0), np.roll(v, 1, axis=0)))


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"devices": mesh.size, "h": 8, "g": 8, "n": 1024, "d": 128, "e": 128}
    return tuple(
        pst.shaped(
            "devices h n d, devices g n d, devices g n e",
            dtype="bfloat16",
            dims=dims,
            options={"causal": causal, "axis_name": "x"},
        )
        for causal in (False, True)
    )


_RING = (
    EquivalentMutant(
        operator="comparison",
        change="le -> lt",
        source="return j * self.block_kv <= (i + 1) * self.block_q - 1 + self.diagonal",
        reason="the diagonal is that of the blocks, so no block begins with the last key of others",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="sub -> add",
        source="last_key = jnp.maximum((i + 1) * self.block_q - 1 + self.diagonal, 0)",
        reason="copies a block that is not used, where none was copied",
    ),
    *(
        EquivalentMutant(
            operator="arithmetic",
            change="sub -> add",
            source=source,
            reason="there are two slots: the one before is the one after",
        )
        for source in ("slots.at[jax.lax.rem(s - 1, SLOTS)]", "in self._copies(s - 1)")
    ),
)

SPEC = KernelSpec(
    name="ring_attention",
    kernel=ring_attention_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes="x",
    backends=without(REACHING),
    differentiable=(0, 1, 2),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    relations=(
        Linear(2),
        Permuted({0: 2}, output=2, when=_is_not_causal),
        Permuted({1: 2, 2: 2}, when=_is_not_causal),
        Relation("shards turned", _turned, when=_is_not_causal),
    ),
    equivalent=(*EQUIVALENT, *_RING),
    typical=_typical,
)

SPEC_SHARP = KernelSpec(
    name="ring_attention_sharp",
    kernel=ring_attention_on_mesh,
    reference=reference,
    # Weights overflow unless the maximum is taken off the scores; see flash_attention_sharp.
    inputs=functools.partial(_inputs, scale=8.0),
    meshes="x",
    backends=without(REACHING),
    checks=("forward",),  # values only: the checks of the other spec hold
    vmappable=False,
    equivalent=(*EDGES, *_RING),
)
