"""docs/troubleshooting.md: its messages are those of the code, and all kinds are there."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from pallas_sim.findings import Kind

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/troubleshooting.md").read_text()
CELLS = re.findall(r"^\| (`.+?`) \|", TEXT, re.MULTILINE)
ROWS = [message for cell in CELLS for message in re.findall(r"`(.+?)`", cell)]

#: Errors of which each message has a row: what stops a run although no kernel is wrong.
STOPPING = {
    "BackendUnavailableError",
    "DeviceError",
    "DrawTooLargeError",
    "KernelReferenceError",
    "MissingRuleError",
    "NoPallasCallError",
    "SimulationLimitError",
    "TooFewDevicesError",
}

#: What stands in a text in place of an expression.
HOLE = "\0"


def template(node):
    """The text of a string, with a hole for each expression in it; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) or HOLE for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (template(node.left) or HOLE) + (template(node.right) or HOLE)
    return None


@pytest.fixture(scope="module")
def nodes():
    paths = [*(ROOT / "pallas_sim").rglob("*.py"), *(ROOT / "pytest_pallas").rglob("*.py")]
    return [node for path in sorted(paths) for node in ast.walk(ast.parse(path.read_text()))]


@pytest.fixture(scope="module")
def templates(nodes):
    return {text for node in nodes if (text := template(node))}


def pattern(row):
    """What a row stands for: ``...`` is anything, also at its ends."""
    return re.compile(".*".join(map(re.escape, re.split(r"\s*\.\.\.\s*", row))), re.DOTALL)


@pytest.mark.parametrize("row", ROWS)
def test_the_code_has_the_message(templates, row):
    assert any(map(pattern(row).search, templates))


def test_no_message_is_there_twice():
    assert sorted(set(ROWS)) == sorted(ROWS)


def test_every_kind_of_finding_has_a_row():
    section = TEXT.partition("\n## Findings\n")[2].partition("\n## ")[0]
    kinds = re.findall(r"^\| `.+` \| `([\w-]+)` \|", section, re.MULTILINE)
    assert {*kinds, "bounds", "deadlock"} == set(get_args(Kind))  # these two are errors of a run


def name_of(function):
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def test_every_note_skip_and_refusal_has_a_row(nodes):
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.args]
    texts = {
        text
        for call in calls
        if name_of(call.func) in {"Note", "skip", *STOPPING}
        and re.search(r"\w", text := template(call.args[0]) or "")
    }
    assert len(texts) > 50
    patterns = [pattern(row) for row in ROWS]
    missing = [text for text in texts if not any(one.search(text) for one in patterns)]
    assert not missing, "\n".join(missing).replace(HOLE, "...")
