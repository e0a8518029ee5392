"""Answers that are too large to be kept whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_pallas.backends.interpreters import interpret
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, CheckResult, ComparedOutputs
from pytest_pallas.checks.golden import SAMPLE, GoldenRequest, Goldens, keeping
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.judge.oracle import Expected
from pytest_pallas.replay.goldens import Store

pytest.importorskip("safetensors")

LARGE = np.linspace(1, 2, 3 * SAMPLE, dtype=np.float32).reshape(3, SAMPLE)


def double(x: Any) -> Any:
    return 2 * x


def asked(folder: Path, mode: Any) -> GoldenRequest:
    return GoldenRequest(goldens=Goldens(store=Store(folder), mode=mode, most=1000), test="t")


def finding(folder: Path, mode: Any, answer: Any, kernel: Any = double) -> CheckResult:
    context = CheckContext(
        kernel=kernel,
        reference=double,
        arguments=Arguments((LARGE,)),
        backend=interpret(),
    )
    wide = 2 * LARGE.astype(np.float64)
    expected = Expected([("", wide)], [("", wide.astype(np.float32))], 1, lambda _: 0.0)
    found = CheckResult(comparisons=(), answer=ComparedOutputs([("", answer)], expected, context))
    check = Check(name="forward", asks="?", run=lambda _: found)
    return keeping(check, "double", asked(folder, mode)).run(context)


def changed(place: int, by: float) -> Any:
    answer = 2 * LARGE
    answer.reshape(-1)[place] += by
    return answer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = finding(tmp_path, "record", 2 * LARGE)
    assert found.goldens == {"recorded": 1}
    assert "4096 elements and a checksum" in str(found.notes[0])
    return tmp_path


def test_a_sample_and_a_checksum_are_kept(folder: Path) -> None:
    (golden,) = Store(folder).goldens()
    (output,) = golden.outputs
    assert (output.sample, output.shape) == (SAMPLE, LARGE.shape)
    kept = Store(folder).outputs(golden)[""]
    assert kept.shape == (SAMPLE,)
    assert (kept[0], kept[-1]) == (2, 4)
    assert golden.call.kinds == ()
    assert not golden.call.complete


def test_the_same_bits(folder: Path) -> None:
    assert finding(folder, "replay", 2 * LARGE).goldens["compared"] == 1


@pytest.mark.parametrize("place", [0, LARGE.size - 1])
def test_other_bits_at_a_place_of_the_sample(folder: Path, place: int) -> None:
    failed = finding(folder, "replay", changed(place, 1e-6)).failed
    assert failed is not None
    assert failed.kind == "bitwise"


def test_other_bits_at_a_place_that_was_not_kept_are_told_by_the_checksum(folder: Path) -> None:
    found = finding(folder, "replay", changed(1, 1.0))
    assert found.failed is not None
    assert "checksum" in found.failed.message


def test_elsewhere_only_the_sample_is_judged(folder: Path) -> None:
    def elsewhere(place: int, by: float) -> CheckResult:
        # Nothing with a source of its own: another origin.
        return finding(folder, "replay", changed(place, by), kernel=np.multiply)

    assert elsewhere(0, 1e-7).failed is None
    assert elsewhere(0, 1.0).failed is not None
    assert elsewhere(1, 1.0).failed is None
