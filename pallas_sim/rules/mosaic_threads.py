"""Equations of Mosaic GPU: how their operands are read, and rules for what threads do themselves.

The first part is for the rules of ``mosaic_copies.py`` and ``mosaic_products.py``, too: a rule that
gets the ``GpuThread``, the operands of an equation by the trees in its parameters, and the memory
that they name. Then come barriers and semaphores, atomic operations and stores to other blocks and
devices, and the control of clusters. Equations are as JAX 0.11.2 and 0.12.0.1 write them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of, read_window, record_access, record_window
from pallas_sim.choices import atomic_kind
from pallas_sim.compat.jaxprs import semaphore_kind
from pallas_sim.compat.places import transforms_in
from pallas_sim.copies import signal
from pallas_sim.cores import CoreAddress, peer_of, reach
from pallas_sim.counts import note_wait
from pallas_sim.dtypes import Array, convert
from pallas_sim.edges import (
    contents_of,
    edge_finding,
    end_at_edge,
    read_inside,
    report,
    write_inside,
)
from pallas_sim.errors import SimulationError
from pallas_sim.gpu.barriers import (
    arrive,
    arrive_in_cluster,
    barrier_at,
    is_passed,
    test,
    wait,
)
from pallas_sim.gpu.engines import complete, refills, start
from pallas_sim.gpu.mosaic_kernels import NOTE, take_over
from pallas_sim.gpu.scopes import axes_of, set_registers
from pallas_sim.gpu.threads import (
    Barrier,
    BlockCluster,
    EngineOperation,
    GpuThread,
    ThreadBlock,
    block_of,
)
from pallas_sim.gpu.windows import at_device, devices_along, signals_of
from pallas_sim.machine import Thread
from pallas_sim.memory import Outside, Ref
from pallas_sim.points import is_of_user, turn_site
from pallas_sim.recording import Acquired, Asynchronous, Semaphore, Side
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.references import reducer
from pallas_sim.transforms import AtBlock, Operand, RefPart
from pallas_sim.windows import read, region_of


def gpu_rule(
    *names: str,
) -> Callable[[Callable[[Equation], Evaluate]], Callable[[Equation], Evaluate]]:
    """Register a rule for primitives of Mosaic GPU.

    The function that it gives takes the ``GpuThread`` first. It returns nothing if the primitive
    has no result.

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
                result = evaluate(thread, *operands)
                return () if result is None else result

            return evaluate_on_gpu

        return bind_for_gpu

    return register


# Operands.


class OperandLeaves:
    """Takes the operands of an equation one after the other, as its parameters say."""

    def __init__(self, eqn: Equation, first: int) -> None:
        """Begin at an operand: those before are references and arrays at known positions."""
        self.params, self.count, self.next = eqn.params, len(eqn.ins), first

    def one(self, *, there: bool = True) -> Any:
        """Return the position of the next operand; None if it is not there."""
        self.next += there
        return self.next - 1 if there else None

    def part(self, position: int, tree: str) -> RefPart:
        """Return a reference with transforms, whose leaves come next.

        Args:
          position: of the reference.
          tree: the parameter with the tree of the transforms, which may be None.
        """
        treedef = self.params.get(tree)
        if treedef is None:
            return RefPart(position, ())
        leaves = [Operand(self.one()) for _ in range(treedef.num_leaves)]
        return RefPart(position, transforms_in(treedef.unflatten(leaves)))

    def predicate(self) -> int | None:
        """Return the position of whether the equation does anything; None if it always does."""
        return self.one(there=self.params.get("has_user_predicate", False))

    def end(self) -> None:
        """Make sure that these were all operands.

        Raises:
          ValueError: they were not.
        """
        if self.next != self.count:
            raise ValueError(f"an equation has {self.count} operands instead of {self.next}")


def holds(predicate: int | None, operands: Sequence[Any]) -> bool:
    """Return whether an equation does anything: whether its predicate, an operand, is true."""
    return predicate is None or bool(operands[predicate])


def part_of(
    thread: GpuThread, named: RefPart, operands: Sequence[Any], how: str, line: str
) -> tuple[Ref, Any]:
    """Return the reference that an equation names, on whichever block or device, and its part.

    Args:
      thread: who names it.
      named: what it names.
      operands: of the equation.
      how: ``"load from"``, ``"store to"`` or the like, for messages.
      line: of the equation.
    """
    ref: Ref = operands[named.position]
    if named.places:
        ref = thread.elsewhere(ref, named.places, operands, line)
    return ref, located(thread, ref, named, operands, how, line)


def located(
    thread: GpuThread, ref: Ref, named: RefPart, operands: Sequence[Any], how: str, line: str
) -> Any:
    """Return the part of a known reference that an equation names; see ``part_of``.

    Raises:
      BoundsError: there is no such barrier or semaphore.
    """
    window = named.window
    try:
        part: Any = read(ref.data, window, operands)
    except Outside as outside:
        finding = edge_finding(thread, ref, how, outside, line)
        if ref.data.dtype == object:  # nothing can take the place of a barrier that is not there
            raise end_at_edge(thread, finding) from None
        report(thread, finding)
        return read_inside(ref.data, window, operands, contents_of(thread))
    if ref.data.dtype == object or np.may_share_memory(part, ref.data) or not np.size(part):
        return part
    if not np.ndim(part):  # numpy gives a copy of one element
        return region_of(ref.data, window, operands, part)
    # What an engine does to a copy, no thread and no monitor would see.
    raise SimulationError(
        f"{how} {ref.name or 'a reference'}, reshaped to {list(np.shape(part))} although its "
        "elements do not follow each other in memory: Mosaic GPU has no such reference; reshape "
        "before you slice or transpose"
    )


def in_shared_memory(
    thread: GpuThread, block: ThreadBlock, part: RefPart, operands: Any, line: str
) -> tuple[Array, str]:
    """Return the shared memory of a block that an operand names, and the name of the reference."""
    ref: Ref = thread.of_block(operands[part.position], block)
    return located(thread, ref, part, operands, "tcgen05 operand from", line), ref.name


def named_barrier(thread: GpuThread, part: RefPart, operands: Sequence[Any], line: str) -> Barrier:
    """Return the barrier that an equation names.

    Raises:
      BoundsError: there is none of that index.
    """
    return barrier_at(part_of(thread, part, operands, "use of", line)[1])


def barriers_in(
    thread: GpuThread, blocks: Sequence[ThreadBlock], part: RefPart, operands: Sequence[Any]
) -> list[Barrier]:
    """Return the barriers of blocks of the cluster that correspond to the thread's own."""
    refs = (thread.of_block(operands[part.position], block) for block in blocks)
    return [barrier_at(read(ref.data, part.transforms, operands)) for ref in refs]


def _register_reducer(name: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """Return the reducer of an atomic operation whose new elements come from registers.

    The lowering of JAX 0.11.2 to 0.12.0.1 forgets the sign of integers: ``min`` and ``max`` of
    int32 compare the bits as unsigned, which an H200 did, too (``_vector_store_op_lowering_rule``
    in ``jax/experimental/mosaic/gpu/dialect_lowering.py``).
    """
    if np.dtype(dtype) != np.int32 or name not in ("min", "max"):
        return reducer(name, dtype)
    unsigned = reducer(name, np.uint32)
    return lambda old, new: unsigned(
        np.asarray(old).view(np.uint32), np.asarray(new).view(np.uint32)
    ).view(np.int32)


# Barriers in shared memory, and semaphores of blocks and devices.


def _on_barrier(act: Callable[[GpuThread, Barrier, str], Any]) -> Callable[[Equation], Evaluate]:
    """Return a rule for what threads do with one barrier."""

    def bind(eqn: Equation) -> Evaluate:
        leaves, line = OperandLeaves(eqn, 1), eqn.line
        tree = "transforms_treedef"
        if tree not in eqn.params:
            tree = "barrier_transforms_tree"
        part, predicate = leaves.part(0, tree), leaves.predicate()
        waits = eqn.name in ("barrier_wait", "barrier_arrive_and_wait")
        counts = waits and is_of_user(eqn)
        releases = "arrive" in eqn.name and not eqn.of_jax
        turns = turn_site(eqn, part) if waits else None

        def evaluate(thread: GpuThread, *operands: Any) -> Any:
            if not holds(predicate, operands):
                return None
            barrier = named_barrier(thread, part, operands, line)
            if turns is not None:
                thread.machine.coverage.turn(turns, thread, operands)
            if counts:
                note_wait(thread, barrier.name, line, blocked=not is_passed(thread, barrier))
            barrier.of_kernel |= releases
            result = act(thread, barrier, line)
            if waits:
                thread.machine.coverage.close(barrier)
                thread.released = eqn.of_jax and barrier.of_kernel
            return result

        return evaluate

    return bind


def _arrive_and_wait(thread: GpuThread, barrier: Barrier, line: str) -> None:
    arrive_in_cluster(thread, barrier, line)
    wait(thread, barrier, line)


gpu_rule("barrier_arrive")(_on_barrier(arrive_in_cluster))
gpu_rule("barrier_wait")(_on_barrier(wait))
gpu_rule("barrier_arrive_and_wait")(_on_barrier(_arrive_and_wait))
gpu_rule("barrier_test")(_on_barrier(lambda *at: np.bool_(test(*at))))


@gpu_rule("semaphore_signal_parallel")
def _signal_parallel(eqn: Equation) -> Evaluate:
    signals, line = signals_of(eqn.params, len(eqn.ins)), eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for part, amount, peer in signals:
            where = peer_of(thread, peer, operands)
            _signal(thread, where, part, operands, int(operands[amount]), line)

    return evaluate


@gpu_rule("semaphore_signal_multicast")
def _signal_multicast(eqn: Equation) -> Evaluate:
    ref, transforms, amount = eqn.operands_in("args_tree")
    part, line = RefPart(ref.position, transforms_in(transforms)), eqn.line
    axes = axes_of(eqn.params.get("collective_axes"))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for device in devices_along(thread, axes):
            where = None if device == thread.owner.device else CoreAddress(device, {})
            _signal(thread, where, part, operands, int(operands[amount.position]), line)

    return evaluate


def _signal(
    thread: GpuThread,
    where: CoreAddress | None,
    named: RefPart,
    operands: Sequence[Any],
    amount: int,
    line: str,
) -> None:
    def act(ref: Ref) -> None:
        part: Any = read(ref.data, named.transforms, operands)
        semaphore = part if isinstance(part, Semaphore) else part.reshape(())[()]
        signal(thread, semaphore, amount, line)

    ref: Ref = operands[named.position]
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
        semaphores: Any = memory_of(thread.machine, shape, dtype, "a semaphore", "scratch")
        for point in np.ndindex(*shape):
            semaphore = semaphores[point]
            semaphore.count = semaphore.promised = int(counts[point])
            semaphore.lasting = True
        return semaphores

    return evaluate


# Atomic operations, and stores to the memory of other blocks and of all devices at once.


@gpu_rule("mgpu_atomic_store")
def _atomic(eqn: Equation) -> Evaluate:
    target, transforms, value = eqn.operands_in("args_tree")
    named, line = RefPart(target.position, transforms_in(transforms or ())), eqn.line
    operator, dtype = str(eqn.params["atomic_type"].value), eqn.ins[value.position].dtype
    reduce, kind = _register_reducer(operator, dtype), atomic_kind(operator, dtype, used=False)
    window = named.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref: Ref = operands[named.position]
        if named.places:
            ref = thread.elsewhere(ref, named.places, operands, line)
        thread.machine.scheduler.stop()
        part = read_window(thread, ref, window, operands, "atomic access to", line)
        record_window(thread, ref, part, window, operands, "add", line, atomic=kind)
        contents = contents_of(thread)
        write_inside(
            ref.data, window, operands, lambda old: reduce(old, operands[value.position]), contents
        )

    return evaluate


@gpu_rule("multimem_store")
def _multimem_store(eqn: Equation) -> Evaluate:
    named, line = OperandLeaves(eqn, 2).part(1, "transforms_tree"), eqn.line  # 0 is the value
    axes, window = axes_of(eqn.params.get("collective_axes")), named.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for device in devices_along(thread, axes):
            ref = at_device(thread, device, operands[named.position], line)
            part = read_window(thread, ref, window, operands, "store to", line)
            record_window(thread, ref, part, window, operands, "write", line, home=device)
            write_inside(ref.data, window, operands, lambda _: operands[0], contents_of(thread))

    return evaluate


#: PTX ISA, "multimem.ld_reduce, multimem.st, multimem.red": it leaves the order open.
_ORDER = "in which order multimem_load_reduce adds floats of several devices is not published"


@gpu_rule("multimem_load_reduce")
def _multimem_load(eqn: Equation) -> Evaluate:
    """The elements of all devices, reduced in the order of the devices.

    The switch accumulates 16-bit floats in float32 (PTX ISA, "multimem.ld_reduce", ``.acc::f32``).
    """
    named, line = OperandLeaves(eqn, 1).part(0, "tree"), eqn.line
    axes, dtype = axes_of(eqn.params.get("collective_axes")), np.dtype(eqn.out.dtype)
    wide = np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind not in "iu" else dtype
    operator = eqn.params["reduction_op"]
    reduce = reducer(str(getattr(operator, "value", operator)).lower(), wide)
    window = named.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if dtype.kind not in "iu":
            thread.machine.note(_ORDER)
        total: Array | None = None
        for device in devices_along(thread, axes):
            ref = at_device(thread, device, operands[named.position], line)
            part = read_window(thread, ref, window, operands, "load from", line)
            record_window(thread, ref, part, window, operands, "read", line, home=device)
            value = convert(np.array(part), wide)
            total = value if total is None else reduce(total, value)
        return convert(total, dtype)

    return evaluate


@gpu_rule("async_store_smem")
def _async_store(eqn: Equation) -> Evaluate:
    """``st.async`` and ``red.async``: the thread arrives at the other block's barrier at once."""
    leaves, line = OperandLeaves(eqn, 4), eqn.line  # value, target, barrier, index of the block
    target_part = leaves.part(1, "ref_transforms_treedef")
    barrier_part = leaves.part(2, "barrier_transforms_treedef")
    named = AtBlock(((axes_of(eqn.params["cluster_dim"]), Operand(3)),))
    name = eqn.params.get("atomic")
    reduce = None if name is None else _register_reducer(name, eqn.ins[0].dtype)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        block = block_of(thread, named, operands)
        ref = thread.of_block(operands[1], block)
        target = located(thread, ref, target_part, operands, "store to", line)
        barriers = thread.of_block(operands[2], block)
        barrier = barrier_at(located(thread, barriers, barrier_part, operands, "use of", line))
        value = np.array(operands[0])
        side = Side(
            target,
            True,
            ref.name,
            adds=reduce is not None,
            home=thread.owner.device,
            atomic="" if name is None else atomic_kind(name, target.dtype, used=False),
        )
        # The block that has the memory waits for it.
        operation = EngineOperation(Asynchronous("the asynchronous store", [side]), block)

        def write_it() -> None:
            target[...] = value if reduce is None else reduce(target, value)
            complete(operation, barrier, nbytes=target.nbytes)

        arrive(thread, barrier, line, expects=target.nbytes)
        start(thread, operation, steps=[write_it], line=line, barriers=[barrier], reads=1)

    return evaluate


# Control of clusters, the order of kernels, and hints, which change no value.


#: Bytes of an answer to ``try_cluster_cancel``.
_ANSWER = 16

#: What the first word of an answer is; the hardware's are not published.
_TAKEN, _NONE_LEFT = 0x7A, 0x70


@gpu_rule("try_cluster_cancel")
def _try_cluster_cancel(eqn: Equation) -> Evaluate:
    """Each thread arrives at the barrier of its block, and the first one sends the request."""
    leaves = OperandLeaves(eqn, 2)
    answer_part = leaves.part(0, "result_transforms_tree")
    barrier_part = leaves.part(1, "barrier_transforms_tree")
    leaves.end()
    axes, line = tuple(eqn.params["collective_axes"]), eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        block = thread.block
        thread.machine.note(NOTE)
        cluster = dict(block.cluster.launch.mesh.cluster)
        position = dict(zip(cluster, block.index, strict=True))
        first_block = all(position.get(axis, 0) == 0 for axis in axes)
        first_thread = all(thread.axes[axis] == 0 for axis in axes if axis not in position)
        (own,) = barriers_in(thread, [block], barrier_part, operands)
        arrive(thread, own, line, expects=_ANSWER if first_thread else 0)
        if not (first_block and first_thread):
            return
        if block.none_left:
            message = (
                "try_cluster_cancel after an answer that no cluster is left: PTX does not define "
                "what happens; end the loop when query_cluster_cancel says so"
            )
            at = line or thread.around
            thread.report("undefined", message, at, seed=thread.machine.seed)
        blocks = block.cluster.blocks
        answers = [in_shared_memory(thread, other, answer_part, operands, line) for other in blocks]
        _require_size(answers[0][0])
        barriers = barriers_in(thread, blocks, barrier_part, operands)
        sides = [Side(data, True, name, proxied=True) for data, name in answers]
        needs_fence = refills(thread, of_jax=eqn.of_jax)
        record = Asynchronous("the cluster cancel request", sides, refills=needs_fence)
        operation = EngineOperation(record, block)

        def answer() -> None:
            response = answer_of(take_over(block.cluster.launch))
            for (data, _), barrier in zip(answers, barriers, strict=True):
                data[...] = response.view(data.dtype).reshape(data.shape)
                complete(operation, barrier, nbytes=_ANSWER)

        start(thread, operation, steps=[answer], barriers=barriers, line=line)

    return evaluate


@gpu_rule("query_cluster_cancel")
def _query_cluster_cancel(eqn: Equation) -> Evaluate:
    """The place in the grid of the cluster that was taken over, and whether there was one."""
    leaves = OperandLeaves(eqn, 1)
    part, names = leaves.part(0, "transforms_tree"), tuple(eqn.params["grid_names"])
    leaves.end()

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        data, name = in_shared_memory(thread, thread.block, part, operands, eqn.line)
        _require_size(data)
        record_access(thread, data, "read", name, eqn.line or thread.around)
        grid = dict(thread.kernel_launch.mesh.grid)
        point = point_in(data, list(grid.values()))
        if point is None:
            thread.block.none_left = True
            # PTX leaves the indices undefined.
            nothing = thread.machine.uninitialized((), np.int32, "scratch")
            return (*(nothing for _ in names), np.False_)
        places = dict(zip(grid, point, strict=True))
        return (*(np.int32(places[axis]) for axis in names), np.True_)

    return evaluate


def _require_size(answer: Array) -> None:
    if answer.nbytes != _ANSWER:
        raise SimulationError(
            f"the answer to try_cluster_cancel has {_ANSWER} bytes, and its memory "
            f"{answer.nbytes}; make it by plgpu.TryClusterCancelResult"
        )


def answer_of(cluster: BlockCluster | None) -> Array:
    """Return the bytes of an answer: which cluster was taken over, or that none is left."""
    fields = np.zeros(_ANSWER // 4, np.int32)
    fields[0] = _NONE_LEFT
    if cluster is not None:
        sizes = [size for _, size in cluster.launch.mesh.grid]
        fields[:2] = _TAKEN, np.ravel_multi_index(cluster.point, sizes) if sizes else 0
    return fields.view(np.uint8)


def point_in(answer: Array, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the place in the grid of the cluster that was taken over.

    Args:
      answer: 16 bytes; uninitialized memory counts as a request that failed.
      sizes: of the grid's axes.
    """
    fields = np.ascontiguousarray(answer).view(np.uint8).reshape(-1).view(np.int32)
    if int(fields[0]) != _TAKEN:
        return None
    return tuple(map(int, np.unravel_index(int(fields[1]), sizes))) if sizes else ()


@gpu_rule("griddepcontrol_wait")
def _wait_for_kernels(eqn: Equation) -> Evaluate:
    """The kernels ahead have completed, as the thread knows that waits, and no other one yet."""
    line = eqn.line

    def evaluate(thread: GpuThread) -> Any:
        start = thread.kernel_launch.start
        if start is not None:
            event = Acquired(thread.number, start.token, line, thread.program, thread.kernel)
            thread.recording.events.append(event)
            start.joined |= not thread.block.signalled

    return evaluate


@gpu_rule("griddepcontrol_launch_dependents")
def _launch_dependents(_: Equation) -> Evaluate:
    """Let the next kernel begin, and make nothing visible to it."""

    def evaluate(thread: GpuThread) -> Any:
        thread.block.signalled = True

    return evaluate


@gpu_rule("set_max_registers", "set_max_registers_p")
def _set_max_registers(eqn: Equation) -> Evaluate:
    count, more, line = eqn.params["n"], eqn.params["action"] == "increase", eqn.line
    return lambda thread: set_registers(thread, count, line, more=more)
