"""Specs of ``sample_block``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels._gaps import KEYS, without
from reference_kernels.random.sample_block import (
    SAMPLERS,
    agreement,
    full_agreement,
    reference,
    sample,
)


def _typical(generator: str, **tuning: int) -> tuple[pst.Arguments, ...]:
    key = jax.eval_shape(lambda: jax.random.key(0))
    options = {"rows": 1024, "columns": 1024, "distribution": "normal", "generator": generator}
    return (pst.Arguments((key,), options, tuning),)


def _inputs(generator: str, blocks: tuple[int, int]) -> Any:
    return pst.arguments(
        st.sampled_from([0, 12345]).map(lambda seed: (jax.random.key(seed),)),
        options={
            "rows": st.sampled_from([1, 8, 17]),
            "columns": st.sampled_from([127, 257]),
            "distribution": st.sampled_from(list(SAMPLERS)),
            "generator": generator,
        },
        tuning={"block_rows": st.sampled_from([8, blocks[0]]), "block_columns": blocks[1]},
    )


SPEC = KernelSpec(
    name="sample_block",
    kernel=sample,
    reference=reference,
    inputs=_inputs("threefry", (16, 128)),
    vmappable=False,  # a key for each row of a batch makes blocks of SMEM
    typical=_typical("threefry"),
)

SPEC_HARDWARE = KernelSpec(
    name="sample_block_hardware",
    kernel=agreement,
    reference=full_agreement,
    inputs=_inputs("hardware", (16, 256)),
    vmappable=False,
    typical=_typical("hardware", block_rows=32, block_columns=256),
    backends=without(KEYS),
)
