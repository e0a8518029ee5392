"""AGENTS.md and docs/agents.md are true, and ``llms.txt`` has every page."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.__main__ import main
from pytest_pallas.mcp_server import TOOLS
from pytest_pallas.record import Record

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "AGENTS.md").read_text()
PAGE = (ROOT / "docs/agents.md").read_text()

#: Where the commands of AGENTS.md are run, or are the same.
KNOWN = "\n".join((ROOT / name).read_text() for name in (".ci/run", "CONTRIBUTING.md", "README.md"))


def commands(text):
    """The commands of the indented blocks of a page."""
    lines = re.findall(r"^    (.+)$", text, re.MULTILINE)
    return [command for line in lines for command in line.split(" && ")]


# AGENTS.md.


def test_the_guide_is_one_page():
    assert len(GUIDE.splitlines()) < 80


@pytest.mark.parametrize("command", commands(GUIDE))
def test_a_command_of_the_guide_is_one_that_ci_runs(command):
    words = shlex.split(command.replace(" --no-sync", ""))
    program = words[:4] if words[:3] == ["uv", "run", "--group"] else words[:3]
    assert shlex.join(program) in KNOWN or words[:2] == ["uv", "sync"]
    assert [word for word in words if "/" in word and not named(word)] == []
    for word in words[2:]:
        assert not word.startswith("-") or word.partition("=")[0] in KNOWN


@pytest.mark.parametrize("command", [c for c in commands(GUIDE) if "pytest " in c])
def test_a_test_command_of_the_guide_finds_tests(command):
    words = shlex.split(command.partition(" pytest ")[2])
    if words == ["-n", "2"]:
        return  # everything
    done = run_python("-m", "pytest", "--collect-only", "-q", *words, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ tests collected", done.stdout, re.MULTILINE)


def named(path):
    """Whether a path of the checkout is there; what is built need not be."""
    return path.startswith("build/") or (ROOT / path).exists()


def test_paths_of_the_guide_exist():
    paths = re.findall(r"`([\w.-]+/[\w./-]*)`", GUIDE) + re.findall(r"`([\w/]+\.\w+)`", GUIDE)
    paths = [path for path in paths if path != "lint-imports" and not path.startswith(".venv")]
    assert len(paths) > 12
    for path in paths:
        assert named(path) or (ROOT / "pytest_pallas" / path).exists(), path


# docs/agents.md.


@pytest.fixture(scope="module")
def project(blocks, tmp_path_factory):
    """The example of the page, after its first run."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in blocks("docs/agents.md"):
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = run(folder, "--pallas-suite=scale", "--pallas-failures=failures.json")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    return folder


def run(folder, *words):
    return run_python("-m", "pytest", "-q", "-o", "pallas_isolate=never", *words, cwd=folder)


def failures(folder):
    return json.loads((folder / "failures.json").read_text())


def test_the_output_is_the_one_shown(project, monkeypatch):
    monkeypatch.chdir(project)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec((project / "first_failure.py").read_text(), {})
    shown = re.search(r"<!-- output: first_failure -->\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert printed.getvalue() == shown[1]


def test_the_change_mends_the_kernel(project):
    replay = shlex.split(failures(project)["failures"][0]["replay"])[1:]
    source, names = (project / "scale.py").read_text(), {}
    exec((project / "changed.py").read_text(), names)
    (project / "scale.py").write_text(names["change"](source))
    try:
        assert run(project, *replay).returncode == 0
        assert run(project, "--pallas-suite=scale").returncode == 0
    finally:
        (project / "scale.py").write_text(source)


def cells(first):
    """The cells of the first column of the table that begins with these words."""
    table = re.search(rf"^\| {re.escape(first)} \|.*?(?=\n\n)", PAGE, re.DOTALL | re.MULTILINE)
    return [line.split(" | ") for line in table[0].splitlines()[2:]]


def test_the_fields_are_those_of_a_record(project):
    fields = {name for row in cells("field") for name in re.findall(r"`(\w+)`", row[0])}
    assert fields <= {*Record.__dataclass_fields__}
    assert {*failures(project)["failures"][0]} - fields == {
        *("outcome", "family", "examples", "error", "baseline", "multiple", "seconds"),
        *("kernel_seconds", "seed"),
    }


def test_the_facts_are_those_of_messages():
    facts = {name for row in cells("fact") for name in re.findall(r"`([a-z ]+)`", row[0])}
    code = "\n".join(path.read_text() for path in (ROOT / "pytest_pallas").rglob("*.py"))
    assert [name for name in sorted(facts) if f'"{name}"' not in code] == []


def test_the_tools_are_those_of_the_server():
    assert [row[0].strip("| `") for row in cells("tool")] == [tool.name for tool in TOOLS]


def test_the_commands_of_the_page_run(project, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    monkeypatch.chdir(project)
    rows = [command for row in cells("to") for command in re.findall(r"`(.+?)`", row[1])]
    ran = [shlex.split(row)[1:] for row in rows if re.match("pytest-pallas (sim|ana)", row)]
    assert [main(words) for words in ran] == [0, 1]
    simulated, analyzed = re.split(r"^(?=\{)", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert json.loads(simulated)["outputs"][0]["nan"] == 4 * 128
    assert json.loads(analyzed)["findings"][0]["kind"] == "never-written"
    sys.modules.pop("scale", None)


def test_every_command_has_a_row_in_the_reference(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    (\w+) +\S", capsys.readouterr().out, re.MULTILINE)
    reference = (ROOT / "docs/reference.md").read_text()
    assert {"new", "merge", "simulate", "analyze", "mcp"} <= {*listed}
    assert [name for name in listed if f"| `pytest-pallas {name}" not in reference] == []


# llms.txt.


def llms():
    spec = importlib.util.spec_from_file_location("llms", ROOT / "docs/llms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_listed_once_with_its_title():
    text = llms().llms_text(ROOT / "docs")
    entries = re.findall(r"^- \[(.+)\]\((.+)\.html\): (.+)$", text, re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(name for _, name, _ in entries) == sorted(
        page.with_suffix("").as_posix() for page in pages if page != Path("index.md")
    )
    assert ("Five minutes", "start", "Install the plugin, and find a bug.") in entries
    captions = re.findall(r":caption: (.+)", (ROOT / "docs/index.md").read_text())
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == captions
    assert not re.search(r"\{\w+\}|```|\]\((?!\S+\.html\))", text)


def test_the_site_has_it():
    assert "llms_text(DOCS)" in (ROOT / "docs/conf.py").read_text()
    assert "site/llms.txt" in (ROOT / ".ci/run").read_text()
