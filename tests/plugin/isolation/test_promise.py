"""What the whole is for: ten kernels that hang, crash, leak or take all memory, and twenty more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

MISBEHAVING = Path(__file__).parent / "misbehaving.py"

#: What the message of each of the ten must say.
SAID = {
    "hang_while": ("did not end within 4.5 s", "running   body at"),
    "hang_python": ("did not end within 4.5 s", "it was in", "in _spin"),
    "hang_semaphore": ("the kernel did not finish within 3 s",),
    "crash_abort": ("died of SIGABRT", "example   number 1"),
    "crash_segfault": ("died of SIGSEGV", "in _segfault"),
    "crash_exit": ("exited with code 3", "drawn     m=8 n=128"),
    "leak_config": ("left jax_default_matmul_precision = 'highest' (was None)",),
    "leak_variable": ("left os.environ['LEFT_BEHIND'] = '1' (was unset)",),
    "leak_interpreter": ("leak_interpreter: forward on tpu-interpret",),
    "memory": ("--pallas-worker-memory", "MiB"),
}


@pytest.mark.parametrize(
    ("when", "processes"),
    [("auto", 0), ("always", 2)],
    ids=["auto-serially", "always-two processes"],
)
def test_thirty_specs_of_which_ten_misbehave(project, when, processes):
    shutil.copy(MISBEHAVING, project.path)
    result = project.spawn(
        "--pallas-suite=misbehaving",
        "--pallas-backend=tpu-interpret",
        "--pallas-sanitize=none",
        "--pallas-max-examples=2",
        "--pallas-timeout=3",
        "--pallas-worker-memory=1",
        f"--pallas-isolate={when}",
        "--pallas-results=results.json",
        f"-n{processes}",
    )
    result.assert_outcomes(failed=10, passed=20)
    records = json.loads((project.path / "results.json").read_text())["records"]
    assert len(records) == 30
    messages = {r["kernel"]: r["message"] for r in records if r["outcome"] == "failed"}
    assert sorted(messages) == sorted(SAID)
    for kernel, words in SAID.items():
        for word in words:
            assert word in messages[kernel], messages[kernel]
    [crashed] = [r for r in records if r["kernel"] == "crash_abort"]
    assert crashed["explanation"]["summary"].startswith("its process died of SIGABRT")
    assert {"name": "example", "text": "number 1"} in crashed["explanation"]["facts"]
