"""Blocks that a TPU and Triton both take: powers of two, of operands padded to whole blocks."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

#: The least rows of a block: a tile of 16-bit elements on a TPU, and the least that Triton's dot
#: takes.
LEAST_ROWS = 16

#: The least columns of a block: the lanes of a TPU.
LEAST_COLUMNS = 128


#: Bytes of shared memory that a block of the grid can have: on an A100, and from Hopper on.
_AMPERE, _HOPPER = 163 * 1024, 227 * 1024


def largest_that_fits(
    most: int, staged: Callable[[int], int], kept: Callable[[int], int], itemsize: int
) -> int:
    """The largest block for which every GPU has the shared memory.

    Triton copies what a product in a loop reads to shared memory ahead of it: for two steps, or for
    three where Hopper's tensor cores read 16-bit operands from there.

    Args:
      most: the largest size to try, a power of two.
      staged: elements that a step loads, by the size of the block.
      kept: elements of other operands of products, likewise.
      itemsize: bytes of an element.

    Returns:
      The size, a power of two; ``LEAST_ROWS`` if none fits.
    """
    size = most
    while size > LEAST_ROWS:
        step, rest = staged(size) * itemsize, kept(size) * itemsize
        if 2 * step + rest <= _AMPERE and (itemsize > 2 or 3 * step + rest <= _HOPPER):
            break
        size //= 2
    return size


def power_of_two(size: int, least: int = 1) -> int:
    """The first power of two that is at least ``size`` and ``least``."""
    return 1 << (max(size, least) - 1).bit_length()


def require_power_of_two(**sizes: int) -> None:
    """Refuse blocks that Triton does not take.

    Raises:
      ValueError: one of ``sizes`` is not a power of two, or less than 16.
    """
    for name, size in sizes.items():
        if size < LEAST_ROWS or size & (size - 1):
            raise ValueError(
                f"{name} must be a power of two of at least {LEAST_ROWS}, as Triton's blocks are, "
                f"but it is {size!r}"
            )


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y`` in float32.

    Of float32 operands, a TPU keeps 8 bits of the mantissa and a GPU's tensor cores 10, unless
    they are asked for more.
    """
    precision = "highest" if x.dtype.itemsize >= 4 else "default"
    return jnp.dot(x, y, preferred_element_type=jnp.float32, precision=precision)


def padded(x: jax.Array, *blocks: int, value: float = 0.0) -> jax.Array:
    """``x``, every axis padded at its end with ``value`` to a multiple of its block.

    By JAX 0.11's lowering to Triton, a block that reaches beyond the end of an array reads and
    writes what lies behind it; JAX 0.12 masks that, and a TPU drops it.
    """
    widths = [(0, -size % block) for size, block in zip(x.shape, blocks, strict=True)]
    return jnp.pad(x, widths, constant_values=value) if any(w for _, w in widths) else x
