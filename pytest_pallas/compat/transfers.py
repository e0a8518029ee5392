"""Private names of JAX: the parts of copies and semaphore operations."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.peers import Peer as Peer
from pytest_pallas.compat.peers import peer_in
from pytest_pallas.compat.windows import Operand, Transform, transforms_in
from pytest_pallas.errors import MissingRuleError


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a reference, as an equation names it.

    Attributes:
      position: of the reference among the operands.
      transforms: from the reference to the part.
      choices: the parts of references that an index chooses among, in place of all this, or ().
      chosen: that index.
    """

    position: int
    transforms: tuple[Transform, ...]
    choices: tuple[Place, ...] = ()
    chosen: Operand | int = 0


@dataclass(frozen=True, slots=True)
class CopyParts:
    """What ``dma_start`` and ``dma_wait`` name.

    A wait for the source to be read has source and target exchanged, and so its semaphores.

    Attributes:
      source: what is read.
      target: what is written.
      done: the semaphore that gets the bytes once they are written, or None.
      sent: the semaphore that gets them once they are read, or None.
      peer: the device or core that the copy names, or None.
    """

    source: Place
    target: Place
    done: Place | None
    sent: Place | None
    peer: Peer | None


@dataclass(frozen=True, slots=True)
class SemaphoreParts:
    """What an operation on a semaphore names.

    Attributes:
      semaphore: which one.
      value: position of the operand that is added or waited for, or None.
      decrement: position of the operand that says whether a wait takes from the semaphore what it
        waits for, or None.
      peer: the device or core that the operation names, or None.
    """

    semaphore: Place
    value: int | None = None
    decrement: int | None = None
    peer: Peer | None = None


def copy_parts(params: Any, count: int) -> CopyParts:
    """The parts of a ``dma_start`` or ``dma_wait``. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      params: of the equation.
      count: of its operands.
    """
    source, target, done, sent, device = params["tree"].unflatten(list(map(Operand, range(count))))
    peer = peer_in(device, None, params["device_id_type"])
    return CopyParts(_place(source), _place(target), _some(done), _some(sent), peer)


def semaphore_parts(name: str, params: Any, count: int) -> SemaphoreParts:
    """The parts of an operation on a semaphore. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      name: ``"semaphore_signal"``, ``"semaphore_wait"`` or ``"semaphore_read"``.
      params: of the equation.
      count: of its operands.
    """
    util = importlib.import_module("jax.tree_util")
    operands = list(map(Operand, range(count)))
    ref, transforms, *rest = util.tree_unflatten(params["args_tree"], operands)
    semaphore = Place(ref.position, transforms_in(transforms))
    if name == "semaphore_signal":
        value, device, core = rest
        peer = peer_in(device, core, params["device_id_type"])
        return SemaphoreParts(semaphore, value.position, peer=peer)
    if name == "semaphore_wait":
        value, decrement = rest
        return SemaphoreParts(semaphore, value.position, decrement.position)
    return SemaphoreParts(semaphore)


def names_a_device(eqn: Any) -> bool:
    """Whether an equation copies to, or signals, what it names by device."""
    name, count = eqn.primitive.name, len(eqn.invars)
    if name == "dma_start":
        return copy_parts(eqn.params, count).peer is not None
    return name == "semaphore_signal" and (
        semaphore_parts(name, eqn.params, count).peer is not None
    )


def semaphore_kind(dtype: Any) -> str | None:
    """``"dma"``, ``"barrier"`` or ``"regular"`` for the dtype of a semaphore, or None."""
    name = str(getattr(dtype, "name", dtype))
    kinds = {"dma_sem": "dma", "barrier_semaphore": "barrier", "semaphore": "regular"}
    return kinds.get(name)


def is_reference(aval: Any) -> bool:
    """Whether a variable of a kernel's body stands for memory, and not for a value."""
    return hasattr(aval, "inner_aval")


@dataclass(frozen=True, slots=True)
class CoreMesh:
    """A mesh of cores that a body of a kernel runs on.

    Attributes:
      kind: ``"tc"``, ``"sc_scalar_subcore"`` or ``"sc_vector_subcore"``.
      shape: sizes of its axes, by name.
    """

    kind: str
    shape: Mapping[str, int]

    @property
    def size(self) -> int:
        """How many cores it has."""
        return math.prod(self.shape.values())

    @property
    def points(self) -> Sequence[Mapping[str, int]]:
        """The index of each core along each axis."""
        sizes = [range(size) for size in self.shape.values()]
        return [dict(zip(self.shape, point, strict=True)) for point in itertools.product(*sizes)]


def core_meshes(meshes: Sequence[Any]) -> list[CoreMesh]:
    """The meshes of an ``mpmd_map``. Seen in JAX 0.11.2 and 0.12.0.1.

    Raises:
      MissingRuleError: one of them is of a kind that the simulator does not know.
    """
    kinds = {
        "TensorCoreMesh": "tc",
        "ScalarSubcoreMesh": "sc_scalar_subcore",
        "VectorSubcoreMesh": "sc_vector_subcore",
    }
    for mesh in meshes:
        if type(mesh).__name__ not in kinds:
            raise MissingRuleError(f"the simulator does not simulate a {type(mesh).__name__}")
    return [CoreMesh(kinds[type(mesh).__name__], dict(mesh.shape)) for mesh in meshes]


def owner_of_space(space: Any) -> str | None:
    """The kind of core that a memory space of several bodies belongs to, or None.

    Seen in JAX 0.11.2 and 0.12.0.1, which names the mesh.
    """
    core = getattr(getattr(space, "mesh", space), "core_type", None)
    return None if core is None else str(core.name).lower()


def _place(given: Any) -> Place:
    if isinstance(given, Operand):
        return Place(given.position, ())
    if isinstance(given.ref, tuple):
        (select,) = given.transforms
        choices: tuple[Any, ...] = given.ref
        index = select.idx if isinstance(select.idx, Operand) else int(select.idx)
        return Place(-1, (), tuple(map(_place, choices)), index)
    return Place(given.ref.position, transforms_in(given.transforms))


def _some(given: Any) -> Place | None:
    return None if given is None else _place(given)
