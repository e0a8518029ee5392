"""Neither /proc nor pidfd, as on macOS: all works but for limits on the memory of workers."""

import pytest

SITE = """
import os
import sys

LOG = {log!r}

def refuse(event, arguments):
    if event not in ("open", "os.listdir") or not str(arguments[0]).startswith("/proc/"):
        return
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("threadpoolctl.py"):  # asks dyld on macOS
            return
        frame = frame.f_back
    with open(LOG, "a") as log:
        print(arguments[0], file=log)
    raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))

sys.addaudithook(refuse)

def pidfd_open(pid, flags=0):
    with open(LOG, "a") as log:
        print("pidfd", file=log)
    raise OSError(38, "Function not implemented")

os.pidfd_open = pidfd_open
"""

TESTS = """
import numpy as np
import pytest
from kernels import add, add_off, reference

X = np.ones((8, 128), np.float32)

def test_right(pallas_check):
    pallas_check(add, X, X, reference=reference)

@pytest.mark.pallas(isolate="always")
def test_isolated(pallas_check):
    pallas_check(add, X, X, reference=reference, checks=["forward", "determinism"])

@pytest.mark.pallas(isolate="always")
def test_killed(pallas_run):
    import os, signal
    os.kill(os.getpid(), signal.SIGSEGV)

def test_wrong(pallas_check):
    pallas_check(add_off, X, X, reference=reference)
"""


@pytest.mark.slow
def test_everything_works_without_it(project, pytester, monkeypatch):
    site, log = pytester.mkdir("site"), pytester.path / "asked"
    (site / "sitecustomize.py").write_text(SITE.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    project.write(test_it=TESTS)
    result = project.spawn("--pallas-backend=auto,interpret", fresh=True)
    result.assert_outcomes(passed=4, failed=4)
    result.stdout.fnmatch_lines(["*add_off: forward on tpu-sim is wrong*"])
    result.stdout.fnmatch_lines(["*its process died of SIGSEGV*during the test*"])
    names = log.read_text().splitlines()
    assert any(line.endswith("/statm") for line in names)
    assert "pidfd" in names
