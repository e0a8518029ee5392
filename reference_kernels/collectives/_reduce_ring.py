"""The ring that adds: what reduce_scatter and all_reduce have in common.

Every device of a ring holds an array cut into as many chunks as there are devices. Chunk ``c``
starts at the device after ``c``, goes once around the ring, gets the part of every device on its
way, and ends complete on device ``c``. So in turn ``t`` device ``i`` adds its part to chunk ``i - 1
- t``, and in the last turn to chunk ``i``. A device sends ``devices - 1`` chunks of ``devices``:
nobody can do with less.

A chunk is cut into pieces, which travel on lanes: even lanes go around to the right, odd ones to
the left, so that links are used in both directions. With two lanes in a direction, one piece is on
the wire while the other is added. Arrays whose last dimension is not a multiple of 128 are copied
into rows of 128 first.

On each lane a device has two slots that its neighbor writes to (``inbox``) and one that it sends
from (``outbox``). The slots would not be safe by themselves. A device gets its next piece from the
one behind it and not from the one ahead, so nothing keeps it from sending a third piece ahead while
the first still waits there to be added. Hence credits: a slot that was read is worth one signal to
the device that writes to it, and from the third piece on, sending takes one such signal. For the
last two pieces no signal is given, because nobody would wait for it, and semaphores must be zero in
the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels._tpu import LANES

Combine = Callable[[Any, Any], Any]

#: Bytes of a piece that travels at once, by default.
PIECE_BYTES = 2**18

_LANES = 4  # two in each direction: one on the wire, one being added
_SLOTS = 2  # what arrives, and what is being added

#: What can be added on the ring.
DTYPES = ("bfloat16", "float32", "int32")


class Pieces(NamedTuple):
    """How a chunk is cut: ``groups`` times ``lanes`` pieces of ``(rows, columns)``."""

    groups: int
    lanes: int
    rows: int
    columns: int

    @property
    def height(self) -> int:
        """Rows of a chunk."""
        return self.groups * self.lanes * self.rows


class Wire(NamedTuple):
    """What is done to the values: ``combine`` two, ``finish`` the last, in ``dtype`` between."""

    combine: Combine
    finish: Callable[[Any], Any]
    dtype: Any


def supported(name: str, operand: jax.Array) -> None:
    """Raise ValueError unless ``operand`` is something that the ring can add."""
    _require.nonempty(name, operand)
    if operand.dtype not in DTYPES:
        raise ValueError(
            f"{name} must be of dtype {', '.join(DTYPES)}, but its dtype is {operand.dtype}"
        )


def cut(chunk: tuple[int, ...], itemsize: int, piece_bytes: int) -> Pieces:
    """Pieces of a chunk of some shape, of whole tiles and about ``piece_bytes`` bytes of 4."""
    tile = 32 // itemsize
    last = chunk[-1] if len(chunk) > 1 else 0
    # As it lies in memory, if one row of tiles is not too large for a piece.
    whole = last and last % LANES == 0 and 4 * tile * last <= piece_bytes
    columns = last if whole else LANES
    tiles = pl.cdiv(math.prod(chunk), columns * tile)
    lanes = min(_LANES, tiles)
    groups = pl.cdiv(tiles, lanes * max(1, piece_bytes // (4 * tile * columns)))
    return Pieces(groups, lanes, pl.cdiv(tiles, lanes * groups) * tile, columns)


def fold(chunks: jax.Array, pieces: Pieces) -> jax.Array:
    """``chunks (devices, ...)`` as ``(devices, rows, columns)``, with zeros behind the end."""
    devices = chunks.shape[0]
    flat = chunks.reshape(devices, -1)
    missing = pieces.height * pieces.columns - flat.shape[1]
    if missing:
        flat = jnp.pad(flat, ((0, 0), (0, missing)))
    return flat.reshape(devices, pieces.height, pieces.columns)


def unfold(rows: jax.Array, chunk: tuple[int, ...]) -> jax.Array:
    """A folded chunk in its own shape."""
    size = math.prod(chunk)
    return rows.reshape(-1)[:size].reshape(chunk)


def _direction(lane: Any) -> Any:
    """Which way around the ring the pieces of a lane go: 1 or -1."""
    return jnp.where(jax.lax.rem(lane, 2) == 0, 1, -1)


def one_turn(
    x_ref: Any, o_ref: Any, boxes: Any, *, axis_name: str, devices: int, pieces: Pieces, wire: Wire
) -> None:
    """One program of the grid ``(groups, devices, lanes)``: one turn of one piece.

    Args:
      x_ref: this device's part of the piece, ``(1, rows, columns)``.
      o_ref: where the complete chunk of this device goes, ``(height, columns)`` in HBM.
      boxes: what ``scratch`` names.
      axis_name: the ring.
      devices: how many there are on it.
      pieces: how chunks are cut.
      wire: what is done to the values.
    """
    inbox, outbox, result, sent, arrived, credits, stored = boxes
    group, turn, lane = (pl.program_id(axis) for axis in range(3))
    # Of the transfers of this lane: the one to start in this turn; the one before arrives in it.
    number, count = group * (devices - 1) + turn, pieces.groups * (devices - 1)
    here = jax.lax.rem(number, _SLOTS)
    before = 1 - here
    forward = _direction(lane)
    ahead, behind = (_mesh.neighbor(axis_name, step) for step in (forward, -forward))

    def transfer(slot: Any) -> Any:
        return pltpu.make_async_remote_copy(
            outbox.at[lane],
            inbox.at[lane, slot],
            sent.at[lane],
            arrived.at[lane, slot],
            device_id=_mesh.at(axis_name, ahead),
        )

    def store(group: Any) -> Any:
        start = pl.multiple_of((group * pieces.lanes + lane) * pieces.rows, pieces.rows)
        there = o_ref.at[pl.ds(start, pieces.rows)]
        return pltpu.make_async_copy(result.at[lane], there, stored.at[lane])

    def mine() -> Any:
        return x_ref[0].astype(wire.dtype)

    def added() -> Any:
        return wire.combine(inbox[lane, before], mine())

    def keep(total: Callable[[], Any]) -> None:
        pl.when(group > 0)(lambda: store(group - 1).wait())
        result[lane] = wire.finish(total()).astype(result.dtype)
        store(group).start()

    if devices == 1:
        keep(mine)
    else:
        first, last = turn == 0, turn == devices - 1
        pl.when(~first)(lambda: transfer(before).wait_recv())

        @pl.when(~last)
        def _pass_on() -> None:
            pl.when(number > 0)(lambda: transfer(before).wait_send())

            @pl.when(first)
            def _begin() -> None:
                outbox[lane] = mine()

            @pl.when(~first)
            def _add() -> None:
                outbox[lane] = added()

            pl.when(number >= _SLOTS)(lambda: pl.semaphore_wait(credits.at[lane], 1))
            transfer(here).start()

        pl.when(last)(lambda: keep(added))

        @pl.when(~first & (number + 1 < count))  # somebody will use the slot again
        def _slot_is_free() -> None:
            pl.semaphore_signal(credits.at[lane], 1, device_id=_mesh.at(axis_name, behind))

    @pl.when((group == pieces.groups - 1) & (turn == devices - 1))
    def _drain() -> None:
        if devices > 1:
            transfer(here).wait_send()
        store(group).wait()


def enter(axis_name: str, pieces: Pieces) -> None:
    """In the first program: wait for the devices that this one writes to."""
    if jax.lax.axis_size(axis_name) == 1:
        return
    neighbors = [_mesh.neighbor(axis_name, step) for step in (-1, 1)]
    start = functools.reduce(lambda a, b: a & b, [pl.program_id(axis) == 0 for axis in range(3)])
    pl.when(start)(lambda: _mesh.enter(axis_name, *neighbors[: pieces.lanes]))


def scratch(pieces: Pieces, wire: Wire, dtype: Any) -> list[Any]:
    """Slots to receive in, to send from and for results, and the semaphores of all of them."""
    piece = (pieces.rows, pieces.columns)
    return [
        pltpu.VMEM((pieces.lanes, _SLOTS, *piece), wire.dtype),
        pltpu.VMEM((pieces.lanes, *piece), wire.dtype),
        pltpu.VMEM((pieces.lanes, *piece), dtype),
        pltpu.SemaphoreType.DMA((pieces.lanes,)),
        pltpu.SemaphoreType.DMA((pieces.lanes, _SLOTS)),
        pltpu.SemaphoreType.REGULAR((pieces.lanes,)),
        pltpu.SemaphoreType.DMA((pieces.lanes,)),
    ]


def my_part(devices: int, pieces: Pieces) -> pl.BlockSpec:
    """The piece of ``x (devices, height, columns)`` that a program adds.

    Its index map needs the position of the device on the ring, as the scalar that is prefetched.
    """

    def index(group: Any, turn: Any, lane: Any, me: Any) -> tuple[Any, Any, int]:
        chunk = jax.lax.rem(me[0] - _direction(lane) * (1 + turn) + 2 * devices, devices)
        return chunk, group * pieces.lanes + lane, 0

    return pl.BlockSpec((1, pieces.rows, pieces.columns), index)


def call(
    body: Callable[..., None],
    x: jax.Array,
    axis_name: str,
    *,
    pieces: Pieces,
    out_shape: tuple[int, ...],
    scratch_shapes: list[Any],
    collective_id: int,
    wire: Wire,
) -> jax.Array:
    """``body`` on the grid of the ring, for ``x`` folded into ``(devices, height, columns)``."""
    devices = x.shape[0]
    me = jax.lax.axis_index(axis_name).reshape(1)
    traffic = (devices - 1) * pieces.height * pieces.columns * jnp.dtype(wire.dtype).itemsize
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(out_shape, x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pieces.groups, devices, pieces.lanes),
            in_specs=[my_part(devices, pieces)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=scratch_shapes,
        ),
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id if devices > 1 else None,
            dimension_semantics=("arbitrary",) * 3,
        ),
        cost_estimate=pl.CostEstimate(
            flops=x.size,
            transcendentals=0,
            bytes_accessed=x.size * x.dtype.itemsize,
            remote_bytes_transferred=traffic,
        ),
    )(me, x)
