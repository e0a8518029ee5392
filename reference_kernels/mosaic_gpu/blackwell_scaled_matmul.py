"""Product of block-scaled matrices on a Blackwell GPU: ``o = (x * x_scale) @ (y * y_scale)^T``.

Each row of ``x`` and of ``y`` is cut into blocks along ``k``, and each block has one scale. So
small formats keep their few bits of mantissa where large and small rows, or parts of rows, meet.

Shapes: ``x (m, k)``, ``y (n, k)``, ``x_scale (m, k // b)``, ``y_scale (n, k // b)``, ``o (m, n)``;
``m``, ``n`` and ``k`` are multiples of 128, ``k`` of 256 for elements of 4 bits. Formats, as the
dtypes of the operands say:

- MXFP8: float8_e4m3fn or float8_e5m2, scales float8_e8m0fnu, that is powers of two, ``b = 32``
- MXFP4: float4_e2m1fn, scales float8_e8m0fnu, ``b = 32``
- NVFP4: float4_e2m1fn, scales float8_e4m3fn, ``b = 16``; the unit has no sign for them, so it is
  ignored

``tcgen05.mma`` multiplies by the scales as it multiplies, at no cost, but wants them in tensor
memory, in a layout of its own: four scales of a row are one column of 32 bits, and rows ``i``,
``i + 32``, ``i + 64`` and ``i + 96`` are neighbors. The wrapper brings them into that order, as
``(m // 128, k // b // 4, 32, 16)``; they are a thirty-second of the operands, and those of weights
can be kept so. TMA brings them to shared memory with the blocks that they belong to, and
``async_copy_scales_to_tmem`` to tensor memory. The thread that starts this copy starts the product
after it, and the tensor core keeps their order: no barrier is needed in between, and none between
this product and the next copy to the same place.

Both operands have ``k`` as their last axis, the only order that the 4-bit formats have. The roles
of the three warpgroups are those of ``blackwell_matmul``, without its other means: a block computes
one tile of 128 x 128.

Rouhani et al., "Microscaling data formats for deep learning", 2023 (arXiv:2310.10537); NVIDIA, "PTX
ISA" 8.7, section "tcgen05.mma.block_scale".
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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

#: Dtype of the elements and of the scales, and elements that share a scale.
_FORMATS = {
    ("float8_e4m3fn", "float8_e8m0fnu"): 32,
    ("float8_e5m2", "float8_e8m0fnu"): 32,
    ("float4_e2m1fn", "float8_e8m0fnu"): 32,
    ("float4_e2m1fn", "float8_e4m3fn"): 16,
}


class _Operands(NamedTuple):
    """What is multiplied: all of it in global memory, or ``stages`` blocks of it in shared memory.

    ``m`` and ``n`` are counted in tiles of 128 and ``s``, the scales of a row, in groups of four.

    Attributes:
      x: ``(m, k)``, or ``(stages, 128, block_k)``.
      y: ``(n, k)``, or likewise.
      x_scale: ``(m // 128, s // 4, 32, 16)``, or ``(stages, 1, block_s // 4, 32, 16)``.
      y_scale: ``(n // 128, s // 4, 32, 16)``, or likewise.
    """

    x: Ref
    y: Ref
    x_scale: Ref
    y_scale: Ref


class _Scales(NamedTuple):
    """The scales of a block in tensor memory.

    Attributes:
      x: ``(128, block_s)``.
      y: likewise.
    """

    x: Ref
    y: Ref


def _kernel(
    x: Ref,
    y: Ref,
    x_scale: Ref,
    y_scale: Ref,
    o: Ref,
    buffers: _Operands,
    scales: _Scales,
    result: Result,
    barriers: Barriers,
) -> None:
    """A tile of ``o (m, n)``; see ``_Operands`` for the first four."""
    operands = _Operands(x, y, x_scale, y_scale)
    run_roles(
        o,
        result,
        barriers,
        steps=x.shape[1] // buffers.x.shape[2],
        load=functools.partial(_load, operands, buffers, barriers),
        multiply=functools.partial(_multiply, buffers, scales, result, barriers),
    )


def _load(
    operands: _Operands, buffers: _Operands, barriers: Barriers, step: jax.Array, slot: jax.Array
) -> None:
    """Start the copies of a step: a block of each operand, and its scales."""
    block_k, groups = buffers.x.shape[2], buffers.x_scale.shape[2]
    terms, some = pl.ds(step * block_k, block_k), pl.ds(step * groups, groups)
    row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
    loaded = barriers.loaded.at[slot]
    for gmem, smem, scale_gmem, scale_smem, tile in (
        (operands.x, buffers.x, operands.x_scale, buffers.x_scale, row),
        (operands.y, buffers.y, operands.y_scale, buffers.y_scale, column),
    ):
        block = gmem.at[pl.ds(tile * TILE, TILE), terms]
        plgpu.copy_gmem_to_smem(block, smem.at[slot], loaded)
        plgpu.copy_gmem_to_smem(scale_gmem.at[pl.ds(tile, 1), some], scale_smem.at[slot], loaded)


def _multiply(
    buffers: _Operands,
    scales: _Scales,
    result: Result,
    barriers: Barriers,
    step: jax.Array,
    slot: jax.Array,
) -> None:
    """Start the copies of the scales to tensor memory, then the product that reads them."""
    plgpu.async_copy_scales_to_tmem(buffers.x_scale.at[slot], scales.x)
    plgpu.async_copy_scales_to_tmem(buffers.y_scale.at[slot], scales.y)
    plgpu.tcgen05_mma(
        result.sums,
        buffers.x.at[slot],
        buffers.y.at[slot].T,
        barriers.consumed.at[slot],
        a_scale=scales.x,
        b_scale=scales.y,
        accumulate=step > 0,
    )


def blackwell_scaled_matmul(
    x: jax.Array, y: jax.Array, x_scale: jax.Array, y_scale: jax.Array, *, stages: int = 4
) -> jax.Array:
    """``(x * x_scale) @ (y * y_scale).T`` with a scale for each ``b`` elements of a row.

    Args:
      x: ``(m, k)``, float8_e4m3fn, float8_e5m2 or float4_e2m1fn.
      y: ``(n, k)``, of the dtype of ``x``.
      x_scale: ``(m, k // b)``, float8_e8m0fnu, or float8_e4m3fn for elements of 4 bits.
      y_scale: ``(n, k // b)``, of the dtype of ``x_scale``.
      stages: buffers in the ring, at least 2.

    Returns:
      ``(m, n)``, bfloat16.

    Raises:
      ValueError: the dtypes are no known format; a size is not as above; or ``stages`` is not.
    """
    m, k = _require.axes("x", x, "m k")
    n, y_k = _require.axes("y", y, "n k")
    _require.same_size("k", ("x", k), ("y", y_k))
    _require.same_dtype(x=x, y=y)
    _require.same_dtype(x_scale=x_scale, y_scale=y_scale)
    block = _FORMATS.get((str(x.dtype), str(x_scale.dtype)))
    if block is None:
        known = ", ".join(" with ".join(each) for each in _FORMATS)
        raise ValueError(
            f"x and x_scale must have the dtypes of a format ({known}), but they are {x.dtype} "
            f"with {x_scale.dtype}"
        )
    block_k = _block_k(x.dtype)
    check_multiples(("x", "m", m, TILE), ("y", "n", n, TILE), ("x", "k", k, block_k))
    for name, scale, rows in (("x_scale", x_scale, m), ("y_scale", y_scale, n)):
        if scale.shape != (rows, k // block):
            raise ValueError(
                f"{name} must have the shape {(rows, k // block)}, one for each {block} elements "
                f"of a row, but its shape is {scale.shape}"
            )
    check_stages(stages)
    scales = block_k // block
    transforms = (plgpu.TilingTransform((_tiles.ROWS, block_k)), plgpu.SwizzleTransform(128))
    operand = plgpu.SMEM((stages, TILE, block_k), x.dtype, transforms=transforms)
    scale_smem = plgpu.SMEM((stages, 1, scales // 4, 32, 16), x_scale.dtype)
    scale_tmem = plgpu.TMEM((TILE, scales), x_scale.dtype, layout=plgpu.TMEMLayout.SCALES_LAYOUT)
    return call(
        _kernel,
        (x, y, *(_for_tensor_memory(_unsigned(each)) for each in (x_scale, y_scale))),
        out=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        buffers=_Operands(operand, operand, scale_smem, scale_smem),
        extra=_Scales(scale_tmem, scale_tmem),
        copies=4,
        stages=stages,
    )


def _block_k(dtype: Any) -> int:
    """Elements of 128 bytes, a row of the swizzle."""
    return 256 if str(dtype).startswith("float4") else 128


def _unsigned(scale: jax.Array) -> jax.Array:
    # Of float8_e8m0fnu, a power of two, there is no sign, and no abs either.
    return jnp.abs(scale) if scale.dtype != jnp.float8_e8m0fnu else scale


def _for_tensor_memory(scale: jax.Array) -> jax.Array:
    """``(rows, scales)`` as ``(rows // 128, scales // 4, 32, 16)``; see above."""
    rows, scales = scale.shape
    parts = scale.reshape(rows // TILE, 4, 32, scales // 4, 4)
    return parts.transpose(0, 3, 2, 1, 4).reshape(rows // TILE, scales // 4, 32, 16)


def reference(x: jax.Array, y: jax.Array, x_scale: jax.Array, y_scale: jax.Array) -> jax.Array:
    """Multiply by the scales, then contract, in float32 at least."""
    wide = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    rows, columns = (
        each.astype(wide)
        * jnp.repeat(jnp.abs(scale.astype(wide)), x.shape[1] // scale.shape[1], axis=1)
        for each, scale in ((x, x_scale), (y, y_scale))
    )
    product = jnp.dot(rows, columns.T, precision=jax.lax.Precision.HIGHEST)
    return product if wide == jnp.float64 else product.astype(jnp.bfloat16)
