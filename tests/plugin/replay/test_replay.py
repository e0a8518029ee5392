"""``--pallas-replay``: a failing call in one file, run again elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors")

#: Wrong for more than 9 elements, and told by its name from the one it calls.
WRONG = """

_add = add


def add(x, y):
    return _add(x, y) * (1 + (x.size > 9))
"""

OWN = """
import numpy as np
import pytest
from pallas_test_support.sample_kernels import add_one


def wrong(x):
    return add_one(x) + (x.shape[0] > 8)


@pytest.mark.parametrize("m", [8, 16])
def test_add(m, pallas_check):
    pallas_check(wrong, np.ones((m, 128), np.float32), reference=lambda x: x + 1)


def test_other(pallas_check):
    pallas_check(add_one, np.ones((8, 128), np.float32), reference=lambda x: x + 1)
"""


def example_of(result: pytest.RunResult) -> Path:
    (line,) = (line for line in result.outlines if line.strip().startswith("example"))
    return Path(line.split()[-1])


class TestOwn:
    @pytest.fixture
    def example(self, pytester: pytest.Pytester) -> Path:
        pytester.makepyfile(test_own=OWN)
        result = pytester.runpytest_inprocess("--pallas-backend=interpret")
        result.assert_outcomes(passed=2, failed=1)
        return example_of(result)

    def test_an_example_replays_on_another_backend(
        self, example: Path, pytester: pytest.Pytester
    ) -> None:
        result = pytester.runpytest_inprocess(
            f"--pallas-replay={example}", "--pallas-backend=tpu-interpret"
        )
        result.assert_outcomes(failed=1, deselected=2)
        result.stdout.fnmatch_lines(["*FAILED test_own.py::test_add[[]tpu-interpret-16[]]*"])

    def test_the_call_is_that_of_the_file(self, example: Path, pytester: pytest.Pytester) -> None:
        """Whatever the test's own is by now."""
        pytester.makepyfile(test_own=OWN.replace("[8, 16]", "[4]"))
        result = pytester.runpytest_inprocess(
            f"--pallas-replay={example}", "--pallas-backend=interpret"
        )
        result.assert_outcomes(failed=1, deselected=1)
        result.stdout.fnmatch_lines(["*float32[[]16, 128[]]*"])

    def test_a_test_that_is_gone(self, example: Path, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(test_own=OWN.replace("test_add", "test_sum"))
        result = pytester.runpytest_inprocess(f"--pallas-replay={example}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            ["*no collected test runs forward of wrong*test_own.py::test_add on inter*"]
        )


class TestSpec:
    @pytest.fixture
    def example(self, project: Any) -> Path:
        project.specs('name="add", kernel=add')
        path = project.path / "kernels.py"
        path.write_text(path.read_text() + WRONG)
        arguments = (
            "--pallas-suite=specs",
            "--pallas-checks=forward",
            "--pallas-backend=interpret",
        )
        result = project.run(*arguments, "--pallas-results=out.json")
        result.assert_outcomes(failed=1)
        (record,) = json.loads((project.path / "out.json").read_text())["records"]
        assert record["example"] == str(example_of(result))
        return example_of(result)

    @pytest.mark.parametrize("arguments", [(), ("--pallas-isolate=always",)])
    def test_an_example_replays_on_another_backend(
        self, example: Path, project: Any, arguments: tuple[str, ...]
    ) -> None:
        arguments = ("--pallas-suite=specs", "--pallas-backend=tpu-interpret", *arguments)
        result = project.run(f"--pallas-replay={example}", *arguments)
        outcomes = result.parseoutcomes()
        assert outcomes.pop("deselected") > 3
        assert outcomes == {"failed": 1}
        (row,) = (line for line in result.outlines if line.startswith("add "))
        assert row.split()[1:4] == ["1", "FAILED", "1"]
        (replay,) = (line for line in result.outlines if line.strip().startswith("replay"))
        assert f"--pallas-replay={example}" in replay

    def test_a_kernel_that_is_mended(self, example: Path, project: Any) -> None:
        path = project.path / "kernels.py"
        path.write_text(path.read_text().replace("x.size > 9", "x.size < 0"))
        arguments = ("--pallas-suite=specs", "--pallas-backend=interpret")
        result = project.run(f"--pallas-replay={example}", *arguments)
        assert result.parseoutcomes()["passed"] == 1

    def test_the_suite_of_a_file_is_not_imported(self, example: Path, project: Any) -> None:
        path = project.path / "specs.py"
        path.write_text(path.read_text() + "\nopen('imported', 'w')\n")
        result = project.run(f"--pallas-replay={example}", "--pallas-backend=interpret")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert not (project.path / "imported").exists()
        result.stderr.fnmatch_lines(
            ["*Nothing that a file names is imported: give its*--pallas-suite=specs,*"]
        )


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "No such file"),
            (b"", "no safetensors file"),
            (b"PK\x03\x04 something else", "no safetensors file"),
        ],
    )
    def test_said_before_anything_runs(
        self, content: bytes | None, message: str, pytester: pytest.Pytester
    ) -> None:
        if content is not None:
            (pytester.path / "file").write_bytes(content)
        result = pytester.runpytest_inprocess("--pallas-replay=file")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --pallas-replay: *file: *{message}*"])
