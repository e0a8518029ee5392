"""Variants of a draw: other values for the same shapes, dtypes and options.

A new shape is traced and compiled, which takes a hundred times as long as a second run. So one draw
gives several calls: itself and its variants, which differ in value class and seed, and which the
strategy could have drawn, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_pallas.strategies.arguments import Drawn

#: Limit on the variants of a draw, itself included.
MOST = 16


@dataclass
class VariantSource:
    """The source of a draw's variants.

    Attributes:
      make: returns the arrays of the k-th variant, for k from 1.
      looked: whether the strategy read the values while drawing. It may have rejected draws
        (``filter``, ``assume``) or derived something from them, so variants would not fit.
      drawn: whether the draw is complete.
    """

    make: Callable[[int], Drawn]
    looked: bool = False
    drawn: bool = False

    def look(self) -> None:
        """Record that the values are read."""
        self.looked = self.looked or not self.drawn


def settle(drawn: Any) -> None:
    """Record that the draw is complete: from now on, reads of the values do not count."""
    kin = getattr(drawn, "kin", None)
    if isinstance(kin, VariantSource):
        kin.drawn = True


def variants(drawn: Any) -> Iterator[Any]:
    """The variants of a draw, at most ``MOST - 1``, made lazily.

    There are none if the strategy read its values, or if it does not come from ``arrays``.
    """
    kin = getattr(drawn, "kin", None)
    if not isinstance(kin, VariantSource) or kin.looked:
        return iter(())
    return (drawn.with_values(kin.make(k)) for k in range(1, MOST))


def kth(values: str, seed: int, k: int, *, classes: tuple[str, ...], seeds: int) -> tuple[str, int]:
    """The value class and the seed of the k-th variant: every class, then the next seed."""
    position = classes.index(values) + k
    return classes[position % len(classes)], (seed + k // len(classes)) % seeds
