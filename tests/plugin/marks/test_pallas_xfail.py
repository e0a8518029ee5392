"""``@pytest.mark.pallas_xfail(...)``."""

from __future__ import annotations

import pytest

TEST = """
    import numpy as np
    import pytest
    from kernels import *

    X = np.ones((8, 128), np.float32)

    @pytest.mark.pallas_xfail({mark})
    def test_kernel(pallas_check):
        pallas_check({kernel}, X, X, reference=reference)
"""


def test_it_holds_for_its_backend_only(project):
    project.write(test_x=TEST.format(mark="'tpu-interpret', reason='#1'", kernel="add_off"))
    records = project.records("--pallas-backend=interpret,tpu-interpret,tpu-interpret:v5e")
    assert [(r["backend"], r["outcome"], r["reason"]) for r in records] == [
        ("interpret", "failed", ""),
        ("tpu-interpret", "xfailed", "#1"),
        ("tpu-interpret:v5e", "xfailed", "#1"),
    ]
    assert "add_off: forward on tpu-interpret is wrong" in records[1]["message"]


def test_it_can_name_a_target(project):
    mark = "'tpu-interpret:v5e', reason='#1'"
    project.write(test_x=TEST.format(mark=mark, kernel="add_off"))
    result = project.run("--pallas-backend=tpu-interpret:v5e,tpu-interpret:v6e")
    result.assert_outcomes(xfailed=1, failed=1)


@pytest.mark.parametrize(
    ("mark", "outcome"),
    [
        ("'interpret', reason='#1'", "failed"),
        ("backend='interpret', reason='#1'", "failed"),
        ("'interpret', reason='#1', strict=True", "failed"),
        ("'interpret', reason='#1', strict=False", "xpassed"),
    ],
)
def test_it_is_strict(project, mark, outcome):
    project.ini(xfail_strict="false")
    project.write(test_x=TEST.format(mark=mark, kernel="add"))
    result = project.run("--pallas-backend=interpret", "--pallas-results=r.json")
    result.assert_outcomes(**{outcome: 1})
    assert '"outcome": "xpassed"' in (project.path / "r.json").read_text()


def test_several_marks_expect_failures_on_several_backends(project):
    project.write(
        test_x=TEST.format(
            mark="'interpret', reason='#1')\n"
            "    @pytest.mark.pallas_xfail('gpu-interpret', reason='#2'",
            kernel="add_off",
        )
    )
    result = project.run("--pallas-backend=interpret,gpu-interpret,tpu-interpret")
    result.assert_outcomes(xfailed=2, failed=1)


@pytest.mark.parametrize("raises", ["AssertionError", "ValueError"])
def test_other_arguments_are_those_of_pytest(project, raises):
    mark = f"'interpret', reason='#1', raises={raises}"
    project.write(test_x=TEST.format(mark=mark, kernel="add_off"))
    outcome = "xfailed" if raises == "AssertionError" else "failed"
    project.run("--pallas-backend=interpret").assert_outcomes(**{outcome: 1})


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("'nope', reason='#1'", "unknown backend 'nope'"),
        ("'interpret:v6e', reason='#1'", "unknown target 'v6e'"),
        ("'interpret'", "the pallas_xfail mark takes one backend and a reason"),
        ("'interpret', 'tpu', reason='#1'", "takes one backend and a reason"),
        ("reason='#1'", "takes one backend and a reason"),
        ("'interpret', reason='#1', stricd=True", "the pallas_xfail mark has no argument 'stricd'"),
    ],
)
def test_a_bad_argument_of_the_mark_is_an_error(project, mark, message):
    project.write(test_x=TEST.format(mark=mark, kernel="add"))
    result = project.run("--pallas-backend=interpret")
    result.assert_outcomes(errors=1)
    text = result.stdout.str()
    assert "test_x.py" in text
    assert message in text


def test_on_a_parameter(project):
    """A mark on one parameter of a test counts for that parameter only."""
    project.write(
        test_it="""
        import numpy as np
        import pytest
        from kernels import *

        @pytest.mark.parametrize("wrong", [
            False,
            pytest.param(True, marks=pytest.mark.pallas_xfail("interpret", reason="wrong")),
        ])
        def test_add(pallas_check, wrong):
            x = np.ones((8, 128), np.float32)
            pallas_check(add, x, x, reference=lambda a, b: a + b + wrong)
        """
    )
    result = project.run("--pallas-backend=interpret")
    result.assert_outcomes(passed=1, xfailed=1)


def test_a_wrong_mark_fails_its_own_test_only(project):
    project.write(
        test_it="""
        import numpy as np
        import pytest
        from kernels import *

        X = np.ones((8, 128), np.float32)

        @pytest.mark.pallas_xfail("interpreter", reason="wrong")
        def test_wrong(pallas_check):
            pallas_check(add, X, X, reference=reference)

        def test_right(pallas_check):
            pallas_check(add, X, X, reference=reference)
        """
    )
    result = project.run("--pallas-backend=interpret")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*unknown backend 'interpreter'*Did you mean 'interpret'?*"])


@pytest.mark.parametrize("body", ["undefined", "pallas_check(abs, X, reference=abs)"])
def test_a_mistake_in_the_test_is_not_the_expected_failure(project, body):
    project.write(
        test_it=f"""
        import numpy as np
        import pytest

        X = np.ones((8, 128), np.float32)

        @pytest.mark.pallas_xfail("interpret", reason="wrong")
        def test_it(pallas_check):
            {body}
        """
    )
    project.run("--pallas-backend=interpret").assert_outcomes(failed=1)
