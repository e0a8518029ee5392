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

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu import _tiles

#: Which two of four elements are kept.
PAIRS = tuple(itertools.combinations(range(4), 2))

_TILE = 128  # rows and columns of the output that a block computes
_LOADS, _PRODUCTS, _OUTPUT = range(3)  # what each warpgroup does


def _kernel(
    x_gmem: Any,
    y_gmem: Any,
    places_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    places_smem: Any,
    o_smem: Any,
    sums: Any,
    places: Any,
    loaded: Any,
    consumed: Any,
    summed: Any,
) -> None:
    role = jax.lax.axis_index("role")
    row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
    stages, _, block_k = y_smem.shape
    groups = places_smem.shape[2]
    steps = y_gmem.shape[1] // block_k

    @pl.when(role == _LOADS)
    def _load() -> None:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot = jax.lax.rem(step, stages)
            pl.when(step >= stages)(lambda: plgpu.barrier_wait(consumed.at[slot]))
            for gmem, smem, tile in ((x_gmem, x_smem, row), (y_gmem, y_smem, column)):
                terms = smem.shape[2]  # of x half as many
                block = gmem.at[pl.ds(tile * _TILE, _TILE), pl.ds(step * terms, terms)]
                plgpu.copy_gmem_to_smem(block, smem.at[slot], loaded.at[slot])
            block = places_gmem.at[pl.ds(row, 1), pl.ds(step * groups, groups)]
            plgpu.copy_gmem_to_smem(block, places_smem.at[slot], loaded.at[slot])

        @pl.loop(max(steps - stages, 0), steps)
        def _last(step: Any) -> None:  # before which the block may not end
            plgpu.barrier_wait(consumed.at[jax.lax.rem(step, stages)])

    @pl.when(role == _PRODUCTS)
    def _multiply() -> None:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot = jax.lax.rem(step, stages)
            plgpu.barrier_wait(loaded.at[slot])
            plgpu.async_copy_sparse_metadata_to_tmem(places_smem.at[slot], places)
            plgpu.tcgen05_mma(
                sums,
                x_smem.at[slot],
                y_smem.at[slot].T,
                consumed.at[slot],
                a_sparse_metadata=places,
                accumulate=step > 0,
            )

        plgpu.tcgen05_commit_arrive(summed)

    @pl.when(role == _OUTPUT)
    def _store() -> None:
        plgpu.barrier_wait(summed)
        o_smem[...] = plgpu.async_load_tmem(sums).astype(o_gmem.dtype)
        plgpu.commit_smem()
        here = pl.ds(row * _TILE, _TILE), pl.ds(column * _TILE, _TILE)
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)


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
    for name, axis, size, multiple in (
        ("values", "m", m, _TILE),
        ("y", "n", n, _TILE),
        ("y", "k", k, block_k),
    ):
        if size % multiple:
            raise ValueError(
                f"the {axis} of {name} must be a multiple of {multiple}, but it is {size}"
            )
    if half != k // 2:
        raise ValueError(f"values must have half of the k of y, {k // 2}, but has {half}")
    if pairs.shape != (m, k // 4) or pairs.dtype != jnp.int32:
        raise ValueError(
            f"pairs must be int32 of the shape {(m, k // 4)}, one for each four elements of a row, "
            f"but it is {pairs.dtype} of the shape {pairs.shape}"
        )
    _require.positive(stages=stages)
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")
    dtype = _out_dtype(values.dtype)
    places = plgpu.format_tcgen05_sparse_metadata(_places(pairs).astype(jnp.uint2), values.dtype)
    return plgpu.kernel(
        _kernel,
        out_type=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_types={
            "x_smem": _tiles.smem((stages, _TILE, block_k // 2), values.dtype),
            "y_smem": _tiles.smem((stages, _TILE, block_k), values.dtype),
            "places_smem": plgpu.SMEM((stages, 1, block_k // 128, 128, 64), jnp.uint2),
            "o_smem": _tiles.smem((_TILE, _TILE), dtype),
            "sums": plgpu.TMEM((_TILE, _TILE), jnp.float32),
            "places": plgpu.TMEM(
                (_TILE, block_k // 2),
                jnp.uint2,
                layout=plgpu.TMEMLayout.SPARSE_METADATA_LAYOUT,
            ),
            "loaded": plgpu.Barrier(num_arrivals=3, num_barriers=stages),
            "consumed": plgpu.Barrier(num_barriers=stages, orders_tensor_core=True),
            "summed": plgpu.Barrier(orders_tensor_core=True),
        },
        grid=(m // _TILE, n // _TILE),
        grid_names=("row", "column"),
        num_threads=3,
        thread_name="role",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(values, y, places)


def _out_dtype(dtype: Any) -> Any:
    return jnp.dtype(jnp.bfloat16) if jnp.dtype(dtype).itemsize == 1 else jnp.dtype(dtype)


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
    dtype = _out_dtype(values.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    x = expanded(values.astype(wide), pairs)
    product = jnp.dot(x, y.astype(wide).T, precision=jax.lax.Precision.HIGHEST)
    return product.astype(dtype)
