"""Siblings of a draw: other values for the same shapes, dtypes and options.

A new shape is traced and compiled, which takes a hundred times as long as running it again. So one
draw stands for several calls: itself and its siblings, which differ by class of values and seed,
and could each have been drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_pallas.strategies.arguments import Drawn

#: The most siblings of a draw, itself included.
MOST = 16


@dataclass
class Kin:
    """What a draw has besides itself.

    Attributes:
      make: gives the same arrays as the k-th sibling has them, for k from 1.
      looked: whether anybody looked at the values while it was drawn. Who did may have dropped
        draws for them (``filter``, ``assume``) or derived something: siblings would not fit.
      drawn: whether drawing is over.
    """

    make: Callable[[int], Drawn]
    looked: bool = False
    drawn: bool = False

    def look(self) -> None:
        """Note that somebody looks at the values."""
        self.looked = self.looked or not self.drawn


def settle(drawn: Any) -> None:
    """Note that drawing is over: from now on, anybody may look at the values."""
    kin = getattr(drawn, "kin", None)
    if isinstance(kin, Kin):
        kin.drawn = True


def siblings(drawn: Any) -> Iterator[Any]:
    """The siblings of what a strategy drew, at most ``MOST - 1``, made one after the other.

    There are none if its values were looked at before, or if it does not come from ``arrays``.
    """
    kin = getattr(drawn, "kin", None)
    if not isinstance(kin, Kin) or kin.looked:
        return iter(())
    return (drawn.with_values(kin.make(k)) for k in range(1, MOST))


def kth(values: str, seed: int, k: int, *, classes: tuple[str, ...], seeds: int) -> tuple[str, int]:
    """The class of values and the seed of the k-th sibling: every class, then the next seed."""
    position = classes.index(values) + k
    return classes[position % len(classes)], (seed + k // len(classes)) % seeds
