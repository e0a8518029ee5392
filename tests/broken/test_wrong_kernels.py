"""Every kernel of ``wrong_kernels`` is caught, where it must be, and the message says why.

The suite is run as its user would run it, in a folder of its own and another process.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import wrong_kernels
from bare_python import run_bare
from catches import BOTH, CATCHES, CONTROLS, ONLY_ON_HARDWARE, SWAPPED, TPU, Catch
from wrong_kernels.copies import read_before_wait

from pytest_pallas.suites import suite

type Key = tuple[str, str, str]
type Records = Mapping[Key, dict[str, Any]]

REPLAYED = (
    ("bfloat16_sum", "forward", "interpret"),
    ("half_gradient", "gradient", "interpret"),
    ("beyond_the_end", "forward", "tpu-interpret"),
)


def pytest_in(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start pytest in ``folder`` as from a shell, on the CPU and without anybody's settings."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "HYPOTHESIS"))
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"),
            # None of them harms its process, and workers take seconds to start.
            *("-o", "pallas_isolate=never", *words),
        ],
        cwd=folder,
        env=environment | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read(folder: Path, name: str) -> Records:
    found: dict[Key, dict[str, Any]] = {}
    for record in json.loads((folder / name).read_text())["records"]:
        key = record["kernel"], record["check"], record["backend"]
        assert key not in found, f"two records of {key}"
        found[key] = record
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has nothing but the wrong kernels."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pytest.ini").write_text("[pytest]\n")
    source = Path(wrong_kernels.__file__).parent
    shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def records(folder: Path) -> Records:
    """The records of all kernels; those that can hang get a short time limit, and a run."""
    backends = "--pallas-backend=" + ",".join(BOTH)
    runs = {
        "wrong_kernels": ("--deselect=wrong_kernels/deadlock.py",),
        "wrong_kernels.deadlock": ("--pallas-timeout=3",),
    }
    # Both at once: the second one does little but wait.
    started = [
        pytest_in(
            folder, f"--pallas-suite={name}", backends, f"--pallas-results={name}.json", *more
        )
        for name, more in runs.items()
    ]
    for process in started:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == pytest.ExitCode.TESTS_FAILED, output[-4000:]
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)  # a replay must not need it
    return {**read(folder, "wrong_kernels.json"), **read(folder, "wrong_kernels.deadlock.json")}


@pytest.fixture(scope="module")
def left_out(folder: Path, records: Records) -> set[Key]:
    """The checks that do not apply, and were no tests."""
    del records  # the files are written by then
    return {
        (entry["kernel"], entry["check"], entry["backend"])
        for name in ("wrong_kernels.json", "wrong_kernels.deadlock.json")
        for entry in json.loads((folder / name).read_text())["not_applicable"]
        if entry["found"] == "collection"
    }


def expected_failures() -> set[Key]:
    caught = {(catch.kernel, catch.check, backend) for catch in CATCHES for backend in catch.on}
    return caught | {("swapped_index_map", "forward", backend) for backend in SWAPPED}


@pytest.mark.parametrize("catch", CATCHES, ids=lambda catch: catch.kernel)
def test_is_caught_with_the_right_words(records: Records, catch: Catch) -> None:
    for backend in catch.on:
        record = records[catch.kernel, catch.check, backend]
        assert record["outcome"] == "failed"
        for pattern in catch.words:
            assert re.search(pattern, record["message"]), f"no {pattern} in: {record['message']}"


@pytest.mark.parametrize("backend", SWAPPED)
def test_swapped_index_map_is_caught_with_the_right_words(records: Records, backend: str) -> None:
    record = records["swapped_index_map", "forward", backend]
    assert record["outcome"] == "failed"
    for pattern in SWAPPED[backend]:
        assert re.search(pattern, record["message"]), f"no {pattern} in: {record['message']}"


def test_nothing_else_fails(records: Records, left_out: set[Key]) -> None:
    failed = {key for key, record in records.items() if record["outcome"] == "failed"}
    assert failed == expected_failures()
    # Most have no padding, no DMAs, and nothing in place.
    skipped = {check for (_, check, _), r in records.items() if r["outcome"] == "skipped"}
    assert skipped == {"padding"}  # which shapes decide
    assert {check for _, check, _ in left_out} >= {
        *("padding", "races", "dma", "deadlock", "schedule", "donation")
    }
    assert {record["outcome"] for record in records.values()} == {"failed", "passed", "skipped"}


def test_every_kernel_of_the_package_is_accounted_for(records: Records) -> None:
    named = {kernel for kernel, _, _ in expected_failures()}
    named |= {*CONTROLS, *ONLY_ON_HARDWARE}
    assert {spec.name for spec in suite("wrong_kernels").specs()} == named
    assert {kernel for kernel, _, _ in records} == named


def test_right_kernels_pass_every_check(records: Records, left_out: set[Key]) -> None:
    checks = {check for kernel, check, _ in records if kernel == "right"}
    most = {"forward", "vmap", "determinism", "immutability", "dtype", "jit"}
    most |= {"grid", "oracle-strength", "memory"}
    second = {c for kernel, c, place in records if kernel == "right" and place in TPU}
    assert second == {*most, "cross"}
    assert checks == second | {"export"}
    unmet = {check for kernel, check, place in left_out if kernel == "right" and place in TPU}
    assert unmet >= {"padding", "donation", "races", "dma", "deadlock", "schedule"}
    for (kernel, check, _), record in records.items():
        if kernel in CONTROLS:
            assert record["outcome"] in ("passed", "skipped")
            assert record["outcome"] == "passed" or check not in most - {"padding", "donation"}


def test_what_comes_after_a_deadlock_runs(records: Records) -> None:
    order = list(records)
    hung = order.index(("never_signalled", "forward", "tpu-interpret"))
    after = [key for key in order[hung + 1 :] if key[0] == "signalled"]
    assert ("signalled", "forward", "tpu-interpret") in after


def test_a_race_is_located(records: Records) -> None:
    lines, first = inspect.getsourcelines(read_before_wait)
    read = first + next(i for i, line in enumerate(lines) if "buffer[...]" in line)
    message = records["read_before_wait", "forward", "tpu-interpret"]["message"]
    assert re.search(rf"\bread of .*copies\.py:{read}\b", message)
    assert re.search(r"\bwrite of .*copies\.py:\d+", message)


def test_a_race_is_called_a_race(records: Records) -> None:
    message = records["read_before_wait", "forward", "tpu-interpret"]["message"]
    assert re.search(r"(?i)\brace\b", message)
    assert " object at 0x" not in message


def test_replay_commands_reproduce_the_failure(folder: Path, records: Records) -> None:
    started: dict[Key, subprocess.Popen[str]] = {}
    for key in REPLAYED:
        program, *words = shlex.split(records[key]["replay"])
        assert program == "pytest"
        started[key] = pytest_in(folder, f"--pallas-results={key[0]}.json", *words)
    for key, process in started.items():
        output, _ = process.communicate(timeout=120)
        assert process.returncode == pytest.ExitCode.TESTS_FAILED, output[-4000:]
        again = read(folder, f"{key[0]}.json")
        assert list(again) == [key]
        assert again[key]["message"] == records[key]["message"]


#: Failures that scripts must show, a check each, and words that the script must write.
SHOWN = {
    ("bfloat16_sum", "forward", "tpu-interpret"): "the test allowed none",
    ("bfloat16_sum_of_normals", "forward", "interpret"): "root mean square of the errors",
    ("half_gradient", "gradient", "interpret"): "elements are wrong",
    ("any_order", "determinism", "interpret"): "elements differ in bits",
    ("mutates_input", "immutability", "interpret"): "writes to the ref of its operand 0",
    ("weak_scale", "dtype", "tpu-interpret"): "weakly typed float32[]",
    ("shorter_when_eager", "jit", "tpu-interpret"): "elements are wrong",
    ("calls_the_host", "export", "interpret"): "the kernel raised",
    ("default_block_drops_tail", "blocks", "interpret"): "with its default tuning",
    ("fades_by_row", "sharding", "interpret"): "on 2 devices",
    ("falls_back", "forward", "interpret"): "the jaxpr holds none",
    ("read_before_wait", "forward", "tpu-interpret"): "RACE DETECTED",
    ("beyond_the_end", "forward", "tpu-interpret"): "IndexError: Out-of-bounds block index",
    ("never_signalled", "forward", "tpu-interpret"): "did not finish within 3 s",
    ("int8_overflow", "forward", "interpret"): "int8",
    ("wrong_dtype", "forward", "interpret"): "of the reference: bfloat16[",
    ("greatest_of_all", "padding", "interpret"): "in memory that nobody has written",
    ("positives_of_all", "padding", "tpu-interpret"): "in memory that nobody has written",
    ("times_zero", "padding", "interpret"): "with NaN in the ignored elements",
    ("left_over_activation", "linearity", "tpu-interpret"): "times the answer to the other call",
    ("last_key_forgotten", "permutation", "interpret"): "elements are wrong; the test allowed",
    ("mean_of_padded", "relation", "tpu-interpret"): "elements are wrong; the test allowed",
    ("wrong_twin", "cross", "interpret"): "output of last_block_dropped",
}


def test_scripts_show_the_failure_with_jax_and_numpy_alone(
    records: Records, tmp_path: Path
) -> None:
    ended = run_bare([Path(records[key]["script"]) for key in SHOWN], tmp_path)
    for (key, words), each in zip(SHOWN.items(), ended, strict=True):
        assert each.status == 1, f"{key}: {each.output}"
        assert words in each.output, f"{key}: {each.output}"


def naive_test_of(kernel: str) -> Callable[[], None]:
    """The test beside the spec of a kernel."""
    file = next(spec.file for spec in suite("wrong_kernels").specs() if spec.name == kernel)
    module = importlib.import_module(f"wrong_kernels.{Path(file).stem}")
    return getattr(module, f"naive_{kernel}")


def passes(test: Callable[[], None]) -> bool:
    try:
        test()
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("kernel", CONTROLS)
def test_naive_tests_pass_for_right_kernels(kernel: str) -> None:
    naive_test_of(kernel)()


def test_most_naive_tests_hide_the_bug(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("kernel", "caught by", "on", "examples", "allclose test")]
    hidden: list[bool] = []
    for spec in suite("wrong_kernels").specs():
        if spec.name in CONTROLS:
            continue
        failures = [r for (name, _, _), r in records.items() if name == spec.name and r["replay"]]
        hidden.append(passes(naive_test_of(spec.name)))
        examples = sum(r["examples"] for (name, _, _), r in records.items() if name == spec.name)
        check, places = "nothing yet", ""
        if spec.name in ONLY_ON_HARDWARE:
            check, places = "proof", "tpu gpu"
        elif failures:
            check, places = failures[0]["check"], " ".join(r["backend"] for r in failures)
        verdict = "passes" if hidden[-1] else "fails"
        rows.append((spec.name, check, places, str(examples), verdict))
    with capsys.disabled():
        print("\n" + aligned(rows))  # noqa: T201
    assert sum(hidden) >= len(hidden) / 2


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(w.ljust(n) for w, n in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
