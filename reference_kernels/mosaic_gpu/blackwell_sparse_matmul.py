"""Product of a 2:4 sparse matrix on a Blackwell GPU: ``o = x @ y^T``, half of ``x`` is zero.

Of each four elements of a row of ``x`` two at most are not zero. So only two are kept, and which
two of the four they are: there are six ways. The tensor core picks what it needs of ``y``, skips
the rest, and so computes twice as many terms in a time.

Shapes: ``values (m, k // 2)``, ``pairs (m, k // 4)``, ``y (n, k)``, ``o (m, n)``; ``m`` and ``n``
are multiples of 128, ``k`` of 128, for float8_e4m3fn of 256. Dtypes: ``values`` and ``y`` bfloat16,
float16 or float8_e4m3fn; ``pairs`` int32, each an index into ``PAIRS``; ``o`` as ``values``, or
bfloat16 for float8. Sums are float32.

``tcgen05.mma.sp`` wants two bits for the position of each value, the metadata, in tensor memory, in
an order that depends on the dtype: ``plgpu.format_tcgen05_sparse_metadata`` brings them into it.
They are an eighth of the values of 16 bits, and as constant as the weights that they belong to.
From there on they go the way of the scales of ``blackwell_scaled_matmul``: by TMA to shared memory,
then by ``async_copy_sparse_metadata_to_tmem``, in order with the products. The three warpgroups
have the same roles.

Mishra et al., "Accelerating sparse deep neural networks", 2021 (arXiv:2104.08378); NVIDIA, "PTX
ISA" 8.7, section "tcgen05 sparse matrices".
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles
from reference_kernels.mosaic_gpu._blackwell_roles import (
    TILE,
    Barriers,
    Result,
    call,
    check_multiples,
    check_stages,
    run_roles,
)

#: Which two of four elements are kept.
PAIRS = tuple(itertools.combinations(range(4), 2))


class _Operands(NamedTuple):
    """What is multiplied: all of it in global memory, or ``stages`` blocks of it in shared memory.

    Attributes:
      x: the elements that are kept, ``(m, k // 2)``, or ``(stages, 128, block_k // 2)``.
      y: ``(n, k)``, or ``(stages, 128, block_k)``.
      places: which elements they are, in the order of the tensor core, ``(m // 128, k // 128, 128,
        64)``, or ``(stages, 1, block_k // 128, 128, 64)``.
    """

    x: Ref
    y: Ref
    places: Ref


def _kernel(
    x: Ref,
    y: Ref,
    places: Ref,
    o: Ref,
    buffers: _Operands,
    places_tmem: Ref,
    result: Result,
    barriers: Barriers,
) -> None:
    """A tile of ``o (m, n)``; see ``_Operands`` for the first three."""
    operands = _Operands(x, y, places)
    run_roles(
        o,
        result,
        barriers,
        steps=y.shape[1] // buffers.y.shape[2],
        load=functools.partial(_load, operands, buffers, barriers),
        multiply=functools.partial(_multiply, buffers, places_tmem, result, barriers),
    )


def _load(
    operands: _Operands, buffers: _Operands, barriers: Barriers, step: jax.Array, slot: jax.Array
) -> None:
    """Start the copies of a step: a block of each operand, and the places."""
    row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
    loaded = barriers.loaded.at[slot]
    for gmem, smem, tile in ((operands.x, buffers.x, row), (operands.y, buffers.y, column)):
        terms = smem.shape[2]  # of x half as many
        block = gmem.at[pl.ds(tile * TILE, TILE), pl.ds(step * terms, terms)]
        plgpu.copy_gmem_to_smem(block, smem.at[slot], loaded)
    groups = buffers.places.shape[2]
    block = operands.places.at[pl.ds(row, 1), pl.ds(step * groups, groups)]
    plgpu.copy_gmem_to_smem(block, buffers.places.at[slot], loaded)


def _multiply(
    buffers: _Operands,
    places: Ref,
    result: Result,
    barriers: Barriers,
    step: jax.Array,
    slot: jax.Array,
) -> None:
    """Start the copy of the places to tensor memory, then the product that reads them."""
    plgpu.async_copy_sparse_metadata_to_tmem(buffers.places.at[slot], places)
    plgpu.tcgen05_mma(
        result.sums,
        buffers.x.at[slot],
        buffers.y.at[slot].T,
        barriers.consumed.at[slot],
        a_sparse_metadata=places,
        accumulate=step > 0,
    )


def blackwell_sparse_matmul(
    values: jax.Array, pairs: jax.Array, y: jax.Array, *, stages: int = 3
) -> jax.Array:
    """``x @ y.T`` for ``x`` with two elements of each four.

    Args:
      values: ``(m, k // 2)``, the elements that are kept, bfloat16, float16 or float8_e4m3fn.
      pairs: ``(m, k // 4)``, int32, which of ``PAIRS`` they are; counted modulo 6.
      y: ``(n, k)``, of the dtype of ``values``.
      stages: buffers in the ring, at least 2.

    Returns:
      ``(m, n)``, of the dtype of ``values``, or bfloat16 if that is float8.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or ``stages`` is not as above.
    """
    m, half = _require.axes("values", values, "m k//2")
    n, k = _require.axes("y", y, "n k")
    _tiles.check_dtype("values", values, float8=True)
    _require.same_dtype(values=values, y=y)
    block_k = 2 * _tiles.width(values.dtype)
    check_multiples(("values", "m", m, TILE), ("y", "n", n, TILE), ("y", "k", k, block_k))
    if half != k // 2:
        raise ValueError(f"values must have half of the k of y, {k // 2}, but has {half}")
    if pairs.shape != (m, k // 4) or pairs.dtype != jnp.int32:
        raise ValueError(
            f"pairs must be int32 of the shape {(m, k // 4)}, one for each four elements of a row, "
            f"but it is {pairs.dtype} of the shape {pairs.shape}"
        )
    check_stages(stages)
    places = plgpu.format_tcgen05_sparse_metadata(_places(pairs).astype(jnp.uint2), values.dtype)
    return call(
        _kernel,
        (values, y, places),
        out=jax.ShapeDtypeStruct((m, n), _tiles.out_dtype(values.dtype)),
        buffers=_Operands(
            x=_tiles.smem((stages, TILE, block_k // 2), values.dtype),
            y=_tiles.smem((stages, TILE, block_k), values.dtype),
            places=plgpu.SMEM((stages, 1, block_k // 128, 128, 64), jnp.uint2),
        ),
        extra=plgpu.TMEM(
            (TILE, block_k // 2), jnp.uint2, layout=plgpu.TMEMLayout.SPARSE_METADATA_LAYOUT
        ),
        copies=3,
        stages=stages,
    )


def _places(pairs: jax.Array) -> jax.Array:
    """``(m, k // 4, 2)``: which of the four elements the two are."""
    return jnp.asarray(np.array(PAIRS, np.int32))[jnp.mod(pairs, len(PAIRS))]


def expanded(values: jax.Array, pairs: jax.Array) -> jax.Array:
    """``x (m, k)`` with its zeros."""
    m, groups = pairs.shape
    chosen = jax.nn.one_hot(_places(pairs), 4, dtype=jnp.int32).astype(values.dtype)
    return jnp.einsum("mgi,mgij->mgj", values.reshape(m, groups, 2), chosen).reshape(m, 4 * groups)


def reference(values: jax.Array, pairs: jax.Array, y: jax.Array) -> jax.Array:
    """Put the zeros back, then multiply, in float32 at least."""
    dtype = _tiles.out_dtype(values.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    x = expanded(values.astype(wide), pairs)
    product = jnp.dot(x, y.astype(wide).T, precision=jax.lax.Precision.HIGHEST)
    return product.astype(dtype)
