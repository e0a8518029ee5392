"""2-D convolution: ``o[b, i, j, d] = sum_{p, q, c} x[b, i s + p r, j s + q r, c] w[p, q, c, d]``,
where ``x`` is zero outside, ``s`` is the stride and ``r`` the dilation.

Shapes: ``x (b, h, w, c)``, ``w (kh, kw, c, d)``, ``o (b, oh, ow, d)``: channels last, which puts
them on the lanes. Dtypes: float32 or bfloat16, the same for both; summed in float32.

For each of the ``kh kw`` taps this is a product of matrices over the channels, of the image shifted
by the tap. ``pltpu.conv`` gives all of them to the compiler at once, which shifts, pads and strides
in registers, so that no patches (``im2col``) are ever in memory. The sum must be 32 bits wide
("Expected 32-bit acc", JAX 0.12.0.1), and is rounded here.

The grid is ``(b, d)`` in single images and blocks of output channels, the latter innermost: the
image stays in VMEM while its blocks of channels are made. So an image has to fit, ``c`` rounded up
to 128 lanes: ``h w c`` up to about a million elements of bfloat16.

No interpreter has a rule for ``pltpu.conv`` yet. What is checked without a TPU is that the compiler
takes it; the numbers need a chip.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, fit, precision_for

Padding = Literal["SAME", "VALID"]

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _conv2d_kernel(
    x_ref: Any, w_ref: Any, o_ref: Any, *, stride: int, dilation: int, padding: Padding
) -> None:
    total = pltpu.conv(
        x_ref[...],
        w_ref[...],
        dimension_numbers=_LAYOUT,
        window_strides=(stride, stride),
        rhs_dilation=(dilation, dilation),
        padding=padding,
        precision=precision_for(x_ref.dtype),
        preferred_element_type=jnp.float32,
    )
    o_ref[...] = total.astype(o_ref.dtype)


def conv2d(
    x: jax.Array,
    w: jax.Array,
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: Padding = "SAME",
    block_d: int = 128,
) -> jax.Array:
    """2-D convolution (without turning ``w`` around, as in neural networks).

    Args:
      x: the images ``(b, h, w, c)``, float32 or bfloat16.
      w: the filters ``(kh, kw, c, d)``, of the dtype of ``x``.
      stride: steps between windows, in both directions.
      dilation: steps between the taps of a window, in both directions.
      padding: ``"SAME"`` gives ``ceil(h / stride)`` rows, ``"VALID"`` only windows that lie inside.
      block_d: output channels in a block.

    Returns:
      ``(b, oh, ow, d)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a number is not positive,
        ``padding`` is neither of the two, or no window lies inside the images.
    """
    b, _, _, c = _require.axes("x", x, "b h w c")
    kh, kw, w_c, d = _require.axes("w", w, "kh kw c d")
    _require.same_size("c", ("x", c), ("w", w_c))
    _require.floating("x", x)
    _require.same_dtype(x=x, w=w)
    _require.positive(stride=stride, dilation=dilation, block_d=block_d)
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"padding must be 'SAME' or 'VALID', but it is {padding!r}")
    shape = _shape_of(x, w, stride, dilation, padding)
    if 0 in shape:
        raise ValueError(
            f"x must be as large as the window, {(kh - 1) * dilation + 1} by "
            f"{(kw - 1) * dilation + 1}, with padding 'VALID', but its shape is {x.shape}"
        )
    block_d = fit(block_d, d, LANES)
    return pl.pallas_call(
        functools.partial(_conv2d_kernel, stride=stride, dilation=dilation, padding=padding),
        out_shape=jax.ShapeDtypeStruct(shape, x.dtype),
        grid=(b, pl.cdiv(d, block_d)),
        in_specs=[
            pl.BlockSpec((1, *x.shape[1:]), lambda image, j: (image, 0, 0, 0)),
            pl.BlockSpec((kh, kw, c, block_d), lambda image, j: (0, 0, 0, j)),
        ],
        out_specs=pl.BlockSpec((1, *shape[1:3], block_d), lambda image, j: (image, 0, 0, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x, w)


def _shape_of(
    x: jax.Array, w: jax.Array, stride: int, dilation: int, padding: Padding
) -> tuple[int, ...]:
    """The shape of the result."""
    call = functools.partial(reference, stride=stride, dilation=dilation, padding=padding)
    return jax.eval_shape(call, x, w).shape


def reference(
    x: jax.Array,
    w: jax.Array,
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: Padding = "SAME",
) -> jax.Array:
    """The convolution by XLA, summed in float32 at least."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    total = jax.lax.conv_general_dilated(
        x.astype(wide),
        w.astype(wide),
        (stride, stride),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_LAYOUT,
        precision=jax.lax.Precision.HIGHEST,
    )
    return total.astype(x.dtype)
