"""scripts/chip_answers.py: what a session records becomes a word, and each answer is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chip_answers
import pytest

from pytest_pallas import errors
from pytest_pallas.record import Record


def record(kernel: str, error_type: str = "", **rest: Any) -> Record:
    outcome: Any = "failed" if error_type else "passed"
    name = f"asked.py::{kernel}-forward[gpu]"
    fields: dict[str, Any] = {"test": name, "check": "forward", "backend": "gpu", **rest}
    return Record(kernel=kernel, outcome=outcome, error_type=error_type, **fields)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        ("", "right"),
        ("MismatchError", "wrong"),
        ("DeviceLostError", "launch failure"),
        ("CrashError", "launch failure"),
        ("HangError", "never ends"),
        ("CapacityError", "refused"),
        ("TypeError", "error"),
    ],
)
def test_answers(error: str, answer: str) -> None:
    assert chip_answers.answer_of(record("a_kernel", error)) == answer


def test_answers_are_by_classes_that_exist() -> None:
    assert all(hasattr(errors, name) for name in chip_answers.ANSWERS)


def test_what_was_answered_so_far_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.json"
    nothing = {"answers": {}, "messages": {}}
    assert chip_answers.contents(["first"], results) == nothing  # before pytest has begun
    records = (record("second", "HangError", message="it did not end"), record("first"))
    read = SimpleNamespace(records=records)
    monkeypatch.setattr("pytest_pallas.results.read_results", lambda _: read)
    assert chip_answers.contents(["first", "second", "third"], results) == {
        "answers": {"first": "right", "second": "never ends"},
        "messages": {"second": "it did not end"},
    }


def test_a_session_on_a_backend_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    file = tmp_path / "answers.json"
    words = ["same_tile_twice", "same_tile_twice_right", "--backend=gpu-sim", "--processes=1"]
    monkeypatch.setattr("sys.argv", ["chip_answers.py", str(file), *words])
    assert chip_answers.main() == 0
    answers = json.loads(file.read_text())
    assert answers["answers"] == {"same_tile_twice": "error", "same_tile_twice_right": "right"}
    assert "beyond its edge" in answers["messages"]["same_tile_twice"]
    assert "same_tile_twice_right            right" in capfd.readouterr().out


def test_an_unknown_kernel(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(chip_answers, "racy_kernels", lambda: ["first"])
    monkeypatch.setattr("sys.argv", ["chip_answers.py", "answers.json", "nothing"])
    with pytest.raises(SystemExit, match="2"):
        chip_answers.main()
    assert "there is no kernel nothing; known: " in capsys.readouterr().err
