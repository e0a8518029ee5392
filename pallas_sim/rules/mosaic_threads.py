"""Equations of Mosaic GPU: which thread evaluates them, and what memory they name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of, read_window, record_access, record_window
from pallas_sim.compat.jaxprs import semaphore_kind
from pallas_sim.copies import signal
from pallas_sim.cores import CoreAddress, peer_of, reach
from pallas_sim.dtypes import Array, convert
from pallas_sim.errors import SimulationError
from pallas_sim.gpu.barriers import (
    Barrier,
    EngineOperation,
    arrive,
    barrier_at,
    complete,
    reducer,
    start,
    test,
    wait,
)
from pallas_sim.gpu.barriers import complete as tell
from pallas_sim.gpu.launch_order import ANSWER, NOTE, answer_of, point_in, take_over
from pallas_sim.gpu.operands import (
    atomic_parts,
    barrier_parts,
    cancellation_operands,
    multicast_parts,
    multimem_parts,
    query_operands,
    reduction_name,
    remote_store_parts,
    signal_parts,
)
from pallas_sim.gpu.scopes import set_registers
from pallas_sim.gpu.threads import GpuThread, ThreadBlock, block_of
from pallas_sim.gpu.windows import at_device, devices_along
from pallas_sim.machine import Thread
from pallas_sim.memory import Ref, Region
from pallas_sim.recording import Acquired, Asynchronous, Semaphore, Side
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.transforms import AtBlock, Operand, RefPart
from pallas_sim.windows import read, region_of, write


def gpu_rule(
    *names: str,
) -> Callable[[Callable[[Equation], Evaluate]], Callable[[Equation], Evaluate]]:
    """Register a rule for primitives of Mosaic GPU: its function takes the ``GpuThread`` first.

    Args:
      names: of the primitives.
    """

    def register(bind: Callable[[Equation], Evaluate]) -> Callable[[Equation], Evaluate]:
        @rule(*names, threaded=True)
        @functools.wraps(bind)
        def bind_for_gpu(eqn: Equation) -> Evaluate:
            evaluate = bind(eqn)

            def evaluate_on_gpu(thread: Thread, *operands: Any) -> Any:
                if not isinstance(thread, GpuThread):
                    raise SimulationError("only kernels of Mosaic GPU (plgpu.kernel) can do this")
                return evaluate(thread, *operands)

            return evaluate_on_gpu

        return bind_for_gpu

    return register


def holds(predicate: int | None, operands: Sequence[Any]) -> bool:
    """Whether an equation does anything: whether the operand that is its predicate is true.

    Args:
      predicate: position of the operand, or None where there is no predicate.
      operands: of the equation.
    """
    return predicate is None or bool(operands[predicate])


def part_of(
    thread: GpuThread, place: RefPart, operands: Sequence[Any], how: str, line: str
) -> tuple[Ref, Any]:
    """The reference that an equation names, on whichever block or device, and its part.

    Args:
      thread: who names it.
      place: what it names.
      operands: of the equation.
      how: ``"load from"``, ``"store to"`` or the like, for messages.
      line: of the equation.

    Raises:
      BoundsError: it is beyond an edge.
    """
    ref: Ref = operands[place.position]
    if place.places:
        ref = thread.elsewhere(ref, place.places, operands, line)
    return ref, located(thread, ref, place, operands, how, line)


def located(
    thread: GpuThread, ref: Ref, place: RefPart, operands: Sequence[Any], how: str, line: str
) -> Any:
    """As ``part_of``, of a reference that is known: the part alone."""
    window = place.window
    part = read_window(thread, ref, window, operands, how, line)
    if ref.data.dtype != object and not np.ndim(part):  # numpy gives a copy of one element
        return region_of(part, ref.data, window, operands)
    return part


def in_shared_memory(
    thread: GpuThread, block: ThreadBlock, part: RefPart, operands: Any, line: str
) -> tuple[Array, Region, str]:
    """The shared memory of a block that an operand names: elements, region, name.

    Raises:
      BoundsError: it is beyond the edge.
    """
    ref: Ref = thread.of_block(operands[part.position], block)
    data = read_window(thread, ref, part.transforms, operands, "tcgen05 operand from", line)
    return data, region_of(data, ref.data, part.transforms, operands), ref.name


# Rules: barriers in shared memory, and semaphores of blocks and devices.


def named_barrier(thread: GpuThread, place: RefPart, operands: Sequence[Any], line: str) -> Barrier:
    """The barrier that an equation names.

    Raises:
      BoundsError: there is none of that index.
    """
    _, part = part_of(thread, place, operands, "use of", line)
    return barrier_at(part)


def arrive_in_cluster(thread: GpuThread, barrier: Barrier, line: str) -> None:
    """Arrive at a barrier; at one of a cluster, in all blocks that take part."""
    axes = barrier.facts.axes
    if axes is None:
        arrive(thread, barrier, line)
        return
    cluster, here = thread.block.cluster, barrier.block
    blocks = [block for names in axes for block in cluster.along(here, names)]
    if barrier.facts.leader:
        blocks = blocks[:1]
    for block in dict.fromkeys(blocks or [here]):
        arrive(thread, block.memory[barrier.site].data[barrier.index], line)


@gpu_rule("barrier_arrive")
def _barrier_arrive(eqn: Equation) -> Evaluate:
    place, predicate = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if holds(predicate, operands):
            arrive_in_cluster(thread, named_barrier(thread, place, operands, line), line)
        return ()

    return evaluate


@gpu_rule("barrier_wait")
def _barrier_wait(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        wait(thread, named_barrier(thread, place, operands, line), line)
        return ()

    return evaluate


@gpu_rule("barrier_arrive_and_wait")
def _barrier_arrive_and_wait(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        barrier = named_barrier(thread, place, operands, line)
        arrive_in_cluster(thread, barrier, line)
        wait(thread, barrier, line)
        return ()

    return evaluate


@gpu_rule("barrier_test")
def _barrier_test(eqn: Equation) -> Evaluate:
    place, _ = barrier_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        return np.bool_(test(thread, named_barrier(thread, place, operands, line), line))

    return evaluate


@gpu_rule("semaphore_signal_parallel")
def _signal_parallel(eqn: Equation) -> Evaluate:
    parts, line = signal_parts(eqn.params, len(eqn.ins)), eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for place, amount, peer in parts:
            where = peer_of(thread, peer, operands)
            _signal(thread, where, place, operands, int(operands[amount]), line)
        return ()

    return evaluate


@gpu_rule("semaphore_signal_multicast")
def _signal_multicast(eqn: Equation) -> Evaluate:
    place, amount, axes = multicast_parts(eqn.params, len(eqn.ins))
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for device in devices_along(thread, axes):
            where = None if device == thread.owner.device else CoreAddress(device, {})
            _signal(thread, where, place, operands, int(operands[amount]), line)
        return ()

    return evaluate


def _signal(
    thread: GpuThread,
    where: CoreAddress | None,
    place: RefPart,
    operands: Sequence[Any],
    amount: int,
    line: str,
) -> None:
    def act(ref: Ref) -> None:
        found: Any = read(ref.data, place.transforms, operands)
        semaphore = found if isinstance(found, Semaphore) else found.reshape(())[()]
        signal(thread, semaphore, amount, line)

    ref: Ref = operands[place.position]
    if where is None:
        act(ref)
    else:
        reach(thread, where, ref, line, act)


@gpu_rule("get_global")
def _get_global(eqn: Equation) -> Evaluate:
    """A semaphore that all blocks of a launch share."""
    site = ("global", id(eqn.origin or eqn))
    return lambda thread: thread.kernel_launch.semaphores[site]


@rule("to_edtype", threaded=True)
def _to_semaphores(eqn: Equation) -> Evaluate:
    """``plgpu.alloc_semaphore``: semaphores that outlive the kernels that use them."""
    dtype = eqn.params["edtype"]
    if semaphore_kind(dtype) is None:
        raise SimulationError(f"the simulator does not know arrays of {dtype}")

    def evaluate(thread: Thread, counts: Any) -> Any:
        shape = np.shape(counts)
        found: Any = memory_of(thread.machine, shape, dtype, "a semaphore", "scratch")
        for point in np.ndindex(*shape):
            found[point].count = found[point].promised = int(counts[point])
            found[point].lasting = True
        return found

    return evaluate


# Rules: atomic operations, and stores to the memory of other blocks and of all devices at once.


@gpu_rule("mgpu_atomic_store")
def _atomic(eqn: Equation) -> Evaluate:
    place, value_at, name = atomic_parts(eqn.params, len(eqn.ins))
    line, reduce = eqn.line, reducer(name, eqn.ins[value_at].dtype)
    window = place.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref, part = part_of(thread, place, operands, "atomic access to", line)
        record_window(thread, ref, part, window, operands, "add", line)
        write(ref.data, window, operands, lambda old: reduce(old, operands[value_at]))
        return ()

    return evaluate


@gpu_rule("multimem_store")
def _multimem_store(eqn: Equation) -> Evaluate:
    place, axes = multimem_parts(eqn.params, stores=True)
    line = eqn.line
    window = place.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for device in devices_along(thread, axes):
            ref = at_device(thread, device, operands[place.position], line)
            part = read_window(thread, ref, window, operands, "store to", line)
            record_window(thread, ref, part, window, operands, "write", line, home=device)
            write(ref.data, window, operands, lambda _: operands[0])
        return ()

    return evaluate


#: PTX ISA, "multimem.ld_reduce, multimem.st, multimem.red": it leaves the order open.
_ORDER = "in which order multimem_load_reduce adds floats of several devices is not published"


@gpu_rule("multimem_load_reduce")
def _multimem_load(eqn: Equation) -> Evaluate:
    """The elements of all devices, reduced in the order of the devices.

    The switch accumulates 16-bit floats in float32 (PTX ISA, "multimem.ld_reduce", ``.acc::f32``).
    """
    place, axes = multimem_parts(eqn.params, stores=False)
    line, dtype = eqn.line, np.dtype(eqn.out.dtype)
    wide = np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind not in "iu" else dtype
    reduce = reducer(reduction_name(eqn.params), wide)
    window = place.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if dtype.kind not in "iu":
            thread.machine.note(_ORDER)
        total: Array | None = None
        for device in devices_along(thread, axes):
            ref = at_device(thread, device, operands[place.position], line)
            part = read_window(thread, ref, window, operands, "load from", line)
            record_window(thread, ref, part, window, operands, "read", line, home=device)
            value = convert(np.array(part), wide)
            total = value if total is None else reduce(total, value)
        return convert(total, dtype)

    return evaluate


@gpu_rule("async_store_smem")
def _async_store(eqn: Equation) -> Evaluate:
    """``st.async`` and ``red.async``: the thread arrives at the other block's barrier at once."""
    parts, line = remote_store_parts(eqn.params), eqn.line
    dtype = np.dtype(eqn.ins[0].dtype)
    reduce = None if parts.reduction is None else reducer(parts.reduction, dtype)
    named = AtBlock(((parts.axes, Operand(parts.index)),))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        block = block_of(thread, named, operands)
        ref = thread.of_block(operands[parts.target.position], block)
        target = located(thread, ref, parts.target, operands, "store to", line)
        barriers = thread.of_block(operands[parts.barrier.position], block)
        found = located(thread, barriers, parts.barrier, operands, "use of", line)
        barrier, value = barrier_at(found), np.array(operands[0])
        side = Side(target, True, ref.name, adds=reduce is not None, home=thread.owner.device)
        # The block that has the memory waits for it.
        operation = EngineOperation(Asynchronous("the asynchronous store", [side]), block)

        def write_it() -> None:
            target[...] = value if reduce is None else reduce(target, value)
            tell(operation, barrier, target.nbytes, thread.machine)

        arrive(thread, barrier, line, expects=target.nbytes)
        start(thread, operation, steps=[write_it], line=line, barriers=[barrier], reads=1)
        return ()

    return evaluate


# Rules: control of clusters, the order of kernels, and hints, which change no value.


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
