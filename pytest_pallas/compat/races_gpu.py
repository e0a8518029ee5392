"""Private names of JAX: the races that the GPU interpreter finds, as data.

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

from pytest_pallas.compat.bounds_gpu import gpu_ref
from pytest_pallas.compat.watching_gpu import owner_of, thread_key
from pytest_pallas.findings import Access

#: Where ``pallas_call`` copies the block of an operand: no line of the kernel.
BLOCK_COPY = "the block copy of pallas_call"


@contextmanager
def races_collected() -> Generator[list[tuple[Access, Access]]]:
    """Collect the accesses of each race that the interpreter finds inside."""
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
    return Access(
        kind=kind,
        ref=gpu_ref(int(key.memory_space_id)) or "a ref",
        owner=owner_of(thread_key(thread)),
        home=int(key.device_id),
        index=_index(part),
        line=BLOCK_COPY if frame == "pallas_call" else str(frame),
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
