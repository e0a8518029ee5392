"""``pytest --markers``."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("pallas(backends=..., targets=..., reason=...", "run this test on these backends"),
        ("pallas_mesh(x=4)", "skips the test if there are too few devices"),
        ("pallas_tolerance(rtol=, atol=, ulp=, fraction=", "for one backend or dtype"),
        ("pallas_xfail(backend, *, reason, strict=True)", "with strict=True, a pass is a failure"),
    ],
)
def test_markers(project, mark, words):
    text = project.run("--markers").stdout.str()
    (line,) = [line for line in text.splitlines() if line.startswith(f"@pytest.mark.{mark}")]
    assert words in line


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
