"""docs/barriers.md: its kernel is right, and the table that it shows is that of the command."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.__main__ import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/barriers.md").read_text()
KERNEL = ROOT / "examples/experts/fused_experts.py"
SHOWN = re.search(
    r"<!-- output: experts -->\n```text\n\$ pytest-pallas (.*?)\n(.*?)```", TEXT, re.S
)


@pytest.fixture(scope="module")
def printed():
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as text:
        patched.chdir(ROOT)
        assert main(SHOWN[1].split()) == 0
    return text.getvalue()


def test_the_table_is_that_of_the_command(printed):
    first, *lines = SHOWN[2].splitlines()
    assert printed.splitlines()[1:] == lines
    assert first.startswith("experts on x=8 (v6e), 5 calls, ")


def test_the_five_barriers_are_where_the_page_says():
    lines = KERNEL.read_text().splitlines()
    numbers = [int(number) for number in re.findall(r"^\d\. .*?\(line (\d+)\)", TEXT, re.MULTILINE)]
    assert len(numbers) == 5
    assert all(lines[number - 1].strip().startswith("meet(") for number in numbers)
    statuses = {
        int(line): status.strip()
        for status, line in re.findall(r"^  (.{26})signal.*?called at \S+?:(\d+)", SHOWN[2], re.M)
    }
    assert [statuses[number] for number in numbers] == [
        "needed", "redundant", "redundant", "redundant", "needed from 6 devices",
    ]  # fmt: skip


def test_the_kernel_is_right(tmp_path):
    options = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "--pallas-suite=fused_experts")
    few = ("--pallas-checks=forward,races", "--pallas-backend=tpu-sim", "--pallas-profile=quick")
    done = run_python(*options, *few, cwd=KERNEL.parent)
    assert "1 kernel without failures" in done.stdout, done.stdout
