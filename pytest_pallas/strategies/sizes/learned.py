"""Sizes of dims that a strategy does not specify, learned from the kernel.

A kernel with blocks of 128 rows has one program for every array of up to 128 rows, and most of its
mistakes need two. ``arrays("m n")`` does not specify blocks. So the plugin first draws a probe,
which is an abstract call with large, different sizes, reads the blocks from its trace, and draws
around these.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count, islice, permutations
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

#: Tiles by dim, for dims that a strategy does not specify.
type LearnedTiles = tuple[tuple[str, tuple[int, ...]], ...]

#: Probed sizes are multiples of it: more than most blocks, and divisible by them.
STEP = 2048

#: Orders of sizes to try if constraints reject the first.
_ORDERS = 24

_TILES: ContextVar[LearnedTiles] = ContextVar("tiles", default=())


@dataclass
class Probe:
    """The sizes of a probe for unspecified dims.

    Attributes:
      sizes: by dim, each another multiple of ``STEP``.
    """

    sizes: dict[str, int] = field(default_factory=dict[str, int])

    def orders(self, names: list[str]) -> Iterator[dict[str, int]]:
        """Sizes for dims, in several orders; those that were probed before keep theirs."""
        fresh = [name for name in names if name not in self.sizes]
        unused = (size for size in count(STEP, STEP) if size not in self.sizes.values())
        sizes = list(islice(unused, len(fresh)))
        for order in islice(permutations(sizes), _ORDERS):
            yield {**self.sizes, **dict(zip(fresh, order, strict=True))}


_PROBE: ContextVar[Probe | None] = ContextVar("probe", default=None)


@contextmanager
def probing() -> Generator[Probe]:
    """Let ``arrays`` draw abstract arrays of probed sizes inside this context.

    They are of ``jax.ShapeDtypeStruct``, since real ones would need gigabytes.
    """
    token = _PROBE.set(Probe())
    try:
        found = _PROBE.get()
        assert found is not None
        yield found
    finally:
        _PROBE.reset(token)


def current_probe() -> Probe | None:
    """The probe that is being drawn, or None."""
    return _PROBE.get()


def current_tiles() -> LearnedTiles:
    """The learned tiles of the current draw."""
    return _TILES.get()


def around(strategy: SearchStrategy[Any], tiles: Mapping[str, tuple[int, ...]]) -> Any:
    """The strategy, with draws around ``tiles`` for dims that it does not specify."""
    return _around(strategy, tuple(sorted(tiles.items()))) if tiles else strategy


@st.composite
def _around(draw: DrawFn, strategy: SearchStrategy[Any], tiles: LearnedTiles) -> Any:
    token = _TILES.set(tiles)
    try:
        return draw(strategy)
    finally:
        _TILES.reset(token)
