"""``assume`` and ``reject`` mean what they mean elsewhere, wherever they are called."""

from __future__ import annotations

import pytest

TEST = """
    from hypothesis import given, reject
    from kernels import add
    from pytest_pallas import strategies as pst

    def picky(x, y):
        if x.shape[0] > 3:
            reject()
        return x + y

    def kernel(x, y):
        return add(x, 0 * y + picky(x, y) - x)

    def plain(x, y):
        return x + y

    @given(args=pst.arrays("m n, m n", values="integers"))
    def test_add(pallas_check, args):
        pallas_check(RUN, *args, reference=REFERENCE, checks="forward")
"""

ONE = ("--pallas-backend=tpu-sim", "--pallas-max-examples=20")


@pytest.mark.parametrize(("run", "reference"), [("add", "picky"), ("kernel", "plain")])
def test_a_test_goes_on_with_other_examples(project, run, reference):
    project.write(test_add=TEST.replace("RUN", run).replace("REFERENCE", reference))
    project.run(*ONE).assert_outcomes(passed=1)


def test_a_spec_does_not_count_rejected_examples(project):
    project.specs('name="add", kernel=add, reference=picky, checks=("forward",)')
    path = project.path / "specs.py"
    picky = "def picky(x, y):\n    assume(x.shape[0] <= 8)\n    return x + y\n\n\nSPEC_0"
    text = path.read_text().replace("SPEC_0", picky, 1)
    path.write_text(f"from hypothesis import assume\n{text}")
    [record] = project.records("--pallas-suite=specs", *ONE)
    assert record["outcome"] == "passed"
    assert record["examples"] > 0
