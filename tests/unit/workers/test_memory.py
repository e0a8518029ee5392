from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_pallas.workers.process import resident_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

NESTED = """\
import subprocess, sys, threading
held = b"x" * (30 * 2**20)
if sys.argv[1] == "0":
    print("there", flush=True)
    sys.stdin.read()
else:  # A child of another thread counts as well.
    command = [sys.executable, "-c", sys.argv[2], "0", ""]
    run = lambda: subprocess.run(command)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
"""


def test_descendants_of_all_threads_count():
    command = [sys.executable, "-c", NESTED, "1", NESTED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        both = resident_bytes(process.pid)
        process.stdin.close()
    assert both > 60 * 2**20
    assert both < 160 * 2**20


def test_a_process_that_is_gone_has_none():
    with subprocess.Popen(["true"]) as process:
        pass
    assert resident_bytes(process.pid) == 0
