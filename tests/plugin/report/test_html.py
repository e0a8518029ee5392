"""``--pallas-html``: one file, written by whoever has the terminal, with what the records hold."""

from __future__ import annotations

import os
import re

import pytest

from pallas_sim.findings import Finding
from pytest_pallas.decoding import decode
from pytest_pallas.grid.findings import GridFinding

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=2",
         "--pallas-checks=forward,determinism", "--pallas-html=report.html")  # fmt: skip


@pytest.fixture
def suite(project):
    """Two specs, of which the first is wrong."""
    project.specs('name="bad", kernel=add_off', 'name="good", kernel=add')
    return project


def page(project, name="report.html"):
    return (project.path / name).read_text("utf-8")


def titles(text):
    return re.findall(r'<svg[^>]*aria-label="([^"]*)"', text)


def test_what_is_on_the_page(suite):
    result = suite.run(*SUITE)
    assert "report of 4 records written to report.html" in result.stdout.str()
    text = page(suite)
    assert '<h1 id="verdict">1 check failed, in 1 of 2 kernels</h1>' in text
    assert re.findall(r'<th scope="row"><a href="#kernel-\d+">(\w+)</a>', text) == ["bad", "good"]
    assert "output, float32[8, 128]: wrong in 1024 of 1024 elements (100 %)" in text
    assert re.search(r"<dd>pytest .*--pallas-suite=specs --pallas-backend=tpu-sim", text)
    assert re.search(r"<code>pytest .*--pallas-suite=specs .*specs.py::bad-forward", text)
    drawn = titles(text)
    assert any(t.startswith("Error map of output, float32[8, 128]: 1,024 of 1,024") for t in drawn)
    assert any(t.startswith("Histogram of errors") for t in drawn)
    assert "never drawn" in text.lower()


def test_nothing_comes_from_elsewhere(suite):
    suite.run(*SUITE)
    sources = re.findall(r'(?:src|href)="([^"]*)"', page(suite))
    assert sources
    assert all(source.startswith(("#", "data:")) for source in sources), sources
    assert "@import" not in page(suite)
    assert "url(" not in page(suite)


def test_no_tests_ran(project):
    project.write(test_a="def test_a(): pass")
    result = project.run("--pallas-html=report.html")
    result.assert_outcomes(passed=1)
    assert "report of 0 records written to report.html" in result.stdout.str()
    assert "No kernel was verified" in page(project)
    project.write(test_a="")
    assert project.run("--pallas-html=report.html").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "No kernel was verified" in page(project)


def test_passwords_are_not_on_the_page(suite):
    suite.run(*SUITE, "--pallas-database=none", "-o", "pallas_database=redis://me:secret@h/1")
    assert "secret" not in page(suite)
    assert "redis://***@h/1" in page(suite)


def test_the_ini_value_names_the_file(suite):
    suite.ini(pallas_html="from_ini.html")
    suite.run(*SUITE[:-1])
    assert "bad" in page(suite, "from_ini.html")


def test_written_when_the_run_stops_early_and_over_an_older_one(suite):
    (suite.path / "report.html").write_text("older")
    suite.run(*SUITE, "-x")
    text = page(suite)
    assert "1 check failed, in 1 of 1 kernel" in text
    assert [p.name for p in suite.path.iterdir() if "report" in p.name] == ["report.html"]


@pytest.mark.parametrize("path", ["missing/report.html", ".", "kernels.py/report.html"])
def test_an_unwritable_file_is_a_usage_error(suite, path):
    result = suite.run(*SUITE[:-1], f"--pallas-html={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text
    assert f"--pallas-html={path}: cannot write the file" in text
    assert "passed" not in result.stdout.str()


def test_a_folder_that_goes_away(suite):
    """Both files are said to be missing, and what was found is still shown."""
    (suite.path / "out").mkdir()
    suite.write(
        conftest="""
        import shutil

        def pytest_pallas_record(config, record):
            shutil.rmtree("out", ignore_errors=True)
        """
    )
    result = suite.run(*SUITE[:-1], "--pallas-html=out/a.html", "--pallas-results=out/a.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in text
    assert f"--pallas-html=out{os.sep}a.html: cannot write the file" in text
    assert f"--pallas-results=out{os.sep}a.json: cannot write the file" in text
    assert "FAILED" in text


def test_without_the_extra(suite, monkeypatch):
    """One line names it, before anything runs; without the option nobody asks."""
    from pytest_pallas.report import html as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    result = suite.run(*SUITE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.errlines if line.strip()]
    assert line == (
        "ERROR: --pallas-html=report.html needs jinja2: pip install 'pytest-pallas[report]'"
    )
    assert suite.run(*SUITE[:-1]).ret == pytest.ExitCode.TESTS_FAILED


HOSTILE = "</script><script>document.title=1</script>{{ 7*7 }}"


def test_messages_are_hostile(suite):
    """What a kernel raises is shown, and is no markup."""
    text = (suite.path / "specs.py").read_text()
    raising = f"def hostile(x, y):\n    raise ValueError({HOSTILE!r})\n"
    (suite.path / "specs.py").write_text(
        text.replace("SPEC_0", f"{raising}\nSPEC_0", 1).replace("kernel=add_off", "kernel=hostile")
    )
    suite.run(*SUITE)
    shown = page(suite)
    assert "&lt;/script&gt;&lt;script&gt;document.title=1&lt;/script&gt;{{ 7*7 }}" in shown
    assert shown.count("<script") == 1
    assert "document.title=1&lt;/script&gt;49" not in shown


#: Kernels whose failures are no wrong numbers.
OTHERS = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def early(x, y):
    def body(x_ref, y_ref, o_ref, buffer, arrived):
        copy = pltpu.make_async_copy(x_ref, buffer, arrived)
        copy.start()
        o_ref[...] = buffer[...] + y_ref[...]
        copy.wait()

    vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), vmem], out_specs=vmem,
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x, y)

def stuck(x, y):
    def body(x_ref, y_ref, o_ref, arrived):
        pl.semaphore_wait(arrived, 2)
        o_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x, y)

def holes(x, y):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    block = pl.BlockSpec((8, 128), lambda i: (0, i))
    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(x.shape[1] // 128,),
        in_specs=[block, block], out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
    )(x, y)
"""


def test_races_deadlocks_and_grids(project):
    """Findings travel from the kernel's run to the page, as data."""
    project.specs(
        'name="early", kernel=early, checks=("forward",)',
        'name="stuck", kernel=stuck, checks=("forward",)',
        'name="holes", kernel=holes, checks=("grid", "forward"), '
        'inputs=pst.arrays("m n, m n", dtype="float32", dims={"m": 8, "n": 256})',
    )
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{OTHERS}\nSPEC_0", 1))
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=1",
        "--pallas-html=report.html",
    )  # fmt: skip
    found = {(r["kernel"], r["check"]): r["pictures"] for r in records}
    findings = {r["kernel"]: [decode(Finding, each) for each in r["findings"]] for r in records}
    [race] = findings["early"]
    read, write = sorted(race.accesses, key=lambda access: access.kind)
    assert (write.kind, write.ref, write.copy) == ("write", "buffer", True)
    assert (read.kind, read.ref, read.copy) == ("read", "buffer", False)
    assert "specs.py:" in write.line
    [wait] = findings["stuck"][0].waits
    assert (wait.on, wait.needed, wait.had) == ("arrived", 2, 0)
    assert findings["holes"] == []
    of_grid = {r["check"]: r["grid_findings"] for r in records if r["kernel"] == "holes"}
    blocks = [decode(GridFinding, each) for each in of_grid["grid"]]
    assert {(f.kernel, f.operand, f.severity) for f in blocks} == {("body", "o_ref", "error")}
    assert of_grid["forward"] == []
    [operand] = found["holes", "grid"]["grids"]
    assert (operand["operand"], operand["shape"]) == ("o_ref", [8, 256])
    assert operand["programs"] == [[[0], [0, 0], [8, 128]], [[1], [0, 0], [8, 128]]]
    programs = found["holes", "forward"]["programs"]
    assert (programs["grid"], programs["block"]) == ([2], [8, 128])
    assert {"block": [0, 1], "programs": [], "wrong": 1024} in programs["wrong"]
    assert all("unavailable" not in pictures for pictures in found.values())
    drawn = " ".join(titles(page(project)))
    for words in ("copy writes buffer", "Deadlock: device 0 waits for arrived",
                  "Blocks of o_ref [8, 256]", "Error map of output, float32[8, 256]"):  # fmt: skip
        assert words in drawn


def test_only_failures_have_pictures(suite):
    records = suite.records(*SUITE)
    assert [bool(record["pictures"]) for record in records] == [True, False, False, False]


def test_of_a_test_of_ones_own(project):
    """Examples that hypothesis draws are points of the chart of errors by size."""
    project.write(
        test_own="""
        from hypothesis import given, settings
        from kernels import *
        from pytest_pallas import strategies as pst

        @settings(max_examples=12, database=None)
        @given(args=pst.arrays("m n, m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256]}))
        def test_add(pallas_check, args):
            kernel = add_off if args[0].shape[1] == 256 else add
            pallas_check(kernel, *args, reference=reference, name="picky")
        """
    )
    [record] = project.records("--pallas-backend=tpu-sim", "--pallas-html=report.html")
    axis = "axis 1 of argument 0"
    failed = {p["dims"][axis]: p["failed"] for p in record["pictures"]["examples"]}
    assert failed == {128: False, 256: True}
    assert any(t.startswith(f"Error against the size of {axis}") for t in titles(page(project)))
