"""``@pytest.mark.pallas_tolerance(...)``."""

from __future__ import annotations

import pytest

TEST = """
    import numpy as np
    import pytest
    from kernels import *
    from pytest_pallas import Tolerance

    {marks}
    @pytest.mark.parametrize("dtype", ["float32", "int32"])
    def test_off(pallas_check, dtype):
        x = np.ones((8, 128), dtype)
        pallas_check(add_off, x, x, reference=reference, tolerance={tolerance})
"""


@pytest.mark.parametrize(
    ("marks", "tolerance", "passing"),
    [
        ([], "None", []),
        (["atol=1"], "None", ["if", "ii", "tf", "ti"]),
        (["atol=1, dtype='float32'"], "None", ["if", "tf"]),
        (["atol=1, backend='tpu-interpret'"], "None", ["tf", "ti"]),
        (["atol=1, backend='tpu-interpret:v6e'"], "None", ["tf", "ti"]),
        (["atol=1, backend='tpu-interpret:v5e'"], "None", []),
        (["atol=1, backend='interpret', dtype='int32'"], "None", ["ii"]),
        (["rtol=0.6"], "None", ["if", "ii", "tf", "ti"]),
        (["fraction=1"], "None", ["if", "ii", "tf", "ti"]),
        (["1, dtype='float32'"], "None", ["if", "tf"]),
        (["{'int32': 1}"], "None", ["ii", "ti"]),
        # The closest mark that fits wins, and it wins over what the call says.
        (["atol=0.5", "atol=1, dtype='int32'"], "None", ["ii", "ti"]),
        (["atol=0.5"], "Tolerance(atol=1)", []),
        (["atol=0.5, dtype='int32'"], "Tolerance(atol=1)", ["if", "tf"]),
    ],
)
def test_by_dtype_and_backend(project, marks, tolerance, passing):
    lines = "\n    ".join(f"@pytest.mark.pallas_tolerance({mark})" for mark in marks)
    project.write(test_off=TEST.format(marks=lines, tolerance=tolerance))
    records = project.records("--pallas-backend=interpret,tpu-interpret:v6e")
    assert len(records) == 4
    found = [
        r["backend"][0] + ("f" if "float32" in r["test"] else "i")
        for r in records
        if r["outcome"] == "passed"
    ]
    assert sorted(found) == passing


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("epsilon=1", "mark pallas_tolerance: .*epsilon.*; it takes backend, dtype, factor"),
        ("atol=-1", "tolerance: atol must be a number of 0 or more, but is -1"),
        ("fraction=2", "tolerance: fraction must be a number from 0 to 1"),
        ("1, 2", "mark pallas_tolerance: it takes one tolerance, or its fields by name"),
        ("atol=1, backend='nope'", "unknown backend 'nope'"),
        ("atol=1, dtype='flaot32'", "mark pallas_tolerance: unknown dtype 'flaot32'"),
    ],
)
def test_a_bad_argument_of_the_mark_fails_its_test(project, mark, message):
    project.write(
        test_off=TEST.format(marks=f"@pytest.mark.pallas_tolerance({mark})", tolerance="None")
    )
    result = project.run("--pallas-backend=tpu-sim")
    assert result.ret != 0
    result.stdout.re_match_lines([f"E .*{message}"])
