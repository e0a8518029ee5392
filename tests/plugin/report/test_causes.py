"""Failures of one cause are one block on the terminal and one card on the page."""

from __future__ import annotations

import pytest

WRONG = (
    'name="wrong", kernel=off, implementations={"plain": reference}, '
    'checks=("forward", "cross", "dtype")'
)
OFF = "\ndef off(x, y):\n    return add(x, y).at[-1].add(9)\n"

ONE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=2")


@pytest.fixture
def wrong(project):
    project.specs(WRONG)
    path = project.path / "specs.py"
    head, spec, tail = path.read_text().partition("SPEC")
    path.write_text(f"{head}{OFF}\n{spec}{tail}")
    return project


def test_checks_that_fail_alike_are_one_block_that_names_them(wrong):
    result = wrong.run(*ONE)
    result.assert_outcomes(failed=2, passed=1)
    text = result.stdout.str()
    assert text.count("  pattern   only") == 1
    result.stdout.fnmatch_lines(["  likewise  wrong-cross*tpu-sim*"])
    assert text.count("FAILED specs.py::wrong-") == 2


def test_the_summary_of_tests_that_fail_alike_has_their_reasons(project):
    project.write(
        test_it=f"""
        import numpy as np, pytest
        from kernels import *

        X = np.ones((8, 128), np.float32)
        {OFF.strip().replace(chr(10), chr(10) + " " * 8)}

        @pytest.mark.parametrize("number", range(2))
        def test_off(pallas_check, number):
            pallas_check(off, X, X, reference=reference)
        """
    )
    result = project.run("test_it.py", "--pallas-backend=tpu-sim", "--force-short-summary")
    lines = [line for line in result.outlines if line.startswith("FAILED ")]
    assert [line.partition(" - ")[2][:28] for line in lines] == ["pytest_pallas.MismatchError:"] * 2
    result.stdout.fnmatch_lines(["replay: *", "likewise: test_off*1*"])


def test_with_verbosity_each_has_its_block(wrong):
    text = wrong.run(*ONE, "-v").stdout.str()
    assert text.count("  pattern   only") == 2
    assert "likewise" not in text


def test_checks_that_fail_alike_are_one_card(wrong):
    pytest.importorskip("jinja2")
    wrong.run(*ONE, "--pallas-html=page.html")
    page = (wrong.path / "page.html").read_text()
    assert page.count('<article class="failure">') == 1
    assert '<p class="likewise">Likewise: cross</p>' in page
