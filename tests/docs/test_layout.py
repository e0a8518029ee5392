"""docs/layout.md: the project of the page works, with each of its commands."""

import re
import shlex
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

TEXT = (Path(__file__).parents[2] / "docs/layout.md").read_text()
FILES = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^\| `pytest(.*?)` \|", TEXT, re.MULTILINE)

#: Which tests each command runs: of the specs all, one or none, and the project's own.
EXPECTED = [("all", True), ("none", True), ("one", False), *[("all", False)] * 2, ("all", True)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "src/mykernels").mkdir(parents=True)
    (folder / "src/mykernels/__init__.py").touch()
    (folder / "tests").mkdir()
    for name, text in FILES:
        (folder / name).write_text(text)
    return folder


def test_the_tree_names_the_files():
    tree = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)[1]
    named = [line.split()[0] for line in tree.splitlines()]
    assert sorted(named) == sorted([name for name, _ in FILES] + ["src/mykernels/__init__.py"])


def collected(project, *options):
    """The names of checks of specs, and whether the project's own test is there."""
    done = run_python("-m", "pytest", "-p", "no:cacheprovider", "--co", "-q", *options, cwd=project)
    names = re.findall(r"::([\w-]+)\[tpu-sim\]$", done.stdout, re.MULTILINE)
    return sorted(set(names) - {"test_one_row"}), "test_one_row" in names


@pytest.fixture(scope="module")
def checks(project):
    return collected(project, "--pallas-suite=mykernels")[0]


@pytest.mark.parametrize(
    ("command", "specs", "own"),
    [(command, *expected) for command, expected in zip(COMMANDS, EXPECTED, strict=True)],
)
def test_each_command_runs_what_the_page_says(project, checks, command, specs, own):
    expected = {"all": checks, "one": ["scale-forward"], "none": []}[specs]
    assert len(checks) > 8
    assert collected(project, *shlex.split(command)) == (expected, own)


def test_all_pass(project):
    done = run_python("-m", "pytest", "-p", "no:cacheprovider", cwd=project)
    assert re.search(r"^=+ \d+ passed in", done.stdout, re.MULTILINE), done.stdout


def test_the_value_of_the_ini_file_runs_specs_beside_any_test(project, checks, tmp_path):
    ini = (project / "pyproject.toml").read_text()
    ini = ini.replace("pallas_max", 'pallas_suite = "mykernels"\npallas_max')
    (tmp_path / "pyproject.toml").write_text(ini.replace('["src"]', f'["{project}/src"]'))
    options = ("-c", str(tmp_path / "pyproject.toml"), "tests/test_scale.py")
    assert collected(project, *options) == (checks, True)
