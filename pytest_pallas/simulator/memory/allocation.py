"""Memory and semaphores of a scope, or of a kernel's scratch operands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pytest_pallas.compat.avals import semaphore_kind, space_of
from pytest_pallas.compat.keys import key_shape
from pytest_pallas.simulator.concurrency.transfers import Semaphore, release
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.memory.accesses import record_access
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.simulator.values import is_key_dtype


def allocate(thread: Thread, aval: Any, name: str, *site: Any) -> Ref:
    """Uninitialized memory of a scope, or of a kernel's scratch operand.

    Args:
      thread: whose it is.
      aval: shape, dtype and memory space.
      name: for messages.
      site: which allocation of the kernel it is, for other devices that reach it.
    """
    ref = made(thread, aval, name)
    if thread.recorded:
        thread.publish(ref, *site)
    return ref


def free(thread: Thread, refs: Sequence[Ref], line: str) -> None:
    """End the life of what ``allocate`` gave: report copies and counts that are left."""
    if thread.recorded:
        for ref in refs:
            if ref.data.dtype != object:
                record_access(thread, ref.data, "free", ref.name, line)
        thread.withdraw(refs)
    release(thread, semaphores_of(refs), line)


def made(thread: Thread, aval: Any, name: str) -> Ref:
    """As ``allocate``, of memory that no other device knows."""
    shape, dtype = tuple(aval.shape), aval.dtype
    return Ref(memory_of(thread.machine, shape, dtype, name, "scratch"), name, space_of(aval))


def memory_of(
    machine: Machine, shape: tuple[int, ...], dtype: Any, name: str, place: str
) -> np.ndarray[Any, Any]:
    """Uninitialized memory, or new semaphores; see ``Machine.uninitialized``.

    Semaphores outlive the kernel, unless they are its scratch.
    """
    kind = semaphore_kind(dtype)
    if is_key_dtype(dtype):  # a reference to keys is one to their words
        shape, dtype = (*shape, *key_shape(dtype)), np.uint32
    if kind is None:
        return machine.uninitialized(shape, dtype, place)
    found = _semaphores(shape, kind, name)
    if place != "scratch":
        for semaphore in found.flat:
            semaphore.lasting = True
        machine.lasting += found.flat
    return found


def semaphores_of(refs: Iterable[Ref]) -> list[Semaphore]:
    """The semaphores among what was allocated."""
    return [each for ref in refs if ref.data.dtype == object for each in ref.data.flat]


def _semaphores(shape: tuple[int, ...], kind: str, name: str) -> np.ndarray[Any, Any]:
    found = np.empty(shape, object)
    if not shape:
        found[()] = Semaphore(name, kind)
        return found
    found.reshape(-1)[:] = [
        Semaphore(f"{name}[{', '.join(map(str, point))}]", kind)
        for point in itertools.product(*map(range, shape))
    ]
    return found
