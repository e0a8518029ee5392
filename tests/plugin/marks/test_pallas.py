"""``@pytest.mark.pallas(...)``. Its options are in options/test_precedence.py."""

from __future__ import annotations

import pytest

TEST = """
    import pytest

    @pytest.mark.pallas({mark})
    def test_where(pallas_backend): pass
"""


def places(project, mark, *args):
    project.write(test_where=TEST.format(mark=mark))
    result = project.run("--collect-only", "-q", *args)
    lines = [line for line in result.outlines if line.startswith("test_where.py::")]
    return [line.partition("[")[2].rstrip("]") for line in lines]


@pytest.mark.parametrize(
    ("mark", "args", "expected"),
    [
        ("backends='interpret'", (), ["interpret"]),
        ("backends=['gpu-interpret', 'interpret']", (), ["gpu-interpret", "interpret"]),
        ("backends='tpu-interpret:v5e'", ("--pallas-backend=tpu-sim",), ["tpu-interpret:v5e"]),
        ("targets='v6e'", (), ["tpu-sim:v6e"]),
        ("targets='v6e'", ("--pallas-backend=interpreters",), ["interpret", "tpu-interpret:v6e"]),
        ("backends='tpu-sim:v5e'", ("--pallas-backend=tpu-sim",), ["tpu-sim:v5e"]),
        ("targets=['v5e', 'v6e']", ("--pallas-backend=tpu-interpret",),
         ["tpu-interpret:v5e", "tpu-interpret:v6e"]),
        ("targets='v6e'", ("--pallas-backend=tpu-interpret:all",), ["tpu-interpret:v6e"]),
        ("backends='tpu-interpret', targets='v4'", (), ["tpu-interpret:v4"]),
        ("reason='why'", (), ["tpu-sim"]),
    ],
)  # fmt: skip
def test_the_mark_selects_backends_and_targets(project, mark, args, expected):
    assert places(project, mark, *args) == expected


def test_marks_of_class_and_module(project):
    project.write(
        test_where="""
        import pytest

        pytestmark = pytest.mark.pallas(backends="gpu-interpret", reason="of the module")

        def test_module(pallas_backend):
            assert pallas_backend.name == "gpu-interpret"

        @pytest.mark.pallas(backends="interpret")
        class TestClass:
            def test_class(self, pallas_backend):
                assert pallas_backend.name == "interpret"

            @pytest.mark.pallas(backends="tpu-interpret")
            def test_own(self, pallas_backend):
                assert pallas_backend.name == "tpu-interpret"
        """
    )
    project.run().assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("mark", "args", "reason"),
    [
        ("backends='tpu'", (), "no backend for this test: tpu: "),
        ("backends='tpu', reason='needs a chip'", (), "no backend for this test: needs a chip: "),
        (
            "targets='h100'",
            ("--pallas-backend=tpu-interpret:v6e",),
            "no target of h100 among the backends tpu-interpret:v6e",
        ),
    ],
)
def test_without_any_backend_it_is_skipped_with_the_reason(
    project, monkeypatch, mark, args, reason
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    project.write(test_where=TEST.format(mark=mark))
    result = project.run("-rs", *args)
    result.assert_outcomes(skipped=1)
    assert reason in result.stdout.str().replace("\n", "")


def test_a_suite_in_a_module(project):
    """The marks of a module hold for the specs in it."""
    project.specs('name="add", kernel=add')
    project.write(
        test_suite="""
        import pytest

        from pytest_pallas import suite

        pytestmark = pytest.mark.pallas(
            backends=["interpret", "gpu-interpret"], checks="forward", max_examples=2
        )
        test_specs = suite("specs")
        """
    )
    records = project.records("--pallas-backend=tpu-interpret", "--pallas-checks=determinism")
    assert [(r["check"], r["backend"], r["outcome"], r["examples"]) for r in records] == [
        ("forward", "interpret", "passed", 2),
        ("all", "gpu-interpret", "skipped", 0),
    ]


def test_a_suite_in_a_module_without_any_backend(project, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    project.specs('name="add", kernel=add')
    project.write(
        test_suite="""
        import pytest

        from pytest_pallas import suite

        pytestmark = pytest.mark.pallas(backends="tpu", reason="needs a chip")
        test_specs = suite("specs")
        """
    )
    result = project.run("-rs")
    result.assert_outcomes(skipped=1)
    assert "no backend for these specs: needs a chip: tpu: " in result.stdout.str()


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("backends='nope'", "unknown backend 'nope'"),
        ("checks='nope'", "mark pallas(checks=...): unknown 'nope'"),
    ],
)
def test_a_suite_in_a_module_with_a_bad_mark(project, mark, message):
    project.specs('name="add", kernel=add')
    project.write(
        test_suite=f"""
        import pytest

        from pytest_pallas import suite

        pytestmark = pytest.mark.pallas({mark})
        test_specs = suite("specs")
        """
    )
    result = project.run("--pallas-backend=tpu-sim")
    result.assert_outcomes(errors=1)
    assert message in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
