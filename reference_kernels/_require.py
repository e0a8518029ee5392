"""What a wrapper demands of its operands, and how it says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np


def axes(name: str, operand: Any, names: str) -> tuple[int, ...]:
    """The shape of ``operand``, which must have one non-empty axis for each word of ``names``.

    Raises:
      ValueError: the number of dimensions differs, or one of them is zero.
    """
    words = names.split()
    shape = np.shape(operand)
    wanted = f"({', '.join(words)}{',' if len(words) == 1 else ''})"
    if len(shape) != len(words):
        raise ValueError(f"{name} must have the shape {wanted}, but its shape is {shape}")
    nonempty(name, operand)
    return shape


def nonempty(name: str, operand: Any) -> None:
    """Raise ValueError if a dimension of ``operand`` is zero."""
    if 0 in np.shape(operand):
        raise ValueError(
            f"{name} must not be empty, but its shape is {np.shape(operand)}; "
            "handle the empty case before calling the kernel"
        )


def floating(name: str, operand: Any) -> None:
    """Raise ValueError unless ``operand`` holds floating-point numbers."""
    if not jnp.issubdtype(operand.dtype, jnp.floating):
        raise ValueError(f"{name} must have a floating dtype, but its dtype is {operand.dtype}")


def same_dtype(**operands: Any) -> None:
    """Raise ValueError unless all ``operands``, given by name, have one dtype."""
    (first, reference), *others = operands.items()
    for name, operand in others:
        if operand.dtype != reference.dtype:
            raise ValueError(
                f"{name} must have the dtype of {first}, {reference.dtype}, but its dtype is "
                f"{operand.dtype}; cast one of them"
            )


def same_size(axis: str, first: tuple[str, int], second: tuple[str, int]) -> None:
    """Raise ValueError unless two operands, as (name, size) pairs, agree on ``axis``."""
    if first[1] != second[1]:
        raise ValueError(
            f"{second[0]} must have the same {axis} as {first[0]}, {first[1]}, "
            f"but its {axis} is {second[1]}"
        )


def positive(**sizes: int) -> None:
    """Raise ValueError unless every one of ``sizes``, given by name, is an integer above zero."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"{name} must be a positive integer, but it is {size!r}")


def pair(name: str, sizes: Sequence[int]) -> tuple[int, int]:
    """``sizes`` as two positive integers.

    Raises:
      ValueError: there are not two of them, or one is not a positive integer.
    """
    if len(sizes) != 2:
        raise ValueError(f"{name} must be two sizes (rows, columns), but it is {tuple(sizes)}")
    for position, size in enumerate(sizes):
        positive(**{f"{name}[{position}]": size})
    rows, columns = sizes
    return rows, columns


def product(x: Any, y: Any, *, transpose_rhs: bool = False, **blocks: int) -> tuple[int, int, int]:
    """The sizes ``(m, k, n)`` of ``x (m, k)`` and ``y (k, n)`` or, transposed, ``(n, k)``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k = axes("x", x, "m k")
    if transpose_rhs:
        n, y_k = axes("y", y, "n k")
    else:
        y_k, n = axes("y", y, "k n")
    same_size("k", ("x", k), ("y", y_k))
    floating("x", x)
    same_dtype(x=x, y=y)
    positive(**blocks)
    return m, k, n
