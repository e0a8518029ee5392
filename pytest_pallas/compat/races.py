"""Private names of JAX: the races that its interpreters find, as data.

The race detector says them in a text, which it raises (0.12.0.1) or prints (0.11.2). Both accesses
are in its books at that moment, and are taken from there.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_pallas.compat.bounds_named import gpu_ref
from pytest_pallas.compat.simulated import Memory
from pytest_pallas.compat.watching import Frame, running_memory
from pytest_pallas.compat.watching_gpu import owner_of, thread_key
from pytest_pallas.findings import Access, Owner

#: Where ``pallas_call`` copies the block of an operand: no line of the kernel.
BLOCK_COPY = "the block copy of pallas_call"


@contextmanager
def races_collected() -> Generator[list[tuple[Access, Access]]]:
    """Collect the accesses of each race that an interpreter finds inside."""
    found: list[tuple[Access, Access]] = []
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.race_detection_state")
    state = module.RaceDetectionState
    with ExitStack() as stack:
        for name in ("check_read", "check_write"):
            check = getattr(state, name)
            stack.callback(setattr, state, name, check)
            setattr(state, name, _collecting(check, name.removeprefix("check_"), module, found))
        yield found


def _collecting(
    check: Callable[..., None], kind: Any, module: Any, found: list[tuple[Access, Access]]
) -> Callable[..., None]:
    """A check of the detector that also keeps the race it finds."""

    @functools.wraps(check)
    def checked(
        self: Any, thread: Any, clock: Any, key: Any, part: Any, source_info: Any = None
    ) -> None:
        before = self.races_found
        try:
            check(self, thread, clock, key, part, source_info)
        except RuntimeError:
            _keep(self, kind, clock, key, part, module, found)
            raise
        if self.races_found and not before:
            _keep(self, kind, clock, key, part, module, found)

    return checked


def _keep(
    state: Any,
    kind: Any,
    clock: Any,
    key: Any,
    part: Any,
    module: Any,
    found: list[tuple[Access, Access]],
) -> None:
    """Look the access up that the one just made is not ordered with, as the detector did."""
    own = state.writes[key] if kind == "write" else state.reads[key]
    this = next(entry for entry in reversed(own) if entry[1] is clock)
    others = [("write", entry) for entry in state.writes[key]]
    others += [("read", entry) for entry in state.reads[key] if kind == "write"]
    for how, entry in others:
        if entry is this or entry[1].ordered(clock):
            continue
        if module._ranges_overlap(part, entry[2]):
            found.append((_access(kind, key, this), _access(how, key, entry)))
            return


def _access(kind: Any, key: Any, entry: Any) -> Access:
    """An access of which the detector has the thread, clock, part and line."""
    thread, _, part, frame = entry
    line = BLOCK_COPY if frame == "pallas_call" else str(frame)
    index = _index(part)
    if hasattr(key, "memory_space_id"):
        owner = owner_of(thread_key(thread))
        ref = gpu_ref(int(key.memory_space_id)) or "a ref"
        home = int(key.device_id)
        return Access(kind=kind, ref=ref, owner=owner, home=home, index=index, line=line)
    memory = running_memory()
    space, number, home, _ = key
    device, core = thread
    copy = int(device) >= Memory.first_dma  # then it is the number of the copy
    program: tuple[int, ...] = ()
    if isinstance(frame, Frame):
        line, program = frame.placed.place, frame.placed.point
        device, core = (frame.placed.device, frame.placed.core) if copy else thread
    several = memory is not None and memory.cores_per_device > 1
    return Access(
        kind=kind,
        ref=memory.buffers.get((space, int(number)), f"a {space} buffer") if memory else "",
        owner=Owner(device=int(device), core=int(core) if several else None),
        home=int(home),
        index=index,
        line=line,
        program=program,
        copy=copy,
    )


def _index(part: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """The elements of a part along each axis; () if the detector does not know all of them."""
    index: list[tuple[int, int]] = []
    for each in part:
        if not isinstance(each, slice):
            index.append((int(each), int(each) + 1))
        elif each.stop is None:
            return ()
        else:
            index.append((int(each.start or 0), int(each.stop)))
    return tuple(index)
