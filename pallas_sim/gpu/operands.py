"""Which operands the equations of Mosaic GPU kernels have: references, barriers, predicates.

As JAX 0.11.2 and 0.12.0.1 write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pallas_sim.compat.places import peer_in, transforms_in
from pallas_sim.gpu.barriers import Barrier, EngineOperation, arrive_with, finish, start
from pallas_sim.gpu.threads import GpuThread, ThreadBlock
from pallas_sim.order.accesses import overlap
from pallas_sim.recording import Asynchronous, Finished, Forked, Released, Side
from pallas_sim.transforms import Operand, Peer, RefPart


class OperandLeaves:
    """Takes the operands of an equation one after the other, as its parameters say."""

    def __init__(self, first: int = 0) -> None:
        """Begin at an operand."""
        self.next = first

    def one(self) -> int:
        """The position of the next operand."""
        self.next += 1
        return self.next - 1

    def some(self, *, there: bool) -> int | None:
        """The position of the next operand if it is there, or None."""
        return self.one() if there else None

    def place(self, position: int, tree: Any) -> RefPart:
        """A reference with transforms, whose leaves come next; ``tree`` may be None."""
        if tree is None:
            return RefPart(position, ())
        count = tree.num_leaves
        leaves = [Operand(self.next + number) for number in range(count)]
        self.next += count
        return RefPart(position, transforms_in(tree.unflatten(leaves)))

    def end(self, count: int) -> None:
        """Make sure that these were all operands.

        Raises:
          ValueError: they were not.
        """
        if self.next != count:
            raise ValueError(f"an equation has {count} operands instead of {self.next}")


@dataclass(frozen=True, slots=True)
class LoadParts:
    """A ``copy_gmem_to_smem``. Numbers are positions of operands.

    Attributes:
      source: in global memory.
      target: in shared memory.
      barrier: that its bytes arrive at; None of ``cp.async``.
      predicate: whether it happens, or None if it always does.
      axes: of the cluster whose blocks take part together, or ().
      partition: the axis of the source that these blocks divide, or None.
      leader: whether only the first of these blocks knows that it is done.
      fill: what elements beyond the array are: ``"zeros"``, ``"undefined"`` or ``"promise"``.
    """

    source: RefPart
    target: RefPart
    barrier: RefPart | None
    predicate: int | None
    axes: tuple[Any, ...] = ()
    partition: int | None = None
    leader: bool = False
    fill: str = "zeros"


def load_parts(params: Any) -> LoadParts:
    """The parts of a ``copy_gmem_to_smem``."""
    leaves = OperandLeaves()
    source, target = leaves.one(), leaves.one()
    barrier = leaves.some(there=params.get("has_barrier", True))
    from_ = leaves.place(source, params["src_transforms_treedef"])
    to = leaves.place(target, params["dst_transforms_treedef"])
    at = None
    if barrier is not None:
        at = leaves.place(barrier, params["barrier_transforms_treedef"])
    elif params.get("barrier_transforms_treedef") is not None:
        leaves.next += params["barrier_transforms_treedef"].num_leaves
    predicate = leaves.some(there=params.get("has_user_predicate", False))
    tracked = params.get("leader_tracked")
    axis = getattr(tracked, "axis", None)
    mode = str(getattr(params.get("oob_mode"), "name", "ZEROS")).lower().partition("_")[0]
    axes = params.get("collective_axes") or ()
    axes = axes if isinstance(axes, tuple) else (axes,)
    return LoadParts(from_, to, at, predicate, axes, axis, tracked is not None, mode)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """A ``copy_smem_to_gmem``. Numbers are positions of operands.

    Attributes:
      source: in shared memory.
      target: in global memory.
      predicate: whether it happens, or None if it always does.
      commits: whether it ends a group.
      reduction: ``"add"``, ``"min"``, ..., or None if it overwrites.
    """

    source: RefPart
    target: RefPart
    predicate: int | None
    commits: bool
    reduction: str | None


def store_parts(params: Any) -> StoreParts:
    """The parts of a ``copy_smem_to_gmem``."""
    leaves = OperandLeaves(2)
    source = leaves.place(0, params["src_transforms_treedef"])
    target = leaves.place(1, params["dst_transforms_treedef"])
    predicate = leaves.some(there=params.get("has_user_predicate", False))
    reduction = params.get("reduction_op")
    name = None if reduction is None else str(getattr(reduction, "value", reduction)).lower()
    return StoreParts(source, target, predicate, params.get("commit_group", True), name)


def prefetch_parts(params: Any) -> tuple[RefPart, int | None]:
    """Memory and predicate of an ``async_prefetch``."""
    leaves = OperandLeaves(1)
    place = leaves.place(0, params["ref_transforms_treedef"])
    return place, leaves.some(there=params.get("has_user_predicate", False))


def barrier_parts(params: Any) -> tuple[RefPart, int | None]:
    """Barrier and predicate of an operation on one barrier."""
    leaves = OperandLeaves(1)
    tree = params.get("transforms_treedef", params.get("barrier_transforms_tree"))
    place = leaves.place(0, tree)
    return place, leaves.some(there=params.get("has_user_predicate", False))


def product_parts(params: Any) -> tuple[RefPart, RefPart, RefPart]:
    """Accumulator and operands of a ``wgmma_ref``; an operand may be an array."""
    leaves = OperandLeaves(3)
    acc = leaves.place(0, params["acc_transforms_tree"])
    a = leaves.place(1, params["a_transforms_tree"])
    return acc, a, leaves.place(2, params["b_transforms_tree"])


def atomic_parts(params: Any, count: int) -> tuple[RefPart, int, str]:
    """Memory, position of the value, and operation of a ``mgpu_atomic_store``."""
    leaves = [Operand(number) for number in range(count)]
    ref, transforms, value = params["args_tree"].unflatten(leaves)
    name = str(params["atomic_type"].value)
    return RefPart(ref.position, transforms_in(transforms or ())), value.position, name


def signal_parts(params: Any, count: int) -> list[tuple[RefPart, int, Peer | None]]:
    """Semaphore, position of the amount, device: of each ``semaphore_signal_parallel`` signal."""
    leaves = [Operand(number) for number in range(count)]
    given = params["args_tree"].unflatten(leaves)
    found: list[tuple[RefPart, int, Peer | None]] = []
    for ref, transforms, amount, device in zip(*given, strict=True):
        place = RefPart(ref.position, transforms_in(transforms))
        found.append((place, amount.position, peer_in(device, None, _MESH)))
    return found


class _MESH:  # how devices are named there
    name = "MESH"


def multicast_parts(params: Any, count: int) -> tuple[RefPart, int, tuple[Any, ...]]:
    """Semaphore, position of the amount, and axes of a ``semaphore_signal_multicast``.

    Seen in JAX 0.12.0.1.
    """
    leaves = [Operand(number) for number in range(count)]
    ref, transforms, amount = params["args_tree"].unflatten(leaves)
    return RefPart(ref.position, transforms_in(transforms)), amount.position, _axes(params)


def multimem_parts(params: Any, *, stores: bool) -> tuple[RefPart, tuple[Any, ...]]:
    """Memory and axes of a ``multimem_store``, whose value is its first operand, or of a load."""
    at = 1 if stores else 0
    leaves = OperandLeaves(at + 1)
    tree = params["transforms_tree"] if stores else params["tree"]
    return leaves.place(at, tree), _axes(params)


def reduction_name(params: Any) -> str:
    """The operation of a ``multimem_load_reduce``."""
    given = params["reduction_op"]
    return str(getattr(given, "value", given)).lower()


@dataclass(frozen=True, slots=True)
class RemoteStoreParts:
    """An ``async_store_smem``, whose value is its first operand. Numbers are positions.

    Attributes:
      target: in the shared memory of the block that is named.
      barrier: of that block, at which the store arrives.
      index: of the block, along ``axes``.
      axes: of the cluster.
      reduction: ``"add"``, ..., or None if it overwrites.
    """

    target: RefPart
    barrier: RefPart
    index: int
    axes: tuple[Any, ...]
    reduction: str | None


def remote_store_parts(params: Any) -> RemoteStoreParts:
    """The parts of an ``async_store_smem``."""
    leaves = OperandLeaves(4)
    target = leaves.place(1, params["ref_transforms_treedef"])
    barrier = leaves.place(2, params["barrier_transforms_treedef"])
    dim = params["cluster_dim"]
    axes = dim if isinstance(dim, tuple) else (dim,)
    return RemoteStoreParts(target, barrier, 3, axes, params.get("atomic"))


def _axes(params: Any) -> tuple[Any, ...]:
    axes = params.get("collective_axes") or ()
    named = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    # ``dynamic_scheduling_loop`` names None where a block has one warpgroup.
    return tuple(axis for axis in named if axis is not None)


# Which operands the equations of tensor cores and of cluster control have.
#
# As JAX 0.11.2 and 0.12.0.1 write them.


@dataclass(frozen=True, slots=True)
class ProductOperands:
    """The operands of ``tcgen05_mma``.

    Attributes:
      sums: the accumulator.
      lhs: the first operand.
      rhs: the second operand.
      accumulate: position of whether the product is added to the accumulator.
      barrier: which the product arrives at, or None.
      scales: of both operands, or None.
      metadata: of a sparse first operand, or None.
      pair_axis: name of the axis of two blocks that multiply together, or None.
    """

    sums: RefPart
    lhs: RefPart
    rhs: RefPart
    accumulate: int
    barrier: RefPart | None
    scales: tuple[RefPart, RefPart] | None
    metadata: RefPart | None
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class CommitOperands:
    """The operands of ``tcgen05_commit_arrive``.

    Attributes:
      barrier: which is arrived at.
      predicate: position of whether it is, or None for always.
      pair_axis: as of ``ProductOperands``.
    """

    barrier: RefPart
    predicate: int | None
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class CopyOperands:
    """The operands of a copy from shared memory to tensor memory.

    Attributes:
      source: in shared memory.
      target: in tensor memory.
      pair_axis: as of ``ProductOperands``.
    """

    source: RefPart
    target: RefPart
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class CancellationOperands:
    """The operands of ``try_cluster_cancel``.

    Attributes:
      answer: where the answer is written.
      barrier: which is arrived at.
      axes: names of the axes of which only those with index 0 ask.
    """

    answer: RefPart
    barrier: RefPart
    axes: tuple[Any, ...]


def product_operands(params: Mapping[str, Any], count: int) -> ProductOperands:
    """What the operands of a ``tcgen05_mma`` are.

    Args:
      params: of the equation.
      count: of its operands.

    Raises:
      ValueError: it has other operands than its parameters say; so do the functions below.
    """
    leaves = OperandLeaves(4)
    barrier = leaves.some(there=params["arrive"])
    scales = [leaves.some(there=params["scaled"]) for _ in range(2)]
    metadata = leaves.some(there=params.get("sparse", False))
    places: list[RefPart | None] = []
    given = (("acc", 0), ("a", 1), ("b", 2), ("barrier", barrier))
    given += (("a_scale", scales[0]), ("b_scale", scales[1]), ("a_sparse_metadata", metadata))
    for name, position in given:
        tree = params.get(f"{name}_transforms_tree")
        places.append(None if position is None else leaves.place(position, tree))
    leaves.end(count)
    sums, lhs, rhs, arrives, lhs_scale, rhs_scale, sparse = places
    assert sums is not None
    assert lhs is not None
    assert rhs is not None
    scaled = None if lhs_scale is None or rhs_scale is None else (lhs_scale, rhs_scale)
    axis = params["collective_axis"]
    return ProductOperands(sums, lhs, rhs, 3, arrives, scaled, sparse, axis)


def commit_operands(params: Mapping[str, Any], count: int) -> CommitOperands:
    """What the operands of a ``tcgen05_commit_arrive`` are."""
    leaves = OperandLeaves(1)
    barrier = leaves.place(0, params["barrier_transforms_tree"])
    predicate = leaves.some(there=params.get("has_user_predicate", False))
    leaves.end(count)
    return CommitOperands(barrier, predicate, params["collective_axis"])


def copy_operands(params: Mapping[str, Any], count: int) -> CopyOperands:
    """What the operands of a copy from shared memory to tensor memory are."""
    leaves = OperandLeaves(2)
    source = leaves.place(0, params["smem_tree"])
    target = leaves.place(1, params["tmem_tree"])
    leaves.end(count)
    return CopyOperands(source, target, params.get("collective_axis"))


def cancellation_operands(params: Mapping[str, Any], count: int) -> CancellationOperands:
    """What the operands of a ``try_cluster_cancel`` are."""
    leaves = OperandLeaves(2)
    answer = leaves.place(0, params["result_transforms_tree"])
    barrier = leaves.place(1, params["barrier_transforms_tree"])
    leaves.end(count)
    return CancellationOperands(answer, barrier, tuple(params["collective_axes"]))


def query_operands(params: Mapping[str, Any], count: int) -> tuple[RefPart, tuple[Any, ...]]:
    """The answer that a ``query_cluster_cancel`` reads, and the axes of the grid that it wants."""
    leaves = OperandLeaves(1)
    answer = leaves.place(0, params["transforms_tree"])
    leaves.end(count)
    return answer, tuple(params["grid_names"])


#: What a load from tensor memory is called in findings.
_LOAD = "the load from tensor memory"


@dataclass(eq=False)
class WarpOperations:
    """What one warp has started on the tensor core.

    Attributes:
      number: of the tensor core as a thread of the recording, which knows what is done.
      unknown: products and copies of which no thread knows that they are done.
    """

    number: int
    unknown: list[EngineOperation] = field(default_factory=list)


@dataclass(eq=False)
class TensorCore:
    """The tensor core of a block.

    Attributes:
      started: by each warp, by warpgroup and warp.
      loads: from tensor memory that were not waited for, with the warps that started them.
      stores: to tensor memory that were not committed, likewise.
    """

    started: dict[tuple[int, int], WarpOperations] = field(default_factory=dict)
    loads: list[tuple[_Warps, Asynchronous]] = field(default_factory=list)
    stores: list[tuple[_Warps, EngineOperation]] = field(default_factory=list)


#: Number of a warpgroup, and which of its warps.
_Warps = tuple[int, tuple[int, ...]]


def tensor_core(block: ThreadBlock) -> TensorCore:
    """The tensor core that a block uses."""
    found = block.engines.get(TensorCore)
    if found is None:
        found = block.engines[TensorCore] = TensorCore()
    return found


def _started(thread: GpuThread) -> WarpOperations:
    """What this thread has started: it lets one of its warps do so."""
    core = tensor_core(thread.block)
    warp = (thread.warpgroup, thread.lanes[0])
    found = core.started.get(warp)
    if found is None:
        words = ", ".join(word for word in (thread.owner.thread, "tensor core") if word)
        owner = replace(thread.owner, thread=words)
        owners = thread.machine.owners
        found = core.started[warp] = WarpOperations(owners.setdefault(owner, len(owners)))
    return found


def begin(
    thread: GpuThread,
    what: str,
    sides: Sequence[Side],
    steps: Sequence[Callable[[], None]],
    line: str,
) -> None:
    """Start a product or a copy.

    Args:
      thread: who starts it.
      what: it is, in words.
      sides: the memory that it accesses.
      steps: what happens, in order.
      line: ``file:line``.
    """
    mine = _started(thread)
    record = Asynchronous(what, list(sides), chain=_chain(thread.block))
    operation, events = EngineOperation(record, thread.block), thread.recording.events

    def done() -> None:
        steps[-1]()
        events.append(Finished(mine.number, record))

    operation.before = [
        each
        for other in tensor_core(thread.block).started.values()
        for each in other.unknown
        if not each.waited and _continues(record, each.record)
    ]
    mine.unknown.append(operation)
    start(thread, operation, steps=[*steps[:-1], done], line=line)


def _continues(record: Asynchronous, earlier: Asynchronous) -> bool:
    """Whether a product adds to, or reads, what an earlier operation writes to tensor memory."""
    return any(
        overlap(one.region, other.region)
        for one in record.sides
        for other in earlier.sides
        if one.tensor_core and one.role != "copied" and other.tensor_core and other.writes
    )


def commit(thread: GpuThread, barriers: Sequence[Barrier], line: str) -> None:
    """Let barriers be arrived at once all is done that this thread has started."""
    mine = _started(thread)
    events, machine = thread.recording.events, thread.machine
    mine.unknown = [each for each in mine.unknown if not each.waited]
    covered = list(mine.unknown)
    record = Asynchronous("the tcgen05 commit", [], chain=_chain(thread.block))
    operation = EngineOperation(record, thread.block)

    def arrive() -> None:
        for barrier in barriers:
            phase = barrier.phases[-1]
            phase.operations += covered
            events.append(Released(mine.number, phase.token))
            arrive_with(operation, barrier, machine)

    start(thread, operation, steps=[arrive], barriers=barriers, line=line)


def _chain(block: ThreadBlock) -> tuple[str, int]:
    return "tcgen05", id(block)


def load(thread: GpuThread, side: Side, line: str) -> None:
    """Note a load, whose values are there: until it is waited for, it may still be reading."""
    record = Asynchronous(_LOAD, [side], thread.number, line, thread.program, thread.kernel)
    thread.recording.events.append(Forked(thread.number, record))
    tensor_core(thread.block).loads.append(((thread.warpgroup, thread.lanes), record))


def wait_for_loads(thread: GpuThread) -> None:
    """The thread knows that its loads are done."""
    core = tensor_core(thread.block)
    for warps, record in core.loads:
        if _is_of(thread, warps):
            thread.recording.events.append(Finished(thread.number, record))
    core.loads = [each for each in core.loads if not _is_of(thread, each[0])]


def store(thread: GpuThread, side: Side, write: Callable[[], None], line: str) -> None:
    """Start a store."""
    record = Asynchronous("the store to tensor memory", [side])
    operation = EngineOperation(record, thread.block)
    start(thread, operation, steps=[write], line=line)
    tensor_core(thread.block).stores.append(((thread.warpgroup, thread.lanes), operation))


def wait_for_stores(thread: GpuThread) -> None:
    """The thread knows that its stores are done."""
    core = tensor_core(thread.block)
    for warps, operation in core.stores:
        if _is_of(thread, warps):
            finish(thread, operation)
    core.stores = [each for each in core.stores if not _is_of(thread, each[0])]


def _is_of(thread: GpuThread, warps: _Warps) -> bool:
    """Whether these warps belong to a thread."""
    return warps[0] == thread.warpgroup and set(warps[1]) <= set(thread.lanes)
