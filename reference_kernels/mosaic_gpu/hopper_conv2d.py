"""2-D convolution on a Hopper GPU: implicit GEMM, whose patches TMA gathers (``im2col``).

``o[b, i, j, d] = sum_{p, q, c} x[b, i - top + p, j - left + q, c] w[p, q, c, d]``, where ``x`` is
zero outside, and ``top`` and ``left`` are what the padding adds there.

Shapes: ``x (b, h, w, c)``, ``w (kh, kw, c, d)``, ``o (b, oh, ow, d)``. Dtypes: bfloat16 or float16;
sums are float32. The stride is 1.

Source: Chetlur et al., "cuDNN", 2014 (arXiv:1410.0759), section 3: a convolution is the product of
a matrix of patches, a row for each pixel of the output and a column for each ``(p, q, c)``, with
the weights. That matrix, ``kh kw`` times as large as ``x``, is never in global memory: PTX ISA 8.0,
"Tensor: im2col mode". TMA is told how large the windows and the padding are, and a copy names

- the pixels of the output, ``b oh ow`` of them in a row: TMA goes through the windows' corners in
  this order, from one line and one image into the next;
- one pixel ``(p, q)`` of each window, which is what makes one of the products of matrices over the
  channels that the convolution is the sum of;
- the channels of that pixel, 64 of them, a row of the tiles that ``wgmma`` reads.

What lies in the padding, beyond the last channel or beyond the last image comes as zeros. From
there on it is the pipeline of ``hopper_matmul``. All pixels of a window are taken for some channels
before the next channels are: what one of them needs, most others need too, and find it in the L2.

No interpreter executes such copies: that of Mosaic GPU says "Interpret mode does not support im2col
copies" (JAX 0.12.0.1). What is checked without a GPU is that the compiler takes the kernel, and in
a test that it is right if TMA reads what ``plgpu.im2col_ref`` documents. JAX 0.11 has no
``im2col_ref``, and the kernel claims no backend there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels.matmul.conv2d import Padding
from reference_kernels.mosaic_gpu import _tiles

_BYTES = 16  # TMA wants strides of arrays to be multiples of
_LARGEST = {"SAME": 256, "VALID": 129}  # windows: corners and offsets are 8 bits each


def _conv2d_kernel(
    x_gmem: Any,
    w_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    w_smem: Any,
    o_smem: Any,
    arrived: Any,
    *,
    windows: Callable[[Any], Any],
) -> None:
    """A block of the output as a matrix: some pixels, some of their channels."""
    patches = windows(x_gmem)
    _, kh, kw, channels = patches.shape
    stages, block_m, block_c = x_smem.shape
    block_n = w_smem.shape[2]
    row, column = jax.lax.axis_index("row") * block_m, jax.lax.axis_index("column") * block_n
    steps = pl.cdiv(channels, block_c) * kh * kw

    def fetch(step: Any) -> None:
        slot = jax.lax.rem(step, stages)
        tap = jax.lax.rem(step, kh * kw)
        terms = pl.ds(jax.lax.div(step, kh * kw) * block_c, block_c)
        pixel = (jax.lax.div(tap, kw), jax.lax.rem(tap, kw))
        for gmem, smem, here in (
            (patches, x_smem, (pl.ds(row, block_m), *pixel, terms)),
            (w_gmem, w_smem, (tap, terms, pl.ds(column, block_n))),
        ):
            plgpu.copy_gmem_to_smem(gmem.at[here], smem.at[slot], arrived.at[slot])

    def accumulate(acc: Any) -> jax.Array:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot = jax.lax.rem(step, stages)
            plgpu.barrier_wait(arrived.at[slot])
            plgpu.wgmma(acc, x_smem.at[slot], w_smem.at[slot])
            plgpu.wgmma_wait(1)  # the product of the step before is done: its slot is free
            ahead = step + stages - 1
            pl.when(jnp.logical_and(step > 0, ahead < steps))(lambda: fetch(ahead))

        return acc[...]

    for step in range(min(stages, steps)):
        fetch(jnp.int32(step))  # an int would be checked: a block may be larger than an operand
    total = pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((block_m, block_n), jnp.float32))
    _tiles.store(total, o_smem, o_gmem, row, column)
    plgpu.wait_smem_to_gmem(0)


def _convolve(
    x: jax.Array,
    w: jax.Array,
    pixels: int,
    windows: Callable[[Any], Any],
    *,
    block_m: int,
    block_n: int,
    stages: int,
) -> jax.Array:
    """The output as a matrix, ``(pixels, d)``; ``windows(x_gmem)`` is ``(pixels, kh, kw, c)``."""
    block_c, d = _tiles.width(x.dtype), w.shape[-1]
    x = jnp.pad(x, [(0, 0)] * 3 + [(0, -x.shape[-1] % (_BYTES // x.dtype.itemsize))])
    return plgpu.kernel(
        functools.partial(_conv2d_kernel, windows=windows),
        out_type=jax.ShapeDtypeStruct(_tiles.whole((pixels, d), x.dtype), x.dtype),
        scratch_types=[
            _tiles.smem((stages, block_m, block_c), x.dtype),
            _tiles.smem((stages, block_c, block_n), x.dtype),
            _tiles.staging(x.dtype),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        ],
        grid=(pl.cdiv(pixels, block_m), pl.cdiv(d, block_n)),
        grid_names=("row", "column"),
        # Copies by windows are lowered for the lanes of a warpgroup only.
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
    )(x, _tiles.aligned(w.reshape(-1, *w.shape[2:])))[:pixels, :d]


def _margins(padding: Padding, size: int) -> tuple[int, int]:
    """Zeros before and after the pixels of an axis along which windows have ``size`` of them."""
    return ((size - 1) // 2, size // 2) if padding == "SAME" else (0, 0)


def hopper_conv2d(
    x: jax.Array,
    w: jax.Array,
    *,
    padding: Padding = "SAME",
    block_m: int = 128,
    block_n: int = 128,
    stages: int = 3,
) -> jax.Array:
    """2-D convolution (without turning ``w`` around, as in neural networks), of stride 1.

    It can be neither differentiated nor vmapped; ``b`` is there for batches. The defaults are for
    images of thousands of pixels in all, and 64 channels at least: fewer take as long as 64.

    Args:
      x: the images ``(b, h, w, c)``, bfloat16 or float16. They are copied first unless ``c`` is a
        multiple of 8.
      w: the filters ``(kh, kw, c, d)``, of the dtype of ``x``. They are copied first unless ``c``
        is a multiple of 8 and ``d`` one of 64.
      padding: ``"SAME"`` gives ``h`` rows, ``"VALID"`` only windows that lie inside.
      block_m: pixels of a block of the output, a multiple of 64. A thread holds
        ``block_m * block_n / 128`` sums in registers.
      block_n: output channels of it, a multiple of 64, at most 256.
      stages: how many steps, of 64 channels of one pixel of each window, fit in shared memory, at
        least 2; all but one or two are on their way.

    Returns:
      ``(b, oh, ow, d)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a block size is not allowed,
        ``padding`` is neither of the two, no window lies inside the images, or windows have more
        pixels along an axis than TMA has numbers for: 256, or 129 with ``"VALID"``.
      NotImplementedError: this JAX, before 0.12, has no ``plgpu.im2col_ref``.
    """
    b, height, width, c = _require.axes("x", x, "b h w c")
    kh, kw, w_c, d = _require.axes("w", w, "kh kw c d")
    _require.same_size("c", ("x", c), ("w", w_c))
    _tiles.check_dtype("x", x)
    _require.same_dtype(x=x, w=w)
    _tiles.check_blocks(
        x.dtype, block_m=block_m, block_n=block_n, block_k=_tiles.width(x.dtype), stages=stages
    )
    if padding not in _LARGEST:
        raise ValueError(f"padding must be 'SAME' or 'VALID', but it is {padding!r}")
    for name, size in (("kh", kh), ("kw", kw)):
        if size > _LARGEST[padding]:
            raise ValueError(
                f"w must have a {name} of at most {_LARGEST[padding]} with padding {padding!r}, "
                f"what TMA has 8 bits for, but its {name} is {size}"
            )
    margins = _margins(padding, kh), _margins(padding, kw)
    oh, ow = height + sum(margins[0]) - kh + 1, width + sum(margins[1]) - kw + 1
    if oh < 1 or ow < 1:
        raise ValueError(
            f"x must be as large as the window, {kh} by {kw}, with padding 'VALID', but its shape "
            f"is {x.shape}"
        )
    _gpu.check_names("hopper_conv2d", "im2col_ref")
    windows = functools.partial(plgpu.im2col_ref, window_shape=(kh, kw), padding=margins)
    blocks = {"block_m": block_m, "block_n": block_n, "stages": stages}
    return _convolve(x, w, b * oh * ow, windows, **blocks).reshape(b, oh, ow, d)
