"""``o = x + 1`` on all vector subcores, in registers: three ways to write the loop.

Shapes: ``x`` and ``o`` are ``(n,)``. Dtypes: float32 or int32.

A vector subcore computes on registers of ``num_lanes`` 32-bit elements, 8 of them on v5p and v6e
and 16 on tpu7x, and on nothing else: there are no tiles, and a block in VMEM is a plain array that
the kernel goes through a register at a time. The array is cut into blocks, and a pipeline on each
subcore copies every so-many-th block in and out while it computes on another one. The three bodies:

- ``loop``: one register after the other, in order.
- ``parallel_loop``: the kernel promises that no round needs what another one stores, and the
  compiler overlaps the load of one round with the addition and the store of others. This is the
  one to use.
- ``addupdate``: the block of the output is set to one, and each register of ``x`` is added to it by
  the store itself. So nothing is loaded from the output: right for sums that live in memory.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores

Method = Literal["loop", "parallel_loop", "addupdate"]

#: Registers in a block are a multiple of it, which is also how often a parallel loop is unrolled.
_UNROLL = 4


def _loop(x_ref: Any, o_ref: Any, lanes: int) -> None:
    @pl.loop(0, x_ref.shape[0], step=lanes)
    def _register(i: Any) -> None:
        here = pl.ds(i, lanes)
        o_ref[here] = x_ref[here] + 1


def _parallel_loop(x_ref: Any, o_ref: Any, lanes: int) -> None:
    @plsc.parallel_loop(0, x_ref.shape[0], lanes, unroll=_UNROLL)
    def _register(i: Any) -> None:
        here = pl.ds(i, lanes)
        o_ref[here] = x_ref[here] + 1


def _addupdate(x_ref: Any, o_ref: Any, lanes: int) -> None:
    @plsc.parallel_loop(0, x_ref.shape[0], lanes, unroll=_UNROLL)
    def _register(i: Any) -> None:
        here = pl.ds(i, lanes)
        o_ref[here] = jnp.ones((lanes,), o_ref.dtype)
        plsc.addupdate(o_ref.at[here], x_ref[here])


BODIES = {"loop": _loop, "parallel_loop": _parallel_loop, "addupdate": _addupdate}


def _map_kernel(x_ref: Any, o_ref: Any, *, method: Method, block: int, lanes: int) -> None:
    body = functools.partial(BODIES[method], lanes=lanes)
    _subcores.by_blocks(body, (x_ref, o_ref), [(block,), (block,)])


def vector_map(
    x: jax.Array,
    *,
    method: Method = "parallel_loop",
    block: int = 2048,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``x + 1``.

    Args:
      x: ``(n,)``, float32 or int32. It is padded to whole blocks, which copies it unless ``block``
        divides ``n``.
      method: how the registers of a block are gone through; it does not change the answer.
      block: elements of a block, rounded up to a multiple of four registers; four blocks must fit
        in the memory of a subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(n,)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` has a wrong rank or dtype or is empty, there is no such ``method``, or a
        size is not a positive integer.
    """
    (n,) = _require.axes("x", x, "n")
    _subcores.require_32_bits("x", x)
    if method not in BODIES:
        raise ValueError(f"method must be one of {', '.join(BODIES)}, but it is {method!r}")
    _require.positive(block=block)
    lanes = _subcores.lanes()
    block = pl.align_to(min(block, n), _UNROLL * lanes)
    wide = _subcores.padded(x, block)
    out = pl.kernel(
        functools.partial(_map_kernel, method=method, block=block, lanes=lanes),
        out_type=jax.ShapeDtypeStruct(wide.shape, x.dtype),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.LINEAR,
    )(wide)
    return out[:n]


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1
