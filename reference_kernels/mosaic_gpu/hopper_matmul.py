"""Matrix product ``o = activation(x @ y)`` on a Hopper GPU: ``wgmma`` in a software pipeline.

Shapes: ``x (m, k)``, ``y (k, n)`` or, transposed, ``(n, k)``, ``o (m, n)``. Dtypes: bfloat16 or
float16; float8_e4m3fn with a transposed ``y``, because ``wgmma`` reads 8-bit operands along ``k``
only. Sums are float32. Float32 operands are refused: the tensor cores round them to tf32.

Source: PTX ISA 8.0 and later, "Asynchronous Warpgroup Level Matrix Instructions" and "Asynchronous
copy: tensor". A block of the grid is one warpgroup, the four warps that issue a ``wgmma``
together, one for each of the four tensor cores of a multiprocessor (SM). Its operands lie in shared
memory, where TMA puts them, its sum in registers.

- ``128 x 128`` sums in float32 are 128 registers of each thread, half of what there are. Three
  stages of ``128 x 64`` and ``64 x 128`` are 96 kB, and 16 kB more for the output: two blocks fit
  in the 227 kB of an SM, and one multiplies while the other begins or ends.
- ``128 x 192`` sums need fewer bytes of operands each, and four stages; then one block fits. Large
  products are 7 % faster so on an H200, those that leave SMs idle at the end are slower.
- Blocks are taken along a snake, ``width`` of them wide, instead of row by row: those that are in
  work at the same time share rows of ``x`` and columns of ``y``, which stay in the L2 cache.
- A ``wgmma`` is asynchronous too. The next one is issued before the last one is waited for, so that
  the tensor cores never run dry, and the slot that TMA fills is that of the step before.

Nothing is masked. TMA fills what lies beyond the end of an operand with zeros, and skips what lies
beyond the end of the output, unless the array has one tile along that axis (see ``_tiles.store``).
It does so in whole tiles of 8 rows of 128 bytes; operands that end within one are padded before, in
a copy.

Backward, with ``g = activation'(x @ y) do``: ``dx = g @ y^T`` and ``dy = x^T @ g``, by the same
kernel, which contracts whichever axes it is told to. ``wgmma`` takes 16-bit operands either way, so
nothing is transposed in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles
from reference_kernels.mosaic_gpu._tiles import Activation

_WIDE = 192  # columns of a block of a large product
_SMS = 132  # multiprocessors of an H100 or H200


class _Buffers(NamedTuple):
    """Shared memory of a block of the grid.

    Attributes:
      x: blocks of ``x`` for ``stages`` steps, ``(stages, block_m, block_k)``, or the last two
        sizes the other way round, as the axes of ``x`` are.
      y: blocks of ``y``, ``(stages, block_k, block_n)``, or likewise.
      o: parts of the output on their way out; see ``_tiles.staging``.
    """

    x: Ref
    y: Ref
    o: Ref


def _matmul_kernel(
    x: Ref,
    y: Ref,
    o: Ref,
    buffers: _Buffers,
    arrived: Ref,
    *,
    axes: tuple[int, int],
    steps: int,
    tiles: tuple[int, int],
    width: int,
    activation: Activation | None,
) -> None:
    """A block of the output: contract axis ``axes[0]`` of ``x`` with ``axes[1]`` of ``y``.

    Args:
      x: ``(m, k)``, or ``(k, m)``, in global memory.
      y: ``(k, n)``, or ``(n, k)``.
      o: ``(m, n)``.
      buffers: in shared memory.
      arrived: barriers, ``(stages,)``: both blocks of a step have arrived in a slot.
      axes: which axis of each operand is contracted.
      steps: of the sums.
      tiles: how many blocks there are below each other, and beside each other.
      width: see ``hopper_matmul``.
      activation: applied to the sums.
    """
    block_m, block_n = buffers.x.shape[2 - axes[0]], buffers.y.shape[2 - axes[1]]
    i, j = plgpu.planar_snake(jax.lax.axis_index("tile"), tiles, 0, width)
    row, column = i * block_m, j * block_n

    def fetch(step: jax.Array, slot: jax.Array) -> None:
        for gmem, smem, first, axis in (
            (x, buffers.x, row, axes[0]),
            (y, buffers.y, column, axes[1]),
        ):
            block = gmem.at[_block_of(smem.shape[1:], step, first, axis)]
            plgpu.copy_gmem_to_smem(block, smem.at[slot], arrived.at[slot])

    def multiply(acc: Ref, step: jax.Array, slot: jax.Array) -> None:
        del step
        left, right = buffers.x.at[slot], buffers.y.at[slot]
        plgpu.wgmma(acc, left if axes[0] == 1 else left.T, right if axes[1] == 0 else right.T)

    total = _tiles.sum_steps((block_m, block_n), arrived, steps, fetch=fetch, multiply=multiply)
    _tiles.store(total, buffers.o, o, row, column, activation)
    plgpu.wait_smem_to_gmem(0)


def _block_of(
    shape: tuple[int, int], step: jax.Array, first: jax.Array, axis: int
) -> tuple[pl.Slice, pl.Slice]:
    """The block of an operand that a step needs.

    Args:
      shape: of the block.
      step: which terms.
      first: the first row or column along the other axis.
      axis: that of the terms.
    """
    starts = [first, first]
    starts[axis] = step * shape[axis]
    return pl.ds(starts[0], shape[0]), pl.ds(starts[1], shape[1])


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a product is computed with, besides its operands.

    Attributes:
      activation: applied to the sums.
      axis: the axis of ``y`` that is contracted: 1 if it is transposed.
      dtype: of the output.
      block_m: rows of a block of the output.
      block_n: columns of it.
      block_k: terms of a sum in one step.
      stages: steps whose operands fit in shared memory.
      width: blocks below each other that are taken before the next column.
    """

    activation: Activation | None
    axis: int
    dtype: Any
    block_m: int
    block_n: int
    block_k: int
    stages: int
    width: int


def _contract(x: jax.Array, y: jax.Array, axes: tuple[int, int], settings: _Settings) -> jax.Array:
    """``activation`` of ``x`` and ``y`` contracted over ``axes``."""
    m, n, k = x.shape[1 - axes[0]], y.shape[1 - axes[1]], x.shape[axes[0]]
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    out = _tiles.whole((m, n), settings.dtype)
    block_m, block_n, block_k = settings.block_m, settings.block_n, settings.block_k
    x_block = (block_m, block_k) if axes[0] == 1 else (block_k, block_m)
    y_block = (block_k, block_n) if axes[1] == 0 else (block_n, block_k)
    tiles = pl.cdiv(m, block_m), pl.cdiv(n, block_n)
    return plgpu.kernel(
        functools.partial(
            _matmul_kernel,
            axes=axes,
            steps=pl.cdiv(k, block_k),
            tiles=tiles,
            width=settings.width,
            activation=settings.activation,
        ),
        out_type=jax.ShapeDtypeStruct(out, settings.dtype),
        scratch_types=(
            _Buffers(
                x=_tiles.smem((settings.stages, *x_block), x.dtype),
                y=_tiles.smem((settings.stages, *y_block), y.dtype),
                o=_tiles.staging(settings.dtype),
            ),
            plgpu.Barrier(num_arrivals=2, num_barriers=settings.stages),
        ),
        grid=(math.prod(tiles),),
        grid_names=("tile",),
        # For the activation: what is rounded to 16 bits has no use for the last bits of an exp,
        # and the exact one needs more registers than there are.
        compiler_params=plgpu.CompilerParams(approx_math=settings.dtype.itemsize == 2),
    )(x, y)[:m, :n]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: jax.Array, y: jax.Array, settings: _Settings) -> jax.Array:
    return _contract(x, y, (1, settings.axis), settings)


def _forward(
    x: jax.Array, y: jax.Array, settings: _Settings
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _matmul(x, y, settings), (x, y)


def _backward(
    settings: _Settings, operands: tuple[jax.Array, jax.Array], do: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, y = operands
    plain = dataclasses.replace(settings, activation=None)
    if settings.activation is not None:
        total = _contract(
            x, y, (1, settings.axis), dataclasses.replace(plain, dtype=jnp.dtype(jnp.float32))
        )
        _, pullback = jax.vjp(settings.activation, total)
        (do,) = pullback(do.astype(jnp.float32))
    do = do.astype(x.dtype)
    plain = dataclasses.replace(plain, dtype=x.dtype)
    dx = _contract(do, y, (1, 1 - settings.axis), plain)
    dy = _contract(*((do, x) if settings.axis else (x, do)), (0, 0), plain)
    return dx, dy


_matmul.defvjp(_forward, _backward)


def _keeps_busy(m: int, n: int, block_m: int, block_n: int) -> bool:
    """Whether blocks of this size, one for each SM at a time, leave few of them idle."""
    turns = pl.cdiv(pl.cdiv(m, block_m) * pl.cdiv(n, block_n), _SMS)
    return m * n >= 0.95 * turns * _SMS * block_m * block_n


def hopper_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
    out_dtype: Any = None,
    block_m: int = 128,
    block_n: int | None = None,
    block_k: int | None = None,
    stages: int | None = None,
    width: int = 8,
) -> jax.Array:
    """``activation(x @ y)``. It can be differentiated by both operands, and vmapped.

    The defaults are for products of thousands of rows and columns on an H100 or H200.

    Args:
      x: ``(m, k)``, bfloat16, float16 or float8_e4m3fn. Operands whose last size is not a multiple
        of 128 bytes, or whose other one is not a multiple of 8, are copied first.
      y: ``(k, n)``, of the dtype of ``x``.
      activation: an elementwise function such as ``jax.nn.silu``, applied to the float32 sums
        inside the kernel; it must not close over arrays.
      transpose_rhs: ``y`` is ``(n, k)``, and the product is ``x @ y.T``.
      out_dtype: bfloat16, float16 or float32; by default the dtype of ``x``, or bfloat16 if that
        is float8_e4m3fn.
      block_m: rows of a block of the output, a multiple of 64. A thread holds
        ``block_m * block_n / 128`` sums in registers.
      block_n: columns of it, a multiple of 64, at most 256. By default 192 where that keeps nearly
        all multiprocessors busy to the end, and 128 elsewhere.
      block_k: terms of the sums in one step, a multiple of 128 bytes. By default 128 bytes.
      stages: how many steps fit in shared memory, at least 2; all but one or two are on their way.
        By default 4 for 192 columns of 128 bytes, and 3 elsewhere.
      width: blocks below each other that are taken before the next column.

    Returns:
      ``(m, n)``, of ``out_dtype``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not allowed.
    """
    _require.product(x, y, transpose_rhs=transpose_rhs)
    _tiles.check_dtype("x", x, float8=True)
    if x.dtype.itemsize == 1 and not transpose_rhs:
        raise ValueError(
            f"y must be transposed, (n, k), for {x.dtype}: wgmma reads 8-bit operands along k; "
            "pass y.T and transpose_rhs=True"
        )
    out_dtype = _tiles.out_dtype(x.dtype) if out_dtype is None else out_dtype
    _tiles.check_out_dtype(out_dtype)
    block_k = _tiles.width(x.dtype) if block_k is None else block_k
    _require.positive(block_m=block_m)
    if block_n is None:
        n = y.shape[0 if transpose_rhs else 1]
        block_n = _WIDE if _keeps_busy(x.shape[0], n, block_m, _WIDE) else 128
    if stages is None:
        stages = 4 if (block_n, block_k) == (_WIDE, _tiles.width(x.dtype)) else 3
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    _require.positive(width=width)
    settings = _Settings(
        *(activation, int(transpose_rhs), jnp.dtype(out_dtype)),
        *(block_m, block_n, block_k, stages, width),
    )
    return _matmul(x, y, settings)


def reference(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
    out_dtype: Any = None,
) -> jax.Array:
    """``activation(x @ y)``, accumulated in float32 at least and rounded once."""
    wide = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    y = y.T if transpose_rhs else y
    product = jnp.dot(x.astype(wide), y.astype(wide), precision="highest")
    product = activation(product) if activation else product
    if x.dtype == jnp.float64:
        return product
    return product.astype(_tiles.out_dtype(x.dtype) if out_dtype is None else out_dtype)
