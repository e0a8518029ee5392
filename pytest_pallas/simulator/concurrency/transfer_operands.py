"""Which operands copies and operations on semaphores have.

As JAX 0.11.2 and 0.12.0.1 write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.places import peer_in, place_in, transforms_in
from pytest_pallas.transforms import Operand, Peer, RefPart


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

    source: RefPart
    target: RefPart
    done: RefPart | None
    sent: RefPart | None
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

    semaphore: RefPart
    value: int | None = None
    decrement: int | None = None
    peer: Peer | None = None


def copy_parts(params: Any, count: int) -> CopyParts:
    """The parts of a ``dma_start`` or ``dma_wait``.

    Args:
      params: of the equation.
      count: of its operands.
    """
    source, target, done, sent, device = params["tree"].unflatten(
        [Operand(number) for number in range(count)]
    )
    peer = peer_in(device, None, params["device_id_type"])
    return CopyParts(place_in(source), place_in(target), _some(done), _some(sent), peer)


def semaphore_parts(name: str, params: Any, count: int) -> SemaphoreParts:
    """The parts of an operation on a semaphore.

    Args:
      name: ``"semaphore_signal"``, ``"semaphore_wait"`` or ``"semaphore_read"``.
      params: of the equation.
      count: of its operands.
    """
    operands = [Operand(number) for number in range(count)]
    ref, transforms, *rest = params["args_tree"].unflatten(operands)
    semaphore = RefPart(ref.position, transforms_in(transforms))
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


def _some(given: Any) -> RefPart | None:
    return None if given is None else place_in(given)
