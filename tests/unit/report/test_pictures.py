"""What can be drawn of a failure, as values: maps, histograms, and messages taken apart."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_pallas.checks.trial import Answer, Finding
from pytest_pallas.errors import DeadlockError, KernelError, MismatchError
from pytest_pallas.numerics import compare
from pytest_pallas.record import from_json, to_json
from pytest_pallas.report.drawings.waits import graph, timeline
from pytest_pallas.report.pictures import pictures_of
from pytest_pallas.report.pictures.errors import CELLS, errors_of, level
from pytest_pallas.report.pictures.said import accesses, waits
from pytest_pallas.tally import MOST_POINTS, Tally


def finding(actual, oracle, baseline=None):
    baseline = np.asarray(oracle, actual.dtype) if baseline is None else baseline
    expected = SimpleNamespace(oracle=[("", oracle)], baseline=[("", baseline)])
    comparison = compare(actual, oracle, baseline)
    return Finding(comparisons=[comparison], answer=Answer([("", actual)], expected))


def tally():
    return Tally(kernel="k", check="forward", backend="interpret")


def test_levels_double():
    errors = np.array([0.0, 1e-9, 0.12, 0.13, 1.0, 1.9, 2.0, 2.0**20, 2.0**30, np.inf])
    assert level(errors).tolist() == [0, 1, 1, 2, 5, 5, 6, 25, 26, 26]


def test_map_of_an_error():
    """Wrong cells are upper case, the others are not; equal elements have no error."""
    oracle = np.ones((4, 6))
    actual = oracle.astype(np.float32)
    actual[1, 2] += 1
    actual[3, 5] = np.nan
    errors = errors_of(finding(actual, oracle))["errors"]
    assert errors["rows"] == ["......", "..Z...", "......", ".....!"]
    assert (errors["shape"], errors["cell"], errors["wrong"]) == ([4, 6], [1, 1], 2)
    assert errors["unit"] == "ulps"


def test_a_large_map_is_small_and_keeps_the_worst():
    oracle = np.ones((3, 500, 700))
    actual = oracle.astype(np.float32)
    actual[2, 499, 699] += 1
    errors = errors_of(finding(actual, oracle))["errors"]
    rows, columns = len(errors["rows"]), len(errors["rows"][0])
    assert errors["cell"] == [16, 8]
    assert (rows, columns) == (-(-1500 // 16), -(-700 // 8))
    assert max(rows, columns) <= CELLS
    assert errors["rows"][-1][-1] == "Z"
    assert "".join(errors["rows"]).count("Z") == 1


def test_histogram_counts_every_element():
    oracle = np.ones((8, 8))
    actual = oracle.astype(np.float32)
    actual[0] += 1
    actual[1, 0] = np.inf
    counts = errors_of(finding(actual, oracle))["histogram"]
    assert sum(counts["kernel"]) == sum(counts["baseline"]) == 64
    assert (counts["kernel"][0], counts["kernel"][26], counts["kernel"][27]) == (55, 8, 1)
    assert counts["baseline"][0] == 64


def test_integers_have_differences():
    actual, right = np.array([[1, 2], [3, 260]]), np.array([[1, 2], [3, 4]])
    found = errors_of(finding(actual, right))
    assert found["errors"]["unit"] == "difference"
    assert found["errors"]["rows"] == ["..", ".M"]
    assert sum(found["histogram"]["baseline"]) == 0


def test_without_arrays_the_map_says_what_is_wrong():
    oracle = np.ones((2, 2))
    actual = oracle.astype(np.float32)
    actual[0, 1] = 2
    given = Finding(comparisons=[compare(actual, oracle, np.ones((2, 2), np.float32))])
    found = errors_of(given)
    assert found["errors"]["rows"] == [".A", ".."]
    assert not found["errors"]["measured"]
    assert "histogram" not in found


def test_a_right_answer_has_no_picture():
    oracle = np.ones((2, 2))
    assert errors_of(finding(oracle.astype(np.float32), oracle)) == {}


def test_scalars_and_empty_dims():
    assert errors_of(finding(np.float32(3.0).reshape(()), np.ones(())))["errors"]["rows"] == ["Z"]
    assert errors_of(finding(np.ones((0, 3), np.float32), np.ones((0, 3)))) == {}


RACE = """k: races on tpu-interpret: race: write of x_buffer[0:8, 128:256] of device 1, core 2, \
/a, b/copies.py:26:8 (body), program (0, 3), by a DMA
  and read of x_buffer of device 0, an unknown line, where pallas_call copies a block
  with the oldest DMA first where a wait could execute several
  inputs    float32[8, 4]"""


def test_deadlock_of_a_gpu():
    message = (
        "k: deadlock on gpu-interpret: deadlock: everybody waits, and nobody is left to arrive\n"
        "  device 0, block 1, warpgroup 0 waits at a barrier at which 1 of 2 have arrived, at "
        "/home/k.py:24:8 (body)\n"
        "  device 0, block 1, warpgroup 1, warp 3 waits at a barrier at which 0 of 1 have arrived, "
        "at an unknown line"
    )
    found = waits(message)
    assert [(w["who"], w["for"], w["value"], w["amount"]) for w in found] == [
        ("device 0, block 1, warpgroup 0", "the barrier at k.py:24:8", 1, 2),
        ("device 0, block 1, warpgroup 1, warp 3", "the barrier at an unknown line", 0, 1),
    ]
    drawn = str(graph(found))
    assert "block 1, warpgroup 0" in drawn
    assert "needs 2 arrivals, has 1" in drawn


def test_what_the_gpu_interpreter_says_can_be_drawn():
    """Its words are those above."""
    import jax
    from jax.experimental.pallas import mosaic_gpu as plgpu

    from pytest_pallas.backends.interpreters import gpu_interpret
    from pytest_pallas.backends.protocol import Call

    def stuck(x, o, smem, barrier):
        plgpu.barrier_wait(barrier)

    def early(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x, smem, barrier)
        smem[...] = smem[...] + 1
        plgpu.barrier_wait(barrier)

    def error_of(body):
        def call(x):
            return plgpu.kernel(
                body,
                out_type=jax.ShapeDtypeStruct((128,), x.dtype),
                scratch_types=[plgpu.SMEM((128,), x.dtype), plgpu.Barrier()],
            )(x)

        x = np.ones(128, np.float32)
        return str(gpu_interpret().run(Call(function=call, args=(x,), timeout=60.0)).error)

    (wait,) = waits(error_of(stuck))
    assert (wait["who"], wait["amount"]) == ("device 0, block 0, warpgroup 0", 1)
    assert [access["what"] for access in accesses(error_of(early))] == ["read", "write"]


def test_race():
    first, second = accesses(RACE)
    assert first == {
        "what": "write", "buffer": "x_buffer", "range": "0:8, 128:256", "device": 1, "core": 2,
        "thread": "", "place": "/a, b/copies.py:26:8 (body)", "program": "(0, 3)", "dma": True,
    }  # fmt: skip
    assert (second["what"], second["range"], second["core"]) == ("read", "", None)
    assert second["place"] == "an unknown line, where pallas_call copies a block"
    assert not second["dma"]


def test_a_race_of_a_gpu():
    first, second = accesses(
        "race: write of a ref in SMEM[0:128] of device 0, block 2, warpgroup 1, k.py:14:4 (body)\n"
        "  and read of a ref in GMEM of device 0, block 0, warpgroup 0, warp 3, k.py:6:4 (body)"
    )
    assert (first["buffer"], first["range"], first["thread"]) == (
        "a ref in SMEM", "0:128", "block 2, warpgroup 1",
    )  # fmt: skip
    assert (second["thread"], second["place"]) == (
        "block 0, warpgroup 0, warp 3",
        "k.py:6:4 (body)",
    )
    assert "warpgroup 0, warp 3" in str(timeline([first, second]))


def test_a_race_in_other_words_has_no_picture():
    assert accesses("race: two warps write SMEM at once") == []
    assert accesses(RACE.partition("\n")[0]) == []


DEADLOCK = """k: deadlock on tpu-interpret: deadlock: everybody waits, and nobody is left to signal
  device 0 waits for arrived to be 4096 bytes, which is 0, at copies.py:28:12 (body) in program (0,)
  device 1, core 1 waits for the barrier semaphore to be 2, which is 1, at ring.py:20:8 (body)
  device 2 waits for the others to begin the kernel
  device 3 is at the end of the kernel
  inputs    float32[8, 128]"""


def test_deadlock():
    found = waits(DEADLOCK)
    assert [(w["who"], w["for"], w["amount"], w["value"], w["unit"]) for w in found] == [
        ("device 0", "arrived", 4096, 0, "bytes"),
        ("device 1, core 1", "the barrier semaphore", 2, 1, ""),
        ("device 2", "the others", 0, 0, ""),
        ("device 3", "", 0, 0, ""),
    ]
    assert (found[0]["place"], found[0]["program"]) == ("copies.py:28:12 (body)", "(0,)")
    assert pictures_of(DeadlockError(DEADLOCK), tally())["waits"] == found


def test_other_errors_have_no_pictures():
    assert pictures_of(KernelError("no block divides it"), tally()) == {}
    assert pictures_of(ValueError("a typo"), tally()) == {}


def test_a_picture_that_cannot_be_made_says_so():
    error = MismatchError("wrong")
    error.failure = SimpleNamespace(finding=object())
    assert "AttributeError" in pictures_of(error, tally())["unavailable"]


def begin(each, dims):
    """As a drawn call of these sizes."""
    recipe = {**dims, "dtype": "float32", "seed": 3}
    each.begin(SimpleNamespace(args=(), options={}, tuning={}, recipe=recipe, declared=None))


def test_errors_of_examples():
    oracle = np.ones((2, 2))
    each = tally()
    begin(each, {"m": 8})
    each.add(finding(oracle.astype(np.float32), oracle))
    begin(each, {"m": 16})
    each.withdraw()
    begin(each, {"m": 24})
    each.add(finding(2 * oracle.astype(np.float32), oracle))
    begin(each, {"m": 32})  # raises
    found = pictures_of(MismatchError("wrong"), each)["examples"]
    assert [(p["dims"], p["failed"]) for p in found] == [({"m": 8}, False), ({"m": 24}, True)]
    assert found[1]["error"] == pytest.approx(2.0**23, rel=1e-3)


def test_not_all_examples_of_a_long_run_are_kept():
    oracle = np.ones((2, 2))
    right, wrong = oracle.astype(np.float32), 2 * oracle.astype(np.float32)
    each = tally()
    for number in range(4 * MOST_POINTS):
        begin(each, {"m": number})
        each.add(finding(right, oracle))
    begin(each, {"m": 9999})
    each.add(finding(wrong, oracle))
    begin(each, {"m": 10000})
    points = pictures_of(MismatchError("wrong"), each)["examples"]
    assert len(points) <= MOST_POINTS + 2
    assert points[-1]["dims"] == {"m": 9999}


def test_pictures_are_json():
    oracle = np.ones((300, 300))
    actual = oracle.astype(np.float32)
    actual[5, 5] = np.nan
    each = tally()
    begin(each, {"m": 300})
    given = finding(actual, oracle)
    each.add(given)
    error = MismatchError("wrong")
    error.failure = SimpleNamespace(finding=given)
    record = each.record(test="a", outcome="failed", seconds=1.0, pictures=pictures_of(error, each))
    text = json.dumps(to_json(record), allow_nan=False)
    assert from_json(json.loads(text)).pictures == record.pictures
    assert record.pictures["examples"][0]["error"] == "inf"
    assert len(text) < 15_000
