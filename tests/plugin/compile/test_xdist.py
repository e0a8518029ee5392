"""Compiling under xdist: several processes load libtpu at once, and all records come home."""

import json

import pytest

#: As many kernels as processes.
ROWS = (8, 16)

TESTS = f"""
    import pytest
    from chips import *

    @pytest.mark.parametrize("rows", {ROWS})
    def test_it(pallas_check, rows):
        pallas_check(double, X[:rows], reference=twice, name=f"double_{{rows}}")
"""


@pytest.mark.slow
def test_two_processes_compile_side_by_side(compiling):
    compiling.write(test_it=TESTS)
    result = compiling.run(
        "-n2",
        "--pallas-backend=tpu-compile:v5e",
        "--pallas-results=results.json",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["kernel *v5e", *(f"double_{rows} *compiled" for rows in ROWS)])
    records = json.loads((compiling.path / "results.json").read_text())["records"]
    reports = [report for record in records for report in record["compiled"]]
    assert {(report["signature"], report["target"]) for report in reports} == {
        (f"float32[{rows},480]", "v5e") for rows in ROWS
    }
    assert {report["status"] for report in reports} == {"compiled"}
    assert "lockfile" not in result.stdout.str() + result.stderr.str()
