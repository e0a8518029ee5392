"""``o = x + 1`` for an operand in HBM, in VMEM, or in the memory of the host.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32, bfloat16 or int32.

An operand in ``pl.ANY`` is wherever XLA put it: in HBM as a rule, and in VMEM where it decided that
the array is small and soon needed. ``add_one_placed`` asks for a place for its operand
(``with_memory_space_constraint``) and asks where it is (``has_memory_space``): from HBM it comes by
a pipeline of blocks, from VMEM by a single copy, since there is no transfer to hide. The question
is answered when Mosaic compiles the kernel, and the other branch is dropped. Nothing before that
can know, an interpreter least of all, so ``add_one_from`` is told, and runs everywhere.

``add_one_from_host`` takes an operand that is in the host's memory (``memory_kind="pinned_host"``)
and too large for the chip, or not worth a place there yet. A chip copies from there to HBM, not to
VMEM ("Unimplemented DMA from host to vmem"), so it goes through the output, and a pipeline adds one
in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _add_one(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def _by_blocks(x_ref: Any, o_ref: Any, block_rows: int) -> None:
    """A pipeline over the whole blocks, and one over the rows that are left."""
    m, n = x_ref.shape
    whole, tail = divmod(m, block_rows)
    for first, rows, steps in ((0, block_rows, whole), (whole * block_rows, tail, 1)):
        if rows and steps:
            here = pl.ds(first, rows * steps)
            block = pl.BlockSpec((rows, n), lambda i: (i, 0))
            pltpu.emit_pipeline(_add_one, grid=(steps,), in_specs=[block], out_specs=[block])(
                x_ref.at[here], o_ref.at[here]
            )


def _at_once(x_ref: Any, o_ref: Any) -> None:
    def through(buffer: Any) -> None:
        pltpu.sync_copy(x_ref, buffer)
        buffer[...] = buffer[...] + 1
        pltpu.sync_copy(buffer, o_ref)

    pl.run_scoped(through, pltpu.VMEM(x_ref.shape, x_ref.dtype))


def _add_one_to(x: jax.Array, in_vmem: Callable[[Any], Any], block_rows: int) -> jax.Array:
    """``x + 1``, at once where ``in_vmem(x_ref)``, by blocks where not."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        near = in_vmem(x_ref)
        pl.when(near)(lambda: _at_once(x_ref, o_ref))
        pl.when(jnp.logical_not(near))(lambda: _by_blocks(x_ref, o_ref, block_rows))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
    )(x)


def add_one_from(x: jax.Array, *, in_vmem: bool = False, block_rows: int = 256) -> jax.Array:
    """``x + 1``, read in the way that suits where ``x`` is said to be.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      in_vmem: copy ``x`` at once; otherwise by blocks.
      block_rows: rows in a block. A TPU wants a multiple of 8 for 32-bit and 16 for 16-bit types.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``block_rows`` is not positive.
    """
    _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    return _add_one_to(x, lambda _: in_vmem, block_rows)


def add_one_placed(
    x: jax.Array,
    *,
    space: pltpu.MemorySpace | pl.MemorySpace = pl.ANY,
    block_rows: int = 256,
) -> jax.Array:
    """``x + 1``, read in the way that suits where ``x`` is. It needs JAX 0.12.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      space: where XLA shall put ``x``: ``pltpu.VMEM``, ``pltpu.HBM``, or ``pl.ANY`` for its choice.
      block_rows: as for ``add_one_from``.

    Raises:
      ValueError: as ``add_one_from``, and if ``space`` is none of the three.
    """
    _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if space not in (pltpu.VMEM, pltpu.HBM, pl.ANY):
        raise ValueError(f"space must be pltpu.VMEM, pltpu.HBM or pl.ANY, but it is {space!r}")
    if space is not pl.ANY:
        x = pltpu.with_memory_space_constraint(x, space)
    return _add_one_to(x, lambda x_ref: pltpu.has_memory_space(x_ref, pltpu.VMEM), block_rows)


def add_one_from_host(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """``x + 1`` on the chip, for an ``x`` in the host's memory.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32. On a TPU, an argument of the jitted function whose
        sharding has ``memory_kind="pinned_host"``.
      block_rows: rows in a block. A TPU wants a multiple of 8 for 32-bit and 16 for 16-bit types.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``block_rows`` is not positive.
    """
    _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)

    def kernel(x_ref: Any, o_ref: Any, arrived: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, o_ref, arrived)
        copy.start()
        copy.wait()
        _by_blocks(o_ref, o_ref, block_rows)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.HOST)],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1
