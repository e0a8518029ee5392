"""How many different (spec, check, shape) triples a run asked about."""

from __future__ import annotations

import json

import pytest

SPECS = """
from kernels import *
from pytest_pallas import KernelSpec, strategies as pst

ONE, TWO = (
    KernelSpec(
        name=name,
        kernel=add,
        reference=reference,
        inputs=pst.arrays("m n, m n", dtype="float32", dims={"m": 8, "n": [128, 256]}),
    )
    for name in ("one", "two")
)
"""

#: Of two shapes, eight examples have both, and two have two; one check draws one example.
RUN = (
    "--pallas-suite=specs",
    "--pallas-backend=tpu-sim,interpret",
    "--pallas-checks=forward,determinism,jit",
    "--pallas-max-examples=8",
    "--pallas-results=results.json",
)


@pytest.fixture
def suite(project):
    """Two specs with two shapes each."""
    (project.path / "specs.py").write_text(SPECS)
    return project


def lines(result):
    return [line for line in result.outlines if line.startswith("distinct:")]


def test_backends_count_together(suite):
    result = suite.run(*RUN)
    document = json.loads((suite.path / "results.json").read_text())
    examples = sum(record["examples"] for record in document["records"])
    # Two specs with two shapes for forward, two for determinism and one for jit.
    assert document["distinct"] == {"triples": 10, "examples": examples}
    assert lines(result) == [f"distinct: 10 (spec, check, shape) triples in {examples:,} examples"]
    assert all(len(set(record["signatures"])) <= 2 for record in document["records"])


def test_no_line_where_nothing_was_asked(suite):
    result = suite.run(*RUN, "-k", "nothing")
    assert lines(result) == []
