"""Fetching the pages of a block: all that a sequence has of them, and none beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


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
