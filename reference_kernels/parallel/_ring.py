"""Blocks that travel around a ring of devices while they are worked with.

Device ``i`` begins with block ``i``. In round ``s`` it works with block ``i - s``, and before it
does, starts to send that block to its right neighbor, which needs it in round ``s + 1``. A block
that has arrived lies in one of two slots: one is worked with and sent from while the other is
filled.

Slot ``s % 2`` of the right neighbor is filled in round ``s``. What was in it before is what the
neighbor works with, and sends on, in round ``s - 1``; a device that runs ahead would overwrite it.
So each device gives its left neighbor a credit when it is done with a slot, and each send from the
third on waits for one. The first two find empty slots. As many credits are given as are waited for,
so the semaphore is zero at the end.

With ``causal``, block ``j`` is of no use to the devices before ``j``: device ``i`` works for
``i + 1`` rounds only, and nothing is sent from the last device to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._mesh import at, enter, neighbor

#: Slots for what arrives.
SLOTS = 2


@dataclass(frozen=True)
class Ring:
    """A ring of devices, seen from one of them, and how far blocks travel.

    Attributes:
      axis_name: the axis of the mesh.
      causal: whether device ``i`` needs the blocks up to its own only.
    """

    axis_name: str
    causal: bool

    @property
    def size(self) -> int:
        """How many devices there are."""
        return jax.lax.axis_size(self.axis_name)

    @property
    def last(self) -> Any:
        """The last round of this device: as many blocks reach it."""
        return jax.lax.axis_index(self.axis_name) if self.causal else self.size - 1

    @property
    def wanted(self) -> Any:
        """How many blocks the right neighbor wants."""
        right = neighbor(self.axis_name, 1)
        return right if self.causal else self.size - 1

    def enter(self) -> None:
        """Wait until the right neighbor can be written to."""
        if self.size > 1:
            enter(self.axis_name, neighbor(self.axis_name, -1))

    def rounds(self, first: Callable[[], None], other: Callable[[Any], None]) -> None:
        """``first()`` with the own block, then ``other(s)`` in every further round ``s``."""
        first()
        if self.size > 1:
            pl.loop(1, self.last + 1)(other)


@dataclass(frozen=True)
class Traffic:
    """The travels of some arrays of a block, such as its keys and values.

    Attributes:
      ring: the ring.
      own: the arrays of the own block.
      slots: for each of them, two slots.
      sends: a DMA semaphore for each array.
      arrivals: a DMA semaphore for each slot and array, ``(SLOTS, arrays)``.
      credits: a regular semaphore.
    """

    ring: Ring
    own: tuple[Any, ...]
    slots: tuple[Any, ...]
    sends: Any
    arrivals: Any
    credits: Any

    def at_hand(self, s: Any) -> tuple[Any, ...]:
        """The arrays of the block of round ``s``."""
        if isinstance(s, int) and s == 0:
            return self.own
        return tuple(slots.at[jax.lax.rem(s - 1, SLOTS)] for slots in self.slots)

    def _copies(self, s: Any) -> list[Any]:
        right = neighbor(self.ring.axis_name, 1)
        slot = jax.lax.rem(s, SLOTS)
        return [
            pltpu.make_async_remote_copy(
                source,
                slots.at[slot],
                self.sends.at[place],
                self.arrivals.at[slot, place],
                device_id=at(self.ring.axis_name, right),
            )
            for place, (source, slots) in enumerate(zip(self.at_hand(s), self.slots, strict=True))
        ]

    def start(self, s: Any) -> None:
        """Start to send the block of round ``s``, if the right neighbor wants it."""
        if self.ring.size == 1:
            return

        @pl.when(s < self.ring.wanted)
        def _send() -> None:
            @pl.when(s >= SLOTS)
            def _wait_for_the_slot() -> None:
                pl.semaphore_wait(self.credits, 1)

            for copy in self._copies(s):
                copy.start()

    def finish(self, s: Any) -> None:
        """Wait until the block of round ``s`` has left."""
        if self.ring.size == 1:
            return

        @pl.when(s < self.ring.wanted)
        def _wait() -> None:
            for copy in self._copies(s):
                copy.wait_send()

    def give_back(self, s: Any) -> None:
        """Let the left neighbor write to the slot of round ``s``, at least 1, if it will."""

        # It sends its last block in its round last - 1.
        @pl.when(s + 1 < self.ring.last)
        def _free() -> None:
            left = neighbor(self.ring.axis_name, -1)
            pl.semaphore_signal(self.credits, 1, device_id=at(self.ring.axis_name, left))

    def receive(self, s: Any) -> None:
        """Wait until the block of round ``s``, at least 1, has arrived."""
        for copy in self._copies(s - 1):
            copy.wait_recv()
