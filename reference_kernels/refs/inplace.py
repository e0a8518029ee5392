"""``x += 1`` in the memory of ``x``: by an aliased output, and by references.

Shapes: ``x`` is ``(m, n)``. Dtypes: float32, bfloat16 or int32; ``add_one_to_first`` has no
bfloat16.

``add_one_aliased`` tells the compiler that output 0 lives in the buffer of input 0. That saves the
second buffer only if nobody needs ``x`` afterwards (under ``jax.jit``, donate it); otherwise XLA
copies ``x`` first, so the function stays pure. Each block is read before it is written and no
program touches another's block, which is what makes the alias safe.

``add_one_by_ref`` has state instead of outputs: ``jax.new_ref`` makes a mutable array,
``pl.kernel`` gets it in HBM and writes to it, and ``jax.freeze`` turns it back into a value. What a
reference is for shows where there is more than one step:

- ``add_steps`` calls the kernel in a ``fori_loop``. The reference is not carried through the loop
  as a value, so every round works in the same memory.
- ``add_one_to_empty`` begins with a reference to memory that nobody has written, which is what the
  output of any kernel is. The kernel must write all of it.
- ``add_one_to_first`` changes some rows only, by a masked store, and is a pure function all the
  same: ``pl.run_state`` makes references of its operands, runs the kernel on them, and returns what
  they hold at the end.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _add_one_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def add_one_aliased(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """``x + 1`` in the buffer of ``x``.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      block_rows: rows in a block. A TPU wants a multiple of 8 (16 for bfloat16).

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``block_rows`` is not positive.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    block_rows = min(block_rows, m)
    spec = pl.BlockSpec((block_rows, n), lambda i: (i, 0))
    return pl.pallas_call(
        _add_one_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(m, block_rows),),
        in_specs=[spec],
        out_specs=spec,
        input_output_aliases={0: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)


def _on_core(body: Any, *scratch_types: Any) -> Any:
    """``body`` as a kernel of references in HBM, on one TensorCore."""
    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    return pl.kernel(body, mesh=mesh, scratch_types=scratch_types)


def _add_one(x_ref: Any, o_ref: Any, buffer: Any) -> None:
    pltpu.sync_copy(x_ref, buffer)
    buffer[...] = buffer[...] + 1
    pltpu.sync_copy(buffer, o_ref)


def _add_one_to(x_ref: Any, buffer: Any) -> None:
    _add_one(x_ref, x_ref, buffer)


def add_one_by_ref(x: jax.Array) -> jax.Array:
    """``x + 1`` by a kernel that changes a reference to a copy of ``x``.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32, small enough for VMEM.

    Raises:
      ValueError: ``x`` is not a matrix or is empty.
    """
    _require.axes("x", x, "m n")
    state = jax.new_ref(x)
    _on_core(_add_one_to, pltpu.VMEM(x.shape, x.dtype))(state)
    return jax.freeze(state)


def add_steps(x: jax.Array, *, steps: int) -> jax.Array:
    """``x + steps``, by ``steps`` rounds of the kernel in the same memory.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32, small enough for VMEM.
      steps: how many rounds.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``steps`` is not a positive integer.
    """
    _require.axes("x", x, "m n")
    _require.positive(steps=steps)
    state = jax.new_ref(x)
    add_one = _on_core(_add_one_to, pltpu.VMEM(x.shape, x.dtype))

    def round_of(_: Any, carry: None) -> None:
        add_one(state)

    jax.lax.fori_loop(0, steps, round_of, None)
    return jax.freeze(state)


def add_one_to_empty(x: jax.Array) -> jax.Array:
    """``x + 1``, written to a reference that began empty.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32, small enough for VMEM.

    Raises:
      ValueError: ``x`` is not a matrix or is empty.
    """
    _require.axes("x", x, "m n")

    # jax.empty_ref makes a reference from a shape and a dtype. This one takes a memory space from
    # its argument, too, and a reference with a memory space exists inside of jax.jit only.
    @jax.jit
    def fill(x: jax.Array) -> jax.Array:
        state = pl.empty_ref_like(pltpu.HBM(x.shape, x.dtype))
        _on_core(_add_one, pltpu.VMEM(x.shape, x.dtype))(x, state)
        return jax.freeze(state)

    return fill(x)


def _add_one_to_first(count_ref: Any, x_ref: Any, buffer: Any, counts: Any) -> None:
    pltpu.sync_copy(count_ref, counts)
    pltpu.sync_copy(x_ref, buffer)
    first = jax.lax.broadcasted_iota(jnp.int32, buffer.shape, 0) < counts[0]
    pltpu.store(buffer, pltpu.load(buffer) + 1, mask=first)
    pltpu.sync_copy(buffer, x_ref)


def add_one_to_first(x: jax.Array, count: jax.Array) -> jax.Array:
    """``x`` with 1 added to its first rows.

    Args:
      x: ``(m, n)``, float32 or int32 (masks of a store are for 32 bits), small enough for VMEM.
      count: ``(1,)`` int32: how many rows; any number below 0 means none, above ``m`` all.

    Raises:
      ValueError: ``x`` is no matrix, empty or not of 32 bits, or ``count`` is not ``(1,)`` int32.
    """
    _require.axes("x", x, "m n")
    if jnp.dtype(x.dtype).itemsize != 4:
        raise ValueError(f"x must have a dtype of 32 bits, but its dtype is {x.dtype}")
    if count.shape != (1,) or count.dtype != jnp.int32:
        raise ValueError(
            f"count must be int32 of shape (1,), but it is {count.dtype} of {count.shape}"
        )
    kernel = _on_core(_add_one_to_first, pltpu.VMEM(x.shape, x.dtype), pltpu.SMEM((1,), jnp.int32))
    _, changed = pl.run_state(lambda refs: kernel(*refs))((count, x))
    return changed


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1


def reference_steps(x: jax.Array, *, steps: int) -> jax.Array:
    """``x + 1``, ``steps`` times: in bfloat16 each round rounds."""
    for _ in range(steps):
        x = x + 1
    return x


def reference_first(x: jax.Array, count: jax.Array) -> jax.Array:
    """``x`` with 1 added to its first ``count`` rows."""
    return jnp.where(jnp.arange(x.shape[0])[:, None] < count[0], x + 1, x)
