"""What a GPU answers to the racy kernels of tests/broken, for the last column of docs/broken.md.

    python scripts/chip_answers.py FILE [NAME ...]    # on a machine with a GPU; by default all

One session of pytest asks all of them: a kernel that fails to launch, or never ends, costs the
worker that owns the device, and the next kernel gets a new one. FILE gets the answers by kernel as
JSON: ``"right"``, ``"wrong"``, ``"launch failure"``, ``"never ends"``, ``"refused"`` for more
shared memory than there is, or ``"error"``; and what was said in ``messages``.
tests/broken/h200.json has the answers of an H200.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Seconds that a kernel has. It ends in that of a few examples, or never.
TIMEOUT = 16

#: Seconds between two looks at the answers.
LOOK = 0.5

#: The answer that an error is, by its class.
ANSWERS = {
    "MismatchError": "wrong",
    "DeviceLostError": "launch failure",
    "CrashError": "launch failure",  # XLA ends the process
    "HangError": "never ends",
    "CapacityError": "refused",
}

_SUITE = '''"""Racy kernels, which are asked for their answers on the GPU."""

import dataclasses
import os

from pytest_pallas.run.collection import suite

BACKEND = os.environ["ASKED_BACKEND"]
SPECS = [
    dataclasses.replace(spec, checks=("forward",), backends=(BACKEND,), file=__file__)
    for package in ("wrong_kernels", "twins")
    for spec in suite(package).specs()
    if spec.name in os.environ["ASKED"].split(",")
]
'''


def racy_kernels() -> list[str]:
    """The names of the wrong kernels, and of their right twins, that claim any GPU."""
    sys.path += [str(ROOT), str(ROOT / "tests/broken"), str(ROOT / "tests/support")]
    import table

    return [name for name, spec in table.specs().items() if spec.backends == ("gpu-sim",)]


def session(
    names: Sequence[str], folder: Path, *, backend: str, examples: int, processes: int
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a session of pytest, ``forward`` of each kernel; returns it and its results."""
    results = folder / "results.json"
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
            "--tb=no",
        ),
        *([] if _is_installed() else ["-p", "pytest_pallas.plugin"]),
        *([f"-n{processes}"] if processes > 1 else []),
        *("--pallas-suite=asked", f"--pallas-backend={backend}", f"--pallas-timeout={TIMEOUT}"),
        *("--pallas-database=none", f"--pallas-max-examples={examples}"),
        f"--pallas-results={results}",
    ]
    path = [str(folder), str(ROOT), str(ROOT / "tests/broken"), str(ROOT / "tests/support")]
    variables = {
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share the GPU
        "ASKED": ",".join(names),
        "ASKED_BACKEND": backend,
    }
    (folder / "asked.py").write_text(_SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}), results


def contents(names: Sequence[str], results: Path) -> dict[str, dict[str, str]]:
    """Return the answers in results, or in their journal as far as it goes, and the messages."""
    from pallas_sim.errors import OptionError
    from pytest_pallas.results import read_results

    try:
        records: Iterable = read_results(results).records
    except OptionError:  # nothing is written yet
        records = ()
    by_kernel = {record.kernel: record for record in records}
    kernels = [by_kernel[name] for name in names if name in by_kernel]
    return {
        "answers": {record.kernel: answer_of(record) for record in kernels},
        "messages": {record.kernel: record.message for record in kernels if record.message},
    }


def answer_of(record) -> str:
    """Return the answer that a record is."""
    return "right" if record.outcome == "passed" else ANSWERS.get(record.error_type, "error")


def _is_installed() -> bool:
    """Whether pytest finds the plugin by itself."""
    return bool(importlib.metadata.entry_points(group="pytest11", name="pallas"))


def main() -> int:
    """Ask, and write the file."""
    parser = argparse.ArgumentParser(description="What a GPU answers to racy kernels.")
    parser.add_argument("file", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--backend", default="gpu", help="another one, to try this script")
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    known = racy_kernels()
    if unknown := sorted({*options.names} - {*known}):
        parser.error(f"there is no kernel {', '.join(unknown)}; known: {', '.join(known)}")
    names = options.names or known
    with tempfile.TemporaryDirectory() as name:
        running, results = session(
            names,
            Path(name),
            backend=options.backend,
            examples=options.examples,
            processes=options.processes,
        )
        while True:
            ended = running.poll() is not None
            # Now, because whoever runs this may end it before the last answer.
            answers = contents(names, results)
            options.file.write_text(json.dumps(answers, indent=1))
            if ended:
                break
            time.sleep(LOOK)
    for kernel, answer in answers["answers"].items():
        print(f"{kernel:32} {answer}")
    missing = [name for name in names if name not in answers["answers"]]
    if missing:
        print(f"no answer: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
