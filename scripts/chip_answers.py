"""What a GPU answers to the racy kernels of tests/broken, for the last column of docs/broken.md.

    python scripts/chip_answers.py FILE [NAME ...]    # on a machine with a GPU; by default all

Each kernel runs in a process of its own: some end with a launch failure, after which a process can
launch nothing, and some never end. FILE gets the answers by kernel as JSON: ``"right"``,
``"wrong"``, ``"launch failure"``, ``"never ends"``, ``"refused"`` for more shared memory than there
is, or ``"error"``; and what was said in ``messages``. tests/broken/h200.json has the answers of an
H200.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Seconds that a kernel has, with the start of its process.
TIMEOUT = 40

#: Errors of CUDA after which a process can launch nothing.
STICKY = (
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ILLEGAL",
    "CUDA_ERROR_MISALIGNED",
    "CUDA_ERROR_INVALID_PC",
)

_SUITE = '''"""One racy kernel, which is asked for its answers on the GPU."""

import dataclasses
import os

from pytest_pallas.run.collection import suite

BACKEND = os.environ["ASKED_BACKEND"]
SPECS = [
    dataclasses.replace(spec, checks=("forward",), backends=(BACKEND,), file=__file__)
    for package in ("wrong_kernels", "twins")
    for spec in suite(package).specs()
    if spec.name == os.environ["ASKED"]
]
'''


@dataclass(frozen=True)
class Answer:
    """What a chip answered to a kernel.

    Attributes:
      answer: a word; see the module.
      message: what pytest said, and "" for a right answer.
    """

    answer: str
    message: str = ""


def racy_kernels() -> list[str]:
    """The names of the wrong kernels, and of their right twins, that claim any GPU."""
    sys.path += [str(ROOT), str(ROOT / "tests/broken"), str(ROOT / "tests/support")]
    import table

    return [name for name, spec in table.specs().items() if spec.backends == ("gpu-sim",)]


def ask(name: str, folder: Path, backend: str = "gpu", examples: int = 4) -> Answer:
    """Run the check ``forward`` of one kernel in a process of its own."""
    results = folder / f"{name}.json"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"),
        *([] if _is_installed() else ["-p", "pytest_pallas.plugin"]),
        *("--pallas-suite=asked", f"--pallas-backend={backend}"),
        *("--pallas-database=none", f"--pallas-max-examples={examples}", "--pallas-isolate=never"),
        f"--pallas-results={results}",
    ]
    path = [str(folder), str(ROOT), str(ROOT / "tests/broken"), str(ROOT / "tests/support")]
    variables = {
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share the GPU
        "ASKED": name,
        "ASKED_BACKEND": backend,
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return Answer("never ends", f"no answer in {TIMEOUT} s")
    output = done.stdout + done.stderr
    records = json.loads(results.read_text())["records"] if results.exists() else []
    outcomes = {record["outcome"] for record in records}
    message = "\n".join(record["message"] for record in records) or output[-2000:]
    if any(error in output for error in STICKY):
        return Answer("launch failure", message)
    if "RESOURCE_EXHAUSTED" in message:
        return Answer("refused", message)
    if outcomes == {"passed"}:
        return Answer("right")
    wrong = outcomes == {"failed"} and "raised" not in message
    return Answer("wrong" if wrong else "error", message)


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
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.processes) as pool:
        folder = Path(name)
        (folder / "asked.py").write_text(_SUITE)
        (folder / "pytest.ini").write_text("[pytest]\n")
        ask_one = functools.partial(
            ask, folder=folder, backend=options.backend, examples=options.examples
        )
        answers: dict[str, str] = {}
        messages: dict[str, str] = {}
        for name, answer in zip(names, pool.map(ask_one, names), strict=True):
            print(f"{name:32} {answer.answer}", flush=True)
            answers[name] = answer.answer
            if answer.message:
                messages[name] = answer.message
            # Now, because whoever runs this may end it before the last answer.
            contents = {"answers": answers, "messages": messages}
            options.file.write_text(json.dumps(contents, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
