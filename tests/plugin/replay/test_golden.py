"""``--pallas-golden``: what is recorded on one backend is compared with on another."""

from __future__ import annotations

import linecache
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors")

BASIC = ("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-max-examples=2")
ON = "--pallas-backend=tpu-sim"
ELSEWHERE = "--pallas-backend=interpret"


def golden(mode: str) -> str:
    return f"--pallas-golden={mode}"


def lines(result: pytest.RunResult, word: str = "goldens in") -> list[str]:
    return [line for line in result.outlines if line.startswith(word)]


def manifests(project: Any) -> list[Path]:
    return sorted((project.path / "pallas_goldens" / "goldens").iterdir())


def edit(project: Any, before: str, after: str, name: str = "kernels.py") -> None:
    path = project.path / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    linecache.clearcache()  # goldens know a kernel by its source, which this process has read


@pytest.fixture
def recorded(project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("CI", raising=False)
    project.specs('name="add", kernel=add')
    result = project.run(*BASIC, ON, golden("record"))
    result.assert_outcomes(passed=1)
    assert lines(result) == [f"goldens in {project.path / 'pallas_goldens'}: 2 recorded"]
    return project


class TestReplay:
    @pytest.mark.parametrize("backend", [ON, ELSEWHERE])
    def test_the_same_kernel(self, recorded: Any, backend: str) -> None:
        result = recorded.run(*BASIC, backend, golden("replay"))
        result.assert_outcomes(passed=1)
        assert lines(result)[0].endswith(": 2 compared")

    def test_what_was_recorded_is_run_whatever_the_seed(self, recorded: Any) -> None:
        result = recorded.run(
            *BASIC, ON, golden("replay"), "--pallas-seed=5", "--pallas-max-examples=1"
        )
        assert lines(result)[0].endswith(": 2 compared")

    def test_an_answer_that_is_right_and_not_that_of_the_golden(self, recorded: Any) -> None:
        """As from a chip that is wrong: only the golden knows."""
        for path in manifests(recorded):
            path.unlink()
        edit(recorded, "return jnp.add(x, y)", "return jnp.add(x, y) + 1")
        edit(recorded, "kernel=add", "kernel=add_off", "specs.py")
        recorded.run(*BASIC, ON, golden("record")).assert_outcomes(passed=1)
        edit(recorded, "return jnp.add(x, y) + 1", "return jnp.add(x, y)")
        edit(recorded, "kernel=add_off", "kernel=add", "specs.py")
        result = recorded.run(*BASIC, ELSEWHERE, golden("replay"))
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*forward on interpret (against the golden of tpu-sim (*"])

    def test_bits_count_where_nothing_has_changed(
        self, recorded: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = recorded.path / "pallas_goldens"
        from pytest_pallas.replay.goldens import Store

        for kept in [*Store(store).goldens()]:
            arrays = {f"in{i}": a for i, a in enumerate(Store(store).inputs(kept))}
            answer = Store(store).outputs(kept)[""].copy()
            answer.reshape(-1).view("uint32")[3] ^= 1  # far within every tolerance
            Store(store).put(_with_answer(kept, answer), {**arrays, "out0": answer})
        recorded.run(*BASIC, ELSEWHERE, golden("replay")).assert_outcomes(passed=1)
        result = recorded.run(*BASIC, ON, golden("replay"))
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*wrong in 1 of * elements*", "*must be exactly equal*"])
        # Code for another processor may contract or add in another order.
        elsewhere = "x86_64 avx512_fp16 fma openblas-SapphireRapids"
        monkeypatch.setattr("pytest_pallas.replay.goldens.processor", lambda: elsewhere)
        recorded.run(*BASIC, ON, golden("replay")).assert_outcomes(passed=1)

    def test_another_source_of_the_kernel_may_have_other_bits(self, recorded: Any) -> None:
        edit(recorded, '"""``x + y``."""', '"""The sum."""')
        result = recorded.run(*BASIC, ON, golden("replay"))
        result.assert_outcomes(passed=1)

    def test_checks_without_goldens_say_so(self, recorded: Any) -> None:
        result = recorded.run(
            *BASIC, ON, golden("replay"), "--pallas-checks=forward,determinism", "-rs"
        )
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*1 passed, 1 not applicable in*"])

    def test_goldens_that_nobody_asks_for_are_told(self, recorded: Any) -> None:
        result = recorded.run(
            *BASIC, ON, golden("record"), "--pallas-checks=determinism,forward", "--pallas-seed=3"
        )
        result = recorded.run(*BASIC, ON, golden("replay"), "--pallas-checks=determinism")
        assert lines(result, "unused") == ["unused: no test used 3 goldens: add forward (3)"]

    def test_a_worker_of_xdist_and_one_of_isolation(self, recorded: Any) -> None:
        shutil.rmtree(recorded.path / "pallas_goldens")
        result = recorded.run(*BASIC, ON, "-n1", golden("record"))
        assert lines(result)[0].endswith(": 2 recorded")
        result = recorded.run(*BASIC, ON, "-n1", "--pallas-isolate=always", golden("replay"))
        assert lines(result)[0].endswith(": 2 compared")


class TestRecord:
    def test_recording_the_same_outputs_again_changes_no_file(self, recorded: Any) -> None:
        before = {
            path: path.stat().st_mtime_ns for path in recorded.path.rglob("pallas_goldens/*/*")
        }
        result = recorded.run(*BASIC, ON, golden("record"))
        assert lines(result)[0].endswith(": 2 unchanged")
        assert before == {path: path.stat().st_mtime_ns for path in before}

    def test_a_wrong_answer_is_not_recorded(self, project: Any) -> None:
        project.specs('name="add", kernel=add_off')
        project.run(*BASIC, ON, golden("record")).assert_outcomes(failed=1)
        assert not (project.path / "pallas_goldens").exists()

    def test_gradients_are_recorded_and_replayed(self, project: Any) -> None:
        project.specs('name="add", kernel=add_vjp, differentiable=(0, 1)')
        args = ("--pallas-suite=specs", "--pallas-checks=gradient", "--pallas-max-examples=1")
        assert lines(project.run(*args, ON, golden("record")))[0].endswith(": 1 recorded")
        assert lines(project.run(*args, ELSEWHERE, golden("replay")))[0].endswith(": 1 compared")

    @pytest.mark.parametrize(
        ("ci", "mode", "outcome"),
        [
            ("", "record", {"passed": 1}),
            ("true", "record", {"failed": 1}),
            ("true", "update", {"passed": 1}),
        ],
    )
    def test_what_differs_is_replaced_but_not_silently_in_ci(
        self, recorded: Any, monkeypatch: pytest.MonkeyPatch, ci: str, mode: str, outcome: Any
    ) -> None:
        monkeypatch.setenv("CI", ci)
        edit(recorded, '"""``x + y``."""', '"""The sum."""')
        result = recorded.run(*BASIC, ON, golden(mode))
        result.assert_outcomes(**outcome)
        if "failed" in outcome:
            result.stdout.fnmatch_lines(["*a different golden of add forward on tpu-sim*CI=true*"])
        else:
            assert lines(result)[0].endswith(": 2 replaced")


class TestRefusals:
    def test_a_replay_without_a_folder_is_a_usage_error(self, project: Any) -> None:
        project.specs('name="add", kernel=add')
        result = project.run(*BASIC, ON, golden("replay"), "--pallas-golden-dir=nowhere")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*there is no folder */nowhere; record goldens first*"])

    def test_a_damaged_golden(self, recorded: Any) -> None:
        manifests(recorded)[0].write_text("{")
        result = recorded.run(*BASIC, ON, golden("replay"))
        result.assert_outcomes(failed=1)
        text = result.stdout.str()
        assert "this is no JSON" in text
        assert "record again" in text
        assert "Traceback" not in text

    def test_a_wrong_word(self, project: Any) -> None:
        result = project.run("--pallas-golden=play")
        result.stderr.fnmatch_lines(["*must be one of off, record, update, replay, not 'play'"])


class TestOwnTests:
    TEST = """
        import numpy as np
        from kernels import *

        def test_add(pallas_check):
            x = np.full((8, 128), {value}, np.float32)
            pallas_check(add, x, x, reference=reference)
    """

    def test_they_are_recorded_and_compared(self, project: Any) -> None:
        project.write(test_add=self.TEST.format(value=1))
        assert lines(project.run(ON, golden("record")))[0].endswith(": 1 recorded")
        assert lines(project.run(ELSEWHERE, golden("replay")))[0].endswith(": 1 compared")

    def test_a_call_that_was_not_recorded_is_missing(self, project: Any) -> None:
        project.write(test_add=self.TEST.format(value=1))
        project.run(ON, golden("record"))
        project.write(test_add=self.TEST.format(value=2))
        result = project.run(ELSEWHERE, golden("replay"))
        assert lines(result)[0].endswith(": 1 missing")
        assert lines(result, "unused") == ["unused: no test used 1 goldens: add forward (1)"]


def _with_answer(golden: Any, answer: Any) -> Any:
    import dataclasses

    from pytest_pallas.replay.values import digest

    (output,) = golden.outputs
    return dataclasses.replace(
        golden, outputs=(dataclasses.replace(output, digest=digest(answer)),)
    )
