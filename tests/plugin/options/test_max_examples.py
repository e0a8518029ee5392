"""``--pallas-max-examples``."""

from __future__ import annotations

import pytest

GIVEN = """
    import hypothesis
    import pytest
    from hypothesis import given, settings, strategies as st

    {decorator}
    @given(st.integers())
    def test_draw(pallas_backend, n):
        with open("draws.txt", "a") as file:
            file.write(f"{{n}}\\n")
"""


def draws(project, *args, decorator=""):
    project.write(test_draw=GIVEN.format(decorator=decorator))
    (project.path / "draws.txt").unlink(missing_ok=True)
    project.run(*args).assert_outcomes(passed=1)
    return len((project.path / "draws.txt").read_text().splitlines())


def test_checks_draw_their_share(project):
    project.specs('name="add", kernel=add_vjp, differentiable=(0,)')
    records = project.records("--pallas-suite=specs", "--pallas-max-examples=4")
    assert {record["check"]: record["examples"] for record in records} == {
        "forward": 4,
        "gradient": 2,
        "determinism": 2,
        "immutability": 1,
        "dtype": 4,
        "jit": 1,
        "export": 1,
        "grid": 2,
        "oracle-strength": 4,  # at least
        "memory": 1,
    }


@pytest.mark.parametrize(
    ("flag", "decorator", "count"),
    [
        ((), "", 100),  # hypothesis' own default
        (("--pallas-max-examples=5",), "", 5),
        (("--pallas-max-examples=5",), "@settings(max_examples=7)", 7),
        (("--pallas-max-examples=5",), "@pytest.mark.pallas(max_examples=6)", 6),
    ],
)
def test_tests_of_ones_own(project, flag, decorator, count):
    assert draws(project, *flag, decorator=decorator) == count
