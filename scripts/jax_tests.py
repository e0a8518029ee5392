"""JAX's own Pallas tests on the simulator.

    uv run python scripts/jax_tests.py CHECKOUT [FILE ...] [--cases N] [-k EXPRESSION]

CHECKOUT is a work tree of https://github.com/jax-ml/jax of a version near the installed one; its
``tests/pallas`` are run as they are, against the installed JAX. ``jax_tests_plugin.py`` says what
is replaced: kernels run on the simulator, and everything else is XLA's. Each file runs twice: once
as on a TPU v6e, where the tests of hardware run, and once as on a CPU, where those of interpret
mode run. With ``--device gpu`` it runs as on an H100, and what is skipped there as on a B200 (tests
of JAX's interpreter for GPUs once, as on a CPU); its files must be named. A test passes if it
passes wherever it is not skipped. ``--cases N`` runs about N cases of a test with parameters, of
which some have more than a thousand.

It exits 1 if a test fails for a reason that ``jax_tests_causes.py`` does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_tests_causes import Cause, cause_of, not_applicable

HERE = Path(__file__).parent

#: The files that run without being named.
FILES = (
    "pallas_test",
    "ops_test",
    "indexing_test",
    "pallas_vmap_test",
    "tpu_pallas_test",
    "tpu_pallas_pipeline_test",
    "tpu_pallas_state_test",
    "tpu_ops_test",
    "tpu_gmm_test",
    "tpu_paged_attention_kernel_test",
    "tpu_ragged_paged_attention_test",
    "tpu_splash_attention_kernel_test",
    "tpu_splash_attention_kernel_sharded_test",
    "tpu_splash_attention_mask_test",
    "tpu_pallas_random_test",
    "tpu_all_gather_test",
    "tpu_pallas_async_test",
    "tpu_pallas_distributed_test",
    "tpu_pallas_interpret_test",
    "tpu_pallas_interpret_distributed_test",
    "tpu_pallas_memory_space_test",
    "tpu_sparsecore_pallas_test",
    "tpu_sparsecore_pallas_distributed_test",
    "tpu_sparsecore_pallas_debug_check_test",
)


#: The tests of JAX's interpreter for GPUs, which skip themselves where there is one.
INTERPRETED = "gpu_pallas_interpret"


@dataclass
class Outcome:
    """How one test went on one device.

    Attributes:
      name: of the class and the test.
      kind: ``"passed"``, ``"failed"``, ``"skipped"`` or ``"error"``: the process ended in it.
      error: the type of the exception.
      text: of the exception, or the reason of the skip.
      kernels: how many calls of kernels the simulator ran; -1 if nobody counted.
    """

    name: str
    kind: str
    error: str = ""
    text: str = ""
    kernels: int = -1


@dataclass
class Count:
    """What is said of a file.

    Attributes:
      passed: tests that passed, and ran a kernel.
      without: tests that passed and ran none: they test what JAX refuses, traces or prepares.
      apart: tests that do not apply, by reason.
      explained: tests that fail, with their cause.
      failed: tests that fail for no known cause.
    """

    passed: int = 0
    without: int = 0
    apart: Counter[str] = field(default_factory=Counter[str])
    explained: dict[str, Cause] = field(default_factory=dict[str, Cause])
    failed: list[Outcome] = field(default_factory=list[Outcome])


def outcomes(
    checkout: Path,
    file: str,
    device: str,
    args: argparse.Namespace,
    leave_out: Sequence[str] = (),
) -> list[Outcome]:
    """The outcomes of a file's tests, in as many processes as it takes to get through."""
    with tempfile.TemporaryDirectory() as folder:
        results, done = Path(folder, "results"), Path(folder, "done")
        found: dict[str, Outcome] = {}
        while True:
            results.write_text("")
            done.write_text("\n".join((*found, *leave_out)))
            code = _process(checkout, file, device, args, results, done)
            lines = [json.loads(line) for line in results.read_text().splitlines()]
            started = None
            for line in lines:
                if "start" in line:
                    started = line["start"]
                elif "collect" in line:
                    found[file] = Outcome(file, "failed", "ImportError", line["text"])
                else:
                    name = line["name"]
                    kind, error = line["outcome"], line["error"]
                    found[name] = Outcome(name, kind, error, line["text"], line["kernels"])
            if started is None or started in found:
                break
            found[started] = Outcome(started, "error", "", f"the process ended ({code})")
        return list(found.values())


def _devices(file: str, device: str) -> tuple[str, ...]:
    """What a file runs as: the tests of JAX's interpreter for GPUs want a CPU."""
    if device == "gpu":
        return ("cpu",) if file.startswith(INTERPRETED) else ("gpu", "b200")
    return ("tpu", "cpu") if device == "both" else (device,)


def _count(file: str) -> str:
    """How many devices there are: some tests want one, or take all for two."""
    if file == "gpu_pallas_distributed_test":
        return "2"
    return "1" if _chip(file) and "distributed" not in file else "8"


def _chip(file: str) -> str:
    """The chip that a file is for, if the device does not say it."""
    if not file.startswith(INTERPRETED):
        return ""
    return "b200" if "tcgen05" in file else "h100"


def _process(
    checkout: Path, file: str, device: str, args: argparse.Namespace, results: Path, done: Path
) -> str:
    """Run what is not done of a file, as long as tests begin and end in time."""
    command = [sys.executable, "-m", "pytest", "-p", "jax_tests_plugin", "-q", "--no-header"]
    command += ["-p", "no:cacheprovider", "-p", "no:warnings", "--tb=no", "-c", os.devnull]
    # Its conftest.py would put the JAX of the checkout in the place of the installed one.
    command += ["--noconftest"]
    command += ["--rootdir", str(checkout), str(checkout / "tests/pallas" / f"{file}.py")]
    command += ["-k", args.k] if args.k else []
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": _count(file),
        "OPENBLAS_NUM_THREADS": "1",  # whose threads spin where all cores are busy
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent))),
        "JAX_TESTS_CHECKOUT": str(checkout),
        "JAX_TESTS_DEVICE": device,
        "JAX_TESTS_CHIP": _chip(file),
        "JAX_TESTS_SECONDS": str(args.seconds),
        "JAX_TESTS_RESULTS": str(results),
        "JAX_TESTS_DONE": str(done),
        "JAX_TESTS_CASES": str(args.cases),
    }
    with Path(results.parent, "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=results.parent, stdout=log, stderr=log
        )
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            if results.stat().st_size != size:
                size, since = results.stat().st_size, time.monotonic()
            elif time.monotonic() - since > args.seconds + 120:
                process.kill()
                process.wait()
                return f"no end in {args.seconds} s"
    return f"exit code {process.returncode}"


def counted(file: str, by_device: dict[str, list[Outcome]]) -> Count:
    """The tests of a file: each counts once, whatever it ran on."""
    count = Count()
    every: dict[str, dict[str, Outcome]] = defaultdict(dict)
    for device, results in by_device.items():
        for outcome in results:
            every[outcome.name][device] = outcome
    for name, found in every.items():
        bad = [each for each in found.values() if each.kind in ("failed", "error")]
        if not bad and any(each.kind == "passed" for each in found.values()):
            ran = any(each.kernels for each in found.values())
            count.passed += ran
            count.without += not ran
            continue
        if not bad:
            reasons = sorted({each.text for each in found.values()})
            count.apart[not_applicable("; ".join(reasons))] += 1
            continue
        cause = cause_of(file, name, bad[0].error, bad[0].text)
        if cause is None:
            count.failed.append(bad[0])
        elif cause.applies:
            count.explained[name] = cause
        else:
            count.apart[cause.text] += 1
    return count


def main() -> int:
    """Run the tests, and print the table and the failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", default=FILES, help="names without .py")
    parser.add_argument("-k", default="", help="as pytest's")
    parser.add_argument("--device", choices=("tpu", "cpu", "gpu", "b200", "both"), default="both")
    parser.add_argument("--seconds", type=int, default=120, help="limit of a test")
    parser.add_argument("--cases", type=int, default=0, help="cases of a test, evenly drawn")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    parser.add_argument("--read", type=Path, help="print what --json has written; runs nothing")
    args = parser.parse_args()
    if args.read:
        counts = {
            file: counted(file, {d: [Outcome(**o) for o in found] for d, found in results.items()})
            for file, results in json.loads(args.read.read_text()).items()
        }
        for file, count in counts.items():
            _print_row(file, count)
        return _print_rest(counts)
    print("| file | passed | failed | passed of both | run no kernel | not applicable |")
    print("|---|---|---|---|---|---|")
    counts: dict[str, Count] = {}
    raw: dict[str, Any] = {}
    for file in args.files:
        results: dict[str, list[Outcome]] = {}
        for device in _devices(file, args.device):
            done = [each.name for each in results.get("gpu", ()) if each.kind != "skipped"]
            results[device] = outcomes(args.checkout.resolve(), file, device, args, done)
        if not any(results.values()):
            sys.exit(f"{file}: pytest ran no test of it; is {args.checkout} a work tree of JAX?")
        raw[file] = {device: [vars(each) for each in found] for device, found in results.items()}
        counts[file] = counted(file, results)
        if args.json:
            args.json.write_text(json.dumps(raw, indent=1))
        _print_row(file, counts[file])
    return _print_rest(counts)


def _print_row(file: str, count: Count) -> None:
    applicable = count.passed + len(count.explained) + len(count.failed)
    share = f"{count.passed / applicable:.1%}" if applicable else "-"
    bad = len(count.explained) + len(count.failed)
    cells = (file, count.passed, bad, share, count.without, sum(count.apart.values()))
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _print_rest(counts: dict[str, Count]) -> int:
    apart: Counter[str] = Counter()
    for count in counts.values():
        apart.update(count.apart)
    print("\nnot applicable:")
    for reason, number in apart.most_common():
        print(f"  {number:5} {reason[:300]}")
    print("\nfailures with a known cause:")
    causes: dict[str, list[str]] = defaultdict(list)
    for file, count in counts.items():
        for name, cause in count.explained.items():
            causes[cause.text].append(f"{file}::{name}")
    for cause, names in causes.items():
        print(f"  {len(names):5} {cause}\n        {names[0]}")
    failed = [(file, each) for file, count in counts.items() for each in count.failed]
    print(f"\nunexplained failures: {len(failed)}")
    for file, each in failed:
        print(f"  {file}::{each.name}\n    {each.error}: {' '.join(each.text.split())[-400:]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
