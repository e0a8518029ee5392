"""A loosened tolerance is said where an answer fails against it, and where only it lets it pass."""

from __future__ import annotations

import pytest

TEST = """
import numpy as np
import pytest
from kernels import *
from pytest_pallas import Tolerance

X = np.linspace(1, 2, 8 * 128, dtype=np.float32).reshape(8, 128)

@pytest.mark.MARK
def test_it(pallas_check):
    pallas_check(KERNEL, X, X, reference=reference, GIVEN)
"""

MARK = "pallas_tolerance(atol=ATOL)", "", "@pytest.mark.pallas_tolerance"
CALL = "filterwarnings('error')", "tolerance=Tolerance(atol=ATOL)", "tolerance= of the spec or call"


def run(project, kernel, given, atol):
    mark, keyword, _ = given
    words = {"MARK": mark, "GIVEN": keyword, "KERNEL": kernel, "ATOL": str(atol)}
    text = TEST
    for name, word in words.items():
        text = text.replace(name, word)
    project.write(test_it=text)
    return project.run("--pallas-backend=tpu-sim", "--pallas-results=results.json")


@pytest.mark.parametrize("given", [MARK, CALL])
def test_what_only_a_limit_lets_pass(project, given):
    result = run(project, "add_off", given, 1.5)
    result.assert_outcomes(passed=1)
    words = f"passes only by Tolerance(atol=1.5), from {given[-1]}; the default rule rejects"
    lines = [line for line in result.outlines if line.startswith("loosened: ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"loosened: add_off: {words}")
    assert '"kind": "tolerance"' in (project.path / "results.json").read_text()


@pytest.mark.parametrize("given", [MARK, CALL])
def test_a_limit_that_is_not_needed_is_not_told(project, given):
    result = run(project, "add", given, 1.5)
    result.assert_outcomes(passed=1)
    assert "loosened" not in result.stdout.str()


@pytest.mark.parametrize("given", [MARK, CALL])
def test_a_failure_names_its_limit(project, given):
    result = run(project, "add_off", given, 0.5)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*  tolerance Tolerance(atol=0.5), from {given[-1]}"])


def test_the_default_is_no_line(project):
    result = run(project, "add_off", ("filterwarnings('error')", "", ""), 0)
    result.assert_outcomes(failed=1)
    assert "tolerance Tolerance" not in result.stdout.str()


def test_the_hook_and_the_spec(project):
    project.write(
        conftest="""
        from pytest_pallas import Tolerance

        def pytest_pallas_tolerance(kernel):
            return Tolerance(atol=1.5) if kernel == "hooked" else None
        """
    )
    project.specs(
        'name="hooked", kernel=add_off, checks=("forward",)',
        'name="own", kernel=add_off, checks=("forward",), tolerance=Tolerance(factor=1e9)',
    )
    module = project.path / "specs.py"
    module.write_text("from pytest_pallas import Tolerance\n" + module.read_text())
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=4"
    )
    text = result.stdout.str()
    assert "loosened: hooked: passes only by Tolerance(atol=1.5), from the hook pytest_pa" in text
    result.assert_outcomes(passed=1, failed=1)  # no factor is enough where the baseline is exact
    assert "  tolerance Tolerance(factor=1000000000.0), from tolerance= of the spec" in text
