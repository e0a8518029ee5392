"""``pytest_pallas_backends``."""

from __future__ import annotations

import pytest

CONFTEST = """
    from dataclasses import dataclass, field

    from pytest_pallas import Family, Outcome

    @dataclass(frozen=True)
    class Doubled:
        name: str = "doubled"
        kind: str = "interpreting"
        platform: str = "any"
        target: object = None

        def available(self):
            return {available!r}

        def run(self, call):
            import jax

            values = jax.tree.map(lambda leaf: 2 * leaf, call.args[0] + call.args[1])
            return Outcome(values=values, seconds=0.25, notes=("not run at all",))

    def pytest_pallas_backends(config):
        return [Family(name={name!r}, make=lambda target: Doubled(), kind="interpreting",
                       implied={implied})]
"""

TEST = """
    import numpy as np
    from kernels import add

    def test_add(pallas_check):
        x = np.ones((8, 128), np.float32)
        pallas_check(add, x, x, reference=lambda x, y: 2 * (x + y))
"""


def test_a_backend_of_ones_own(project):
    project.write(
        conftest=CONFTEST.format(name="doubled", available=None, implied=False), test_add=TEST
    )
    (record,) = project.records("--pallas-backend=doubled")
    assert record["test"] == "test_add.py::test_add[doubled]"
    assert record["outcome"] == "passed"
    assert record["kernel_seconds"] == 0.25
    assert record["notes"] == [{"kind": "", "text": "not run at all"}]


@pytest.mark.parametrize("implied", [False, True])
def test_auto_includes_implied_backends_only(project, implied):
    project.write(
        conftest=CONFTEST.format(name="doubled", available=None, implied=implied), test_add=TEST
    )
    result = project.run("--collect-only", "-q")
    assert ("test_add[doubled]" in result.stdout.str()) == implied


def test_it_is_among_the_valid_ones(project):
    project.write(conftest=CONFTEST.format(name="doubled", available=None, implied=False))
    result = project.run("--pallas-backend=double")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Did you mean 'doubled'?" in result.stderr.str()


def test_it_is_not_available(project):
    project.write(
        conftest=CONFTEST.format(name="doubled", available="no abacus found", implied=False)
    )
    result = project.run("--pallas-backend=doubled")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "backend 'doubled' is not available: no abacus found" in result.stderr.str()


def test_it_replaces_one_of_the_same_name(project):
    text = CONFTEST.replace('"doubled"', '"interpret"')
    project.write(
        conftest=text.format(name="interpret", available=None, implied=True), test_add=TEST
    )
    (record,) = project.records("--pallas-backend=interpret")
    assert (record["outcome"], record["notes"]) == (
        "passed",
        [{"kind": "", "text": "not run at all"}],
    )
