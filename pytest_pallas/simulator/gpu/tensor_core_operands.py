"""Which operands the equations of tensor cores and of cluster control have.

As JAX 0.11.2 and 0.12.0.1 write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_pallas.simulator.gpu.operands import Leaves
from pytest_pallas.transforms import Place


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

    sums: Place
    lhs: Place
    rhs: Place
    accumulate: int
    barrier: Place | None
    scales: tuple[Place, Place] | None
    metadata: Place | None
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class Commit:
    """The operands of ``tcgen05_commit_arrive``.

    Attributes:
      barrier: which is arrived at.
      predicate: position of whether it is, or None for always.
      pair_axis: as of ``MatrixProduct``.
    """

    barrier: Place
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

    source: Place
    target: Place
    pair_axis: Any


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The operands of ``try_cluster_cancel``.

    Attributes:
      answer: where the answer is written.
      barrier: which is arrived at.
      axes: names of the axes of which only those with index 0 ask.
    """

    answer: Place
    barrier: Place
    axes: tuple[Any, ...]


def product_operands(params: Mapping[str, Any], count: int) -> MatrixProduct:
    """What the operands of a ``tcgen05_mma`` are.

    Args:
      params: of the equation.
      count: of its operands.

    Raises:
      ValueError: it has other operands than its parameters say; so do the functions below.
    """
    leaves = Leaves(4)
    barrier = leaves.some(there=params["arrive"])
    scales = [leaves.some(there=params["scaled"]) for _ in range(2)]
    metadata = leaves.some(there=params.get("sparse", False))
    places: list[Place | None] = []
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
    return MatrixProduct(sums, lhs, rhs, 3, arrives, scaled, sparse, axis)


def commit_operands(params: Mapping[str, Any], count: int) -> Commit:
    """What the operands of a ``tcgen05_commit_arrive`` are."""
    leaves = Leaves(1)
    barrier = leaves.place(0, params["barrier_transforms_tree"])
    predicate = leaves.some(there=params.get("has_user_predicate", False))
    leaves.end(count)
    return Commit(barrier, predicate, params["collective_axis"])


def copy_operands(params: Mapping[str, Any], count: int) -> CopyToTensorMemory:
    """What the operands of a copy from shared memory to tensor memory are."""
    leaves = Leaves(2)
    source = leaves.place(0, params["smem_tree"])
    target = leaves.place(1, params["tmem_tree"])
    leaves.end(count)
    return CopyToTensorMemory(source, target, params.get("collective_axis"))


def cancellation_operands(params: Mapping[str, Any], count: int) -> Cancellation:
    """What the operands of a ``try_cluster_cancel`` are."""
    leaves = Leaves(2)
    answer = leaves.place(0, params["result_transforms_tree"])
    barrier = leaves.place(1, params["barrier_transforms_tree"])
    leaves.end(count)
    return Cancellation(answer, barrier, tuple(params["collective_axes"]))


def query_operands(params: Mapping[str, Any], count: int) -> tuple[Place, tuple[Any, ...]]:
    """The answer that a ``query_cluster_cancel`` reads, and the axes of the grid it asks for."""
    leaves = Leaves(1)
    answer = leaves.place(0, params["transforms_tree"])
    leaves.end(count)
    return answer, tuple(params["grid_names"])
