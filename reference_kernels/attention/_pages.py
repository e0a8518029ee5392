"""What attention over pages shares: fetching those of a block, and the softmax of a few heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES


class Softmax(NamedTuple):
    """What is known of the queries of some heads of keys so far, float32 in VMEM.

    Attributes:
      m: the maximum of the scores, ``(heads, rows, LANES)``, the same in all lanes.
      sums: of the weights, likewise.
      acc: sums of the weighted values, ``(heads, rows, d)``.
    """

    m: Ref
    sums: Ref
    acc: Ref


def softmax_memory(heads: int, rows: int, d: int) -> Softmax:
    """The scratch memory of a ``Softmax``."""
    columns = pltpu.VMEM((heads, rows, LANES), jnp.float32)
    return Softmax(columns, columns, pltpu.VMEM((heads, rows, d), jnp.float32))


def clear(softmax: Softmax) -> None:
    """No key has been seen."""
    softmax.m[...] = jnp.full_like(softmax.m, -jnp.inf)
    softmax.sums[...] = jnp.zeros_like(softmax.sums)
    softmax.acc[...] = jnp.zeros_like(softmax.acc)


def divided(softmax: Softmax) -> jax.Array:
    """The weighted means, ``(heads, rows, d)``; zero for a query that has seen no key."""
    total = lanes(softmax.sums[...], softmax.acc.shape[-1])
    return softmax.acc[...] / jnp.where(total == 0.0, 1.0, total)


def start_pages(
    count: Any, block_pages: int, start: Callable[[Any], None], *, unroll: bool = True
) -> None:
    """``start`` the DMAs of the pages 0 to ``count``, at most ``block_pages``.

    Most blocks are whole; their DMAs are written out, which takes 16 bundles a DMA on v5e in place
    of 25 in a loop. ``unroll=False`` is for what happens once a kernel.
    """
    if not unroll:
        pl.loop(0, jnp.minimum(count, block_pages))(start)
        return

    @pl.when(count >= block_pages)
    def _whole() -> None:
        for at in range(block_pages):
            start(at)

    @pl.when(count < block_pages)
    def _rest() -> None:
        pl.loop(0, count)(start)


def wait_pages(count: Any, block_pages: int, slot: Any, page: Any, semaphore: Any) -> None:
    """Wait for ``count`` pages that are copied into ``slot``, each as large as ``page``.

    The semaphore of a DMA counts bytes, so a single wait for as many bytes as the slot has will do
    for a whole one. Only the size of the copies that are made up for it matters.
    """

    @pl.when(count >= block_pages)
    def _whole() -> None:
        pltpu.make_async_copy(slot, slot, semaphore).wait()

    @pl.when(count < block_pages)
    def _rest() -> None:
        @pl.loop(0, count)
        def _page(at: Any) -> None:
            del at
            pltpu.make_async_copy(page, page, semaphore).wait()


def lanes(column: Any, width: int) -> Any:
    """A number a row, given in all 128 lanes, in ``width`` of them.

    Whole registers are named again, which costs nothing; to spread a single lane over the others
    would take the cross-lane unit.
    """
    if width <= column.shape[-1]:
        return column[..., :width]
    times = pl.cdiv(width, column.shape[-1])
    return jnp.tile(column, (*(1,) * (column.ndim - 1), times))[..., :width]
