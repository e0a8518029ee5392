"""docs/compiling.md: its examples, the output that it shows, and the numbers that it explains."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.compile import libtpu
from pytest_pallas.compile import report as costs
from pytest_pallas.compile.service import CompileReport, Status
from pytest_pallas.options import TABLE, Options

TEXT = (Path(__file__).parents[2] / "docs/compiling.md").read_text()

needs_libtpu = pytest.mark.skipif(libtpu.missing() is not None, reason=str(libtpu.missing()))


def shown(name):
    return re.search(rf"<!-- output: {name} -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)[1]


@pytest.fixture
def run(blocks, tmp_path):
    """Run pytest on examples of the page."""

    def run(*names, options):
        for name, block in blocks("docs/compiling.md"):
            if name in names:
                (tmp_path / name).write_text(block)
        return run_python("-m", "pytest", "-p", "no:cacheprovider", *options, cwd=tmp_path)

    return run


@needs_libtpu
def test_the_tile_is_refused_as_shown(run, tmp_path):
    done = run("test_scale.py", options=["--pallas-backend=tpu-compile:v6e"])
    assert done.returncode == 1
    printed = done.stdout.replace(f"{tmp_path}/", "")
    lines = [line for line in shown("refusal").splitlines() if re.match("E  |refused:", line)]
    assert len(lines) > 4
    for line in lines:
        assert line in printed, line


@needs_libtpu
def test_costs_can_be_asserted(run):
    done = run("kernels.py", "test_costs.py", options=["-rs"])
    assert "1 passed" in done.stdout, done.stdout


@needs_libtpu
def test_the_spec_compiles_and_its_typical_call_is_in_the_table(run):
    options = ["--pallas-suite=kernels", "--pallas-backend=tpu-compile:v6e"]
    done = run("kernels.py", options=[*options, "--pallas-checks=forward"])
    assert done.returncode == 0, done.stdout
    header = next(line for line in shown("tables").splitlines() if "bundles" in line)
    assert header.split() in [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(CompileReport)])
def test_every_number_of_a_report_is_explained(name):
    assert re.search(rf"^\|[^|]*`{name}`", TEXT, re.MULTILINE)


@pytest.mark.parametrize("status", get_args(Status))
def test_every_way_a_compilation_ends_is_named(status):
    assert f"`{status}`" in TEXT


def test_the_table_of_costs_has_the_columns_that_are_shown():
    for name, columns in (("tables", costs._TPU), ("gpu", costs._GPU)):
        header = next(line for line in shown(name).splitlines() if "spill" in line)
        assert re.split(r"\s{2,}", header)[2:] == [column.title for column in columns]


def test_options_in_the_text_exist_and_defaults_are_right():
    flags = set(re.findall(r"--pallas-[a-z-]+[a-z]", TEXT))
    assert flags <= {option.flag for option in TABLE}
    options = Options()
    for words in (
        f"`--pallas-timeout` seconds ({options.timeout:g})",
        f"`--pallas-worker-memory` GiB ({options.worker_memory:g})",
        f"`--pallas-cost-limit` percent ({options.cost_limit:g})",
        f"writes {options.cost_file}",
    ):
        assert words in TEXT
