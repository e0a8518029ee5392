"""docs/mutation.md: the operators are those that there are, and its example says what it shows."""

import re
from pathlib import Path

from pallas_test_support.forked_python import run_python

from pytest_pallas.checks import declared_checks, declared_sanitizers
from pytest_pallas.mutate import declared_operators

TEXT = (Path(__file__).parents[2] / "docs/mutation.md").read_text()


def test_each_operator_has_its_row():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)
    told = {name: rest for name, *rest in rows}
    names = [operator.name for operator in declared_operators()]
    assert [name for name in told if name in names] == names
    for operator in declared_operators():
        codes = [f"`{text}`" if text else "nothing" for text in (operator.before, operator.after)]
        assert told[operator.name] == [operator.mistake, *codes]


def test_checks_without_mutants_are_named():
    [text] = re.findall(r"Mutants are not tried on (.+?):", TEXT, re.DOTALL)
    declared = (*declared_checks(), *declared_sanitizers())
    assert re.findall(r"`(.+?)`", text) == [
        each.name for each in declared if not each.tries_mutants
    ]


def test_the_survivors_of_the_example_are_shown(blocks, tmp_path):
    [text] = [block for name, block in blocks("docs/mutation.md") if name == "test_scale.py"]
    (tmp_path / "test_scale.py").write_text(text)
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--pallas-mutate=all"]
    done = run_python(*command, "--pallas-backend=tpu-sim", "test_scale.py", cwd=tmp_path)
    printed = done.stdout.replace(f"{tmp_path.resolve()}/", "")
    shown = re.search(r"<!-- output: survivors -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1]
    assert len(shown.splitlines()) > 6
    for line in shown.splitlines():
        assert line in printed, line
