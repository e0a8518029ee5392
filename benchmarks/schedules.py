"""Orders of kernels that communicate: how many there are, how many are run, and how fast.

    uv run python benchmarks/schedules.py [--devices 2 4 8] [--schedules 200] [--seconds 20]
    uv run python benchmarks/schedules.py --programs 20000 [--seed 0]

The kernels are right ones of ``tests/broken/twins``: a ring, a full mesh, a pipeline with credits,
and an expert's mailboxes; mailboxes that are polled, so that the order of messages decides what
runs; and devices that look until they have heard one neighbor, or all others. Each line says what
``pallas_sim.explore`` says of a kernel:

- ``classes``: orders that differ in steps that do not commute. If the verdict is ``open``, more are
  left than ``--schedules`` runs had.
- ``orders``: all orders of the steps, without reduction: run one by one, or estimated from runs
  in which each choice is drawn (Knuth 1975: the mean of the product of the numbers of choices; such
  a mean is mostly too low, so take its exponent as a lower bound).
- ``runs/s`` and ``cost``: runs in drawn orders in a second of a core, and how many times longer
  such a run takes than a plain one of the same traced call. Both prove the order.

The second form compares what explored orders give with brute force, on random small programs of 2
to 3 threads: for TPUs with all orders of the steps, for GPUs with models of barriers, engines and
atomics, and of the programs of a Triton grid, that share no code with the simulator. Programs that
differ are printed; the exit status is 1 then.

Measured on 27 November 2026: docs/simulator.md, "Every order".
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("", "tests/broken", "tests/support")]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402
from pallas_test_support.gpu_orders import disagreement as disagreement_on_gpu  # noqa: E402
from pallas_test_support.grid_orders import disagreement as disagreement_of_grid  # noqa: E402
from pallas_test_support.polling_kernels import polls  # noqa: E402
from pallas_test_support.small_programs import (  # noqa: E402
    ExhaustiveOrder,
    few_polls,
    outcomes,
    random_program,
)
from twins import collectives, messages  # noqa: E402
from twins.devices import DMA, boxes_of, meet, shard_of, sharded  # noqa: E402

from pallas_sim import explore  # noqa: E402
from pallas_sim.exploration.explorer import Explorer  # noqa: E402
from pallas_sim.exploration.reduction import Search  # noqa: E402
from pallas_sim.machine import Machine  # noqa: E402
from pallas_sim.simulation import SimulatedCall  # noqa: E402
from pytest_pallas.backends.devices import make_mesh  # noqa: E402

TARGET = "v6e"

#: Programs that are compared before the next line is printed.
PER_ROUND = 2_000

#: Drawn runs from which the number of all orders is estimated, and that are timed.
DRAWN = 20


def polled(x: jax.Array, *, mesh: Any) -> jax.Array:
    """On device 0 the sum of all shards of x, each taken when it is seen to have arrived."""

    def body(x_ref: Any, o_ref: Any, boxes: Any, total: Any, sent: Any, received: Any) -> None:
        devices, me = jax.lax.axis_size("x"), jax.lax.axis_index("x")
        meet(*(jax.lax.rem(me + ahead, devices) for ahead in range(1, devices)))
        pltpu.sync_copy(x_ref, total)

        def take(i: Any) -> None:
            pltpu.make_async_copy(boxes.at[i], boxes.at[i], received.at[i]).wait()
            total[...] += boxes[i]

        def look(state: Any) -> Any:
            i, taken = state
            there = (pl.semaphore_read(received.at[i]) > 0) & ((taken >> i) & 1 == 0)
            pl.when(there)(lambda: take(i))
            return i % (devices - 1) + 1, taken | (there.astype(jnp.int32) << i)

        @pl.when(me == 0)
        def _() -> None:
            everyone = 2**devices - 2
            jax.lax.while_loop(lambda state: state[1] != everyone, look, (1, 0))

        @pl.when(me > 0)
        def _() -> None:
            copy = pltpu.make_async_remote_copy(
                x_ref, boxes.at[me], sent, received.at[me], device_id={"x": 0}
            )
            copy.start()
            copy.wait_send()

        pltpu.sync_copy(total, o_ref)

    devices = mesh.shape["x"]
    return sharded(body, mesh, x, boxes_of(x, devices), shard_of(x), DMA, DMA((devices,)))


def polled_ring(x: jax.Array, *, mesh: Any) -> jax.Array:
    """On each device what it has seen of its neighbor; x is not used."""
    del x
    return polls(mesh.size, [1])()


def polled_mesh(x: jax.Array, *, mesh: Any) -> jax.Array:
    """On each device what it has seen of all others; x is not used."""
    del x
    return polls(mesh.size, range(1, mesh.size))()


PATTERNS: dict[str, Callable[..., jax.Array]] = {
    "ring": collectives.gather_all,
    "full mesh": messages.mixed,
    "credits": messages.streamed,
    "mailboxes": messages.served,
    "polled mailboxes": polled,
    "polled ring": polled_ring,
    "polled full mesh": polled_mesh,
}


@dataclass(eq=False)
class DrawnOrder(Explorer):
    """Draws each choice.

    Attributes:
      source: draws them.
      exponent: the logarithm of the product of the numbers of choices.
    """

    source: random.Random = field(default_factory=random.Random)
    exponent: float = 0.0

    def _choose(self, enabled: tuple[Any, ...]) -> Any:
        self.exponent += math.log10(len(enabled))
        return self.source.choice(enabled)


def run(call: SimulatedCall, choices: Callable[[Machine], Explorer]) -> Explorer:
    """Run a call once."""
    machine = Machine(target=TARGET)
    machine.choices = explorer = choices(machine)
    call.run(machine, jit=True)
    explorer.end()
    return explorer


def counted(call: SimulatedCall, most: int, seconds: float) -> int | None:
    """Return the number of all orders, by running each; None if there are more than ``most``."""
    orders, started = Search(), time.process_time()
    while orders.left:
        if orders.count == most or time.process_time() - started > seconds:
            return None
        explorer = run(call, lambda machine: ExhaustiveOrder(machine=machine, nodes=orders.nodes))
        orders.learn(explorer)
    return orders.count


def mean_exponent(exponents: Sequence[float]) -> float:
    """Return the logarithm of the mean of powers of ten."""
    most = max(exponents)
    return most + math.log10(sum(10 ** (one - most) for one in exponents) / len(exponents))


def seconds_of(action: Callable[[int], object], times: int) -> float:
    """Return the median of the processor times of calls, which get their number."""
    seconds: list[float] = []
    for number in range(times):
        started = time.process_time()
        action(number)
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def rows(devices: Sequence[int], schedules: int, seconds: float) -> Iterator[str]:
    """Explore each pattern on so many devices; yield the lines of a table."""
    head = ("pattern", "devices", "verdict", "runs", "classes", "orders", "steps", "runs/s", "cost")
    yield "{:<17} {:>7} {:>8} {:>6} {:>8} {:>10} {:>6} {:>7} {:>5}".format(*head)
    for name, kernel in PATTERNS.items():
        for count in devices:
            mesh = make_mesh({"x": count}, "cpu")
            x = np.arange(count * 8 * 128, dtype=np.float32).reshape(count, 8, 128)
            function = functools.partial(kernel, mesh=mesh)
            result = explore(function, x, target=TARGET, schedules=schedules)
            call = SimulatedCall.of(function, (x,), {})
            call.chip(TARGET)
            drawn: list[DrawnOrder] = []

            def draw(number: int, call: SimulatedCall = call, drawn: Any = drawn) -> None:
                source = random.Random(number)
                drawn.append(run(call, lambda machine: DrawnOrder(machine=machine, source=source)))

            draw(0)  # traces, and compiles what it needs
            drawn.clear()
            explored = seconds_of(draw, DRAWN)
            simulated = seconds_of(
                lambda _: call.run(Machine(target=TARGET), jit=True),  # noqa: B023
                DRAWN,
            )
            exponent = mean_exponent([order.exponent for order in drawn])
            orders = counted(call, 10_000, seconds) if exponent < 4 else None
            known = f"{orders:,}" if orders is not None else f"~10^{exponent:.0f}"
            steps = sum(len(order.steps) for order in drawn) // DRAWN
            yield (
                f"{name:<17} {count:>7} {result.verdict:>8} {result.runs:>6,} {result.classes:>8,} "
                f"{known:>10} {steps:>6,} {1 / explored:>7.0f} {explored / simulated:>5.1f}"
            )


def disagreement_on_tpu(seed: int) -> str:
    """Say how an exploration of a program for a TPU and brute force differ; "" if they agree."""
    program = random_program(seed)
    with few_polls():
        every, reduced = outcomes(program, ExhaustiveOrder)[0], outcomes(program)[0]
    return "" if reduced == every else f"{program}: {sorted(reduced ^ every)}"


def compared(name: str, programs: range, differs: Callable[[int], str]) -> int:
    """Compare small programs with brute force; print progress, and those that differ."""
    wrong, started = 0, time.process_time()
    for number, seed in enumerate(programs, 1):
        if text := differs(seed):
            wrong += 1
            print(f"{name}: program {seed} differs: {text}")
        if number % PER_ROUND == 0 or number == len(programs):
            seconds = time.process_time() - started
            print(
                f"{name}: {number:,} programs, {wrong} differ; {seconds:.0f} s of a core",
                flush=True,
            )
    return wrong


def main(words: Sequence[str] | None = None) -> int:
    """Explore the patterns, or compare programs."""
    parser = argparse.ArgumentParser(description="Measure the exploration of orders.")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--schedules", type=int, default=200, help="most runs of a kernel")
    parser.add_argument("--seconds", type=float, default=20.0, help="of brute force, at most")
    parser.add_argument("--programs", type=int, default=0, help="compare so many programs instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    asked = parser.parse_args(words)
    if asked.programs:
        programs = range(asked.seed, asked.seed + asked.programs)
        wrong = compared("GPU", programs, disagreement_on_gpu)
        wrong += compared("grids of a GPU", programs, disagreement_of_grid)
        wrong += compared("TPU", programs, disagreement_on_tpu)
        return 1 if wrong else 0
    for line in rows(asked.devices, asked.schedules, asked.seconds):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
