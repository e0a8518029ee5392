"""The bits of each number in reverse order on a GPU: bit ``i`` of ``o`` is bit ``31 - i`` of ``x``.

Shapes: ``x`` and ``o`` have any shape. Dtype: uint32.

A fast Fourier transform of ``2**b`` elements leaves them in the order of reversed indices, and
reversed counters are the points of van der Corput's sequence.

A GPU has one instruction for it (PTX ISA, "brev"); in jnp it takes five steps that swap halves,
pairs of bytes, and so on. Pallas has no name for it, so ``plgpu.inline_mgpu`` puts it there: a
function that is given the memory of a reference and returns registers, and that is written with
Mosaic GPU's own arrays and LLVM's operations. ``RefType`` says that its argument is a reference,
and ``plgpu.ShapeDtypeStruct`` which thread holds what of its result. JAX's interpreter leaves such
code out; ``gpu-sim`` evaluates its operations.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir.dialects import llvm

from reference_kernels import _require

_ELEMENTS = 512  # of a block, four for each thread


def _kernel(x_gmem: Any, o_gmem: Any) -> None:
    layout = plgpu.Layout.WG_STRIDED((_ELEMENTS,), vec_size=4)

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(),),
        return_type=plgpu.ShapeDtypeStruct((_ELEMENTS,), jnp.uint32, layout=layout),
    )
    def load_reversed(_: Any, memory: Any) -> Any:
        x: Any = mgpu.FragmentedArray.load_strided(memory, is_signed=False, vec_size=4)
        return x.foreach(
            lambda word, _: llvm.intr_bitreverse(word), create_array=True, is_signed=False
        )

    block = jax.lax.axis_index("block")
    o_gmem[block] = load_reversed(x_gmem.at[block])


def reverse_bits(x: jax.Array) -> jax.Array:
    """Each number with its bits in reverse order.

    Args:
      x: uint32, not empty. What is no multiple of 512 elements is padded, in a copy.

    Returns:
      The shape and dtype of ``x``.

    Raises:
      ValueError: ``x`` is empty or not uint32.
    """
    _require.nonempty("x", x)
    if x.dtype != jnp.uint32:
        raise ValueError(f"x must be uint32, but its dtype is {x.dtype}")
    blocks = jnp.pad(x.reshape(-1), (0, -x.size % _ELEMENTS)).reshape(-1, _ELEMENTS)
    o = plgpu.kernel(
        _kernel,
        out_type=jax.ShapeDtypeStruct(blocks.shape, x.dtype),
        grid=(blocks.shape[0],),
        grid_names=("block",),
    )(blocks)
    return o.reshape(-1)[: math.prod(x.shape)].reshape(x.shape)


def reference(x: jax.Array) -> jax.Array:
    """Neighbors are swapped, then pairs of them, and so on."""
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        kept = jnp.uint32(mask)
        x = ((x >> width) & kept) | ((x & kept) << width)
    return (x >> 16) | (x << 16)
