"""Arrays that are put together from one piece for each device, along an axis old or new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels._tpu import LANES


@dataclass(frozen=True)
class Pieces:
    """How an array consists of pieces.

    Attributes:
      count: how many there are.
      shape: the shape of a piece.
      axis: the axis of the whole along which they are.
      tiled: True if they are one after another along an axis that a piece has too; False if the
        axis is there for them.
    """

    count: int
    shape: tuple[int, ...]
    axis: int
    tiled: bool

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        before, after = self.shape[: self.axis], self.shape[self.axis + self.tiled :]
        here = self.shape[self.axis] if self.tiled else 1
        return (*before, self.count * here, *after)

    @property
    def front(self) -> Pieces:
        """The same pieces along a new first axis, in front of two axes at least."""
        ones = (1,) * (2 - len(self.shape))
        return Pieces(self.count, (*ones, *self.shape), axis=0, tiled=False)

    def sliceable(self, dtype: Any) -> bool:
        """Whether each piece is whole tiles of the whole array: a DMA starts and ends at tiles."""
        if len(self.shape) < 2:
            return False
        if not self.tiled:
            return self.axis <= len(self.shape) - 2
        return self.shape[self.axis] % tiles(self.shape, dtype)[self.axis] == 0

    def of(self, ref: Any, index: Any) -> Any:
        """One piece of a ref."""
        here = index
        if self.tiled:
            size = self.shape[self.axis]
            here = pl.ds(pl.multiple_of(index * size, size), size)
        return ref.at[(*(slice(None),) * self.axis, here)]

    def to_front(self, x: jax.Array) -> jax.Array:
        """The array as ``front`` says."""
        if self.tiled:
            x = x.reshape(*self.shape[: self.axis], self.count, *self.shape[self.axis :])
        return jnp.moveaxis(x, self.axis, 0).reshape(self.front.whole)

    def from_front(self, x: jax.Array) -> jax.Array:
        """The inverse of ``to_front``."""
        moved = jnp.moveaxis(x.reshape(self.count, *self.shape), 0, self.axis)
        return moved.reshape(self.whole)


def tiles(shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
    """What a DMA can start and end at multiples of in HBM, along each axis of a matrix or more."""
    rows = 32 // jnp.dtype(dtype).itemsize
    return (*(1 for _ in shape[:-2]), rows, LANES)


def place(name: str, axis: int, axes: int, shape: tuple[int, ...]) -> int:
    """``axis`` from 0 on.

    Raises:
      ValueError: it is none of so many axes.
    """
    if not -axes <= axis < axes:
        raise ValueError(
            f"{name} must be from {-axes} to {axes - 1}, but it is {axis}, and x has the shape "
            f"{shape}"
        )
    return axis % axes
