"""Requests to a worker: how its session is set up, and how a test is run in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_pallas import checks, sanitizers
from pytest_pallas.backends import label
from pytest_pallas.isolation.crash_reports import error_of, longest
from pytest_pallas.isolation.messages import Opening, WorkerRequest, encoded
from pytest_pallas.mutation_runner.journal import died_of_a_mutant
from pytest_pallas.session import PytestSession
from pytest_pallas.workers import JobResult, WorkerPool, WorkerSetup

#: Seconds after a worker's own alarm until it is killed.
GRACE = 10.0

#: What most tests of kernels import, for ``WorkerSetup.preloads``.
_PRELOADS = (
    *("jax.experimental.pallas", "hypothesis.strategies", "pytest", "pytest_pallas.active"),
    *("pytest_pallas.isolation.worker", "pytest_pallas.isolation.isolator"),
    *("pytest_pallas.fleet.remote.child", "pytest_pallas.gang.process"),
    *("pytest_pallas.checking.calls", "pytest_pallas.checking.specs", "pytest_pallas.collection"),
    *(f"pytest_pallas.checks.{name}" for name in checks.MODULES),
    *(f"pytest_pallas.sanitizers.{name}" for name in sanitizers.MODULES),
    *("pytest_pallas.items.mutants", "pytest_pallas.items.replaying"),
    *("pytest_pallas.bindings.platforms", "pytest_pallas.backends.simulators"),
    *("pallas_sim.simulation", "pytest_pallas.analysis.hazards"),
)

#: Modules that only some kernels import: a fork has them if the process that asks for it has.
_SOMETIMES = tuple(f"jax.experimental.pallas.{name}" for name in ("tpu", "mosaic_gpu", "triton"))

#: Options that a worker must not use: start workers, debug, stop early, write files of the
#: reporting session, start other processes.
OPTIONS: Mapping[str, Any] = {
    "dist": "no",
    "tx": [],
    "numprocesses": None,
    "maxprocesses": None,
    "looponfail": False,
    "distload": False,
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "stepwise": False,
    "cacheclear": False,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "log_file": "/dev/null",
    "pallas_fleet": "",
}

#: Options that leave out tests, or order them by earlier runs.
_CHOOSING: Mapping[str, Any] = {
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "pallas_shard": "",
}


def preloads() -> tuple[str, ...]:
    """The modules that are imported once for all workers that run tests."""
    return (*_PRELOADS, *(name for name in _SOMETIMES if name in sys.modules))


def worker_setup(entry: str, generation: str, gigabytes: float, **environment: str) -> WorkerSetup:
    """The setup of a worker for tests.

    Args:
      entry: its entry.
      generation: of the worker; another one stops the worker before it.
      gigabytes: limit on its memory, in GiB.
      **environment: variables of its environment.
    """
    return WorkerSetup(
        name="test",
        job="the test",
        entry=entry,
        environment=(("PYTEST_PALLAS_WORKER", generation), *environment.items()),
        memory_bytes=int(gigabytes * 2**30),
        talks=True,
        preloads=preloads(),
    )


def opening_of(session: PytestSession, *, chooses: bool = False) -> Opening:
    """The session of a worker that runs the tests of this session.

    Args:
      session: of this process.
      chooses: whether it chooses tests and backends itself, because this process has none.
    """
    config = session.config
    options = {**OPTIONS, **({} if chooses else _CHOOSING)}
    if config.option.basetemp:
        # pytest clears that folder at its first use
        options["basetemp"] = f"{config.option.basetemp}-isolated"
    backends = () if chooses else session.selection.backends
    if any(backend.kind == "hardware" for backend in backends):
        names = [label(b) for b in backends if b.kind != "hardware"]
        options["pallas_backend"] = ",".join(names)
    attributes: dict[str, Any] = {}
    if hasattr(config, "workerinput"):  # of pytest-xdist, for its fixtures
        attributes = {"workerinput": dict(config.workerinput), "workeroutput": {}}  # pyright: ignore[reportAttributeAccessIssue]
    return Opening(
        args=[str(arg) for arg in config.invocation_params.args],
        folder=str(config.invocation_params.dir),
        options=options,
        attributes=attributes,
        chooses=chooses,
    )


def run_in(
    pool: WorkerPool, setup: WorkerSetup, request: WorkerRequest, message: bytes | None = None
) -> JobResult:
    """Run a test in a worker; again if it died of a mutant, which counts as killed.

    Args:
      pool: the pool of the worker.
      setup: the setup of the worker.
      request: the test.
      message: what the worker gets; None for the request.
    """
    payload = encoded(request) if message is None else message
    limit = longest(request.timeout) + GRACE
    while True:
        result = pool.submit(setup, payload, timeout=limit).result()
        if result.status == "done" or request.journal is None:
            return result
        if not died_of_a_mutant(Path(request.journal), error_of(result, "")):
            return result
