"""Spec of ``double_buffer``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.dma.double_buffer import double_buffer, reference

SPEC = KernelSpec(
    name="double_buffer",
    kernel=double_buffer,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            # Up to four chunks, so that every slot is used again.
            dims={"m": [1, 15, 16, 17, 33, 48, 77], "n": [1, 127, 129]},
        ),
        tuning={"chunk": 16},
    ),
    exact=True,
    relations=(Linear(0), Permuted({0: 0}, output=0, exact=True)),
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=(pst.shaped("m n", dtype="bfloat16", dims={"m": 4096, "n": 1024}),),
    equivalent=(
        EquivalentMutant(
            operator="alias",
            change="added",
            source="return pl.pallas_call(",
            reason="rows are stored where they came from, after they were loaded",
        ),
        EquivalentMutant(
            operator="arithmetic",
            change="sub -> add",
            source="store(i - _SLOTS).wait()",
            reason="a wait needs the slot, which i + _SLOTS has too, and the size of a copy, not "
            "its rows",
        ),
    ),
)
