"""scripts/chip_answers.py: what a process says becomes a word, and each answer is kept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chip_answers
import pytest

FAULT = "CUDA error: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"


def ended(monkeypatch: pytest.MonkeyPatch, record: dict[str, Any] | None, output: str = "") -> None:
    """Let pytest end with this record and output; None for no record."""

    def run(command: list[str], **_: Any) -> Any:
        if record is not None:
            (path,) = [word for word in command if word.startswith("--pallas-results=")]
            Path(path.partition("=")[2]).write_text(json.dumps({"records": [record]}))
        return SimpleNamespace(stdout=output, stderr="")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("record", "output", "answer"),
    [
        ({"outcome": "passed", "message": ""}, "", "right"),
        ({"outcome": "failed", "message": "forward on gpu is wrong"}, "", "wrong"),
        ({"outcome": "failed", "message": "the kernel raised"}, FAULT, "launch failure"),
        ({"outcome": "failed", "message": "RESOURCE_EXHAUSTED: shared memory"}, "", "refused"),
        ({"outcome": "failed", "message": "the kernel raised TypeError"}, "", "error"),
        (None, "ImportError", "error"),
    ],
)
def test_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any, output: str, answer: str
) -> None:
    ended(monkeypatch, record, output)
    assert chip_answers.ask("a_kernel", tmp_path).answer == answer


def test_a_kernel_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("pytest", 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert chip_answers.ask("a_kernel", tmp_path).answer == "never ends"


def test_what_was_answered_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to a later kernel."""

    def ask(name: str, folder: Path, **_: Any) -> chip_answers.Answer:
        if name == "second":
            raise KeyboardInterrupt
        return chip_answers.Answer("right")

    file = tmp_path / "answers.json"
    monkeypatch.setattr(chip_answers, "ask", ask)
    monkeypatch.setattr(chip_answers, "racy_kernels", lambda: ["first", "second"])
    monkeypatch.setattr("sys.argv", ["chip_answers.py", str(file), "--processes=1"])
    with pytest.raises(KeyboardInterrupt):
        chip_answers.main()
    assert json.loads(file.read_text())["answers"] == {"first": "right"}


def test_an_unknown_kernel(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(chip_answers, "racy_kernels", lambda: ["first"])
    monkeypatch.setattr("sys.argv", ["chip_answers.py", "answers.json", "nothing"])
    with pytest.raises(SystemExit, match="2"):
        chip_answers.main()
    assert "there is no kernel nothing; known: " in capsys.readouterr().err
