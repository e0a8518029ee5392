"""The examples of docs/simulator.md."""

import re
from pathlib import Path
from typing import get_args

from pallas_test_support.forked_python import run_python

from pallas_sim.findings import Kind

PAGE = (Path(__file__).parents[2] / "docs/simulator.md").read_text()


def _run(blocks, folder, number):
    name, block = blocks("docs/simulator.md")[number]
    (folder / name).write_text(block)
    done = run_python(name, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_prints_what_the_page_says(blocks, tmp_path):
    printed = _run(blocks, tmp_path, 0).replace(f"{tmp_path}/", "")
    (shown,) = re.findall(r"<!-- alone: early -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert printed == shown


def test_the_example_of_findings_prints_what_the_page_says(blocks, tmp_path):
    printed = _run(blocks, tmp_path, 1).replace(f"{tmp_path}/", "")
    shown = dict(re.findall(r"<!-- output: (\w+) -->\n```text\n(.*?)```", PAGE, re.DOTALL))
    assert shown.pop("explored")
    assert list(shown) == ["race", "entry", "unwaited", "leftover", "deadlock", "seeds"]
    assert printed == "\n" + "".join(shown.values())  # nothing of the kernel without mistake


def test_the_example_of_orders_prints_what_the_page_says(blocks, tmp_path):
    printed = _run(blocks, tmp_path, 2)
    (shown,) = re.findall(r"<!-- output: explored -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert printed == shown


def test_the_kinds_of_findings_are_all_there():
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| `\w+Error` \|$", PAGE, re.MULTILINE)
    section = PAGE.partition("## Findings\n")[2].partition("\n## ")[0]
    assert set(rows) | set(re.findall(r"`([\w-]+)` \(", section)) == set(get_args(Kind))


def test_the_example_of_coverage_prints_what_the_page_says(blocks, tmp_path):
    printed = _run(blocks, tmp_path, 3)
    (shown,) = re.findall(r"<!-- alone: reaches -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert printed == shown


def test_the_example_of_watched_references_prints_what_the_page_says(blocks, tmp_path):
    printed = _run(blocks, tmp_path, 4).replace(f"{tmp_path}/", "")
    assert printed.startswith("acc_ref is float32[8, 128] in program (0)")
    assert printed in PAGE
