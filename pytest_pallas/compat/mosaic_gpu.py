"""Private names of JAX: what the equations of Mosaic GPU kernels say."""

from __future__ import annotations

import ast
import functools
import importlib
import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.peers import Peer, peer_in
from pytest_pallas.compat.programs import open_jaxpr
from pytest_pallas.compat.transfers import Place, names_a_device
from pytest_pallas.compat.windows import Operand, transforms_in


@dataclass(frozen=True, slots=True)
class BlockMesh:
    """The grid of a Mosaic GPU kernel.

    Attributes:
      grid: names and sizes of its axes: of clusters, where a kernel has them.
      cluster: names and sizes of the axes of a cluster of blocks.
      threads: name and number of the warpgroups of a block, or None for one that has no name.
    """

    grid: tuple[tuple[Any, int], ...]
    cluster: tuple[tuple[Any, int], ...]
    threads: tuple[Any, int] | None

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return math.prod(size for _, size in self.cluster)

    @property
    def warpgroups(self) -> int:
        """Warpgroups of a block."""
        return 1 if self.threads is None else self.threads[1]


def block_mesh(meshes: Sequence[Any]) -> BlockMesh | None:
    """The grid that a ``mpmd_map`` runs on, or None where that is no GPU's.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mesh = meshes[0]
    if type(mesh).__name__ != "Mesh" or not hasattr(mesh, "cluster_names"):
        return None
    return BlockMesh(
        tuple(zip(mesh.grid_names, mesh.grid, strict=True)),
        tuple(zip(mesh.cluster_names, mesh.cluster, strict=True)),
        None if mesh.num_threads is None else (mesh.thread_name, mesh.num_threads),
    )


def warp_axis(meshes: Sequence[Any]) -> tuple[Any, int] | None:
    """Name and size of the axis of warps that a ``mpmd_map`` divides a warpgroup into, or None.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mesh = meshes[0]
    if type(mesh).__name__ != "WarpMesh":
        return None
    ((name, size),) = mesh.shape.items()
    return name, size


@dataclass(frozen=True, slots=True)
class BarrierFacts:
    """What a barrier is.

    Attributes:
      arrivals: of a phase, by each block that takes part.
      axes: of the cluster along which blocks arrive, each a tuple of names; None if only the
        barrier's own block does.
      tensor_core: whether it orders operations of the tensor core.
      leader: whether only the barrier of the first block counts.
    """

    arrivals: int
    axes: tuple[tuple[Any, ...], ...] | None = None
    tensor_core: bool = False
    leader: bool = False


def barrier_facts(dtype: Any) -> BarrierFacts | None:
    """What a barrier of this dtype is, or None if it is none. Seen in JAX 0.11.2 and 0.12.0.1."""
    name = type(dtype).__name__
    if name == "BarrierType":
        return BarrierFacts(dtype.num_arrivals, None, bool(dtype.orders_tensor_core))
    if name == "ClusterBarrierType":
        axes = tuple(each if isinstance(each, tuple) else (each,) for each in dtype.collective_axes)
        leader = bool(getattr(dtype, "leader_tracked", False))
        return BarrierFacts(dtype.num_arrivals, axes, bool(dtype.orders_tensor_core), leader)
    return None


def is_accumulator(aval: Any) -> bool:
    """Whether a reference is one to the registers that ``wgmma`` adds to.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    return type(aval).__name__ == "WGMMAAbstractAccumulatorRef"


def is_union(aval: Any) -> bool:
    """Whether a reference is a union of several. Seen in JAX 0.11.2 and 0.12.0.1."""
    return type(aval).__name__ == "AbstractRefUnion"


def space_of(aval: Any) -> str:
    """``"gmem"``, ``"smem"``, ``"tmem"`` or ``"regs"``; "" of what is no reference."""
    return str(getattr(aval, "memory_space", None) or "").lower().rpartition(".")[2]


def tilings_of(params: Any, count: int) -> tuple[tuple[int, ...], ...]:
    """For each reference that a ``run_scoped`` makes: the tiles in which its last axes lie, or ().

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    given = params.get("ref_transforms") or ((),) * count
    found: list[tuple[int, ...]] = []
    for transforms in given:
        tiles = [each.tiling for each in transforms or () if hasattr(each, "tiling")]
        found.append(tuple(tiles[0]) if tiles else ())
    return tuple(found)


def scope_axes(params: Any) -> tuple[Any, ...]:
    """The axes whose threads share what a ``run_scoped`` makes. Seen in JAX 0.11.2 and 0.12.0.1."""
    axes = params.get("collective_axes") or ()
    named = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    # ``dynamic_scheduling_loop`` names None where a block has one warpgroup.
    return tuple(axis for axis in named if axis is not None)


class Leaves:
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

    def place(self, position: int, tree: Any) -> Place:
        """A reference with transforms, whose leaves come next; ``tree`` may be None."""
        if tree is None:
            return Place(position, ())
        count = tree.num_leaves
        leaves = [Operand(self.next + number) for number in range(count)]
        self.next += count
        util = importlib.import_module("jax.tree_util")
        return Place(position, transforms_in(util.tree_unflatten(tree, leaves)))


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

    source: Place
    target: Place
    barrier: Place | None
    predicate: int | None
    axes: tuple[Any, ...] = ()
    partition: int | None = None
    leader: bool = False
    fill: str = "zeros"


def load_parts(params: Any) -> LoadParts:
    """The parts of a ``copy_gmem_to_smem``. Seen in JAX 0.11.2 and 0.12.0.1."""
    leaves = Leaves()
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

    source: Place
    target: Place
    predicate: int | None
    commits: bool
    reduction: str | None


def store_parts(params: Any) -> StoreParts:
    """The parts of a ``copy_smem_to_gmem``. Seen in JAX 0.11.2 and 0.12.0.1."""
    leaves = Leaves(2)
    source = leaves.place(0, params["src_transforms_treedef"])
    target = leaves.place(1, params["dst_transforms_treedef"])
    predicate = leaves.some(there=params.get("has_user_predicate", False))
    reduction = params.get("reduction_op")
    name = None if reduction is None else str(getattr(reduction, "value", reduction)).lower()
    return StoreParts(source, target, predicate, params.get("commit_group", True), name)


def arrives_without_copying() -> bool:
    """Whether a ``copy_gmem_to_smem`` whose predicate does not hold still arrives at its barrier.

    So it is in JAX 0.11.2; in 0.12.0.1 it does nothing.
    """
    module = importlib.import_module("jax._src.pallas.mosaic_gpu.primitives")
    lowering: Any = getattr(module, "_copy_gmem_to_smem_lowering", None)
    return lowering is not None and "arrive_predicate" not in lowering.__code__.co_varnames


def prefetch_parts(params: Any) -> tuple[Place, int | None]:
    """Memory and predicate of an ``async_prefetch``. Seen in JAX 0.11.2 and 0.12.0.1."""
    leaves = Leaves(1)
    place = leaves.place(0, params["ref_transforms_treedef"])
    return place, leaves.some(there=params.get("has_user_predicate", False))


def barrier_parts(params: Any) -> tuple[Place, int | None]:
    """Barrier and predicate of an operation on one barrier. Seen in JAX 0.11.2 and 0.12.0.1."""
    leaves = Leaves(1)
    tree = params.get("transforms_treedef", params.get("barrier_transforms_tree"))
    place = leaves.place(0, tree)
    return place, leaves.some(there=params.get("has_user_predicate", False))


def body_of(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """The name of the body of a ``plgpu.kernel``, and those of its positional parameters.

    JAX wraps the body in a function of ``*refs``, which runs it in a scope; the scope says where
    its function is defined. ("", ()) if that is not known. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    info = getattr(jaxpr, "debug_info", None)
    name, _, place = str(getattr(info, "func_src_info", None) or "").partition(" at ")
    file, _, line = place.rpartition(":")
    if not line.isdigit():
        return name, ()
    try:
        tree = _parsed(file)
    except (OSError, SyntaxError, ValueError):
        return name, ()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if int(line) in (first, node.lineno):
                return name, tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args))
    return name, ()


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))


def product_parts(params: Any) -> tuple[Place, Place, Place]:
    """Accumulator and operands of a ``wgmma_ref``; an operand may be an array.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    leaves = Leaves(3)
    acc = leaves.place(0, params["acc_transforms_tree"])
    a = leaves.place(1, params["a_transforms_tree"])
    return acc, a, leaves.place(2, params["b_transforms_tree"])


def atomic_parts(params: Any, count: int) -> tuple[Place, int, str]:
    """Memory, position of the value, and operation of a ``mgpu_atomic_store``.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    util = importlib.import_module("jax.tree_util")
    leaves = [Operand(number) for number in range(count)]
    ref, transforms, value = util.tree_unflatten(params["args_tree"], leaves)
    name = str(params["atomic_type"].value)
    return Place(ref.position, transforms_in(transforms or ())), value.position, name


def signal_parts(params: Any, count: int) -> list[tuple[Place, int, Peer | None]]:
    """Semaphore, position of the amount, and device of each ``semaphore_signal_parallel`` signal.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    util = importlib.import_module("jax.tree_util")
    leaves = [Operand(number) for number in range(count)]
    given = util.tree_unflatten(params["args_tree"], leaves)
    found: list[tuple[Place, int, Peer | None]] = []
    for ref, transforms, amount, device in zip(*given, strict=True):
        place = Place(ref.position, transforms_in(transforms))
        found.append((place, amount.position, peer_in(device, None, _MESH)))
    return found


class _MESH:  # how devices are named there
    name = "MESH"


def multicast_parts(params: Any, count: int) -> tuple[Place, int, tuple[Any, ...]]:
    """Semaphore, position of the amount, and axes of a ``semaphore_signal_multicast``.

    Seen in JAX 0.12.0.1.
    """
    util = importlib.import_module("jax.tree_util")
    leaves = [Operand(number) for number in range(count)]
    ref, transforms, amount = util.tree_unflatten(params["args_tree"], leaves)
    return Place(ref.position, transforms_in(transforms)), amount.position, _axes(params)


def multimem_parts(params: Any, *, stores: bool) -> tuple[Place, tuple[Any, ...]]:
    """Memory and axes of a ``multimem_store``, whose value is its first operand, or of a load.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    at = 1 if stores else 0
    leaves = Leaves(at + 1)
    tree = params["transforms_tree"] if stores else params["tree"]
    return leaves.place(at, tree), _axes(params)


def reduction_name(params: Any) -> str:
    """The operation of a ``multimem_load_reduce``. Seen in JAX 0.11.2 and 0.12.0.1."""
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

    target: Place
    barrier: Place
    index: int
    axes: tuple[Any, ...]
    reduction: str | None


def remote_store_parts(params: Any) -> RemoteStoreParts:
    """The parts of an ``async_store_smem``. Seen in JAX 0.11.2 and 0.12.0.1."""
    leaves = Leaves(4)
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


def reaches_devices(eqn: Any) -> bool:
    """Whether an equation accesses the memory or the semaphores of other devices.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    name, count = eqn.primitive.name, len(eqn.invars)
    if name in ("multimem_store", "multimem_load_reduce", "semaphore_signal_multicast"):
        return True
    if name == "semaphore_signal_parallel":
        return any(peer is not None for _, _, peer in signal_parts(eqn.params, count))
    if names_a_device(eqn):
        return True
    util = importlib.import_module("jax.tree_util")
    trees = [each for each in eqn.params.values() if hasattr(each, "num_leaves")]
    return any(
        _holds_peer(util.tree_unflatten(tree, list(map(Operand, range(tree.num_leaves)))))
        for tree in trees
    )


def _holds_peer(value: Any) -> bool:
    if type(value).__name__ in ("PeerMemRef", "MulticastRef"):
        return True
    inner: Any = value if isinstance(value, tuple | list) else getattr(value, "transforms", ())
    return any(map(_holds_peer, inner))


def union_scale(aval: Any) -> int:
    """How many bytes a byte of a union of references takes, where each element takes one at least.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    dtypes: Any = importlib.import_module("jax._src.dtypes")
    leaves = importlib.import_module("jax.tree_util").tree_leaves(aval.refs)
    return max((-(-8 // dtypes.itemsize_bits(each.dtype)) for each in leaves), default=1)


def makes_paired_memory(eqn: Any) -> bool:
    """Whether an equation makes tensor memory that two blocks share.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    if eqn.primitive.name != "run_scoped":
        return False
    inner, _ = open_jaxpr(eqn.params["jaxpr"])
    return any(
        space_of(var.aval) == "tmem" and bool(getattr(var.aval, "collective", False))
        for var in inner.invars
    )
