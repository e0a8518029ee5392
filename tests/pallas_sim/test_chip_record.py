"""scripts/chip_record.py: a record is written, read and compared; bad ones are one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chip_record
import numpy as np
import pytest

from pallas_sim import simulate
from pallas_sim.errors import OptionError

RECORD = Path(__file__).parents[1] / "pallas_sim/gpu/h200.npz"


def rewritten(path: Path, about: dict[str, Any] | None = None, without: str = "") -> Path:
    """The record of the H200 with other facts, or without an array."""
    with np.load(RECORD) as file:
        arrays = {name: array for name, array in file.items() if name != without}
    facts = json.loads(str(arrays.pop("about"))) | (about or {})
    np.savez(path, about=np.array(json.dumps(facts)), **arrays)
    return path


def test_what_is_written_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator in place of a chip; then one of its sums gets another last bit."""
    easy = [call for call in chip_record.operands() if call[0].endswith((".normal", "None"))]
    few = [call for call in easy if chip_record.is_claimed(call[0])][::2]
    monkeypatch.setattr(chip_record, "operands", lambda: iter(few))
    file = tmp_path / "chip.npz"
    run: Any = lambda kernel, given: simulate(kernel, *given, target="h100").values  # noqa: E731
    chip_record.write(file, "NVIDIA H100 80GB HBM3", run)
    assert chip_record.main(["compare", str(file)]) == 0
    record = chip_record.load(file, "h100")
    assert len(record.calls) == len(few)
    output = f"{record.calls[0]}.o"
    changed = record.arrays[output].copy()
    changed.view(np.uint32)[0, 0] ^= 1
    chip_record.save(file, record.device, {**record.arrays, output: changed})
    capsys.readouterr()
    assert chip_record.main(["compare", str(file)]) == 1
    assert f"{record.calls[0]}: 1 of 4096 elements differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"device": "NVIDIA L4"}, r"it is of 'NVIDIA L4', which gpu-sim does not .* NVIDIA H200"),
        ({"format": 2}, r"it has the format 2, and this version reads 1"),
        ({"device": None}, r"it is of None, which gpu-sim does not simulate"),
    ],
)
def test_a_record_that_cannot_be_compared(
    tmp_path: Path, about: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        chip_record.load(rewritten(tmp_path / "chip.npz", about))


def test_a_record_of_another_chip() -> None:
    with pytest.raises(OptionError, match=r"it is of 'NVIDIA H200', and not of a100"):
        chip_record.load(RECORD, "a100")


def test_a_record_that_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "chip.npz"
    file.write_bytes(RECORD.read_bytes()[:10_000])
    with pytest.raises(OptionError, match=r"no record of a chip, or a part of one"):
        chip_record.load(file)
    with pytest.raises(OptionError, match=r"wgmma.bfloat16.wide lacks y: the file is cut off"):
        chip_record.load(rewritten(file, without="wgmma.bfloat16.wide.y"))


@pytest.mark.parametrize("content", [b"", b"no record", b"PK"])
def test_what_is_no_record(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "chip.npz"
    file.write_bytes(content)
    with pytest.raises(OptionError, match=r"no record of a chip"):
        chip_record.load(file)
    with pytest.raises(SystemExit, match="2"):
        chip_record.main(["compare", str(file)])
