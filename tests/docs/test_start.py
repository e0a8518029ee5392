"""docs/start.md: the bug, the fix and the spec print what it shows; and so does its picture."""

import re
import shlex
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

ROOT = Path(__file__).parents[2]
PAGE = "docs/start.md"
TEXT = (ROOT / PAGE).read_text()
COMMANDS = re.findall(r"```bash\n(pytest.*)\n```", TEXT)


def shown(name):
    return re.search(rf"<!-- output: {name} -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1]


@pytest.fixture(scope="module")
def printed(blocks, tmp_path_factory):
    """What the commands print, in the order of the page: the bug, fixed, the spec."""
    folder = tmp_path_factory.mktemp("start")
    files = dict(blocks(PAGE))
    for name in ("kernels.py", "test_matmul.py"):
        (folder / name).write_text(files[name])
    [bug] = run(folder, COMMANDS[0])
    [(old, new)] = re.findall(r"```diff\n-(.*\n)\+(.*\n)```", TEXT)
    assert old in files["kernels.py"]
    (folder / "kernels.py").write_text(files["kernels.py"].replace(old, new))
    (folder / "kernels_spec.py").write_text(files["kernels_spec.py"])
    fixed, spec = run(folder, *COMMANDS)
    return {"bug": bug, "fixed": fixed, "spec": spec}


def run(folder, *commands):
    for command in commands:
        done = run_python("-m", *shlex.split(command), cwd=folder)
        yield done.stdout.replace(f"{folder.resolve()}/", "")


def test_the_bug_is_found_as_shown(printed):
    for line in shown("bug").splitlines():
        assert line in printed["bug"], line


@pytest.mark.parametrize(("name", "passed"), [("fixed", "1 passed"), ("spec", "11 passed")])
def test_then_all_pass(printed, name, passed):
    assert passed in shown(name)
    assert passed in printed[name]
    assert shown(name).splitlines()[3] in printed[name]  # what the numbers mean


def test_both_commands_are_run():
    assert COMMANDS == ["pytest", "pytest --pallas-suite=kernels"]


def test_the_command_that_writes_a_spec(blocks, tmp_path):
    [command] = re.findall(r"^\$ pytest-pallas (new .*)$", TEXT, re.MULTILINE)
    (tmp_path / "kernels.py").write_text(dict(blocks(PAGE))["kernels.py"])
    words = ("-m", "pytest_pallas", *shlex.split(command), "--no-run")
    done = run_python(*words, cwd=tmp_path)
    assert done.stdout.startswith("wrote tests/test_matmul_kernel.py")
    assert "FILL IN the reference" in done.stdout
    assert 'pst.arrays("m k, k n"' in (tmp_path / "tests/test_matmul_kernel.py").read_text()


def test_the_picture_shows_what_is_printed_today(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import failure_picture

    today = failure_picture.printed(tmp_path)
    assert "RaceError" in today
    picture = failure_picture.PICTURE.read_text()
    wanted = failure_picture.without_spaces(failure_picture.COMMAND + today)
    assert failure_picture.text_of(picture) == wanted


def test_jaxs_interpreter_lets_the_race_pass(blocks, pytester):
    (pytester.path / "test_double.py").write_text(dict(blocks(PAGE))["test_double.py"])
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--pallas-backend=interpret")
    result.assert_outcomes(passed=1)
