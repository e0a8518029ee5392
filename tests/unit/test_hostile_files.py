"""Files are data, whoever wrote them: nothing is executed, and an error is one line."""

from __future__ import annotations

import ast
import base64
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pallas_test_support import hostile_files
from pallas_test_support.hostile_files import (
    EVIL,
    MistakeError,
    Readers,
    bomb,
    watched,
    write_right,
)

import pallas_sim
import pytest_pallas
from pallas_sim.errors import OptionError
from pytest_pallas import SpecError
from pytest_pallas.__main__ import main
from pytest_pallas.checks.forward import forward
from pytest_pallas.decoding import DataError
from pytest_pallas.distribute.messages import TestResult
from pytest_pallas.isolate.messages import PlainWarning, from_plain, to_plain, warning_of
from pytest_pallas.options import replay
from pytest_pallas.results import read_results
from pytest_pallas.run.result import Result
from pytest_pallas.run.rounds import ExampleOutcome, RoundOutcome, rounds_from_json, rounds_to_json

pytest.importorskip("safetensors")

PACKAGES = [Path(package.__file__).parent for package in (pallas_sim, pytest_pallas)]

#: Where pickles are read, and why nothing of a file or of another machine is in them.
PICKLES = {
    "checks/device.py": "the call that the process that started this one wrote",
}


def test_damaged_files_are_refused_in_one_line_and_execute_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = hostile_files.run(tmp_path, 500)
    assert EVIL not in sys.modules
    assert not (tmp_path / "executed").exists()
    assert all(accepted + refused == 100 for accepted, refused in found.values())
    assert all(refused > 50 for _, refused in found.values())


def test_what_a_reader_must_not_do_is_seen(tmp_path, monkeypatch):
    for act in (
        lambda: os.system("true"),
        lambda: pickle.loads(pickle.dumps(Path)),
        lambda: subprocess.run(["true"], check=True),
        lambda: (tmp_path.parent / "elsewhere").write_text(""),
    ):
        with pytest.raises(MistakeError), watched(tmp_path / "inside"):
            act()
    right = write_right(tmp_path)
    readers = Readers(tmp_path, right)

    def loads(path):
        raise ValueError("of any other type")

    monkeypatch.setattr(hostile_files, "load_example", loads)
    with pytest.raises(MistakeError, match="ValueError: of any other type"):
        readers.read("example", b"")


def test_only_what_this_process_has_written_is_read_as_a_pickle():
    found = set()
    forbidden = {"cloudpickle", "dill", "marshal", "shelve", "Unpickler", "allow_pickle"}
    for file in (file for package in PACKAGES for file in package.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(name in text for name in {"pickle", *forbidden}):
            continue  # it is not parsed: its syntax tree has none of these names
        tree = ast.parse(text)
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not (imported | words) & forbidden, file
        if "pickle" in imported and "loads" in words:
            found.add(file.as_posix().rpartition("/pytest_pallas/")[2])
    assert found == set(PICKLES)


class Evil:
    """Executes something when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch executed",)


PICKLED = base64.b64encode(pickle.dumps(Evil())).decode()


def part(check=forward, **changes):
    made = Result(kernel="k", check="forward", backend="tpu-sim")
    made.evidence = changes.pop("evidence", [3])
    plain = rounds_to_json([RoundOutcome(0, [ExampleOutcome("d", made, True)])], check)
    return {"kind": "rounds", "first": 0, "last": 0, **plain}


def test_evidence_is_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    like = Result(kernel="k", check="forward", backend="tpu-sim")
    plain = part(evidence=[(1, "a"), 3])
    [outcome] = rounds_from_json(json.loads(json.dumps(plain)), like, forward)
    assert outcome.examples[0].result.evidence == [(1, "a"), 3]
    plain["rounds"][0]["examples"][0]["evidence"] = [PICKLED]
    [outcome] = rounds_from_json(plain, like, forward)
    assert outcome.examples[0].result.evidence == [PICKLED]  # a text
    assert not (tmp_path / "executed").exists()
    with pytest.raises(SpecError, match="the evidence of the check forward is a Evil, which is no"):
        part(evidence=[Evil()])


def test_goldens_stay_in_their_folder():
    name = f"goldens/{'0' * 64}.json"
    assert from_plain(TestResult, to_plain(TestResult(nodeid="a", goldens={name: b""}))).goldens
    for wrong in ("../../evil.py", "/evil.py", "goldens/../../evil.json", f"{name}\n", "x.pth"):
        message = to_plain(TestResult(nodeid="a", goldens={wrong: b"evil"}))
        with pytest.raises(DataError, match="must be the name of a golden"):
            from_plain(TestResult, message)


def test_the_category_of_a_warning_is_one_that_is_loaded(tmp_path, monkeypatch):
    (tmp_path / f"{EVIL}.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    plain = {
        "text": "t", "filename": "a.py", "lineno": 3, "when": "runtest", "nodeid": "a",
        "location": None,
    }  # fmt: skip
    for module, category, known in (
        ("builtins", "UserWarning", UserWarning),
        ("os", "system", Warning),
        ("builtins", "int", Warning),
        ("builtins", "UserWarning.mro.x", Warning),
    ):
        found = warning_of(PlainWarning(**plain, module=module, category=category))
        assert found["warning_message"].category is known
    lost = warning_of(PlainWarning(**plain, module=EVIL, category="UserWarning"))
    assert lost["warning_message"].category.__bases__ == (Warning,)
    assert EVIL not in sys.modules
    assert not (tmp_path / "executed").exists()


def test_a_blob_that_unpacks_to_much_is_refused():
    blob = bomb(90)
    assert len(blob) < 120_000
    with pytest.raises(
        OptionError, match="is cut off, damaged or unpacks to more than 1,048,576 bytes"
    ):
        replay(blob)
    with pytest.raises(OptionError, match="is cut off, damaged"):
        replay(base64.b64encode(b"\1wrong").decode())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 200_000, "is no JSON that is read: it is nested too deeply"),
        ('{"schema": 1e400}', "schema must be an integer, not inf"),
        ('{"schema": [2]}', "schema must be an integer, not a list of 1"),
        ('{"schema": 2, "environment": {}, "options": {}, "records": [3]}', "records[0] must be"),
        ('{"schema": 2, "environment": {"\\u001b[2J": 3}}', "lacks the field 'records'"),
        ("\x00", "is no JSON at character 0"),
    ],
)
def test_merge_says_what_is_wrong_with_a_file(content, words, tmp_path, capsys):
    path = tmp_path / "r\x1b[2J\n::error::x.json"
    path.write_text(content)
    assert main(["merge", str(path)]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    [line] = out.err.splitlines()
    assert words in line
    assert r"r\x1b[2J\n::error::x.json is not a file of --pallas-results" in line


def test_names_of_a_file_are_shown_without_what_a_terminal_obeys(tmp_path, capsys):
    right = write_right(tmp_path)["results"]
    text = right.read_text().replace('"softmax"', '"::error::\\u001b[2Jname\\n::error::x"')
    right.write_text(text)
    assert main(["merge", str(right)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.lstrip().startswith("::") for line in out.splitlines())
    assert r"\x3a:error::\x1b[2Jname\n::error::x" in out


def test_paths_that_are_no_paths():
    with pytest.raises(OptionError, match=r"^a\\x00b: embedded null"):
        read_results(Path("a\0b"))
