"""Kernels that divide a warpgroup into its warps for a while (``plgpu.WarpMesh``, ``warp_map``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_pallas.errors import SimulationError
from pytest_pallas.simulator.concurrency.recording import Synchronized
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.gpu.launches.block_meshes import warp_axis
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.program import prepare
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.thread import Thread


def bind_warps(eqn: Equation) -> Evaluate:
    """How a ``mpmd_map`` over the warps of a warpgroup is evaluated.

    All warps wait for each other at its begin and at its end, as JAX's lowering has it.
    """
    axis = warp_axis(eqn.params["meshes"])
    assert axis is not None
    name, count = axis
    program = prepare(eqn.params["jaxprs"][0])

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if not isinstance(thread, GpuThread) or len(thread.lanes) == 1:
            raise SimulationError("a WarpMesh divides a warpgroup, and nothing else")
        warps = [_warp(thread, name, number, count) for number in range(count)]
        numbers = (thread.number, *(warp.number for warp in warps))
        thread.recording.events.append(Synchronized(numbers))
        thread.machine.scheduler.run(warps, lambda warp: run(program, warp, operands))
        thread.recording.events.append(Synchronized(numbers))
        for warp in warps:
            _join(thread, warp)
        return ()

    return evaluate


def _warp(thread: GpuThread, axis: Any, number: int, count: int) -> GpuThread:
    return GpuThread(
        thread.machine,
        block=thread.block,
        warpgroup=thread.warpgroup,
        lanes=(number,),
        top=thread.top,
        around=thread.around,
        owner=replace(thread.owner, thread=f"{thread.owner.thread}, warp {number}"),
        grids=list(thread.grids),
        kernels=list(thread.kernels),
        axes={**thread.axes, axis: number},
        sizes=thread.sizes,
        others={**thread.others, axis: count},
        launch=thread.launch,
        collective=thread.collective,
        recorded=True,
        beside=thread.beside,
        own=thread.own,
    )


def _join(thread: GpuThread, warp: GpuThread) -> None:
    """What a warp has under way is the warpgroup's from here on."""
    for kept, given in (
        (thread.stores, warp.stores),
        (thread.loads, warp.loads),
        (thread.products, warp.products),
    ):
        kept.open += given.open
        kept.closed += given.closed
    for kind, operations in warp.chained.items():
        thread.chained.setdefault(kind, []).extend(operations)
