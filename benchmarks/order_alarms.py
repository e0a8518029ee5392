"""How often the simulator's monitor of order reports right kernels: those that communicate.

    uv run python benchmarks/order_alarms.py [--runs 10000] [--seconds 600] [--seed 1] [KERNEL...]

The kernels are those of ``reference_kernels`` that start DMAs, use semaphores, several cores or
several devices, and the right ones of ``tests/broken`` that have a schedule. Each drawn call runs
on ``tpu-sim`` in five orders of events, the plain one and four that are drawn. It counts as an
alarm if a run raises (a race, a missing barrier, a copy that nothing waits for, a deadlock, ...),
or if its answer has other bits than in the plain order. Target: none in 10,000 runs. The last line
says how many there were; with an alarm the exit status is 1.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

ROOT = Path(__file__).parents[1]

#: The packages whose kernels communicate, and the modules of ``tests/broken`` that have right ones.
PACKAGES = tuple(
    f"reference_kernels.{name}"
    for name in (
        *("dma", "collectives", "collective_matmul", "parallel", "sparsecore", "mpmd", "refs"),
    )
)
BROKEN = (
    *("twins.collectives", "twins.pipelines", "twins.orders", "twins.messages", "twins.subcores"),
    "wrong_kernels.deadlock",
)

#: Orders of events of a call, the plain one included.
ORDERS = 5

#: Calls that a round draws for each kernel and mesh.
PER_ROUND = 4


@dataclass
class Row:
    """What became of one kernel: its drawn calls, their runs, what was reported, seconds."""

    calls: int = 0
    runs: int = 0
    alarms: int = 0
    seconds: float = 0.0


def kernels() -> Iterator[Any]:
    """The specs."""
    import pkgutil
    from importlib import import_module

    from pytest_pallas.run.collection import specs_in

    sys.path[:0] = [str(ROOT / part) for part in ("", "tests/broken", "tests/support")]
    import table

    for package in PACKAGES:
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            yield from (spec for spec in specs_in(module.name) if chip_of(spec) is not None)
    for name in BROKEN:
        for spec in specs_in(name):
            if table.is_right(spec.name) and chip_of(spec) is not None:
                yield spec


def chip_of(spec: Any) -> str | None:
    """Return the chip that a kernel runs for: "" for the default one, None if there is none."""
    from pallas_sim.chips import TPUS

    names = ["tpu-sim", *(f"tpu-sim:{chip}" for chip in TPUS)]
    claimed = next((name for name in names if spec.claims(name)), None)
    return None if claimed is None else claimed.partition(":")[2]


def drawn(inputs: Any, seed: int, count: int) -> list[Any]:
    """Calls of a spec, the same for the same seed."""
    import hypothesis

    from pytest_pallas.draw.arguments import as_arguments

    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(inputs)
    def collect(value: Any) -> None:
        found.append(as_arguments(value))

    collect()
    return found


def alarms(
    function: Any, arguments: Any, chip: str, devices: int, seeds: Sequence[int]
) -> Iterator[str]:
    """What is said of one call in several orders of events; "" where there is nothing to say."""
    import jax

    from pallas_sim.chips import TARGETS
    from pytest_pallas.backends.protocol import Call, RunSettings, Schedule
    from pytest_pallas.backends.simulators import tpu_sim

    backend, plain = tpu_sim(TARGETS.get(chip)), None
    for seed in seeds:
        outcome = backend.run(
            Call(
                function=function,
                args=arguments.args,
                options={**arguments.options, **arguments.tuning},
                schedule=Schedule(seed=seed),
                settings=RunSettings(devices=devices),
            )
        )
        if outcome.error is not None:
            yield f"seed {seed}: {type(outcome.error).__name__}: {outcome.error}"
            continue
        bits = [leaf.tobytes() for leaf in jax.tree.leaves(outcome.values)]
        plain = bits if plain is None else plain
        yield "" if bits == plain else f"seed {seed}: another answer than in the plain order"


def main(words: Sequence[str] | None = None) -> int:
    """Run until there are enough runs or the time is over, and print a table and the alarms."""
    parser = argparse.ArgumentParser(description="Count reports about right kernels.")
    parser.add_argument("kernels", nargs="*", help="names of specs (default: all)")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round")
    asked = parser.parse_args(words)
    from pytest_pallas.backends.devices import make_mesh
    from pytest_pallas.draw.meshes import sizes_of

    rows: dict[str, Row] = {}
    told: list[str] = []
    specs = [spec for spec in kernels() if not asked.kernels or spec.name in asked.kernels]
    started, number = time.monotonic(), asked.seed

    def done() -> bool:
        runs = sum(row.runs for row in rows.values())
        return runs >= asked.runs or time.monotonic() - started >= asked.seconds

    while specs and not done():
        for spec in specs:
            meshes = [sizes for axes in spec.mesh_axes for sizes in sizes_of(axes)]
            for axes in meshes or (None,):
                if done():
                    break
                row, begun = rows.setdefault(spec.name, Row()), time.monotonic()
                function, inputs, devices = spec.kernel_for("tpu"), spec.inputs, 1
                if axes is not None:
                    mesh = make_mesh(axes, "cpu")
                    function, inputs = functools.partial(function, mesh=mesh), inputs(mesh)
                    devices = mesh.size
                for arguments in drawn(inputs, number, PER_ROUND):
                    orders = random.Random(f"{spec.name} {number}")
                    seeds = [0, *(orders.randrange(1, 1 << 30) for _ in range(1, ORDERS))]
                    row.calls += 1
                    for words_ in alarms(function, arguments, chip_of(spec) or "", devices, seeds):
                        row.runs += 1
                        if words_:
                            row.alarms += 1
                            told.append(f"{spec.name}, round {number}, {arguments}: {words_}")
                row.seconds += time.monotonic() - begun
        number += 1
    print(f"{'kernel':<36} {'calls':>6} {'runs':>6} {'alarms':>6} {'seconds':>8}")
    for name, row in rows.items():
        print(f"{name:<36} {row.calls:>6} {row.runs:>6} {row.alarms:>6} {row.seconds:>8.1f}")
    first = {line.partition(",")[0]: line for line in reversed(told)}
    print("", *first.values(), sep="\n")
    calls, runs = (sum(getattr(row, each) for row in rows.values()) for each in ("calls", "runs"))
    print(f"{calls} calls in {runs} runs, {len(told)} alarms")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
