"""Specs of ``memory_spaces``."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, ExpectedFailure, KernelSpec, Permuted
from reference_kernels._gaps import ASKING_PLACES, without
from reference_kernels.dma.memory_spaces import (
    add_one_from,
    add_one_from_host,
    add_one_placed,
    reference,
)

_ARRAYS = pst.arrays(
    "m n", dtype=pst.dtypes("bfloat16", "float32", "int32"), dims={"m": [1, 16, 49], "n": [129]}
)
_TYPICAL = (pst.shaped("m n", dtype="float32", dims={"m": 1024, "n": 512}),)
_PERMUTED = (Permuted({0: 0}, output=0, exact=True),)
_ALIASED = EquivalentMutant(
    operator="alias",
    change="added",
    source="return pl.pallas_call(",
    reason="rows are stored where they came from, after they were loaded",
)

SPEC = KernelSpec(
    name="add_one_from",
    kernel=add_one_from,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning={"block_rows": 16, "in_vmem": st.booleans()}),
    exact=True,
    relations=_PERMUTED,
    vmappable=False,
    typical=_TYPICAL,
    equivalent=(
        _ALIASED,
        EquivalentMutant(
            operator="guard",
            change="always",
            source="pl.when(jnp.logical_not(near))",
            reason="blocks give the same x + 1 once more, from an x that nothing changed",
        ),
    ),
)

if hasattr(pltpu, "has_memory_space"):  # JAX 0.12
    SPEC_PLACED = KernelSpec(
        name="add_one_placed",
        kernel=add_one_placed,
        reference=reference,
        inputs=pst.arguments(
            _ARRAYS, tuning={"block_rows": 16, "space": st.sampled_from([pl.ANY, pltpu.HBM])}
        ),
        exact=True,
        vmappable=False,
        typical=_TYPICAL,
        backends=without(ASKING_PLACES),
        unreached=dict.fromkeys(
            ("near true", "jnp.logical_not(near) false"),
            "the operand is not in VMEM; add_one_placed_vmem has one that is",
        ),
    )
    SPEC_PLACED_VMEM = replace(
        SPEC_PLACED,
        name="add_one_placed_vmem",
        inputs=pst.arguments(_ARRAYS, tuning={"block_rows": 16, "space": pltpu.VMEM}),
        unreached={},  # of the spec above, whose operand is elsewhere
        typical=tuple(replace(shape, options={"space": pltpu.VMEM}) for shape in _TYPICAL),
        xfail={
            # Its compiler takes no operand there that a kernel did not put there.
            "tpu-compile:v4": ExpectedFailure(reason="Invalid memory space: 1", jax="0.12.0.1"),
        },
    )

SPEC_HOST = KernelSpec(
    name="add_one_from_host",
    kernel=add_one_from_host,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning={"block_rows": 16}),
    # Not "tpu-compile": there, arguments are in the chip's memory, which ends the compiler.
    backends=("tpu-sim", "interpret", "tpu-interpret", "tpu"),
    exact=True,
    relations=_PERMUTED,
    vmappable=False,
    equivalent=(_ALIASED,),
)
