"""What the whole is for: ten kernels that hang, crash, leak or take all memory, and ten more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

MISBEHAVING = Path(__file__).parent / "misbehaving.py"

#: What the message of each of the ten must say.
SAID = {
    "hang_while": ("did not end within 2 s", "running   body at"),
    "hang_python": ("did not end within 2 s", "location", "in _spin"),
    "hang_semaphore": ("the kernel did not finish within 4 s",),
    "crash_abort": ("died of SIGABRT", "example   number 1"),
    "crash_segfault": ("died of SIGSEGV", "in _segfault"),
    "crash_exit": ("exited with code 3", "drawn     m=8 n=128"),
    "leak_config": ("left jax_default_matmul_precision = 'highest' (was None)",),
    "leak_variable": ("left os.environ['LEFT_BEHIND'] = '1' (was unset)",),
    "leak_interpreter": ("leak_interpreter: forward on tpu-interpret",),
    "memory": ("--pallas-worker-memory", "MiB"),
}

#: Gives those that hang little time: the others have as much as a slow machine needs.
CONFTEST = """
    import pytest

    SECONDS = {"hang_while": 1, "hang_python": 1, "hang_semaphore": 4}

    def pytest_collection_modifyitems(items):
        for item in items:
            if item.spec.name in SECONDS:
                item.add_marker(pytest.mark.pallas(timeout=SECONDS[item.spec.name]))
"""


def run(project, *args):
    """The records of a run, and the messages of those that failed, by kernel."""
    shutil.copy(MISBEHAVING, project.path)
    project.write(conftest=CONFTEST)
    result = project.run(
        "--pallas-suite=misbehaving",
        "--pallas-backend=tpu-interpret",
        "--pallas-sanitize=none",
        "--pallas-max-examples=1",
        "--pallas-worker-memory=1",
        "--pallas-results=results.json",
        *args,
    )
    records = json.loads((project.path / "results.json").read_text())["records"]
    messages = {r["kernel"]: r["message"] for r in records if r["outcome"] == "failed"}
    for kernel, message in messages.items():
        for word in SAID[kernel]:
            assert word in message, message
    return result, records, messages


def test_twenty_specs_of_which_ten_misbehave(project):
    result, records, messages = run(project, "--pallas-isolate=auto")
    result.assert_outcomes(failed=10, passed=10)
    assert len(records) == 20
    assert sorted(messages) == sorted(SAID)
    [crashed] = [r for r in records if r["kernel"] == "crash_abort"]
    assert crashed["explanation"]["summary"].startswith("its process died of SIGABRT")
    assert {"name": "example", "text": "number 1"} in crashed["explanation"]["facts"]


@pytest.mark.slow
def test_each_of_two_processes_goes_on_after_a_hang_a_crash_and_a_leak(project):
    bad = ("hang_semaphore", "crash_segfault", "leak_variable", "leak_interpreter")
    result, records, messages = run(
        project, "--pallas-isolate=always", "-n2", "-k", " or ".join(bad)
    )
    result.assert_outcomes(failed=4, passed=4)
    assert len(records) == 8
    assert sorted(messages) == sorted(bad)
