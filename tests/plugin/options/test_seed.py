"""``--pallas-seed``: same seed, same draws, on every backend and under any number of workers."""

from __future__ import annotations

import shutil

import pytest

#: A check that writes down what it is asked about.
NOTE = """
    import os

    from pytest_pallas import Check

    def _note(context):
        from pytest_pallas.checks.context import CheckResult

        with open(f"draws-{os.getpid()}.txt", "a") as file:
            file.write(f"{context.arguments!r}\\n")
        return CheckResult(comparisons=[])

    def pytest_pallas_checks(config):
        return [Check(name="note", asks="what is drawn?", run=_note)]
"""

OWN = """
    import os

    from hypothesis import given, seed, settings
    from kernels import *
    from pytest_pallas import strategies as pst

    ARGS = pst.arrays("m n, m n", dtype="float32", dims={{"m": [8], "n": [128, 256, 384]}})

    {decorator}
    @settings(max_examples=5)
    @given(args=ARGS)
    def test_add(pallas_backend, args):
        with open(f"draws-{{os.getpid()}}.txt", "a") as file:
            file.write(f"{{args!r}}\\n")
"""


def draws(project, *args):
    """What was drawn, each draw once."""
    for path in project.path.glob("draws-*.txt"):
        path.unlink()
    shutil.rmtree(project.path / ".hypothesis", ignore_errors=True)
    result = project.run(*args)
    assert result.ret == 0
    files = project.path.glob("draws-*.txt")
    return {line for path in files for line in path.read_text().splitlines()}


def test_a_seed_draws_the_same_examples_of_a_spec(project):
    project.specs('name="one", kernel=add', 'name="two", kernel=add')
    project.write(conftest=NOTE)
    suite = ("--pallas-suite=specs", "--pallas-checks=note", "--pallas-backend=interpret")
    first = draws(project, *suite)
    assert len(first) > 3
    assert draws(project, *suite) == first
    assert draws(project, *suite, "--pallas-seed=0", "-k", "two") == first
    assert draws(project, *suite[:2], "--pallas-backend=tpu-interpret") == first
    assert draws(project, *suite, "-n2") == first
    assert draws(project, *suite, "--pallas-seed=1") != first


def test_tests_of_ones_own(project):
    project.write(test_own=OWN.format(decorator=""))
    first = draws(project, "--pallas-backend=interpret")
    assert len(first) > 2
    assert draws(project, "--pallas-backend=interpret,tpu-interpret,gpu-interpret") == first
    assert draws(project, "-n1") == first
    assert draws(project, "--pallas-backend=interpret", "--pallas-seed=1") != first


@pytest.mark.parametrize("decorator", ["@seed(7)", "@settings(derandomize=True)"])
def test_what_a_test_says_itself_is_left_alone(project, decorator):
    if decorator == "@seed(7)":
        project.write(test_own=OWN.format(decorator=decorator))
    else:
        text = OWN.replace("settings(max_examples=5)", "settings(max_examples=5, derandomize=True)")
        project.write(test_own=text.format(decorator=""))
    args = ("--pallas-backend=interpret",)
    assert draws(project, *args, "--pallas-seed=1") == draws(project, *args)
