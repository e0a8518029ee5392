"""Specs of ``multi_head``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import BATCHES, without
from reference_kernels.attention._operands import reference
from reference_kernels.attention.flash_attention_spec import EQUIVALENT
from reference_kernels.attention.multi_head import batched_mha, mha


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


SPEC_MHA = KernelSpec(
    name="mha",
    kernel=mha,
    backends=without(BATCHES),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "h q d, h k d, h k e",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"h": [1, 3], "q": [17, 33], "k": [33, 16, 53], "d": 40, "e": 24},
        ),
        options={"causal": st.booleans()},
        tuning={"block_q": 16, "block_kv": 16},
    ),
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({1: 1, 2: 1}, when=_is_not_causal),
    ),
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "h q d, h k d, h k e",
            dtype="bfloat16",
            dims={"h": 8, "q": 1024, "k": 1024, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)

SPEC_BATCHED = KernelSpec(
    name="batched_mha",
    kernel=batched_mha,
    backends=without(BATCHES),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "b h q d, b h k d, b h k e",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"b": [1, 2], "h": [1, 3], "q": [1, 15, 17], "k": [1, 16, 33], "d": 40, "e": 24},
        ),
        options={"causal": st.booleans()},
        tuning={"block_q": 16, "block_kv": 16},
    ),
    differentiable=(0, 1, 2),
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({0: 1, 1: 1, 2: 1}, output=1),
        Permuted({1: 2, 2: 2}, when=_is_not_causal),
    ),
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "b h q d, b h k d, b h k e",
            dtype="bfloat16",
            dims={"b": 4, "h": 8, "q": 1024, "k": 1024, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)
