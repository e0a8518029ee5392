"""Machine code of the reference kernels beside that of the kernels bundled with JAX.

    uv run python benchmarks/tpu_cost.py [WORD ...]     the rows whose name holds one of the words
    uv run python benchmarks/tpu_cost.py --markdown     as a table for docs/performance.md
    uv run python benchmarks/tpu_cost.py --loops WORD   the loops of both kernels, to write a row

Both are compiled by libtpu for the same chip, shapes, dtypes and block sizes in one run, so the
columns are ratios, ours by theirs: below 1.00 ours is better. Needs libtpu, and no TPU.

- ``step``: bundles of a round of the grid's loop, loops inside of it as often as they run, by unit
  of work. What a chip does most of its time.
- ``code``: bundles of the whole kernel, each once.
- ``spilled``: registers stored by spills in a round, by unit of work, ours and theirs.
- ``spills``: slots of the whole code that store a spilled register, each once, ours and theirs.
- ``VMEM``: bytes allocated at once.
- ``mxu``: of ours, the share of all bundles of a round in which the matrix unit is in use;
  ``window`` the same from the first to the last bundle that uses it.

A bundle is one VLIW instruction word: code, not time. DMAs are not in it.

A second table has the kernels over several devices, the same for all chips:

- ``wire``: bytes that a device sends to others, counted in the traced program.
- ``least``: the fewest with which it can be done, and ``ratio`` the one by the other.
- ``steps``: messages that are sent one after another, because each waits for one that comes in.

Where there is something to compare with, it is ours / theirs.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import pkgutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tpu_comparisons
from rich.console import Console
from rich.table import Table
from tpu_comparisons.rows import Row, Side
from tpu_comparisons.wire import wire_bytes

from pallas_sim.chips import TARGETS
from pytest_pallas.backends.devices import simulate
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.compile.backends import Compiler, Lowering
from pytest_pallas.compile.machine_code import (
    Utilization,
    find_loops,
    read_utilization,
    split_bundles,
)
from pytest_pallas.compile.service import CompileReport, Service

#: Seconds that one kernel may take the compiler.
TIMEOUT = 300.0

#: Simulated devices, for kernels over several.
DEVICES = 8


@dataclass(frozen=True)
class Measured:
    """What the compiler says of one side of a row.

    Attributes:
      report: the compiler's report of the whole program.
      loops: all loops of the kernel, in the order of the code.
      step: the loop of the grid, or the whole kernel without one.
      bundles: bundles of a round of it, loops inside of it as often as they run.
      spilled: spills in them.
      mxu: share of them in which the matrix unit is in use.
      window: the same from the first to the last bundle that uses it.
      wire: bytes that a device sends to others; 0 where the side does not say its steps.
    """

    report: CompileReport
    loops: tuple[range, ...]
    step: range
    bundles: float
    spilled: float
    mxu: float
    window: float
    wire: int = 0


class Laboratory:
    """Compiles the sides of rows; a context, because the compiler is a process of its own."""

    def __init__(self) -> None:
        self._service = Service(workers=1, memory_bytes=2**34, cache=None)
        self._lowering = Lowering("tpu")

    def measure(self, side: Side, chip: str) -> Measured:
        """Compile one side for a chip, and read its machine code."""
        backend = Compiler(
            "tpu-compile", "tpu", lambda: self._service, lambda: self._lowering, TARGETS[chip]
        )
        with tempfile.TemporaryDirectory() as folder:
            call = Call(
                function=side.call,
                args=side.args,
                settings=RunSettings(dump=folder, timeout=TIMEOUT),
            )
            outcome = backend.run(call)
            if outcome.error is not None:
                raise outcome.error
            assert outcome.report is not None
            (dump,) = Path(folder).iterdir()
            bundles, code, use = list(_kernels(dump, outcome.report))[side.kernel]
        loops = tuple(find_loops(bundles, code))
        computing = use.computing()
        step = max((loop for loop in loops if computing & {*loop}), key=len, default=None)
        step = range(len(bundles)) if step is None else step
        measured = _measured(outcome.report, loops, step, use, side)
        if side.steps is None:
            return measured
        counted = side.wire_bytes if side.wire_bytes is not None else wire_bytes(outcome.kernels)
        return dataclasses.replace(measured, wire=counted)


def _kernels(dump: Path, report: CompileReport) -> Iterator[tuple[list[str], str, Utilization]]:
    """Bundles, code and use of slots of each kernel of a program."""
    names = [path.name for path in sorted(dump.glob("*-final_bundles.txt"))]
    for name in names:
        if "schedule-analysis" in name:
            continue
        stem = name.removesuffix("final_bundles.txt").rsplit("-", 2)[0]
        bundles = split_bundles((dump / name).read_text())
        found = {
            label: next(iter(sorted(dump.glob(f"{stem}-*-{label}.txt"))), None)
            for label in ("post-delay-converter", "final_hlo-static-per-bundle-utilization")
        }
        code, table = found.values()
        use = None if table is None else read_utilization(table.read_text())
        is_kernel = any(len(bundles) == cost.bundles for cost in report.kernels)
        if is_kernel and code is not None and use is not None:
            yield bundles, code.read_text(), use


def _measured(
    report: CompileReport, loops: tuple[range, ...], step: range, use: Utilization, side: Side
) -> Measured:
    counts = dict.fromkeys(step, 1.0)
    for place, loop in enumerate(_inside(loops, step)):
        for bundle in loop:
            counts[bundle] *= side.trips.get(place, 1.0)
    busy = {place: min(1.0, use.shares(range(place, place + 1)).get("mxu", 0.0)) for place in step}
    used = [place for place in step if busy[place]]
    window = range(used[0], used[-1] + 1) if used else range(0)
    total = sum(counts.values())
    return Measured(
        report=report,
        loops=loops,
        step=step,
        bundles=total,
        spilled=sum(use.rows[place].get("VSTORE:SPILL", 0) * counts[place] for place in step),
        mxu=sum(bool(busy[place]) * counts[place] for place in step) / total,
        window=sum(bool(busy[place]) for place in window) / len(window) if window else 0.0,
    )


def rows(words: list[str]) -> list[Row]:
    """All rows, or those whose name holds one of the words."""
    modules = [
        importlib.import_module(f"tpu_comparisons.{module.name}")
        for module in pkgutil.iter_modules(tpu_comparisons.__path__)
    ]
    found = [row for module in modules for row in getattr(module, "ROWS", ())]
    return [row for row in found if not words or any(word in row.name for word in words)]


HEADERS = ("kernel", "chip", "step", "code", "spilled", "spills", "VMEM", "mxu", "window")


def line(row: Row, chip: str, ours: Measured, theirs: Measured | None) -> tuple[str, ...]:
    """The cells of one line of the table."""
    shares = (f"{ours.mxu:.0%}", f"{ours.window:.0%}") if ours.mxu else ("", "")
    bundles, vmem = ours.report.bundles or 0, ours.report.vmem_bytes or 0
    spills, spilled = f"{ours.report.spills:,}", f"{ours.spilled / row.ours.work:,.0f}"
    if row.theirs is None or theirs is None:
        step = f"{ours.bundles:,.0f}"
        memory = f"{vmem / 2**20:.1f} MiB"
        return (row.name, chip, step, f"{bundles:,}", spilled, spills, memory, *shares)
    step = (ours.bundles / row.ours.work) / (theirs.bundles / row.theirs.work)
    return (
        row.name,
        chip,
        f"{step:.2f}",
        f"{bundles / (theirs.report.bundles or 1):.2f}",
        f"{spilled} / {theirs.spilled / row.theirs.work:,.0f}",
        f"{spills} / {theirs.report.spills:,}",
        f"{vmem / (theirs.report.vmem_bytes or 1):.2f}",
        *shares,
    )


WIRE_HEADERS = ("kernel", "wire", "least", "ratio", "steps")


def wire_line(row: Row, ours: Measured, theirs: Measured | None) -> tuple[str, ...] | None:
    """The cells of one line of the table of kernels over several devices, if it is one."""
    if row.wire_bound is None:
        return None
    sides = [(row.ours, ours)]
    if row.theirs is not None and theirs is not None:
        sides.append((row.theirs, theirs))
    least = row.wire_bound
    return (
        row.name,
        " / ".join(f"{measured.wire:,}" for _, measured in sides),
        f"{least:,}",
        " / ".join(f"{measured.wire / least:.2f}" for _, measured in sides) if least else "",
        " / ".join(f"{side.steps}" for side, _ in sides),
    )


def show_loops(row: Row, chip: str, laboratory: Laboratory) -> None:
    """Print the loops of both kernels of a row."""
    for words, side in (("ours", row.ours), ("theirs", row.theirs)):
        if side is None:
            continue
        found = laboratory.measure(side, chip)
        print(f"{row.name} on {chip}, {words}")
        for cost in found.report.kernels:
            memory = f"{(cost.vmem_bytes or 0) / 2**20:.1f} MiB"
            print(f"  {cost.kernel}: {cost.bundles} bundles, {cost.spills} spills, {memory}")
        shares = f"mxu {found.mxu:.0%}, window {found.window:.0%}"
        print(f"  {found.step}: {found.bundles:.0f} bundles a round, {shares}")
        for place, loop in enumerate(_inside(found.loops, found.step)):
            print(f"  loop {place} in it, {loop}: {len(loop)} bundles")


def _inside(loops: Sequence[range], step: range) -> list[range]:
    return [loop for loop in loops if loop != step and loop.start in step]


class Printed:
    """A table that is printed at its end, or as Markdown line by line."""

    def __init__(self, headers: Sequence[str], *, markdown: bool) -> None:
        self._table = Table(*headers)
        self._markdown = markdown
        if markdown:
            self.add(headers)
            print("| --- " * len(headers) + "|", flush=True)

    def add(self, cells: Sequence[str]) -> None:
        """Add a line."""
        if self._markdown:
            print("| " + " | ".join(cells) + " |", flush=True)
        else:
            self._table.add_row(*cells)

    def end(self) -> None:
        """Print what is not printed yet."""
        if self._table.rows:
            Console(width=120).print(self._table)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--chips", help="only these chips, with commas")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--loops", action="store_true")
    options = parser.parse_args()
    simulate(DEVICES, os.environ, explicit=True)
    laboratory = Laboratory()
    chosen = rows(options.words)
    if not chosen:
        sys.exit(f"no row has one of {options.words} in its name")
    if options.loops:
        for row in chosen:
            for chip in options.chips.split(",") if options.chips else row.chips:
                show_loops(row, chip, laboratory)
        return
    table = Printed(HEADERS, markdown=options.markdown)
    wires: dict[str, tuple[str, ...]] = {}
    for row in chosen:
        for chip in options.chips.split(",") if options.chips else row.chips:
            ours = laboratory.measure(row.ours, chip)
            theirs = None if row.theirs is None else laboratory.measure(row.theirs, chip)
            table.add(line(row, chip, ours, theirs))
            if cells := wire_line(row, ours, theirs):
                wires[row.name] = cells
    table.end()
    if wires:
        print()
        wire_table = Printed(WIRE_HEADERS, markdown=options.markdown)
        for cells in wires.values():
            wire_table.add(cells)
        wire_table.end()


if __name__ == "__main__":
    main()
