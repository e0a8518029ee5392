"""What sanitizers cost: their time over that of one plain run, for each reference kernel.

    uv run python benchmarks/sanitizers.py [KERNEL...]

Both are measured in one process on ``tpu-interpret``, on one drawn call a kernel, after a first
round that compiles; medians of five rounds in turn. ``watching`` is one run with race detection and
accounts of DMAs, as every check does it for kernels that start DMAs, over one without. The others
are the whole sanitizer, which runs the kernel several times; "-" where it has nothing to ask.
``all`` is all of them one after the other, as in a session, where they share runs. The first round
of a sanitizer compiles, too: ``first`` is what all of them take there, over the first plain run.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

ROUNDS = 5


def main(names: list[str]) -> None:
    """Print a line a kernel."""
    import pkgutil

    import reference_kernels
    from pytest_pallas.sanitizers import NAMES
    from pytest_pallas.suites.discovery import specs_in

    every = ("watching", *NAMES, "all", "first")
    print(f"{'kernel':20}", *(f"{name:>9}" for name in every))
    for module in pkgutil.walk_packages(reference_kernels.__path__, "reference_kernels."):
        for spec in [] if module.ispkg else specs_in(module.name):
            if spec.claims("tpu-interpret") and (not names or spec.name in names):
                costs = measured(spec)
                cells = [f"{costs[name]:8.1f}x" if name in costs else f"{'-':>9}" for name in every]
                print(f"{spec.name:20}", *cells, flush=True)


def measured(spec: Any) -> dict[str, float]:
    """The cost of each sanitizer that a kernel concerns, in plain runs."""
    from pytest_pallas.backends.interpreters import tpu_interpret
    from pytest_pallas.checks.trial import Trial, call
    from pytest_pallas.devices.mesh import make_mesh
    from pytest_pallas.errors import NotApplicableError
    from pytest_pallas.sanitizers import declared_sanitizers
    from pytest_pallas.sanitizers.runs import Runs

    kernel, reference, inputs = spec.kernel_for("tpu"), spec.reference, spec.inputs
    devices = 1
    if spec.meshes:
        mesh = make_mesh(spec.meshes[-1], "cpu")
        kernel, reference = (functools.partial(each, mesh=mesh) for each in (kernel, reference))
        inputs, devices = inputs(mesh), mesh.size
    backend = tpu_interpret()
    trial = Trial(
        kernel=kernel,
        reference=reference,
        arguments=drawn(inputs),
        backend=backend,
        devices=devices,
        exact=spec.exact,
        ignored=spec.ignored,
        nan_ok=spec.nan_ok,
    )
    plain_call = replace(call(trial, kernel, trial.arguments.args), races=False, dma=False)

    def plain() -> None:
        backend.run(plain_call).unwrap()

    def watched() -> None:
        backend.run(replace(plain_call, races=True, dma=True)).unwrap()

    asked = [each for each in declared_sanitizers() if each.requires_backend(backend) is None]

    def run(*sanitizers: Any) -> None:
        """Raises ``NotApplicableError`` if none of them has anything to ask."""
        shared, reasons = replace(trial, runs=Runs()), list[NotApplicableError]()
        for sanitizer in sanitizers:
            try:
                sanitizer.run(shared)
            except NotApplicableError as reason:
                reasons.append(reason)
        if len(reasons) == len(sanitizers):
            raise reasons[0]

    ways: dict[str, Callable[[], Any]] = {"watching": watched}
    first, compiled = once(plain), 0.0
    try:
        compiled = once(functools.partial(run, *asked))
        ways["all"] = functools.partial(run, *asked)
    except NotApplicableError:
        pass
    for sanitizer in asked:
        way = functools.partial(run, sanitizer)
        try:
            way()
        except NotApplicableError:
            continue
        ways[sanitizer.name] = way
    times: dict[str, list[float]] = {name: [] for name in ("plain", *ways)}
    for _ in range(ROUNDS):
        times["plain"].append(once(plain))
        for name, way in ways.items():
            times[name].append(once(way))
    medians = {name: statistics.median(each) for name, each in times.items()}
    costs = {name: medians[name] / medians["plain"] for name in ways}
    return {**costs, "first": compiled / first} if compiled else costs


def once(way: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def drawn(inputs: Any) -> Any:
    """The largest of a few calls, the same every time."""
    import hypothesis

    from pytest_pallas.strategies.arguments import as_arguments

    found: list[Any] = []

    @hypothesis.given(inputs)
    @hypothesis.settings(max_examples=8, database=None, derandomize=True, deadline=None)
    def collect(value: Any) -> None:
        found.append(as_arguments(value))

    collect()
    return max(found, key=lambda each: sum(getattr(a, "nbytes", 0) for a in each.args))


if __name__ == "__main__":
    main(sys.argv[1:])
