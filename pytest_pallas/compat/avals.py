"""Private names of JAX: what the variables of a kernel's body stand for.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.experimental.pallas`` exports the classes of
abstract values and dtypes. Probe: ``tests/unit/compat/test_avals.py``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.places import transforms_in
from pytest_pallas.transforms import Aliased


def is_reference(aval: Any) -> bool:
    """Whether a variable of a kernel's body stands for memory, and not for a value."""
    return hasattr(aval, "inner_aval")


def semaphore_kind(dtype: Any) -> str | None:
    """``"dma"``, ``"barrier"`` or ``"regular"`` for the dtype of a semaphore, or None."""
    name = str(getattr(dtype, "name", dtype))
    kinds = {"dma_sem": "dma", "barrier_semaphore": "barrier", "semaphore": "regular"}
    return kinds.get(name)


def owner_of_space(space: Any) -> str | None:
    """The kind of core that a memory space of several bodies belongs to, or None."""
    core = getattr(getattr(space, "mesh", space), "core_type", None)
    return None if core is None else str(core.name).lower()


def space_of(aval: Any) -> str:
    """``"gmem"``, ``"smem"``, ``"tmem"`` or ``"regs"``; "" of what is no reference."""
    return name_of_space(getattr(aval, "memory_space", None))


def name_of_space(space: Any) -> str:
    """The name of a memory space, such as ``"vmem"``; "" of none."""
    return str("" if space is None else space).lower().rpartition(".")[2]


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
    """What a barrier of this dtype is, or None if it is none."""
    name = type(dtype).__name__
    if name == "BarrierType":
        return BarrierFacts(dtype.num_arrivals, None, bool(dtype.orders_tensor_core))
    if name == "ClusterBarrierType":
        axes = tuple(each if isinstance(each, tuple) else (each,) for each in dtype.collective_axes)
        leader = bool(getattr(dtype, "leader_tracked", False))
        return BarrierFacts(dtype.num_arrivals, axes, bool(dtype.orders_tensor_core), leader)
    return None


def is_accumulator(aval: Any) -> bool:
    """Whether a reference is one to the registers that ``wgmma`` adds to."""
    return type(aval).__name__ == "WGMMAAbstractAccumulatorRef"


def is_union(aval: Any) -> bool:
    """Whether a reference is a union of several."""
    return type(aval).__name__ == "AbstractRefUnion"


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
