"""``--pallas-missing``: too few devices."""

from __future__ import annotations

import pytest

TEST = """
    import pytest

    {mark}
    def test_mesh(pallas_mesh):
        pallas_mesh(x=1024)
"""


@pytest.mark.parametrize(
    ("flag", "mark", "outcome"),
    [
        ((), "", "skipped"),
        (("--pallas-missing=skip",), "", "skipped"),
        (("--pallas-missing=error",), "", "failed"),
        ((), "@pytest.mark.pallas(missing='error')", "failed"),
        (("--pallas-missing=error",), "@pytest.mark.pallas(missing='skip')", "skipped"),
    ],
)
def test_tests_of_ones_own(project, flag, mark, outcome):
    project.write(test_mesh=TEST.format(mark=mark))
    result = project.run("--pallas-backend=tpu-sim", "-rs", *flag)
    result.assert_outcomes(**{outcome: 1})
    text = result.stdout.str()
    assert "{'x': 1024} needs 1024 devices, but there are 8 cpu devices" in text
    assert "run with --pallas-devices=1024" in text


@pytest.mark.parametrize("flag", ["skip", "error"])
def test_specs_without_enough_devices_are_skipped_or_fail(project, flag):
    project.specs(
        'name="add", kernel=add_sharded, reference=reference_on_mesh, '
        'meshes=({"x": 2}, {"x": 1024}), inputs=lambda mesh: INPUTS'
    )
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=tpu-interpret", "--pallas-checks=forward",
        "--pallas-max-examples=1", "-v", "-rs", f"--pallas-missing={flag}",
    )  # fmt: skip
    outcome = {"skip": "skipped", "error": "failed"}[flag]
    result.assert_outcomes(**{"passed": 1, outcome: 1})
    text = result.stdout.str()
    assert "specs.py::add-forward[tpu-interpret-x2] PASSED" in text
    assert f"specs.py::add-forward[tpu-interpret-x1024] {outcome.upper()}" in text
    assert "needs 1024 devices, but there are 8" in text
