"""Results in a file as they come."""

from __future__ import annotations

import errno
import json
import os

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.record import SCHEMA, Record, to_json
from pytest_pallas.results import (
    FinishedTest,
    RunJournal,
    partial_path,
    plain_test,
    read_results,
    text_parts,
)

HEAD = {
    "journal": 1, "schema": SCHEMA, "environment": {"jax": "1"}, "options": {"seed": 3},
    "suite": {}, "files": {"a.py": "1"}, "not_applicable": [], "collected": ["a", "b", "c"],
}  # fmt: skip


def ended(name, outcome="passed"):
    record = Record(test=name, kernel="k", check="forward", backend="tpu-sim", outcome=outcome)
    test = FinishedTest(test=name, outcome=outcome, seconds=0.5)
    return {"ended": plain_test(test), "records": [to_json(record)]}


def test_lines_are_there_at_once(tmp_path):
    path = tmp_path / "r.json"
    journal = RunJournal(partial_path(path), [HEAD])
    journal.append({"started": "a"})
    journal.append(ended("a"))
    journal.append({"started": "b"})
    found = read_results(path)
    assert found.path == str(tmp_path / "r.json.partial")
    assert (found.cut_off, found.running, found.unfinished) == (True, ["b"], ["b", "c"])
    assert [(test.test, test.outcome, test.seconds) for test in found.tests] == [
        ("a", "passed", 0.5)
    ]
    assert [record.kernel for record in found.records] == ["k"]
    assert found.options == {"seed": 3}
    journal.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_a_new_one_replaces_an_old_one_only_when_it_is_whole(tmp_path):
    path = partial_path(tmp_path / "r.json")
    RunJournal(path, [HEAD, ended("a")]).close(remove=False)
    before = path.read_text()

    def full():
        yield HEAD
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        RunJournal(path, full())
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_for_a_while(tmp_path, monkeypatch):
    """Half a line is written; the test that it is of has not ended, and later ones have."""
    path = tmp_path / "r.json"
    journal = RunJournal(partial_path(path), [HEAD])
    write = os.write
    calls = []

    def half(handle, data):
        calls.append(data)
        if len(calls) == 1:
            return write(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space left"):
            journal.append(ended("a"))
    journal.append(ended("b"))
    journal.append(ended("c"))
    assert [test.test for test in read_results(path).tests] == ["b", "c"]


def test_a_journal_that_was_removed_or_replaced(tmp_path):
    path = partial_path(tmp_path / "r.json")
    first = RunJournal(path, [HEAD])
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"r\.json\.partial was removed"):
        first.append({"started": "a"})
    second = RunJournal(path, [HEAD])
    first.close(remove=True)
    assert path.exists(), "it is that of another run"
    second.append({"started": "a"})
    assert read_results(path).running == ["a"]


def test_a_file_stands_for_its_journal(tmp_path):
    path = tmp_path / "r.json"
    RunJournal(partial_path(path), [HEAD, ended("a")]).close(remove=False)
    whole = {**HEAD, "records": [], "tests": []}
    del whole["journal"]
    path.write_text(json.dumps(whole))
    assert not read_results(path).cut_off, "a file does not change while tests run"
    assert read_results(path, latest=True).cut_off


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "2"}', '{"journal":1', '{"journal":1}', '{"schema": 2}\n[1]'],
)
def test_other_files(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(OptionError, match=r"r\.json is not a file of --pallas-results"):
        read_results(tmp_path / "r.json")


@pytest.mark.parametrize("head", [{"journal": 1}, {}])
def test_a_newer_schema_names_its_writer(tmp_path, head):
    plain = {**head, "schema": SCHEMA + 1, "environment": {"pytest_pallas": "7.0"}}
    (tmp_path / "r.json").write_text(json.dumps(plain, separators=(",", ":")))
    with pytest.raises(OptionError, match=f"schema {SCHEMA + 1}.*pytest-pallas 7.0 wrote it"):
        read_results(tmp_path / "r.json")


def test_a_document_in_parts_is_the_text_of_the_whole():
    lists = {"records": [{"a": "x\ny", "b": [1, {}]}, {"c": []}], "none": [], "tests": [{"d": 1}]}
    whole = {"schema": 2, "options": {"a": [1], "b": {}}, **lists, "last": None}
    taken = []

    def noted(values):
        for value in values:
            taken.append(value)
            yield value

    parts = text_parts({**whole, **{name: noted(values) for name, values in lists.items()}})
    text = ""
    while not taken:
        text += next(parts)
    assert len(taken) == 1  # the other records are not asked for yet
    text += "".join(parts)
    assert text == json.dumps(whole, indent=1) + "\n"
