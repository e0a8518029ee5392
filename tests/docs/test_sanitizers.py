"""docs/sanitizers.md: kernels are caught in the words that it shows, and none is left out."""

import re
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.checks import SANITIZERS as NAMES
from pytest_pallas.checks import declared_sanitizers

TEXT = (Path(__file__).parents[2] / "docs/sanitizers.md").read_text()


@pytest.fixture(scope="module")
def printed(blocks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies")
    for name, block in blocks("docs/sanitizers.md"):
        if not name:  # an excerpt
            continue
        (folder / name).write_text(block)
    options = ("-p", "no:cacheprovider", "--pallas-suite=copies")
    done = run_python("-m", "pytest", *options, cwd=folder)
    return done.stdout.replace(f"{folder.resolve()}/", "")


@pytest.mark.parametrize(
    "name", [each.name for each in declared_sanitizers() if not each.opt_in]
)  # the others need a GPU
def test_what_is_said_is_shown(printed, name):
    shown = re.search(rf"<!-- output: {name} -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1]
    assert len(shown.splitlines()) > 2
    for line in shown.splitlines():
        assert line in printed, line


def test_each_has_a_section_and_a_row():
    assert re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)[:-1] == list(NAMES)
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)[: len(NAMES)] == list(NAMES)
