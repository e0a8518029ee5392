"""``pytest --pallas-doctor``: what is installed and set here, and which backends run a tiny kernel.

``installation_of`` collects the facts, ``trials`` tries each backend, ``lines`` writes the report,
which is made to be pasted into a bug report.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim import set_platforms
from pytest_pallas._version import __version__
from pytest_pallas.backends.devices import accelerators, only_cpu, simulate
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.protocol import Backend, Call, label
from pytest_pallas.backends.registry import FAMILIES, Family
from pytest_pallas.backends.statuses import NO_DEVICE, plugin_errors
from pytest_pallas.decoding import json_of
from pytest_pallas.options import Options
from pytest_pallas.tested import TESTED, installed_version
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

#: Packages whose version decides what happens, in the order of the report.
PACKAGES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin"),
    *("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt"),
    *("pytest", "hypothesis", "pluggy", "numpy", "ml_dtypes", "greenlet"),
)

#: The package that each extra without a backend needs.
EXTRAS: Mapping[str, str] = {
    "report": "jinja2",
    "golden": "safetensors",
    "benchmark": "pytest-benchmark",
    "fleet": "distributed",
    "redis": "redis",
    "jaxtyping": "jaxtyping",
    "mcp": "mcp",
}

#: Environment variables that change what JAX and the compilers do.
_VARIABLES = re.compile(
    r"^(JAX_\w+|XLA_FLAGS|TPU_\w+|LIBTPU_INIT_ARGS|ALLOW_MULTIPLE_LIBTPU_LOAD|CUDA_VISIBLE_DEVICES"
    r"|CUDA_HOME|NVIDIA_VISIBLE_DEVICES|MOSAIC_GPU_\w+|PYTEST_ADDOPTS|HYPOTHESIS_\w+)$"
)


@dataclass(frozen=True)
class Package:
    """A package.

    Attributes:
      name: of its distribution.
      version: the installed one; "" if it is not installed.
      tested: the versions that were tested, in words; "" if there is no record.
      newer: whether it is newer than those.
    """

    name: str
    version: str
    tested: str = ""
    newer: bool = False


@dataclass(frozen=True)
class Installation:
    """What is installed and set.

    Attributes:
      python: its version and implementation.
      system: the operating system, the processor and the number of CPUs.
      packages: those of ``PACKAGES`` that are installed, and that are not.
      plugins: of pytest: name and version.
      extras: the packages of ``EXTRAS``, by the extra.
      environment: the variables that are set, of those that matter.
    """

    python: Package
    system: str
    packages: tuple[Package, ...]
    plugins: tuple[str, ...]
    extras: Mapping[str, Package]
    environment: Mapping[str, str]


def installation_of(plugins: Sequence[tuple[str, str]], environ: Mapping[str, str]) -> Installation:
    """Return what is installed and set here.

    Args:
      plugins: name and version of the distributions of pytest's plugins.
      environ: the environment.
    """
    cpus = os.cpu_count()
    return Installation(
        python=_package("python", platform.python_version()),
        system=f"{platform.platform()}, {platform.machine()}, {cpus} CPUs",
        packages=tuple(_package(name, installed_version(name)) for name in PACKAGES),
        plugins=tuple(sorted({f"{name} {version}" for name, version in plugins})),
        extras={
            name: Package(package, installed_version(package)) for name, package in EXTRAS.items()
        },
        environment={name: environ[name] for name in sorted(environ) if _VARIABLES.match(name)},
    )


def _package(name: str, version: str) -> Package:
    if (tested := TESTED.get(name)) is None:
        return Package(name, version)
    return Package(name, version, str(tested), bool(version) and tested.newer(version))


# A tiny kernel on each backend: whether it is right, and how long the first call took.


#: What became of a backend.
OK, MISSING, FAILED = "ok", "missing", "FAILED"


@dataclass(frozen=True)
class Trial:
    """A backend and what became of the kernel there.

    Attributes:
      backend: its label.
      status: ``OK``, ``MISSING`` or ``FAILED``.
      text: what was compiled or run, why the backend is missing and what to install, or the error.
      seconds: of the first call.
    """

    backend: str
    status: str
    text: str
    seconds: float = 0.0


def add_one(x: jax.Array) -> jax.Array:
    """``x + 1`` of a float32[8, 128], by a kernel that every backend can run."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def trials(families: Iterable[Family], apart: DeviceProcess | None = None) -> Iterator[Trial]:
    """Try the kernel on each backend, on its default chip.

    Args:
      families: the backends.
      apart: the process that opens devices; None for this one.
    """
    own = {family.name for family in FAMILIES if family.kind == "hardware"}
    for family in families:
        if apart is not None and family.name in own and family.kind == "hardware":
            yield apart.tried(family.name)
        else:
            yield tried(family.make(None))


def tried(backend: Backend) -> Trial:
    """Try the kernel on one backend. Nothing that it raises ends the others."""
    name, begin = label(backend), time.perf_counter()
    try:
        missing = backend.available()
        if missing is not None:
            return Trial(name, MISSING, missing)
        x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
        begin = time.perf_counter()
        outcome = backend.run(Call(function=add_one, args=(x,)))
    except Exception as error:
        return Trial(name, FAILED, _text_of(error), time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    if outcome.error is not None:
        return Trial(name, FAILED, _text_of(outcome.error), seconds)
    if backend.kind == "compiling":
        return Trial(name, OK, "compiled", seconds)
    if not np.array_equal(np.asarray(outcome.values), x + 1):
        return Trial(name, FAILED, "x + 1 of a float32[8, 128] is wrong", seconds)
    return Trial(name, OK, "x + 1 is right", seconds)


def devices() -> tuple[str, ...]:
    """Return the devices that JAX finds, as ``8 x cpu (cpu)``; or why it finds none."""
    try:
        with plugin_errors("gpu"):
            names = [f"{device.platform} ({device.device_kind})" for device in jax.devices()]
    except NO_DEVICE as error:
        return (f"JAX does not start: {brief(str(error), lines=3)}",)
    return tuple(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(str(error), lines=4)}"


# Devices are opened in a process of its own: a driver that hangs or crashes ends that one only.


#: Seconds to open the devices, or for the kernel on one of them.
_SECONDS = 120.0


def serve(payload: bytes) -> bytes:
    """In that process, try a backend and return its ``Trial``; the devices for an empty name."""
    name = payload.decode()
    if not name:
        return json.dumps(devices()).encode()
    [family] = [family for family in FAMILIES if family.name == name]
    return json_of(tried(family.make(None)))


class DeviceProcess:
    """The process that opens the devices."""

    def __init__(self, pool: WorkerPool, platforms: str) -> None:
        """Start nothing yet; ``platforms`` are those that JAX may use there."""
        self._pool = pool
        self._setup = WorkerSetup(
            name="device",
            job="the trial",
            entry="pytest_pallas.doctor:serve",
            environment=(("JAX_PLATFORMS", platforms),),
        )

    def _ask(self, name: str) -> JobResult:
        return self._pool.submit(self._setup, name.encode(), timeout=_SECONDS).result()

    def devices(self) -> tuple[str, ...]:
        """Return ``devices`` of that process, or why there is no answer."""
        result = self._ask("")
        done = result.status == "done"
        return tuple(json.loads(result.value)) if done else (result.message,)

    def tried(self, name: str) -> Trial:
        """Return what becomes of a backend there."""
        result = self._ask(name)
        if result.status != "done":
            return Trial(name, FAILED, brief(result.message, lines=4), result.seconds)
        return Trial(**json.loads(result.value))


# The text of ``--pallas-doctor``, made to be pasted into a bug report.


_WIDTH = 18


def lines(
    installation: Installation, devices: Sequence[str], trials: Iterable[Trial]
) -> Iterator[str]:
    """Yield the report, line by line: a line of a backend comes when it was tried."""
    yield f"pytest-pallas {__version__}"
    yield from ("", "versions", _package_line(installation.python))
    yield _row("system", installation.system)
    yield from map(_package_line, installation.packages)
    yield _row("pytest plugins", ", ".join(installation.plugins) or "none")
    for name, value in installation.environment.items():
        yield _row("environment", f"{name}={value}")
    yield from ("", "devices", *(f"  {device}" for device in devices))
    yield ""
    yield "backends, with one kernel on float32[8, 128], and the seconds of its first call"
    by_status: dict[str, list[str]] = {OK: [], MISSING: [], FAILED: []}
    for trial in trials:
        yield from _trial(trial)
        by_status[trial.status].append(trial.backend)
    yield from ("", "extras")
    for extra, package in installation.extras.items():
        missing = f"missing; pip install 'pytest-pallas[{extra}]'"
        yield _row(extra, f"{package.name} {package.version}" if package.version else missing)
    yield ""
    failed = by_status[FAILED]
    names = f", {len(failed)} failed: {', '.join(failed)}" if failed else ""
    yield f"backends: {len(by_status[OK])} work, {len(by_status[MISSING])} missing{names}"


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def _package_line(package: Package) -> str:
    tested = ""
    if package.newer:
        tested = f" (newer than what was tested: {package.tested})"
    elif package.version and package.tested:
        tested = f" (tested: {package.tested})"
    return _row(package.name, f"{package.version or 'not installed'}{tested}")


def _trial(trial: Trial) -> Iterator[str]:
    seconds = "" if trial.status == MISSING else f"{trial.seconds:6.2f} s"
    first, *rest = trial.text.splitlines() or [""]
    yield f"  {trial.backend:<{_WIDTH}} {trial.status:<8}{seconds:<10}{first}"
    for line in rest:
        yield f"  {'':<{_WIDTH}} {'':<18}{line}"


# What ``pytest --pallas-doctor`` does in place of a test run.


def run(config: pytest.Config) -> int:
    """Print the report. Returns pytest's exit status, 0 whatever is found."""
    environ = dict(os.environ)  # as it was set, without what follows
    set_platforms()
    simulate(Options.devices, os.environ, explicit=False)
    for line in _lines(config, environ):
        print(line, flush=True)  # noqa: T201
    return pytest.ExitCode.OK


def _lines(config: pytest.Config, environ: dict[str, str]) -> Iterator[str]:
    """Yield the report."""
    from pytest_pallas.pytest_session import harness_of
    from pytest_pallas.session import Session

    session = Session(options=Options(), harness=harness_of(config))
    distributions = config.pluginmanager.list_plugin_distinfo()
    plugins = [(plugin.project_name, plugin.version) for _, plugin in distributions]
    installation = installation_of(plugins, environ)
    families = session.families.values()
    try:
        if accelerators(os.environ) is None:
            yield from lines(installation, devices(), trials(families))
            return
        with WorkerPool(1) as pool, only_cpu(os.environ) as platforms:
            apart = DeviceProcess(pool, platforms)
            yield from lines(installation, apart.devices(), trials(families, apart))
    finally:
        sys.stdout.flush()
