"""Which operands the equations of Mosaic GPU kernels have: references, barriers, predicates.

As JAX 0.11.2 and 0.12.0.1 write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.places import peer_in, transforms_in
from pytest_pallas.transforms import Operand, Peer, RefPart


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
