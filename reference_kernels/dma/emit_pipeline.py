"""``o = x + 1`` by a pipeline that the kernel starts itself.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32, bfloat16 or int32.

The blocks of a ``pallas_call`` are fetched by a pipeline around the kernel. ``emit_pipeline`` is
that pipeline as a function: the operands stay in HBM, and the kernel says when it runs, over which
part of them, and with how many buffers. It allocates the buffers in VMEM for as long as it runs.

- ``pl.Buffered(count)``: two buffers overlap the copy of one block with the arithmetic of another;
  a third evens out copies that take unequally long; one copies nothing ahead. With lookahead, the
  next *different* block is fetched as soon as a buffer is free, however many steps away it is;
  without, ``count - 1`` steps ahead. Here every step has a block of its own, so both are the same.
- ``core_axis=0``: the steps are divided over the programs of grid axis 0. ``PARALLEL`` lets the
  compiler give every program a core of its own where a chip has two; ``CORE_PARALLEL`` insists, and
  a chip that has one core does not compile.

A pipeline rounds the last block up to whole tiles, so it reads and writes beyond the end of the
array: harmless in the padding of HBM, but the interpreters refuse it. So the whole blocks and the
last ``m % block_rows`` rows have a pipeline each, over slices that their blocks divide. The second
has a single block that is all of its operand, and copies that once, without buffering.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

_DOUBLE = pl.Buffered(2)


def _add_one(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def _pipelined_kernel(
    x_ref: Any, o_ref: Any, *, block_rows: int, buffering: pl.Buffered, cores: int
) -> None:
    m, n = x_ref.shape
    whole, tail = divmod(m, block_rows)

    if whole:
        head = pl.ds(0, whole * block_rows)
        block = pl.BlockSpec((block_rows, n), lambda i: (i, 0))
        pltpu.emit_pipeline(
            _add_one,
            grid=(whole,),
            in_specs=[block.replace(pipeline_mode=buffering)],
            out_specs=[block],
            core_axis=0,
            dimension_semantics=(pltpu.PARALLEL,),
        )(x_ref.at[head], o_ref.at[head])

    if tail:

        @pl.when(pl.program_id(0) == cores - 1)
        def _last_rows() -> None:
            rest = pl.ds(whole * block_rows, tail)
            block = pl.BlockSpec((tail, n), lambda i: (0, 0))
            pltpu.emit_pipeline(_add_one, grid=(1,), in_specs=[block], out_specs=[block])(
                x_ref.at[rest], o_ref.at[rest]
            )


def add_one_pipelined(
    x: jax.Array,
    *,
    block_rows: int = 256,
    buffering: pl.Buffered = _DOUBLE,
    cores: int = 1,
    core_parallel: bool = False,
) -> jax.Array:
    """``x + 1``, ``block_rows`` rows at a time.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      block_rows: rows in a block. A TPU wants a multiple of 8 for 32-bit and 16 for 16-bit types.
        The buffers of ``x``, two of ``o`` and the rest of the rows must fit in VMEM.
      buffering: how ``x`` is buffered. Lookahead needs two buffers or more.
      cores: how many programs share the blocks.
      core_parallel: insist that every program has a core of its own.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, a number is not a positive integer, or
        there are too few buffers.
    """
    _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows, cores=cores)
    _require.positive(**{"buffering.buffer_count": buffering.buffer_count})
    if buffering.use_lookahead and buffering.buffer_count == 1:
        raise ValueError("buffering must have at least two buffers for lookahead, but it has 1")

    def body(x_ref: Any, o_ref: Any) -> None:
        _pipelined_kernel(x_ref, o_ref, block_rows=block_rows, buffering=buffering, cores=cores)

    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    semantics = pltpu.CORE_PARALLEL if core_parallel else pltpu.PARALLEL
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(cores,),
        in_specs=[hbm],
        out_specs=hbm,
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics,)),
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1
