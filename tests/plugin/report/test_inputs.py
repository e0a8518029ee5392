"""What a run covered of the declared inputs: in the records, in a line, and in warnings."""

from __future__ import annotations

import pytest

from pytest_pallas.record import Aspect, aspects_from_json

SPECS = """
import pytest
from kernels import *
from hypothesis import strategies as st
from pytest_pallas import KernelSpec, strategies as pst

def scaled(x, y, scale=1.0):
    return add(x, y)

SPEC = KernelSpec(
    name="scaled",
    kernel=scaled,
    reference=lambda x, y, scale=1.0: x + y,
    inputs=pst.arguments(
        pst.arrays(
            "m n, m n",
            dtype="float32",
            dims={"m": 8, "n": [128, 256, 384]},
            values=("integers", "normal"),
        ),
        options={"scale": st.sampled_from([1.0, 2.0, 3.0])},
    ),
    vmappable=False,
)
"""
RUN = ("--pallas-suite=specs", "--pallas-backend=tpu-sim")


@pytest.fixture
def suite(project):
    """One spec with few choices."""
    (project.path / "specs.py").write_text(SPECS)
    return project


def lines(result):
    return [line for line in result.outlines if line.startswith(("inputs:", "never drawn:"))]


def test_everything_is_drawn(suite):
    """Three examples are enough for three sizes and three options."""
    result = suite.run(*RUN, "--pallas-checks=forward", "--pallas-max-examples=3")
    assert lines(result) == [
        "inputs: 1 kernel, 3 shapes, 1 dtype, 2 value classes, 3 of 3 boundary kinds, "
        "3 of 3 option values, 9 of 21 pairs"
    ]


def test_what_is_never_drawn(suite):
    result = suite.run(*RUN, "--pallas-checks=forward,determinism", "--pallas-max-examples=1")
    summary, warning = lines(result)
    assert summary.endswith("1 of 3 boundary kinds, 1 of 3 option values, 3 of 21 pairs")
    assert warning.startswith("never drawn: scaled: values ")
    assert "; dim n " in warning
    assert "; option scale " in warning
    result.assert_outcomes(passed=2)


def test_a_record_has_the_drawn_and_undrawn_words(suite):
    (record,) = suite.records(*RUN, "--pallas-checks=forward", "--pallas-max-examples=1")
    inputs = record["inputs"]
    assert inputs["signatures"] == len(inputs["shapes"]) == 1
    tried, never = aspects_from_json(inputs["tried"]), aspects_from_json(inputs["never"])
    assert tried[Aspect("dim", "m")] == ("fixed",)
    both = tried[Aspect("dim", "n")] + never[Aspect("dim", "n")]
    assert sorted(both) == ["128", "256", "384"]


def test_calls_of_ones_own(project):
    """Nothing is declared, so nothing is missed."""
    project.write(
        test_own="""
        import numpy as np
        import pytest
        from kernels import *

        @pytest.mark.parametrize("rows", [8, 16])
        def test_add(pallas_check, rows):
            x = np.ones((rows, 128), np.float32)
            pallas_check(add, x, x, reference=reference)
        """
    )
    result = project.run("--pallas-backend=tpu-sim")
    assert lines(result) == ["inputs: 1 kernel, 2 shapes, 1 dtype"]
