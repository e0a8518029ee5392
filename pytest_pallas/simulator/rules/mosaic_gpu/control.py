"""Rules: control of clusters, the order of kernels, and hints, which change no value."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.recording import Acquired, Asynchronous, Side
from pytest_pallas.simulator.gpu.barriers import arrive, barrier_at, complete
from pytest_pallas.simulator.gpu.launches.cluster_control import (
    ANSWER,
    NOTE,
    answer_of,
    point_in,
    take_over,
)
from pytest_pallas.simulator.gpu.launches.registers import set_registers
from pytest_pallas.simulator.gpu.operations import EngineOperation, start
from pytest_pallas.simulator.gpu.tensor_cores.blackwell import cancellation_operands, query_operands
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.memory.accesses import record_access
from pytest_pallas.simulator.memory.windows import read
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, in_shared_memory

#: What a block has seen whose request failed.
_FAILED = "a cluster cancel request failed"


@gpu_rule("try_cluster_cancel")
def _try_cluster_cancel(eqn: Equation) -> Evaluate:
    """Each thread arrives at the barrier of its block, and the first one sends the request."""
    parts = cancellation_operands(eqn.params, len(eqn.ins))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        block, machine = thread.block, thread.machine
        machine.note(NOTE)
        names = [name for name, _ in block.cluster.launch.mesh.cluster]
        place = dict(zip(names, block.place, strict=True))
        first_block = all(place.get(axis, 0) == 0 for axis in parts.axes)
        first_thread = all(thread.axes[axis] == 0 for axis in parts.axes if axis not in place)
        ref = operands[parts.barrier.position]
        own = barrier_at(read(ref.data, parts.barrier.transforms, operands))
        arrive(thread, own, eqn.line, expects=ANSWER if first_thread else 0)
        if not (first_block and first_thread):
            return ()
        if _FAILED in block.engines:
            _report_again(thread, eqn.line or thread.around)
        blocks = block.cluster.blocks
        answers = [
            in_shared_memory(thread, each, parts.answer, operands, eqn.line) for each in blocks
        ]
        _require_size(answers[0][0])
        refs = [thread.of_block(ref, each) for each in blocks]
        barriers = [
            barrier_at(read(each.data, parts.barrier.transforms, operands)) for each in refs
        ]
        sides = [Side(region, True, name, proxied=True) for _, region, name in answers]
        record = Asynchronous("the cluster cancel request", sides)
        operation = EngineOperation(record, block)

        def answer() -> None:
            found = answer_of(take_over(block.cluster.launch))
            for (data, _, _), barrier in zip(answers, barriers, strict=True):
                data[...] = found.view(data.dtype).reshape(data.shape)
                complete(operation, barrier, ANSWER, machine)

        start(thread, operation, steps=[answer], barriers=barriers, line=eqn.line)
        return ()

    return evaluate


def _require_size(answer: np.ndarray[Any, Any]) -> None:
    if answer.nbytes != ANSWER:
        raise SimulationError(
            f"the answer to try_cluster_cancel has {ANSWER} bytes, and its memory {answer.nbytes}; "
            "make it by plgpu.TryClusterCancelResult"
        )


def _report_again(thread: GpuThread, line: str) -> None:
    message = (
        "try_cluster_cancel after an answer that no cluster is left: PTX does not define "
        "what happens; end the loop when query_cluster_cancel says so"
    )
    thread.report("undefined", message, line, seed=thread.machine.seed)


@gpu_rule("query_cluster_cancel")
def _query_cluster_cancel(eqn: Equation) -> Evaluate:
    """The place in the grid of the cluster that was taken over, and whether there was one."""
    part, names = query_operands(eqn.params, len(eqn.ins))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        data, region, name = in_shared_memory(thread, thread.block, part, operands, eqn.line)
        _require_size(data)
        record_access(thread, region, "read", name, eqn.line or thread.around)
        grid = thread.block.cluster.launch.mesh.grid
        point = point_in(data, [size for _, size in grid])
        if point is None:
            thread.block.engines[_FAILED] = True
            # PTX leaves the indices undefined.
            nothing = thread.machine.uninitialized((), np.int32, "scratch")
            return (*(nothing for _ in names), np.False_)
        places = dict(zip((axis for axis, _ in grid), point, strict=True))
        return (*(np.int32(places[axis]) for axis in names), np.True_)

    return evaluate


@gpu_rule("griddepcontrol_wait")
def _wait(eqn: Equation) -> Evaluate:
    """The kernels ahead have completed, as the thread knows that waits, and no other one yet."""
    line = eqn.line

    def evaluate(thread: GpuThread) -> Any:
        start = thread.kernel_launch.start
        if start is not None:
            event = Acquired(thread.number, start.token, line, thread.program, thread.kernel)
            thread.recording.events.append(event)
            start.joined |= not thread.block.signalled
        return ()

    return evaluate


@gpu_rule("griddepcontrol_launch_dependents")
def _launch_dependents(eqn: Equation) -> Evaluate:
    """It lets the next kernel begin, and makes nothing visible to it."""

    def evaluate(thread: GpuThread) -> Any:
        thread.block.signalled = True
        return ()

    return evaluate


@rule("layout_cast")
def _layout_cast(eqn: Equation) -> Evaluate:
    return lambda value: value


@gpu_rule("set_max_registers", "set_max_registers_p")
def _set_max_registers(eqn: Equation) -> Evaluate:
    count, more, line = eqn.params["n"], eqn.params["action"] == "increase", eqn.line

    def evaluate(thread: GpuThread) -> Any:
        set_registers(thread, count, line, more=more)
        return ()

    return evaluate


@rule("print_layout")
def _ignored(eqn: Equation) -> Evaluate:
    def evaluate(*_: Any) -> Any:
        return ()

    return evaluate
