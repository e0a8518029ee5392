"""``x += 1`` in the memory of ``x``: by an aliased output, and by a reference.

Shapes: ``x`` is ``(m, n)``. Dtypes: float32, bfloat16 or int32.

``add_one_aliased`` tells the compiler that output 0 lives in the buffer of input 0. That saves the
second buffer only if nobody needs ``x`` afterwards (under ``jax.jit``, donate it); otherwise XLA
copies ``x`` first, so the function stays pure. Each block is read before it is written and no
program touches another's block, which is what makes the alias safe.

``add_one_by_ref`` has state instead of outputs: ``jax.new_ref`` makes a mutable array,
``pl.kernel`` gets it in HBM and writes to it, and ``jax.freeze`` turns it back into a value.
"""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Permuted
from pytest_pallas.spec import KernelSpec
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


def _add_one_to(x_ref: Any, buffer: Any) -> None:
    pltpu.sync_copy(x_ref, buffer)
    buffer[...] = buffer[...] + 1
    pltpu.sync_copy(buffer, x_ref)


def add_one_by_ref(x: jax.Array) -> jax.Array:
    """``x + 1`` by a kernel that changes a reference to a copy of ``x``.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32, small enough for VMEM.

    Raises:
      ValueError: ``x`` is not a matrix or is empty.
    """
    _require.axes("x", x, "m n")
    state = jax.new_ref(x)
    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    pl.kernel(_add_one_to, mesh=mesh, scratch_types=[pltpu.VMEM(x.shape, x.dtype)])(state)
    return jax.freeze(state)


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1


_ARRAYS = pst.arrays(
    "m n", dtype=pst.dtypes("bfloat16", "float32", "int32"), around={"m": 16, "n": 128}
)

_PERMUTED = tuple(Permuted({0: axis}, output=axis, exact=True) for axis in (0, 1))

SPEC_ALIASED = KernelSpec(
    name="add_one_aliased",
    kernel=add_one_aliased,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning={"block_rows": st.sampled_from([16, 32])}),
    exact=True,
    batch_axes=(0,),
    relations=_PERMUTED,
    implementations={"add_one_by_ref": add_one_by_ref},
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 512}),),
)

SPEC_BY_REF = KernelSpec(
    name="add_one_by_ref",
    kernel=add_one_by_ref,
    reference=reference,
    inputs=_ARRAYS,
    exact=True,
    relations=_PERMUTED,
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch; 0.12.0.1 can
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 256, "n": 512}),),
)
