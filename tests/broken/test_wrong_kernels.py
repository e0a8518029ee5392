"""Every kernel of ``wrong_kernels`` is caught, and the message says why.

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import wrong_kernels
from catches import BACKEND, CATCHES, CONTROLS, ONLY_ON_HARDWARE, Catch
from pallas_test_support.failure_scripts import repeat, run_scripts
from pallas_test_support.forked_python import run_python
from wrong_kernels.copies import read_before_wait

from pytest_pallas.run.collection import suite

type Key = tuple[str, str]
#: The package that is asked about.
SUITE = "wrong_kernels"

type Records = Mapping[Key, dict[str, Any]]

REPLAYED = (
    ("bfloat16_sum", "forward"),
    ("half_gradient", "gradient"),
    ("beyond_the_end", "forward"),
)


def pytest_in(folder: Path, *words: str) -> None:
    """Run pytest in ``folder``, on the CPU and without anybody's settings; tests must fail."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "HYPOTHESIS"))
    }
    done = run_python(
        *("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:jaxtyping", "-q"),
        # None of them harms its process, and workers take seconds to start.
        *("-o", "pallas_isolate=never", *words),
        cwd=folder,
        env=environment | {"JAX_PLATFORMS": "cpu"},
        ours=False,
    )
    failed = done.returncode == pytest.ExitCode.TESTS_FAILED
    assert failed, (done.stdout + done.stderr)[-4000:]


def read(folder: Path, name: str) -> Records:
    found: dict[Key, dict[str, Any]] = {}
    for record in json.loads((folder / name).read_text())["records"]:
        key = record["kernel"], record["check"]
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
    """The records of all kernels."""
    backend = f"--pallas-backend={BACKEND}"
    pytest_in(folder, f"--pallas-suite={SUITE}", backend, f"--pallas-results={SUITE}.json")
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)  # a replay must not need it
    return read(folder, f"{SUITE}.json")


@pytest.fixture(scope="module")
def left_out(folder: Path, records: Records) -> set[Key]:
    """The checks that do not apply, and were no tests."""
    del records  # the file is written by then
    entries = json.loads((folder / f"{SUITE}.json").read_text())["not_applicable"]
    return {(each["kernel"], each["check"]) for each in entries if each["found"] == "collection"}


def expected_failures() -> set[Key]:
    return {(catch.kernel, catch.check) for catch in CATCHES}


@pytest.mark.parametrize("catch", CATCHES, ids=lambda catch: catch.kernel)
def test_is_caught_with_the_right_words(records: Records, catch: Catch) -> None:
    record = records[catch.kernel, catch.check]
    assert record["outcome"] == "failed"
    for pattern in catch.words:
        assert re.search(pattern, record["message"]), f"no {pattern} in: {record['message']}"


def test_nothing_else_fails(records: Records, left_out: set[Key]) -> None:
    failed = {key for key, record in records.items() if record["outcome"] == "failed"}
    assert failed == expected_failures()
    # Which shapes have padding decides; and a kernel whose forward raised is not run again.
    skipped = {check for (_, check), r in records.items() if r["outcome"] == "skipped"}
    assert skipped == {"padding", "races"}
    assert {check for _, check in left_out} >= {
        *("padding", "races", "dma", "deadlock", "schedule", "donation")
    }
    assert {record["outcome"] for record in records.values()} == {"failed", "passed", "skipped"}


def test_every_kernel_of_the_package_is_accounted_for(records: Records) -> None:
    named = {kernel for kernel, _ in expected_failures()}
    named |= {*CONTROLS, *ONLY_ON_HARDWARE}
    assert {spec.name for spec in suite("wrong_kernels").specs()} == named
    assert {kernel for kernel, _ in records} == named


def test_right_kernels_pass_every_check(records: Records, left_out: set[Key]) -> None:
    checks = {check for kernel, check in records if kernel == "right"}
    most = {"forward", "vmap", "determinism", "immutability", "dtype", "jit"}
    most |= {"grid", "oracle-strength", "memory"}
    assert checks == {*most, "export"}
    unmet = {check for kernel, check in left_out if kernel == "right"}
    assert unmet >= {"padding", "donation", "races", "dma", "deadlock", "schedule"}
    for (kernel, check), record in records.items():
        if kernel in CONTROLS:
            assert record["outcome"] in ("passed", "skipped")
            assert record["outcome"] == "passed" or check not in most - {"padding", "donation"}


def test_what_comes_after_a_deadlock_runs(records: Records) -> None:
    order = list(records)
    hung = order.index(("never_signalled", "forward"))
    assert ("signalled", "forward") in order[hung + 1 :]


def test_a_race_is_located(records: Records) -> None:
    lines, first = inspect.getsourcelines(read_before_wait)
    read = first + next(i for i, line in enumerate(lines) if "buffer[...]" in line)
    message = records["read_before_wait", "forward"]["message"]
    assert re.search(rf"\bread of .*copies\.py:{read}\b", message)
    assert re.search(r"\bwrite of .*copies\.py:\d+", message)


def test_a_race_is_called_a_race(records: Records) -> None:
    message = records["read_before_wait", "forward"]["message"]
    assert re.search(r"(?i)\brace\b", message)
    assert " object at 0x" not in message


def test_replay_commands_reproduce_the_failure(folder: Path, records: Records) -> None:
    for key in REPLAYED:
        program, *words = shlex.split(records[key]["replay"])
        assert program == "pytest"
        pytest_in(folder, f"--pallas-results={key[0]}.json", *words)
        again = read(folder, f"{key[0]}.json")
        assert list(again) == [key]
        assert again[key]["message"] == records[key]["message"]


#: Failures that scripts must repeat, besides the first of each check.
REPEATED = (
    ("bfloat16_sum", "forward"),
    ("falls_back", "forward"),
    ("read_before_wait", "forward"),
    ("beyond_the_end", "forward"),
    ("never_signalled", "forward"),
)

#: Checks whose failures are of all examples together, and have no script.
CONCLUDED = ("oracle-strength",)


def test_scripts_repeat_the_failure(records: Records) -> None:
    first = {check: (kernel, check) for kernel, check in sorted(expected_failures(), reverse=True)}
    shown = [*REPEATED, *(key for check, key in first.items() if check not in CONCLUDED)]
    # This one has other bits each time.
    [random] = [key for key in shown if key[0] == "any_order"]
    repeat([records[key] for key in shown if key != random], {})
    [ended] = run_scripts([Path(records[random]["script"])])
    assert (ended.status, "any_order: determinism on tpu-sim is wrong" in ended.output) == (1, True)
    assert not any(records[first[check]]["script"] for check in CONCLUDED)


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
        failures = [r for (name, _), r in records.items() if name == spec.name and r["replay"]]
        hidden.append(passes(naive_test_of(spec.name)))
        examples = sum(r["examples"] for (name, _), r in records.items() if name == spec.name)
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
