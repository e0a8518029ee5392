"""``pytest_pallas_specs``."""

from __future__ import annotations

CONFTEST = """
    def pytest_pallas_specs(config):
        import specs

        return [specs.SPEC_0, specs.SPEC_1]
"""


def test_its_specs_run_beside_the_tests(project):
    project.ini(pythonpath=".")
    project.specs('name="one", kernel=add', 'name="two", kernel=add_off')
    project.write(conftest=CONFTEST, test_a="def test_a(): pass")
    records = project.records("--pallas-backend=tpu-sim", "--pallas-checks=forward")
    assert [(r["kernel"], r["outcome"]) for r in records] == [("one", "passed"), ("two", "failed")]
    result = project.run("--pallas-backend=tpu-sim", "--pallas-checks=forward", "-k", "one", "-v")
    result.assert_outcomes(passed=1, deselected=2)
    assert "one-forward[tpu-sim] PASSED" in result.stdout.str()


def test_a_wrong_one(project):
    project.ini(pythonpath=".")
    project.specs('name="one", kernel=add', 'name="two", kernel=add, checks=("nope",)')
    project.write(conftest=CONFTEST, test_a="def test_a(): pass")
    result = project.run(
        "--pallas-backend=tpu-sim", "--pallas-checks=forward", "--continue-on-collection-errors"
    )
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert "unknown checks ['nope']" in text
    assert result.ret != 0
    result.assert_outcomes(passed=2, errors=1)
