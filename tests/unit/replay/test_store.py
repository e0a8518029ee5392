"""The folder of goldens: what is in it stays whole, and what is not is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_pallas import GoldenError
from pytest_pallas.replay.goldens import (
    SCHEMA,
    Golden,
    GoldenCall,
    Origin,
    Output,
    Store,
    from_json,
    to_json,
)
from pytest_pallas.replay.values import digest

pytest.importorskip("safetensors")


def golden(number: int = 0, **changes: Any) -> tuple[Golden, dict[str, Any]]:
    answer = np.arange(6, dtype=np.float32).reshape(2, 3) + number
    made = Golden(
        test="test",
        kernel="add",
        check="forward",
        mesh={"x": 2},
        origin=Origin(backend="tpu", device="TPU v6 lite", versions={"jax": "0.12.0"}, source="ab"),
        call=GoldenCall(
            digest=f"{number:064x}",
            plain={"tuple": [{"array": 0}]},
            kinds=(("float32", (2, 3)),),
            complete=True,
            seed=0,
            examples=8,
        ),
        outputs=(Output(path="", dtype="float32", shape=(2, 3), digest=digest(answer)),),
    )
    return dataclasses.replace(made, **changes), {"in0": answer - 1, "out0": answer}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep" / "folder")


class TestWriting:
    def test_what_is_put_is_there(self, store: Store) -> None:
        put, arrays = golden()
        put = store.put(put, arrays)
        (kept,) = store.goldens()
        assert kept == put == store.get(put.name)
        np.testing.assert_array_equal(store.outputs(kept)[""], arrays["out0"])
        np.testing.assert_array_equal(store.inputs(kept)[0], arrays["in0"])

    def test_twice_adds_nothing(self, store: Store) -> None:
        for _ in range(2):
            store.put(*golden())
        assert len([path for path in store.folder.rglob("*") if path.is_file()]) == 3

    def test_each_array_has_one_file(self, store: Store) -> None:
        """Checks and backends share the arrays of a call, whatever they answer."""
        one, arrays = golden()
        store.put(one, arrays)
        store.put(dataclasses.replace(one, check="gradient"), arrays)
        answer = arrays["out0"] + 1
        output = dataclasses.replace(one.outputs[0], digest=digest(answer))
        other = dataclasses.replace(one, check="vmap", outputs=(output,))
        store.put(other, {**arrays, "out0": answer})
        assert len([*(store.folder / "tensors").iterdir()]) == 3
        assert len([*store.goldens()]) == 3
        np.testing.assert_array_equal(store.outputs(store.get(other.name))[""], answer)

    def test_backends_and_devices_have_their_own(self, store: Store) -> None:
        one, arrays = golden()
        other = dataclasses.replace(one.origin, device="TPU v5")
        store.put(one, arrays)
        store.put(dataclasses.replace(one, origin=other), arrays)
        assert len({kept.question for kept in store.goldens()}) == 1
        assert len([*store.goldens()]) == 2

    def test_json_comes_back(self) -> None:
        one, _ = golden(arrays=("0" * 64, "1" * 64))
        assert from_json(json.loads(json.dumps(to_json(one)))) == one

    def test_a_folder_that_is_not_there_is_empty(self, store: Store) -> None:
        assert [*store.goldens()] == []


class TestDamage:
    @pytest.fixture
    def places(self, store: Store) -> tuple[Path, Path]:
        put = store.put(*golden())
        return (
            store.folder / "goldens" / f"{put.name}.json",
            store.folder / "tensors" / f"{put.arrays[1]}.safetensors",
        )

    def only(self, store: Store) -> Golden:
        (golden,) = store.goldens()
        return golden

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"schema": 1}', "\\xff"])
    def test_a_manifest_that_is_none(self, store: Store, places: Any, content: str) -> None:
        places[0].write_bytes(content.encode("latin-1"))
        with pytest.raises(GoldenError, match=places[0].name):
            self.only(store)

    def test_half_a_manifest(self, store: Store, places: Any) -> None:
        places[0].write_bytes(places[0].read_bytes()[:-40])
        with pytest.raises(GoldenError, match="record again"):
            self.only(store)

    def test_a_newer_schema(self, store: Store, places: Any) -> None:
        plain = json.loads(places[0].read_text())
        places[0].write_text(json.dumps({**plain, "schema": SCHEMA + 1}))
        with pytest.raises(GoldenError, match=f"schema {SCHEMA + 1}.*reads {SCHEMA}"):
            self.only(store)

    @pytest.mark.parametrize(
        "change",
        [{"kernel": "other"}, {"check": "gradient"}, {"mesh": {}}],
        ids=str,
    )
    def test_a_manifest_that_was_changed(self, store: Store, places: Any, change: Any) -> None:
        plain = json.loads(places[0].read_text())
        places[0].write_text(json.dumps({**plain, **change}))
        with pytest.raises(GoldenError, match="was changed"):
            self.only(store)

    @pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a" * 63, "A" * 64])
    def test_a_path_that_leads_elsewhere(self, store: Store, places: Any, name: str) -> None:
        plain = json.loads(places[0].read_text())
        places[0].write_text(json.dumps({**plain, "arrays": [plain["arrays"][0], name]}))
        with pytest.raises(GoldenError, match=r"arrays.* must be a SHA-256, not"):
            self.only(store)

    def test_an_array_that_no_file_is_named_for(self, store: Store, places: Any) -> None:
        plain = json.loads(places[0].read_text())
        places[0].write_text(json.dumps({**plain, "arrays": plain["arrays"][:1]}))
        with pytest.raises(GoldenError, match=r"an array of add forward-x2 .* is missing"):
            store.outputs(self.only(store))

    def test_a_foreign_file(self, store: Store, places: Any) -> None:
        (store.folder / "goldens" / "notes.txt").write_text("hello")
        with pytest.raises(GoldenError, match="this is no golden"):
            list(store.goldens())

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_link(self, store: Store, places: Any, which: int, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        places[which].rename(elsewhere)
        places[which].symlink_to(elsewhere)
        with pytest.raises(GoldenError, match="no file of its own"):
            store.outputs(self.only(store))

    def test_missing_arrays(self, store: Store, places: Any) -> None:
        places[1].unlink()
        with pytest.raises(GoldenError, match="missing"):
            store.outputs(self.only(store))

    @pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1])])
    def test_arrays_that_were_changed(self, store: Store, places: Any, damage: Any) -> None:
        places[1].write_bytes(damage(places[1].read_bytes()))
        with pytest.raises(GoldenError, match="changed, or is not all there"):
            store.outputs(self.only(store))

    def test_what_somebody_left_half_written_is_not_looked_at(
        self, store: Store, places: Any
    ) -> None:
        (store.folder / "goldens" / ".tmp123").write_text("{")
        self.only(store)


#: Writes goldens A to B, over and over.
WRITER = """
import sys, pathlib
sys.path[:0] = [{tests!r}]
from test_store import Store, golden
store = Store(pathlib.Path(sys.argv[1]))
first, last, rounds = map(int, sys.argv[2:])
for _ in range(rounds):
    for number in range(first, last):
        store.put(*golden(number))
        print(number, flush=True)
"""


def writer(store: Store, *numbers: int) -> subprocess.Popen[str]:
    code = WRITER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, str(store.folder), *map(str, numbers)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


class TestTogether:
    def test_four_processes_lose_nothing(self, store: Store) -> None:
        writers = [writer(store, 10 * i, 10 * i + 20, 2) for i in range(4)]  # half of it shared
        for process in writers:
            with process:
                assert process.wait() == 0
        goldens = [*store.goldens()]
        assert len(goldens) == 50
        for kept in goldens:
            store.outputs(kept)
        assert not [path for path in store.folder.rglob(".*") if path.is_file()]

    def test_a_writer_that_is_killed_leaves_what_can_be_read(self, store: Store) -> None:
        with writer(store, 0, 500, 100) as process:
            assert process.stdout is not None
            for _ in range(20):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        goldens = [*store.goldens()]
        assert goldens
        for kept in goldens:
            store.outputs(kept)
            store.inputs(kept)
