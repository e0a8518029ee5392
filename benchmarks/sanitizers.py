"""What sanitizers cost: their time over that of one plain run, for each reference kernel.

    uv run python benchmarks/sanitizers.py [KERNEL...]

Both are measured in one process on ``tpu-sim``, on one drawn call a kernel: processor time, medians
of five rounds in turn, each on a simulator that has kept no run. The plain run is one of `forward`,
which proves order like any other. A sanitizer runs the kernel several times; "-" where it has
nothing to ask. ``all`` is all others one after the other, as in a session, where they share runs.
``new`` is the same for a shape that JAX has not traced yet, over a plain run of such a shape.
"""

from __future__ import annotations

import contextlib
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
    from pytest_pallas.checks import SANITIZERS as NAMES
    from pytest_pallas.run.collection import specs_in

    every = (*(name for name in NAMES if name != "device"), "all", "new")
    print(f"{'kernel':20}", *(f"{name:>9}" for name in every))
    for module in pkgutil.walk_packages(reference_kernels.__path__, "reference_kernels."):
        for spec in [] if module.ispkg else specs_in(module.name):
            if spec.claims("tpu-sim") and (not names or spec.name in names):
                costs = measured(spec)
                cells = [f"{costs[name]:8.1f}x" if name in costs else f"{'-':>9}" for name in every]
                print(f"{spec.name:20}", *cells, flush=True)


def measured(spec: Any) -> dict[str, float]:
    """The cost of each sanitizer that a kernel concerns, in plain runs."""
    import jax

    from pytest_pallas import NotApplicableError
    from pytest_pallas.backends.devices import make_mesh
    from pytest_pallas.backends.protocol import RunSettings
    from pytest_pallas.backends.simulators import tpu_sim
    from pytest_pallas.checks import declared_sanitizers
    from pytest_pallas.checks.context import CheckContext, call
    from pytest_pallas.checks.schedule import Runs
    from pytest_pallas.draw.meshes import sizes_of

    kernel, reference, inputs = spec.kernel_for("tpu"), spec.reference, spec.inputs
    devices = 1
    if spec.meshes:
        mesh = make_mesh(sizes_of(spec.mesh_axes[-1])[0], "cpu")
        kernel, reference = (functools.partial(each, mesh=mesh) for each in (kernel, reference))
        inputs, devices = inputs(mesh), mesh.size
    context = CheckContext(
        kernel=kernel,
        reference=reference,
        arguments=drawn(inputs),
        backend=tpu_sim(),
        exact=spec.exact,
        ignored=spec.ignored,
        nan_ok=spec.nan_ok,
        settings=RunSettings(devices=devices),
    )

    def plain() -> None:
        tpu_sim().run(call(context, kernel, context.arguments.args)).unwrap()

    def run(*sanitizers: Any) -> None:
        shared = replace(context, backend=tpu_sim(), runs=Runs())
        for sanitizer in sanitizers:
            sanitizer.run(shared)

    def anew(way: Callable[[], Any]) -> float:
        jax.clear_caches()
        return once(way)

    asked: list[Any] = []
    for sanitizer in declared_sanitizers():
        if sanitizer.requires_backend(context.backend) is None:
            with contextlib.suppress(NotApplicableError):
                run(sanitizer)
                asked.append(sanitizer)
    ways: dict[str, Callable[[], Any]] = {each.name: functools.partial(run, each) for each in asked}
    if asked:
        ways["all"] = functools.partial(run, *asked)
    times: dict[str, list[float]] = {name: [] for name in ("plain", *ways)}
    for _ in range(ROUNDS):
        times["plain"].append(once(plain))
        for name, way in ways.items():
            times[name].append(once(way))
    medians = {name: statistics.median(each) for name, each in times.items()}
    costs = {name: medians[name] / medians["plain"] for name in ways}
    if asked:
        first = [(anew(plain), anew(ways["all"])) for _ in range(ROUNDS)]
        alone, everything = (statistics.median(each) for each in zip(*first, strict=True))
        costs["new"] = everything / alone
    return costs


def once(way: Callable[[], Any]) -> float:
    """Seconds of the processor that a call takes."""
    started = time.process_time()
    way()
    return time.process_time() - started


def drawn(inputs: Any) -> Any:
    """The largest of a few calls, the same every time."""
    import hypothesis

    from pytest_pallas.draw.arguments import as_arguments

    found: list[Any] = []

    @hypothesis.given(inputs)
    @hypothesis.settings(max_examples=8, database=None, derandomize=True, deadline=None)
    def collect(value: Any) -> None:
        found.append(as_arguments(value))

    collect()
    return max(found, key=lambda each: sum(getattr(a, "nbytes", 0) for a in each.args))


if __name__ == "__main__":
    main(sys.argv[1:])
