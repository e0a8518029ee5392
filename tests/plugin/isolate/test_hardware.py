"""Tests on hardware run in a worker that owns the device, and outlive a device that fails."""

from __future__ import annotations

import json
import os

import pytest
from pallas_test_support import fake_hardware

from pytest_pallas.isolate import policy

CONFTEST = "from pallas_test_support.fake_hardware import pytest_pallas_backends\n"

#: Kernels that are ``add`` by the names that the fake device knows.
KERNELS = """
    from kernels import *

    def aborts(x, y): return add(x, y)
    def aborts_from_16(x, y): return add(x, y)
    def hangs(x, y): return add(x, y)
    def fails(x, y): return add(x, y)
    def exhausts(x, y): return add(x, y)
"""


@pytest.fixture
def device(project, monkeypatch):
    """A project with the fake device, which is a file."""
    path = project.path / "device"
    path.touch()
    monkeypatch.setenv("FAKE_DEVICE", str(path))
    project.write(conftest=CONFTEST, named=KERNELS)
    return path


@pytest.fixture(autouse=True)
def _closed(monkeypatch):
    """No test opens the device for those after it, where this process does."""
    files = []
    monkeypatch.setattr(fake_hardware, "_opened", files)
    monkeypatch.setattr(fake_hardware, "_failed", [])
    yield
    for file in files:
        file.close()


def specs(project, *names):
    project.specs(
        *(f'name="{name}", kernel=__import__("named").{name}, backends=("gpu",)' for name in names)
    )


def run(project, *args, checks="forward", backend="gpu"):
    return project.run(
        f"--pallas-backend={backend}",
        "--pallas-isolate=auto",
        "--pallas-max-examples=2",
        f"--pallas-checks={checks}",
        "--pallas-results=results.json",
        *args,
    )


def records(project):
    results = json.loads((project.path / "results.json").read_text())["records"]
    return {(record["kernel"], record["check"]): record for record in results}


def opened(device):
    """The processes that have opened the device, in order."""
    log = device.with_name("device.log")
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_a_device_that_crashes_hangs_or_fails_costs_one_test_each(project, device):
    specs(project, "aborts", "hangs", "fails", "exhausts", "add")
    result = run(project, "--pallas-suite=specs", "--pallas-timeout=4", checks="forward,jit")
    known = records(project)
    errors = {kernel: known[kernel, "forward"]["error_type"] for kernel, _ in known}
    assert errors == {
        "aborts": "CrashError",
        "hangs": "HangError",
        "fails": "DeviceLostError",
        "exhausts": "CapacityError",
        "add": "",
    }
    result.assert_outcomes(failed=4, passed=2)  # a kernel that raised is asked nothing more
    died = known["aborts", "forward"]["message"]
    assert "its process died of SIGABRT" in died
    assert "running   _add_body at " in died
    assert "drawn     m=8 n=128" in died
    failed = known["fails", "forward"]
    assert "CUDA_ERROR_LAUNCH_FAILED" in failed["message"]
    assert "under _add_body at " in failed["message"]
    assert failed["examples"] == 1  # it is not shrunk
    assert "Out of memory while trying to allocate" in known["exhausts", "forward"]["message"]
    # The first, and one after each of three deaths: too little memory is none.
    assert len(opened(device)) == len({*opened(device)}) == 4
    assert os.getpid() not in opened(device)
    assert "pallas: runs on gpu (1 x NVIDIA H100 80GB HBM3)" in result.outlines


ROWS = 'inputs=pst.arrays("m n, m n", dims={"m": [8, 16, 24, 32, 64], "n": [128, 256]})'


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_crash_is_shrunk_if_asked(project, device, shrinks):
    project.specs(
        f'name="rows", kernel=__import__("named").aborts_from_16, backends=("gpu",), {ROWS}'
    )
    options = ["--pallas-shrink-time=60"] if shrinks else []
    run(project, "--pallas-suite=specs", "--pallas-max-examples=8", *options)
    record = records(project)["rows", "forward"]
    assert record["error_type"] == "CrashError"
    assert ("m=16 n=128" in record["message"]) == shrinks
    assert len(opened(device)) > 2 if shrinks else len(opened(device)) == 1
    if shrinks:
        assert "--pallas-replay=A" in record["replay"]


OWN = """
    import os

    import jax
    import numpy as np
    import pytest
    from named import *

    X = np.ones((8, 128), np.float32)
    IN_WORKER = "PYTEST_PALLAS_WORKER" in os.environ

    @pytest.fixture(scope="module")
    def made():
        print("made in", os.getpid())
        yield
        print("ended in", os.getpid())

    def test_without_the_plugin(made):
        assert IN_WORKER

    @pytest.mark.skipif(not IN_WORKER, reason="as where only the worker has the device")
    def test_a_condition_of_the_worker(made):
        pass

    def test_check(made, pallas_check):
        pallas_check(add, X, X, reference=reference)

    def test_fails(made, pallas_run):
        with pytest.raises(Exception):
            pallas_run(fails, X, X)

    @pytest.mark.xfail(strict=True)
    def test_expected(made, pallas_run):
        pallas_run(aborts, X, X)

    def test_after(made, pallas_devices, pallas_check):
        pallas_check(add, X, X, reference=reference)
"""


def test_whole_tests_run_in_the_worker(project, device, monkeypatch):
    """Also those without fixtures of the plugin; fixtures of a module live as long as it does."""
    monkeypatch.setattr(fake_hardware, "open_device", None)  # nothing of it is called here
    project.write(test_own=OWN.replace("pallas_devices, ", ""))
    result = run(project, "-rP")
    result.assert_outcomes(passed=5, xfailed=1)
    lines = [line.partition(" in ")[0] for line in result.outlines if " in " in line]
    assert [line for line in lines if line in ("made", "ended")] == ["made", "made", "ended"]
    # a failure that a test of one's own handles spoils the process all the same
    assert len(opened(device)) == 3


def test_a_device_that_disappears_fails_each_test_that_needs_it(project, device):
    project.write(
        test_own="""
        import os
        import numpy as np
        from named import *

        X = np.ones((8, 128), np.float32)

        def test_first(pallas_check):
            pallas_check(add, X, X, reference=reference)
            os.remove(os.environ["FAKE_DEVICE"])
            pallas_check(aborts, X, X, reference=reference)

        def test_second(pallas_check):
            pallas_check(add, X, X, reference=reference)

        def test_third(pallas_check):
            pallas_check(add, X, X, reference=reference)
        """
    )
    result = run(project)
    result.assert_outcomes(failed=3)
    text = "*a device of this run is not available any more: gpu: *finds no GPU*"
    result.stdout.fnmatch_lines([text, text])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_device_that_another_session_has_is_a_usage_error(project, device):
    specs(project, "add")
    with device.open("rb") as file:
        fake_hardware.fcntl.flock(file, fake_hardware.fcntl.LOCK_EX)
        result = run(project, "--pallas-suite=specs")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = "*backend 'gpu' is not available: JAX cannot open the GPU: *in use by another process*"
    result.stderr.fnmatch_lines([text])


def test_a_session_that_stops_ends_its_fixtures(project, device):
    project.write(
        test_own="""
        import pytest

        @pytest.fixture(scope="module")
        def made():
            yield
            open("ended", "w").close()

        def test_wrong(made):
            raise AssertionError

        def test_never(made):
            pass
        """
    )
    run(project, "-x").assert_outcomes(failed=1)
    assert (project.path / "ended").exists()


def test_never_runs_here(project, device):
    specs(project, "add")
    result = project.spawn(
        *("--pallas-backend=gpu", "--pallas-suite=specs", "--pallas-isolate=never"),
        *("--pallas-checks=forward", "--pallas-max-examples=1"),
    )
    result.assert_outcomes(passed=1)
    assert len(opened(device)) == 1


def test_workers_of_xdist_have_a_device_each(project, device, monkeypatch):
    folder = project.path / "devices"
    folder.mkdir()
    for name in ("gw0", "gw1"):
        (folder / name).touch()
    monkeypatch.setenv("FAKE_DEVICE", str(folder))
    specs(project, "fails", "add")
    result = run(project, "--pallas-suite=specs", "-n2", "-p", "xdist")
    result.assert_outcomes(failed=1, passed=1)
    results = json.loads((project.path / "results.json").read_text())
    assert results["options"]["backends"] == ["gpu"]
    assert {path.name for path in folder.glob("*.log")} == {"gw0.log", "gw1.log"}


def test_a_worker_of_xdist_without_a_device_is_a_usage_error_once(project, device):
    device.unlink()
    specs(project, "add")
    result = run(project, "--pallas-suite=specs", "-n1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.outlines if line.startswith("ERROR: --pallas-backend: ")]
    assert len(lines) == 1
    assert "finds no GPU" in lines[0]


def test_a_driver_that_crashes_is_a_usage_error(project, device):
    device.write_text("crashes")
    specs(project, "add")
    result = run(project, "--pallas-suite=specs")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*opening the devices: its process died of SIGABRT*"])


def test_an_accelerator_that_was_opened_early_stays_in_this_process(project, device, monkeypatch):
    monkeypatch.setattr(policy, "has_opened_an_accelerator", lambda: True)
    specs(project, "add")
    result = run(project, "--pallas-suite=specs")
    result.assert_outcomes(passed=1)
    assert len(opened(device)) == 1
    result.stdout.fnmatch_lines(["pallas: tests on hardware run in this process, *"])


def test_a_backend_of_a_project_may_be_plain(project):
    """It tells no observer, raises what its device says, and opens that when it is made."""
    project.write(
        conftest="""
        import fcntl
        import time
        from dataclasses import dataclass

        import jax

        from pytest_pallas import Family
        from pytest_pallas.backends.interpreters import interpret

        OPENED = []

        @dataclass(frozen=True)
        class Chip:
            name: str = "chip"
            kind: str = "hardware"
            platform: str = "gpu"
            target: object = None

            def available(self):
                return None

            def run(self, call):
                function = getattr(call.function, "func", call.function)
                if function.__name__ == "hangs":
                    time.sleep(1000)
                if function.__name__ == "fails":
                    raise jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: x")
                return interpret().run(call)

        def make(target):
            if not OPENED:
                OPENED.append(open("chip", "w"))
                fcntl.flock(OPENED[0], fcntl.LOCK_EX | fcntl.LOCK_NB)  # again is an error
            return Chip()

        def pytest_pallas_backends(config):
            return [Family(name="chip", make=make, kind="hardware")]
        """,
        named=KERNELS,
    )
    project.specs(
        *(
            f'name="{name}", kernel=__import__("named").{name}, backends=("chip",)'
            for name in ("hangs", "fails", "add")
        )
    )
    result = run(project, "--pallas-suite=specs", "--pallas-timeout=4", backend="chip")
    result.assert_outcomes(failed=2, passed=1)
    errors = {kernel: record["error_type"] for (kernel, _), record in records(project).items()}
    assert errors == {"hangs": "HangError", "fails": "DeviceLostError", "add": ""}
    assert "the kernel did not end" in records(project)["hangs", "forward"]["message"]


def test_a_usage_error_is_told_once(project, device):
    specs(project, "add")
    result = run(project, "--pallas-suite=specs", "--pallas-golden=replay")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line]
    assert len(lines) == 1
    assert lines[0].startswith("ERROR: --pallas-golden=replay: there is no folder ")
