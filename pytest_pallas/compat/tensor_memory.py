"""Private names of JAX: which operands tcgen05 operations have, and where tensor memory lies.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when these operations have public parameters.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_pallas.compat.windows import Aliased, Operand, Transform, transforms_in


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a reference that an operation names.

    Attributes:
      position: of the reference, among the operands of the equation.
      transforms: from the reference to the part.
    """

    position: int
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True, slots=True)
class MatrixProduct:
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

    sums: Part
    lhs: Part
    rhs: Part
    accumulate: int
    barrier: Part | None
    scales: tuple[Part, Part] | None
    metadata: Part | None
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class Commit:
    """The operands of ``tcgen05_commit_arrive``.

    Attributes:
      barrier: which is arrived at.
      predicate: position of whether it is, or None for always.
      pair_axis: as of ``MatrixProduct``.
    """

    barrier: Part
    predicate: int | None
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class CopyToTensorMemory:
    """The operands of a copy from shared memory to tensor memory.

    Attributes:
      source: in shared memory.
      target: in tensor memory.
      pair_axis: as of ``MatrixProduct``.
    """

    source: Part
    target: Part
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The operands of ``try_cluster_cancel``.

    Attributes:
      answer: where the answer is written.
      barrier: which is arrived at.
      axes: names of the axes of which only those with index 0 ask.
    """

    answer: Part
    barrier: Part
    axes: tuple[Any, ...]


#: How an array lies in tensor memory. ``"rows"``: a row in each of the 128 lanes. ``"half"``: 64
#: rows, of which each has two lanes. ``"scales"`` and ``"scales of a pair"``: of 8 bits, for
#: operands of products. ``"metadata"``: of sparse operands. ``"other"``: none of these.
Layout = Literal["rows", "half", "scales", "scales of a pair", "metadata", "other"]


def product_operands(params: Mapping[str, Any], count: int) -> MatrixProduct:
    """What the operands of a ``tcgen05_mma`` are.

    Args:
      params: of the equation.
      count: of its operands.
    """
    position = 4
    barrier: int | None = None
    scales: tuple[int, int] | None = None
    metadata: int | None = None
    if params["arrive"]:
        barrier, position = position, position + 1
    if params["scaled"]:
        scales, position = (position, position + 1), position + 2
    if params.get("sparse"):
        metadata, position = position, position + 1
    names = ("acc", "a", "b", "barrier", "a_scale", "b_scale", "a_sparse_metadata")
    trees = [params.get(f"{name}_transforms_tree") for name in names]
    found = _split(trees, position, count)
    return MatrixProduct(
        sums=Part(0, found[0]),
        lhs=Part(1, found[1]),
        rhs=Part(2, found[2]),
        accumulate=3,
        barrier=None if barrier is None else Part(barrier, found[3]),
        scales=None if scales is None else (Part(scales[0], found[4]), Part(scales[1], found[5])),
        metadata=None if metadata is None else Part(metadata, found[6]),
        pair_axis=params["collective_axis"],
    )


def commit_operands(params: Mapping[str, Any], count: int) -> Commit:
    """What the operands of a ``tcgen05_commit_arrive`` are.

    Args:
      params: of the equation.
      count: of its operands.
    """
    predicate = count - 1 if params.get("has_user_predicate") else None
    end = count if predicate is None else predicate
    (transforms,) = _split([params["barrier_transforms_tree"]], 1, end)
    return Commit(Part(0, transforms), predicate, params["collective_axis"])


def copy_operands(params: Mapping[str, Any], count: int) -> CopyToTensorMemory:
    """What the operands of a copy from shared memory to tensor memory are.

    Args:
      params: of the equation.
      count: of its operands.
    """
    source, target = _split([params["smem_tree"], params["tmem_tree"]], 2, count)
    axis = params.get("collective_axis")
    return CopyToTensorMemory(Part(0, source), Part(1, target), axis)


def cancellation_operands(params: Mapping[str, Any], count: int) -> Cancellation:
    """What the operands of a ``try_cluster_cancel`` are.

    Args:
      params: of the equation.
      count: of its operands.
    """
    trees = [params["result_transforms_tree"], params["barrier_transforms_tree"]]
    answer, barrier = _split(trees, 2, count)
    return Cancellation(Part(0, answer), Part(1, barrier), tuple(params["collective_axes"]))


def query_operands(params: Mapping[str, Any], count: int) -> tuple[Part, tuple[Any, ...]]:
    """The answer that a ``query_cluster_cancel`` reads, and the axes of the grid it asks for.

    Args:
      params: of the equation.
      count: of its operands.
    """
    (transforms,) = _split([params["transforms_tree"]], 1, count)
    return Part(0, transforms), tuple(params["grid_names"])


def _split(trees: Sequence[Any], first: int, count: int) -> list[tuple[Transform, ...]]:
    """The transforms that pytrees make of the last operands, which follow each other."""
    util = importlib.import_module("jax.tree_util")
    found: list[tuple[Transform, ...]] = []
    for tree in trees:
        if tree is None:
            found.append(())
            continue
        leaves = [Operand(first + number) for number in range(tree.num_leaves)]
        first += tree.num_leaves
        found.append(transforms_in(util.tree_unflatten(tree, leaves)))
    if first != count:
        raise ValueError(f"an equation has {count} operands, and its transforms end at {first}")
    return found


def tensor_memory_layout(aval: Any) -> Layout:
    """How an array lies in tensor memory.

    Args:
      aval: abstract value of a reference, or anything else with its ``layout``.
    """
    layout = getattr(aval, "layout", None)
    if layout is None:
        return "rows"
    tcgen05 = importlib.import_module("jax.experimental.mosaic.gpu.tcgen05")
    if layout == tcgen05.scales_layout():
        return "scales"
    paired = getattr(tcgen05, "b_scales_m64_collective_layout", None)
    if paired is not None and layout == paired():
        return "scales of a pair"
    if layout == tcgen05.sparse_meta_layout():
        return "metadata"
    packing = layout.vector_length
    if layout == tcgen05.tmem_default_layout(packing):
        return "rows"
    return "half" if layout.base_tile_shape[0] == 64 else "other"


def tensor_memory_columns(aval: Any) -> int:
    """How many of the 512 columns of tensor memory a reference takes, before rounding.

    Args:
      aval: abstract value of the reference, or a part of a union.
    """
    if union_parts(aval):
        return int(aval.shape[1])
    rows, columns = _two_dimensional(aval.shape)
    return int(aval.layout.cols_in_shape((rows, columns), itemsize_bits(aval.dtype)))


def itemsize_bits(dtype: Any) -> int:
    """Bits of an element: 2 of uint2."""
    return int(importlib.import_module("jax._src.dtypes").itemsize_bits(dtype))


def is_in_tensor_memory(aval: Any) -> bool:
    """Whether an abstract value is that of a reference to tensor memory."""
    space = str(getattr(aval, "memory_space", None) or "")
    return space.lower().rpartition(".")[2] == "tmem"


def union_parts(aval: Any) -> tuple[Aliased, ...]:
    """The references of a union, or () for any other reference.

    Args:
      aval: abstract value of a reference.
    """
    if getattr(aval, "refs", None) is None:
        return ()
    core = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    util = importlib.import_module("jax.tree_util")
    found: list[Aliased] = []
    for ref in util.tree_leaves(core.flatten_ref_union(aval), is_leaf=_has_transforms):
        first = transforms_in(ref.transforms)[0]
        assert isinstance(first, Aliased)
        found.append(first)
    return tuple(found)


def _has_transforms(value: Any) -> bool:
    return hasattr(value, "transforms")


def _two_dimensional(shape: Sequence[int]) -> tuple[int, int]:
    """The shape in tensor memory, where leading axes follow each other along the columns."""
    *leading, rows, columns = shape
    for size in leading:
        columns *= size
    return rows, columns
