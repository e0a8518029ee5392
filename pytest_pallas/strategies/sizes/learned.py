"""Sizes of dims about which a strategy says nothing, learned from the kernel that they are for.

A kernel with blocks of 128 rows has one program for every array of up to 128 rows, and most of its
mistakes need two. ``arrays("m n")`` says nothing about blocks, so whoever draws for a kernel first
draws a probe, an abstract call with large and different sizes, reads the blocks off its trace, and
draws around these.
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

#: Sizes by dim that strategies draw around where they say nothing themselves.
type LearnedTiles = tuple[tuple[str, tuple[int, ...]], ...]

#: Probed sizes are multiples of it: more than most blocks, and divisible by them.
STEP = 2048

#: Orders of sizes that are tried where constraints refuse the first.
_ORDERS = 24

_TILES: ContextVar[LearnedTiles] = ContextVar("tiles", default=())


@dataclass
class Probe:
    """What a probe gave the dims about which nothing is said.

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
    """Let ``arrays`` draw abstract arrays of probed sizes meanwhile.

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
    """What was learned for the draw that is being made."""
    return _TILES.get()


def around(strategy: SearchStrategy[Any], tiles: Mapping[str, tuple[int, ...]]) -> Any:
    """The strategy, drawing around ``tiles`` where it says nothing itself."""
    return _around(strategy, tuple(sorted(tiles.items()))) if tiles else strategy


@st.composite
def _around(draw: DrawFn, strategy: SearchStrategy[Any], tiles: LearnedTiles) -> Any:
    token = _TILES.set(tiles)
    try:
        return draw(strategy)
    finally:
        _TILES.reset(token)
