"""docs/judge.md: its example runs, and its tables are those of the code."""

import re
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.candidates.codec import REASONS
from pytest_pallas.candidates.verdicts import QUESTIONS, WEIGHTS

TEXT = (Path(__file__).parents[2] / "docs/judge.md").read_text()


@pytest.fixture
def folder(blocks, tmp_path):
    for name, block in blocks("docs/judge.md"):
        (tmp_path / name).write_text(block)
    return tmp_path


def test_the_example_says_what_is_shown(folder):
    done = run_python("judge_it.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    first, *examples = done.stdout.splitlines()
    assert first == "False wrong answer"
    assert examples
    assert all("never written" in line for line in examples)


def test_stages_and_weights_are_those_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| .*? \| ([\d.]+) \|$", TEXT, flags=re.MULTILINE)
    assert {name: float(weight) for name, weight in rows} == WEIGHTS
    assert [name for name, _ in rows] == list(QUESTIONS)


@pytest.mark.parametrize("name", ["inline_mgpu", "pure_callback", "io_callback", "ffi_call"])
def test_what_is_refused_by_name_is_named(name):
    assert name in REASONS
    assert f"`{name}`" in TEXT


def test_the_corpus_is_counted_right():
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "verify"))
    from cheats import CHEATS
    from test_corpus import TASKS, honest_names

    cheats, right = re.search(r"has (\d+) cheats.* and (\d+) honest", TEXT).groups()
    assert int(cheats) == len(CHEATS)
    assert int(right) == sum(len(honest_names(task)) for task in TASKS)
