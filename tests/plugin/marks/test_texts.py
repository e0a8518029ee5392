"""``pytest --markers``."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize(
    ("mark", "arguments"),
    [
        ("pallas", {"backends", "targets", "reason", "max_examples", "seed", "checks", "sanitize"}),
        ("pallas_mesh", {"x"}),
        ("pallas_tolerance", {"rtol", "atol", "ulp", "fraction", "backend", "dtype"}),
        ("pallas_xfail", {"backend", "reason", "strict"}),
    ],
)
def test_the_markers_list_has_the_arguments_of_each_mark(project, mark, arguments):
    text = project.run("--markers").stdout.str()
    (line,) = [line for line in text.splitlines() if line.startswith(f"@pytest.mark.{mark}(")]
    signature, _, help_text = line.partition("): ")
    assert arguments <= set(re.findall(r"\w+", signature.partition("(")[2]))
    assert help_text


def test_they_are_known_to_strict_markers(project):
    project.write(
        test_marks="""
        import pytest

        @pytest.mark.pallas(reason="none")
        @pytest.mark.pallas_mesh(x=2)
        @pytest.mark.pallas_tolerance(rtol=1)
        @pytest.mark.pallas_xfail("gpu-interpret", reason="none")
        def test_marks(pallas_backend): pass
        """
    )
    project.run("--strict-markers", "--pallas-backend=tpu-sim").assert_outcomes(passed=1)
