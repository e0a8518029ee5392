"""A GPU that is not there: JAX's interpreter behind ``Hardware``, with a device that can fail.

``from pallas_test_support.fake_hardware import pytest_pallas_backends`` in a conftest.py takes the
place of the backend ``gpu``. The device is a file, which ``FAKE_DEVICE`` names: one process at a
time can open it, and without it there is none; the driver crashes unless it is empty. Of a folder,
each worker of xdist has the file that is named like it. The name of the function under test decides
what happens: ``aborts``, ``aborts_from_16`` (with 16 rows or more), ``hangs``, ``fails``, with
which every later launch of the process fails, or ``exhausts``. Each process that opens the device
adds its id to ``FAKE_DEVICE.log``.
"""

import fcntl
import functools
import os
import time
from contextlib import contextmanager
from pathlib import Path

import jax

from pytest_pallas import Family
from pytest_pallas.backends.hardware import Hardware
from pytest_pallas.backends.interpreters import interpret
from pytest_pallas.backends.tracing import jitted

#: What is kept for the life of a process: the open device, and whether it failed.
_opened: list[object] = []
_failed: list[bool] = []


def open_device():
    """Open the device, for good; raises what JAX raises where there is none, or it is taken."""
    path = Path(os.environ["FAKE_DEVICE"])
    if path.is_dir():
        path /= os.environ["PYTEST_XDIST_WORKER"]
    if not _opened:
        if not path.exists():
            raise RuntimeError("Unknown backend gpu. Available backends are ['cpu']")
        if path.read_text():  # of a driver that crashes
            os.abort()
        file = path.open("rb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(
                "Backend 'gpu' failed to initialize: the device is in use by another process"
            ) from None
        _opened.append(file)
        with Path(f"{path}.log").open("a") as log:
            log.write(f"{os.getpid()}\n")


def name_of(static):
    function = static.function
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = getattr(function, "func", None) or function.__wrapped__
    return getattr(function, "__name__", "")


class FakeHardware(Hardware):
    """The backend."""

    def device_kinds(self):
        open_device()
        return ["NVIDIA H100 80GB HBM3"]

    @contextmanager
    def context(self):
        open_device()
        with interpret().context():
            yield

    def _prepare(self, static, arrays, *, spread=False):
        name = name_of(static)
        run = jitted(static, quick=True)

        def launch(arrays):
            if _failed or name == "fails":
                _failed.append(True)
                raise jax.errors.JaxRuntimeError(
                    "INTERNAL: CUDA error: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"
                )
            if name == "aborts" or (name == "aborts_from_16" and arrays[0].shape[0] >= 16):
                os.abort()
            if name == "hangs":
                time.sleep(1000)
            if name == "exhausts":
                raise jax.errors.JaxRuntimeError(
                    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1099511627776 bytes"
                )
            return run(arrays)

        return launch


def pytest_pallas_backends(config):
    del config

    def make(target):
        return FakeHardware("gpu", "gpu", target)

    return [Family(name="gpu", make=make, kind="hardware", targets=("h100", "h200"))]
