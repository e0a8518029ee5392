"""docs/coverage.md: what it shows is what its example prints, and every kind of point is there."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pallas_test_support.forked_python import run_python

from pallas_sim.coverage import Kind
from pytest_pallas.coverage import WAYS

TEXT = (Path(__file__).parents[2] / "docs/coverage.md").read_text()


def shown(name):
    return re.search(rf"<!-- output: {name} -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1]


def hits(text):
    """A tracefile with 1 for whatever ran: how often depends on what the examples are."""
    return re.sub(r"^((?:DA|BRDA).*,)[1-9]\d*$", r"\g<1>1", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def folder(blocks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coverage")
    for name, block in blocks("docs/coverage.md"):
        if name:
            (folder / name).write_text(block)
    return folder


def run(folder):
    [command] = re.findall(r"^    pytest (--pallas-suite.*)$", TEXT, re.MULTILINE)
    return run_python("-m", "pytest", "-p", "no:cacheprovider", *command.split(), cwd=folder)


def test_the_output_is_as_shown(folder):
    done = run(folder)
    assert " 13 passed in " in done.stdout, done.stdout
    starts = ("coverage", "never ran")
    lines = [line for line in done.stdout.splitlines() if line.startswith(starts)]
    assert lines == shown("notes").splitlines()
    assert hits((folder / "coverage.info").read_text()) == hits(shown("tracefile"))


def test_larger_arrays_fail(folder):
    spec = (folder / "stream_spec.py").read_text()
    (folder / "stream_spec.py").write_text(spec.replace("[8, 16, 32]", "[8, 16, 32, 64]"))
    assert '`"m": [8, 16, 32, 64]`' in TEXT
    assert "race on buf" in run(folder).stdout
    (folder / "stream_spec.py").write_text(spec)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_is_explained(kind):
    [row] = re.findall(rf"^\| {kind} \| (.*) \|$", TEXT, re.MULTILINE)
    places = [row.find(f"`{way}`") for way in WAYS[kind]]
    assert min(places) >= 0
