"""What of the kernels ran: records, notes, ``--pallas-coverage``, in one process and in several."""

from __future__ import annotations

import json
import re

import pytest

from pytest_pallas.__main__ import main

SPECS = """
from kernels import *
from jax.experimental import pallas as pl
from pytest_pallas import KernelSpec, strategies as pst

def body(x, o):
    o[...] = x[...] * 2

    @pl.when(x[0, 0] > 1000)
    def _():
        o[0, 0] = 2 * x[0, 0]

def double(x):
    return pl.pallas_call(body, out_shape=x)(x)

ARRAYS = pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": 128}, values="integers")
SPEC = KernelSpec(
    name="double", kernel=double, reference=lambda x: 2 * x, inputs=ARRAYS, vmappable=False
)
OTHER = KernelSpec(
    name="other", kernel=lambda x: x + double(x), reference=lambda x: 3 * x, inputs=ARRAYS,
    vmappable=False,
)
"""
RUN = (
    *("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward,determinism"),
    *("--pallas-max-examples=2", "--pallas-coverage=cov.info"),
)

NOTES = [
    f"never ran: {kernel}: `x[0, 0] > 1000` was never true (specs.py:9)"
    for kernel in ("double", "other")
]

LCOV = """\
TN:
SF:specs.py
BRDA:9,0,0,0
BRDA:9,0,1,{count}
BRDA:14,0,0,{count}
BRDA:14,1,0,{count}
BRDA:14,2,0,{count}
BRF:5
BRH:4
DA:9,{count}
DA:11,0
DA:14,{count}
LF:3
LH:2
end_of_record
"""


@pytest.fixture
def suite(project):
    """Two specs of one kernel, of which a part never runs."""
    (project.path / "specs.py").write_text(SPECS)
    return project


def lines(text):
    starts = ("coverage", "never ran", "unreached=")
    return [line for line in text.splitlines() if line.startswith(starts)]


def test_what_never_ran(suite):
    result = suite.run(*RUN, "--pallas-results=results.json")
    result.assert_outcomes(passed=4)
    assert lines(result.stdout.str()) == [
        "coverage: 8 of 10 ways at 8 points of 2 kernels",
        NOTES[0],
        f"{NOTES[1]} (-v lists all, --pallas-coverage=FILE writes them)",
        "coverage of 2 kernels (8 of 10 ways) written to cov.info",
    ]
    text = (suite.path / "cov.info").read_text()
    count = text.partition("\nDA:9,")[2].split()[0]
    assert text == LCOV.format(count=count)
    records = json.loads((suite.path / "results.json").read_text())["records"]
    counted = 0
    for record in records:
        [point] = [point for point in record["coverage"] if point["kind"] == "branch"]
        assert point["missing"] == ["true"]
        assert (point["line"], point["kernel"]) == (f"{suite.path}/specs.py:9", "body")
        counted += point["counts"]["false"]
    assert counted == int(count)


@pytest.mark.parametrize("where", ["-n2", "--pallas-isolate=always"])
def test_workers_give_what_one_process_does(suite, where):
    suite.run(*RUN, "-n0")
    once = (suite.path / "cov.info").read_text()
    assert "BRF:5" in once
    result = suite.run(*RUN, where)
    assert (suite.path / "cov.info").read_text() == once
    assert NOTES[0] in lines(result.stdout.str())


def test_shards_give_it_together(suite, monkeypatch, capsys):
    """All checks of a kernel are in one of them, so each knows of its kernels."""
    monkeypatch.chdir(suite.path)
    suite.run(*RUN)
    once = (suite.path / "cov.info").read_text()
    files = [f"{number}.json" for number in (1, 2)]
    for number, file in enumerate(files, start=1):
        result = suite.run(*RUN, f"--pallas-shard={number}/2", f"--pallas-results={file}")
        notes = [line for line in lines(result.stdout.str()) if line.startswith("never ran")]
        assert [note.startswith(NOTES[number - 1]) for note in notes] == [True]
    capsys.readouterr()
    assert main(["merge", *files, "--coverage=all.info"]) == 0
    assert (suite.path / "all.info").read_text() == once
    assert lines(capsys.readouterr().out) == [
        "coverage: 8 of 10 ways at 8 points of 2 kernels",
        NOTES[0],
        f"{NOTES[1]} (-v lists all, --pallas-coverage=FILE writes them)",
        "coverage of 2 kernels (8 of 10 ways) written to all.info",
    ]


@pytest.mark.parametrize(
    ("least", "status"), [(1, pytest.ExitCode.OK), (100, pytest.ExitCode.TESTS_FAILED)]
)
def test_a_run_fails_below_a_minimum(suite, least, status, capsys, monkeypatch):
    """Not a part of it, which cannot know what the others reach: the parts together."""
    monkeypatch.chdir(suite.path)
    text = r"coverage is to be 100 %, and [\d.]+ % of the ways were gone"
    option = f"--pallas-coverage-min={least}"
    result = suite.run(*RUN, option, "--pallas-results=all.json")
    assert result.ret == status
    assert any(re.fullmatch(text, line) for line in result.stdout.lines) == bool(status)
    assert suite.run(*RUN, option, "--pallas-shard=1/2").ret == pytest.ExitCode.OK
    capsys.readouterr()
    assert main(["merge", "all.json", f"--coverage-min={least}"]) == status
    assert any(re.fullmatch(text, line) for line in capsys.readouterr().out.splitlines()) == bool(
        status
    )


def test_a_batched_kernel_does_not_count(suite):
    """Under vmap, JAX gives a kernel another axis, and on GPUs other names."""
    path = suite.path / "specs.py"
    path.write_text(path.read_text().replace("vmappable=False", "vmappable=True"))
    args = [arg for arg in RUN if "checks" not in arg]
    suite.run(*args, "--pallas-checks=forward,vmap", "--pallas-results=results.json")
    records = json.loads((suite.path / "results.json").read_text())["records"]
    assert {(record["check"], bool(record["coverage"])) for record in records} == {
        ("forward", True),
        ("vmap", False),
    }


def test_a_run_without_simulators_measures_nothing(suite):
    args = [arg for arg in RUN if "backend" not in arg]
    result = suite.run(*args, "--pallas-backend=interpret")
    assert lines(result.stdout.str()) == [
        "coverage of 0 kernels (no simulator ran one) written to cov.info"
    ]
    assert (suite.path / "cov.info").read_text() == ""


def test_a_file_that_cannot_be_written_stops_pytest_before_it_collects(suite):
    result = suite.run(*RUN, "--pallas-coverage=none/cov.info")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --pallas-coverage=none/cov.info: cannot write the file: *"]
    )
    assert "collected" not in result.stdout.str()


def test_tests_of_ones_own(project):
    """Several tests of a function reach it together."""
    project.write(
        test_own="""
        import jax.numpy as jnp
        import pytest
        from jax.experimental import pallas as pl

        def body(x, o):
            @pl.when(x[0, 0] > 0)
            def _():
                o[...] = x[...]

            @pl.when(x[0, 0] <= 0)
            def _():
                o[...] = -x[...]

        def same(x):
            return pl.pallas_call(body, out_shape=x)(x)

        @pytest.mark.parametrize("sign", [1, -1], ids=["plus", "minus"])
        def test_abs(pallas_check, sign):
            pallas_check(same, jnp.full((8, 128), float(sign)), reference=abs)
        """
    )
    one = project.run("--pallas-backend=tpu-sim", "-k", "plus")
    note = "`x[0, 0] > 0` was never false (test_own.py:7)"
    assert lines(one.stdout.str())[1].startswith(f"never ran: same: {note}; ")
    both = project.run("--pallas-backend=tpu-sim")
    assert lines(both.stdout.str()) == ["coverage: 7 of 7 ways at 5 points of 1 kernel"]


def test_code_without_a_file(project):
    """It has no line to show, and is reported by its kernel."""
    project.write(
        test_own="""
        import jax.numpy as jnp
        from jax.experimental import pallas as pl

        names = {"pl": pl}
        CODE = (
            "def body(x, o):",
            "    o[...] = x[...]",
            "    @pl.when(x[0, 0] > 0)",
            "    def _():",
            "        o[...] = -x[...]",
        )
        exec(chr(10).join(CODE), names)

        def same(x):
            return pl.pallas_call(names["body"], out_shape=x)(x)

        def test_same(pallas_check):
            pallas_check(same, -jnp.ones((8, 128)), reference=lambda x: x)
        """
    )
    result = project.run("--pallas-backend=tpu-sim", "--pallas-coverage=cov.info")
    result.assert_outcomes(passed=1)
    _, note, written = lines(result.stdout.str())
    assert note.startswith(
        "never ran: same: the condition was never true (test_own.py:16, in code without a file) "
    )
    assert written == (
        "coverage of 1 kernel (4 of 5 ways; 1 point left out, in code without a file) "
        "written to cov.info"
    )


@pytest.mark.parametrize(
    ("reasons", "notes"),
    [
        ({"specs.py:9 true": "as small as values are"}, []),
        ({"body": "all of it"}, []),
        ({"specs.py:9 false": "never"}, [NOTES[0], "unreached= of double: 'specs.py:9 false'"]),
    ],
)
def test_what_need_not_run(suite, reasons, notes):
    text = SPECS.replace('name="double",', f'name="double", unreached={reasons!r},')
    (suite.path / "specs.py").write_text(text)
    result = suite.run(*RUN, "-k", "double")
    _, *others, written = lines(result.stdout.str())
    assert len(others) == len(notes)
    assert all(map(str.startswith, others, notes))
    assert ("(4 of 4 ways)" in written) is (not notes)
    assert ("DA:11,0" in (suite.path / "cov.info").read_text()) is bool(notes)


@pytest.mark.parametrize("shard", [False, True])
def test_a_reason_for_nothing_fails_the_run(suite, shard, monkeypatch, capsys):
    monkeypatch.chdir(suite.path)
    reasons = 'backends=["tpu-sim"], unreached={"x[0, 0] > 100": "too large"}, name="double",'
    (suite.path / "specs.py").write_text(SPECS.replace('name="double",', reasons))
    options = ["--pallas-results=all.json"] + ["--pallas-shard=1/2"] * shard
    result = suite.run(*RUN, "--pallas-checks=forward", *options)
    text = (
        "unreached= of double: 'x[0, 0] > 100' is no condition, line or name of its kernels: "
        "correct it, or remove it"
    )
    assert (text in result.stdout.lines) is not shard
    assert result.ret == (pytest.ExitCode.OK if shard else pytest.ExitCode.TESTS_FAILED)
    capsys.readouterr()
    assert main(["merge", "all.json"]) == 1
    assert text in capsys.readouterr().out
