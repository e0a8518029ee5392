"""Registers of a block: what certainly does not fit.

An SM has 65,536 registers of 32 bits, and a thread at most 255 (CUDA Programming Guide, "Technical
Specifications per Compute Capability"). What a compiler keeps in them is its own affair: it orders
loads and stores anew, computes values again, and spills. Only this is certain of a Mosaic GPU
kernel: accumulators of ``wgmma`` are in registers as long as they live, since the tensor core
writes them at any time; and ``setmaxnreg.inc`` blocks until the pool of the block has as many
registers as it needs (PTX ISA, "setmaxnreg").
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_pallas.findings import Finding, Wait
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.launches import equations
from pytest_pallas.simulator.concurrency.scheduler import deadlock
from pytest_pallas.simulator.gpu.threads import GpuThread

#: Of an SM, and of a thread.
_POOL, _MOST = 65_536, 255

#: Threads of a warpgroup, and bytes of a register.
_THREADS, _BYTES = 128, 4

#: The fewest and the most that ``setmaxnreg`` takes.
_LEAST_ASKED, _MOST_ASKED = 24, 256


def hold_accumulator(thread: GpuThread, aval: Any, name: str, line: str) -> None:
    """A warpgroup has one more accumulator; report it if not all of them fit.

    Args:
      thread: the warpgroup.
      aval: of the accumulator.
      name: of the reference.
      line: ``file:line`` of the scope, at whose end it gives the registers back.
    """
    size = math.prod(aval.shape) * np.dtype(aval.dtype).itemsize
    thread.accumulators += -(-size // (_THREADS * _BYTES))
    there, why = _available(thread)
    if thread.accumulators > there:
        thread.machine.report(
            Finding(
                kind="spill",
                message=(
                    f"the accumulators of a warpgroup take {thread.accumulators} registers of each "
                    f"thread, and it has {there} ({why}): the compiler moves them to memory and "
                    "back. Choose a smaller tile, or divide it among more warpgroups."
                ),
                kernel=thread.kernel,
                line=line,
                ref=name,
            )
        )


def registers_at_launch(jaxpr: Any) -> int:
    """How many registers a thread has at least when a kernel begins: what it can give, it has."""
    given = [
        eqn.params["n"]
        for eqn in equations(jaxpr)
        if eqn.primitive.name.startswith("set_max_registers") and eqn.params["action"] == "decrease"
    ]
    return min(given, default=0)


def _available(thread: GpuThread) -> tuple[int, str]:
    """How many registers a thread can have, and why."""
    limit = thread.block.registers.get(thread.warpgroup)
    if limit is not None:
        return min(limit, _MOST), "set_max_registers"
    if thread.block.registers:  # others give theirs
        return _MOST, "the most there are"
    count = len(thread.block.warpgroups)
    share = _POOL // (_THREADS * count) // 8 * 8
    return min(share, _MOST), f"{count} warpgroups share {_POOL:,}" if share < _MOST else "at most"


def set_registers(thread: GpuThread, count: int, line: str, *, more: bool) -> None:
    """A warpgroup gives registers to the pool of its block, or waits until it has enough.

    Who has not called this yet has as many as at the launch (``GpuLaunch.registers``).

    Raises:
      DeadlockError: it never has.
      SimulationError: there is no such number.
    """
    if not _LEAST_ASKED <= count <= _MOST_ASKED:
        raise SimulationError(
            f"set_max_registers takes {_LEAST_ASKED} to {_MOST_ASKED} registers, not {count}"
        )
    block, scheduler = thread.block, thread.machine.scheduler
    if not more:
        block.registers[thread.warpgroup] = count
        for task in block.asking:
            scheduler.wake(task)
        block.asking.clear()
        return

    def left() -> int:
        others = [
            block.registers.get(number, thread.kernel_launch.registers)
            for number in range(len(block.warpgroups))
            if number != thread.warpgroup
        ]
        return _POOL // _THREADS - sum(others)

    def blocked() -> Wait:
        return Wait(
            owner=thread.owner,
            on="the registers of its block",
            needed=count,
            had=left(),
            unit="a thread",
            line=line,
            program=thread.program,
        )

    while left() < count:
        task = scheduler.current
        if task is not None:
            block.asking.append(task)
        if not scheduler.block(blocked):
            raise deadlock(thread.machine, thread, (blocked(),))
    block.registers[thread.warpgroup] = count
