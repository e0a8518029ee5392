"""Specs of ``bitcast``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels._gaps import batches_fail
from reference_kernels.basics.bitcast import (
    as_words,
    as_words_reference,
    from_words,
    from_words_reference,
    sort_keys,
    sort_keys_reference,
)

SPEC_AS_WORDS = KernelSpec(
    name="as_words",
    kernel=as_words,
    reference=as_words_reference,
    inputs=pst.arguments(
        pst.arrays(
            "r n; r = 4*m",
            dtype=pst.dtypes("bfloat16", "int16", "int8", "uint8"),
            dims={"m": [1, 7, 8, 17, 33], "n": [1, 127, 128, 129]},
        ),
        tuning={"block_rows": 16},
    ),
    relations=(Permuted({0: 1}, output=1, exact=True),),
    typical=(pst.shaped("m n", dtype="bfloat16", dims={"m": 4096, "n": 1024}),),
)

SPEC_FROM_WORDS = KernelSpec(
    name="from_words",
    kernel=from_words,
    xfail=batches_fail("vmap"),
    reference=from_words_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype="uint32",
            dims={"m": [1, 7, 8, 17, 33], "n": [1, 127, 128, 129]},
            values=("uniform", "wide"),
        ),
        options={"dtype": st.sampled_from(["int8", "int16", "uint16"])},
        tuning={"block_rows": 16},
    ),
    relations=(Permuted({0: 1}, output=1, exact=True),),
    typical=(
        pst.shaped(
            "m n", dtype="uint32", dims={"m": 2048, "n": 1024}, options={"dtype": "bfloat16"}
        ),
    ),
)

SPEC_SORT_KEYS = KernelSpec(
    name="sort_keys",
    kernel=sort_keys,
    reference=sort_keys_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype="float32",
            dims={"m": [1, 7, 8, 17, 33], "n": [1, 127, 128, 129]},
            values=("integers", "normal", "tiny"),
        ),
        tuning={"block_rows": 16},
    ),
    batch_axes=(0,),
    relations=(Permuted({0: 0}, output=0, exact=True), Permuted({0: 1}, output=1, exact=True)),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 2048, "n": 1024}),),
)
