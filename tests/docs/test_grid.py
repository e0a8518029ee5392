"""docs/grid.md: its examples, the output that it shows, and the findings that it explains."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pallas_test_support.forked_python import run_python

from pallas_sim.chips import TPUS
from pytest_pallas.grid.findings import Kind
from pytest_pallas.grid.model import MOST_PROGRAMS

TEXT = (Path(__file__).parents[2] / "docs/grid.md").read_text()


@pytest.fixture
def folder(blocks, tmp_path):
    for name, block in blocks("docs/grid.md"):
        (tmp_path / name).write_text(block)
    return tmp_path


def run(folder, *words):
    return run_python(*words, cwd=folder)


def test_the_report_is_as_shown(folder):
    done = run(folder, "look.py")
    assert done.returncode == 0, done.stderr
    shown = re.search(r"<!-- output: report -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1]
    assert done.stdout == shown


def test_the_test_passes(folder):
    done = run(folder, "-m", "pytest", "-p", "no:cacheprovider", "test_grid.py")
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_is_explained(kind):
    assert re.search(rf"^\| `{kind}` \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", list(TPUS))
def test_the_memory_of_chips(name):
    chip = TPUS[name]
    assert f"| {name} | {chip.vmem // 2**20} MiB | {chip.vmem_limit // 2**20} MiB |" in TEXT


def test_the_size_of_a_large_grid():
    assert f"up to {MOST_PROGRAMS:,} programs" in TEXT
