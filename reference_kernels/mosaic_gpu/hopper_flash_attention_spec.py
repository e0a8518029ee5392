"""Specs of ``hopper_flash_attention``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.attention._operands_spec import lowered
from reference_kernels.attention.grouped_query import reference
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.hopper_flash_attention import hopper_flash_attention, most_stages


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


_TYPICAL = pst.shaped(
    "b h n d, b g n d, b g n d",
    dtype="bfloat16",
    dims={"b": 1, "h": 16, "g": 4, "n": 8192, "d": 128},
    options={"causal": True},
)


_BLOCK_KV = 64


def _inputs(keys: Sequence[int] = (70, 230), d: int = 64, **options: Any) -> Any:
    stages = [each for each in (2, 3) if each <= most_stages(d, _BLOCK_KV)]
    return pst.arguments(
        pst.arrays(
            "b h q d, b g k d, b g k d",
            dtype=pst.floats("bfloat16", "float16"),
            # Fewer and more blocks of keys than there are stages; of 70, the first queries see
            # none, if causal, and the first tile sees one block.
            dims={"b": 1, "h": 4, "g": 2, "q": [140, 200], "k": list(keys), "d": d},
        ),
        options={"causal": st.booleans(), **options},
        tuning={"block_kv": _BLOCK_KV, "stages": st.sampled_from(stages)},
    )


def _with_equal_keys(call: pst.Arguments) -> pst.Arguments:
    """The low scores of keys and values that are all alike.

    Then an output is a value, and half precision has its gradients without rounding.
    """
    low = lowered(call)
    q, k, v = low.args
    alike = (np.broadcast_to(x[..., :1, :], x.shape).copy() for x in (k, v))
    return dataclasses.replace(low, args=(q, *alike))


SPEC = KernelSpec(
    name="hopper_flash_attention",
    kernel={"gpu": hopper_flash_attention},
    backends=WGMMA,
    reference=reference,
    inputs=st.one_of(
        _inputs(), _inputs(keys=[70], causal=st.just(value=False)).map(_with_equal_keys)
    ),
    differentiable=(0, 1, 2),
    deterministic=False,  # the gradient of q
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({1: 2, 2: 2}, when=_is_not_causal),
    ),
    typical=(_TYPICAL, dataclasses.replace(_TYPICAL, options={"causal": False})),
    redundant={
        "barriers.turn": "two warpgroups take turns at the tensor core and at exponentials, which "
        "is faster"
    },
)

_FORWARD = (
    EquivalentMutant(
        operator="wait",
        change="dropped",
        source="plgpu.barrier_wait(free.at[i, tile.slot(j)])",
        reason="nobody fills these slots again; only the interpreter of JAX 0.11 wants it",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="sub -> add",
        source="@pl.loop(jnp.maximum(tile.seen - settings.stages, 0), tile.seen)",
        reason="likewise",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="min -> max",
        source="return jnp.minimum(jnp.maximum(value, low), high)",
        caller="keys = _between(1, (tile + 1) * TILE + self.offset, self.kv_len)",
        reason="of blocks that count as seen and are not, everything is hidden",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="max -> min",
        source="return jnp.minimum(jnp.maximum(value, low), high)",
        caller="keys = _between(0, tile * TILE + 1 + self.offset, self.kv_len)",
        reason="whole blocks may count as ones at an edge: nothing in them is hidden",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="add -> sub",
        source="keys = _between(0, tile * TILE + 1 + self.offset, self.kv_len)",
        reason="likewise; of the two additions it is that of 1",
    ),
    *(
        EquivalentMutant(
            operator="arithmetic",
            change=change,
            source=source,
            caller="return _weigh(tile, scores, _Softmax(of_rows(-jnp.inf), of_rows(0.0)), 0)",
            reason="before the first block the sum is 0, and so is its factor, 2 ** -inf",
        )
        for change, source in (
            ("sub -> add", "rescale = jnp.exp2(softmax.top - shift)"),
            ("mul -> add", "total = softmax.total * rescale + jnp.sum(p, axis=1)"),
        )
    ),
    EquivalentMutant(
        operator="guard",
        change="always",
        source="pl.when(tile.warpgroup == 0)(tile.pass_turn)",
        reason="the last turn of warpgroup 0 is over, and it waits for no other",
    ),
)

_BACKWARD = (
    EquivalentMutant(
        operator="wait",
        change="dropped",
        source="plgpu.barrier_wait(free.at[jax.lax.rem(i, jnp.int32(slots))])",
        reason="nobody fills these slots again; only the interpreter of JAX 0.11 wants it",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="sub -> add",
        source="@pl.loop(jnp.maximum(2 * count - slots, 0), 2 * count)",
        reason="likewise",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="max -> min",
        source="return jnp.minimum(jnp.maximum(value, low), high)",
        caller="return _between(0, tile * TILE - self.offset, self.q_len - 1)",
        reason="more blocks go by; queries before the first are zeros, and the others see nothing",
    ),
    EquivalentMutant(
        operator="guard",
        change="lt -> le",
        source="edge = query + settings.offset < start + (ROWS - 1)",
        reason="whole blocks may count as ones at an edge: nothing in them is hidden",
    ),
)

SPEC_SHARED = dataclasses.replace(
    SPEC,
    name="hopper_flash_attention_shared",
    kernel={"gpu": functools.partial(hopper_flash_attention, in_registers=False)},
    typical=(),
    equivalent=(*_FORWARD, *_BACKWARD),
)

SPEC_SHARP = dataclasses.replace(
    SPEC_SHARED,
    name="hopper_flash_attention_sharp",
    # Weights overflow unless the maximum is taken off the scores; see flash_attention_sharp.
    inputs=_inputs(scale=8.0),
    checks=("forward",),  # values only: the checks of SPEC_SHARED hold
    differentiable=(),
    relations=(),
    equivalent=_FORWARD,
)

#: Of the most common size, with gradients in one kernel whose warpgroups share the columns.
SPEC_COMMON = dataclasses.replace(
    SPEC,
    name="hopper_flash_attention_128",
    inputs=_inputs(d=128),
    relations=(),
    typical=(),
)

#: With the gradient of the queries in a kernel of its own.
SPEC_DETERMINISTIC = dataclasses.replace(
    SPEC,
    name="hopper_flash_attention_deterministic",
    kernel={"gpu": functools.partial(hopper_flash_attention, deterministic=True)},
    deterministic=True,
    relations=(),
    typical=(),
)

#: Of the size of Gemma's heads.
SPEC_WIDE = dataclasses.replace(
    SPEC,
    name="hopper_flash_attention_wide",
    inputs=_inputs(d=256),
    deterministic=True,
    relations=(),
    typical=tuple(
        pst.shaped(
            "b h n d, b g n d, b g n d",
            dtype="bfloat16",
            dims={"b": 1, "h": 8, "g": 1, "n": 4096, "d": 256},
            options={"causal": causal},
        )
        for causal in (True, False)
    ),
)
