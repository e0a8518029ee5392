"""Specs of ``splash_attention``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels._gaps import batches_fail
from reference_kernels.attention._splash_mask import ArrayMask, Mask
from reference_kernels.attention.splash_attention import reference, splash_attention


def _hides_nothing(arguments: pst.Arguments) -> bool:
    mask = arguments.options["mask"]
    return isinstance(mask, Mask) and mask == Mask() and len(arguments.args) == 3


def _not_grouped(arguments: pst.Arguments) -> bool:
    return len(arguments.args[0]) == len(arguments.args[1])


def _arrays(*dtypes: str, **dims: Any) -> Any:
    return pst.arrays(
        "h q d, g k d, g k e; h = g*r",
        dtype=pst.floats(*(dtypes or ("bfloat16", "float32"))),
        dims={"g": [1, 2], "r": [1, 3], "d": [8, 24], "e": [16, 40], **dims},
    )


def _lengths(drawn: Any) -> tuple[int, int]:
    return drawn.recipe["q"], drawn.recipe["k"]


def _typical(**options: Any) -> Any:
    """Grouped heads, 2 of keys; blocks on both sides of the diagonal."""
    dims = {"h": 8, "g": 2, "q": 2048, "k": 2048, "d": 128, "e": 128}
    return pst.shaped("h q d, g k d, g k e", dtype="bfloat16", dims=dims, options=options)


def _with_sinks(length: int, *, window: int, sinks: int) -> ArrayMask:
    """A causal window, and the first keys besides: no single interval, so no ``Mask``."""
    seen = Mask(left=window - 1, right=0).array(length, length)
    seen[:, :sinks] = np.tri(length, sinks, dtype=bool)
    return ArrayMask(seen)


def _hiding(mask: np.ndarray, rows: int) -> ArrayMask:
    """A mask whose first rows, as many as a block has, see nothing."""
    return ArrayMask(np.where(np.arange(len(mask))[:, None] < rows, False, mask))


_WRITTEN_AGAIN = "earlier visits write the block that the last one of the row writes again"
_EQUIVALENT = tuple(
    EquivalentMutant(operator="guard", change=change, source=source, reason=_WRITTEN_AGAIN)
    for change, source in (
        ("always", "pl.when(is_last)"),
        ("of the next index", "flags[step] & LAST != 0"),  # LAST is not 1, so this is always
        ("of the index before", "flags[step] & LAST != 0"),
        ("always", "@pl.when(flags[step] & LAST != 0)"),
    )
)

_RELATIONS = (Linear(2), Permuted({0: 0, 1: 0, 2: 0}, output=0, when=_not_grouped))

SPEC = KernelSpec(
    name="splash_attention",
    kernel=splash_attention,
    xfail=batches_fail("vmap"),
    reference=reference,
    inputs=pst.arguments(
        _arrays(q=[31, 130, 260], k=[31, 70, 130]),
        options={
            "mask": st.sampled_from(
                [
                    Mask(right=0),
                    Mask(),
                    Mask(left=20, right=3),
                    Mask(right=0, chunk=24),
                    Mask(left=9, right=0, offset=-5),  # the first queries see nothing
                ]
            ),
            "soft_cap": st.sampled_from([None, 2.0]),
            "scale": st.sampled_from([None, 0.5]),
        },
        tuning={"block_q": 128, "block_kv": 32},
    ),
    differentiable=(0, 1, 2),
    relations=(*_RELATIONS, Permuted({1: 1, 2: 1}, when=_hides_nothing)),
    equivalent=_EQUIVALENT,
    typical=(
        _typical(mask=Mask(right=0)),
        _typical(mask=Mask(left=511, right=0), soft_cap=50.0),
    ),
)

SPEC_ARRAY = KernelSpec(
    name="splash_attention_array",
    kernel=splash_attention,
    xfail=batches_fail("vmap"),
    reference=reference,
    inputs=pst.arguments(
        _arrays(q=[1, 33, 130], k=[16, 130, 300]),
        options=lambda drawn: {
            "mask": st.builds(
                _hiding,
                pst.masks(*_lengths(drawn), block=(16, 64)),
                st.sampled_from([0, 128] if drawn.recipe["q"] > 128 else [0]),
            ),
            "soft_cap": st.sampled_from([None, 2.0]),
        },
        tuning={"block_q": 128, "block_kv": 128},
    ),
    differentiable=(0, 1, 2),
    relations=_RELATIONS,
    equivalent=_EQUIVALENT,
    typical=(_typical(mask=_with_sinks(2048, window=512, sinks=64)),),
)

SPEC_SEGMENTS = KernelSpec(
    name="splash_attention_segments",
    kernel=splash_attention,
    reference=reference,
    inputs=pst.arguments(
        # In bfloat16, gradients for queries that see few keys are mostly the rounding of ``o``.
        _arrays("float32", q=[1, 33, 130], k=[130, 300]),
        then=lambda drawn: {
            "q_segments": pst.segment_ids(drawn.recipe["q"]),
            "kv_segments": pst.segment_ids(drawn.recipe["k"]),
        },
        options={"mask": st.sampled_from([Mask(), Mask(right=0)])},
        tuning={"block_q": 128, "block_kv": 128},
    ),
    differentiable=(0, 1, 2),
    relations=_RELATIONS,
    equivalent=_EQUIVALENT,
)
