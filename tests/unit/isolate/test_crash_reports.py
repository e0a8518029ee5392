"""How a dead worker is told: what happened, where it was, and what it was about."""

from __future__ import annotations

import pytest

from pytest_pallas import CrashError, HangError, IsolationError, OutOfMemoryError
from pytest_pallas.isolate.messages import StepNote
from pytest_pallas.isolate.supervise import error_of, place_of
from pytest_pallas.workers.process import JobResult

NOTE = StepNote(
    step="a kernel",
    limit=5.0,
    examples=3,
    drawn=[("inputs", "float32[8]")],
    running=["matmul at /k/matmul.py:7"],
)

DUMP = """\
Timeout (0:00:05)!
Thread 0x00007f01 (most recent call first):
  File "/x/site-packages/jax/_src/callback.py", line 80 in call
  File "/k/matmul.py", line 12 in spin
  File "/k/matmul.py", line 20 in body

Thread 0x00007f00 (most recent call first):
  File "/t/test_k.py", line 3 in test_k
"""


def died(status="crashed", fate="died of SIGABRT during the test.", **rest):
    return error_of(JobResult(status=status, fate=fate, note=NOTE.encode(), **rest), "here")


def test_a_hang_by_what_faulthandler_wrote():
    error = died(output=DUMP)
    assert isinstance(error, HangError)
    text = str(error)
    assert text.startswith("here: the kernel did not end within 5 s")
    for fact in ("location  /k/matmul.py:12 in spin", "running   matmul at /k/matmul.py:7"):
        assert fact in text
    assert "example   number 3\n  inputs    float32[8]" in text


def test_a_hang_by_the_silence_before():
    assert isinstance(died(silence=5.01), HangError)
    assert isinstance(died(silence=0.3), CrashError)
    assert isinstance(died("timed out"), HangError)


def test_a_crash_reports_signal_and_output():
    text = str(died(silence=0.3, output="Check failed: index < size\n"))
    assert text.startswith("here: its process died of SIGABRT during the test.")
    assert "output    Check failed: index < size" in text
    assert "compiled code" not in text  # nothing says so


def test_a_memory_limit_names_its_option():
    error = died("out of memory", "was killed during the test: it used 9 MiB.")
    assert isinstance(error, OutOfMemoryError)
    assert "--pallas-worker-memory" in str(error)


def test_a_worker_that_does_not_start():
    error = error_of(JobResult(status="crashed", message="No.", started=False), "here")
    assert isinstance(error, IsolationError)
    assert "--pallas-isolate=never" in str(error)


def test_a_death_of_which_nothing_is_known():
    assert isinstance(error_of(JobResult(status="crashed", fate="is gone."), "here"), CrashError)


@pytest.mark.parametrize(
    ("dump", "location"),
    [
        (DUMP, "/k/matmul.py:12 in spin"),
        (DUMP.partition("\n\n")[2], "/t/test_k.py:3 in test_k"),
        (
            DUMP.replace("Thread 0x00007f00", "Current thread 0x00007f00"),
            "/t/test_k.py:3 in test_k",
        ),
        ('Thread 0x1 (first):\n  File "/x/jax/_src/api.py", line 1 in f\n', None),
        ("", None),
    ],
)
def test_the_thread_that_matters(dump, location):
    assert place_of(dump) == location
