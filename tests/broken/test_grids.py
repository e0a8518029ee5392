"""Of the kernels that are wrong on purpose, those whose grid shows it; of the others nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from uncompilable import blocks, memory
from wrong_kernels import accumulation, contracts, indexing, padding

from pytest_pallas import analyze

F32 = jnp.float32


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, F32)


@pytest.mark.parametrize(
    ("function", "args", "options", "found"),
    [
        (
            accumulation.last_block_dropped,
            (shape(20, 16),),
            {"block": 8},
            ("never-written", "o_ref"),
        ),
        (indexing.swapped_index_map, (shape(16, 8),), {"block": 8}, ("out-of-range", "x_ref")),
        (indexing.beyond_the_end, (shape(16, 128),), {"block": 8}, ("out-of-range", "next_ref")),
        (padding.positives_of_all, (shape(8, 20),), {"block": 16}, ("overhang", "x_ref")),
    ],
)
def test_found(function, args, options, found):
    errors = analyze(function, *args, **options).errors
    assert [(error.kind, error.operand) for error in errors] == [found]


@pytest.mark.parametrize("function", [contracts.right, contracts.mutates_input])
def test_nothing_wrong_with_the_grid(function):
    assert analyze(function, shape(16, 128)).findings == ()


@pytest.mark.parametrize("case", blocks.CASES, ids=lambda case: case.name)
def test_blocks_that_are_refused(case):
    found = analyze(case.function, *case.args).findings
    assert {finding.kind for finding in found if finding.severity == "warning"} == {"tile"}


@pytest.mark.parametrize(
    "case", [c for c in memory.CASES if c.name.startswith("vmem")], ids=lambda case: case.name
)
def test_memory_that_is_refused(case):
    (finding,) = analyze(case.function, *case.args).findings
    assert (finding.kind, finding.severity) == ("vmem", "warning")
