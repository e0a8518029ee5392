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

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu import _tiles

_TILE = 128  # rows and columns of the output that a block computes
_LOADS, _PRODUCTS, _OUTPUT = range(3)  # what each warpgroup does

#: Dtype of the elements and of the scales, and elements that share a scale.
_FORMATS = {
    ("float8_e4m3fn", "float8_e8m0fnu"): 32,
    ("float8_e5m2", "float8_e8m0fnu"): 32,
    ("float4_e2m1fn", "float8_e8m0fnu"): 32,
    ("float4_e2m1fn", "float8_e4m3fn"): 16,
}


def _kernel(
    x_gmem: Any,
    y_gmem: Any,
    x_scale_gmem: Any,
    y_scale_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    x_scale_smem: Any,
    y_scale_smem: Any,
    o_smem: Any,
    sums: Any,
    x_scale: Any,
    y_scale: Any,
    loaded: Any,
    consumed: Any,
    summed: Any,
) -> None:
    role = jax.lax.axis_index("role")
    row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
    stages, _, block_k = x_smem.shape
    scales = x_scale_smem.shape[2]  # groups of four of a block
    steps = x_gmem.shape[1] // block_k

    @pl.when(role == _LOADS)
    def _load() -> None:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot = jax.lax.rem(step, stages)
            pl.when(step >= stages)(lambda: plgpu.barrier_wait(consumed.at[slot]))
            terms, groups = pl.ds(step * block_k, block_k), pl.ds(step * scales, scales)
            for gmem, smem, scale_gmem, scale_smem, tile in (
                (x_gmem, x_smem, x_scale_gmem, x_scale_smem, row),
                (y_gmem, y_smem, y_scale_gmem, y_scale_smem, column),
            ):
                block = gmem.at[pl.ds(tile * _TILE, _TILE), terms]
                plgpu.copy_gmem_to_smem(block, smem.at[slot], loaded.at[slot])
                block = scale_gmem.at[pl.ds(tile, 1), groups]
                plgpu.copy_gmem_to_smem(block, scale_smem.at[slot], loaded.at[slot])

        @pl.loop(max(steps - stages, 0), steps)
        def _last(step: Any) -> None:  # before which the block may not end
            plgpu.barrier_wait(consumed.at[jax.lax.rem(step, stages)])

    @pl.when(role == _PRODUCTS)
    def _multiply() -> None:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot = jax.lax.rem(step, stages)
            plgpu.barrier_wait(loaded.at[slot])
            plgpu.async_copy_scales_to_tmem(x_scale_smem.at[slot], x_scale)
            plgpu.async_copy_scales_to_tmem(y_scale_smem.at[slot], y_scale)
            plgpu.tcgen05_mma(
                sums,
                x_smem.at[slot],
                y_smem.at[slot].T,
                consumed.at[slot],
                a_scale=x_scale,
                b_scale=y_scale,
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
    for name, axis, size, multiple in (
        ("x", "m", m, _TILE),
        ("y", "n", n, _TILE),
        ("x", "k", k, block_k),
    ):
        if size % multiple:
            raise ValueError(
                f"the {axis} of {name} must be a multiple of {multiple}, but it is {size}"
            )
    for name, scale, rows in (("x_scale", x_scale, m), ("y_scale", y_scale, n)):
        if scale.shape != (rows, k // block):
            raise ValueError(
                f"{name} must have the shape {(rows, k // block)}, one for each {block} elements "
                f"of a row, but its shape is {scale.shape}"
            )
    _require.positive(stages=stages)
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")
    scales = block_k // block
    transforms = (plgpu.TilingTransform((_tiles.ROWS, block_k)), plgpu.SwizzleTransform(128))
    operand = plgpu.SMEM((stages, _TILE, block_k), x.dtype, transforms=transforms)
    scale_smem = plgpu.SMEM((stages, 1, scales // 4, 32, 16), x_scale.dtype)
    scale_tmem = plgpu.TMEM((_TILE, scales), x_scale.dtype, layout=plgpu.TMEMLayout.SCALES_LAYOUT)
    return plgpu.kernel(
        _kernel,
        out_type=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        scratch_types={
            "x_smem": operand,
            "y_smem": operand,
            "x_scale_smem": scale_smem,
            "y_scale_smem": scale_smem,
            "o_smem": _tiles.smem((_TILE, _TILE), jnp.bfloat16),
            "sums": plgpu.TMEM((_TILE, _TILE), jnp.float32),
            "x_scale": scale_tmem,
            "y_scale": scale_tmem,
            "loaded": plgpu.Barrier(num_arrivals=4, num_barriers=stages),
            "consumed": plgpu.Barrier(num_barriers=stages, orders_tensor_core=True),
            "summed": plgpu.Barrier(orders_tensor_core=True),
        },
        grid=(m // _TILE, n // _TILE),
        grid_names=("row", "column"),
        num_threads=3,
        thread_name="role",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x, y, *(_for_tensor_memory(_unsigned(each)) for each in (x_scale, y_scale)))


def _block_k(dtype: Any) -> int:
    """Elements of 128 bytes, a row of the swizzle."""
    return 256 if str(dtype).startswith("float4") else 128


def _unsigned(scale: jax.Array) -> jax.Array:
    # Of float8_e8m0fnu, a power of two, there is no sign, and no abs either.
    return jnp.abs(scale) if scale.dtype != jnp.float8_e8m0fnu else scale


def _for_tensor_memory(scale: jax.Array) -> jax.Array:
    """``(rows, scales)`` as ``(rows // 128, scales // 4, 32, 16)``; see above."""
    rows, scales = scale.shape
    parts = scale.reshape(rows // _TILE, 4, 32, scales // 4, 4)
    return parts.transpose(0, 3, 2, 1, 4).reshape(rows // _TILE, scales // 4, 32, 16)


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
