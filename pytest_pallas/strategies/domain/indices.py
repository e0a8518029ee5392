"""``permutations``, ``indices`` and ``page_tables``: indices for gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.bounded import bounded
from pytest_pallas.strategies.domain.edges import SEEDS, check_tiles, edges
from pytest_pallas.strategies.dtypes import as_dtype, is_int
from pytest_pallas.strategies.sizes.pools import check_int
from pytest_pallas.strategies.values import limits

Ints = npt.NDArray[Any]

#: The largest numbers of 15, 16 and 8 bits and their successors, where narrow indices wrap.
_WRAPS = (32_767, 32_768, 65_535, 65_536, 127, 128, 255, 256)


def permutations(length: int) -> SearchStrategy[Ints]:
    """A strategy for a permutation of ``length`` places.

    Example::

        permutations(4)  # draws [3, 2, 1, 0], [1, 2, 3, 0], [0, 1, 3, 2]; shrinks to [0, 1, 2, 3]

    It is the identity, a reversal, a rotation, a swap of two, or a shuffle.

    Draws int32 arrays of shape ``(length,)``.

    Raises:
      SpecError: ``length`` is less than 1.
    """
    check_int("length", length, 1)
    return bounded("permutations", (length,), _permutations(length))


def indices(
    count: int,
    *,
    size: int,
    dtype: npt.DTypeLike = "int32",
    unique: bool = False,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Ints]:
    """A strategy for ``count`` indices into an axis of ``size`` elements.

    Example::

        indices(4, size=70_000)
        # draws [32768, 0, 69999, 127], [5, 5, 5, 5], [3, 2, 1, 0]; shrinks to [0, 1, 2, 3]

    They ascend, descend, repeat one, are out of order, or lie on edges: the ends of the axis,
    those of tiles, and the numbers where 8 and 16 bits wrap, as far as the axis reaches. An axis
    of more than 32,768 finds what int16 cannot hold.

    Args:
      count: how many.
      size: of the axis; indices are at least 0 and less than this.
      dtype: an integer dtype that can hold ``size - 1``.
      unique: True if none may appear twice, as in a scatter that says so.
      around: a tile or several whose edges the indices then lie on, too.

    Draws arrays of shape ``(count,)``.

    Raises:
      SpecError: an argument that cannot be used; with ``unique``, a ``size`` below ``count``.
    """
    check_int("count", count, 1)
    check_int("size", size, 1)
    of_dtype = as_dtype(dtype)
    if not is_int(of_dtype):
        raise SpecError(f"dtype: indices must be integers, not {of_dtype.name}; use int32")
    if size - 1 > limits(of_dtype).high:
        raise SpecError(
            f"dtype: {of_dtype.name} cannot hold the index {size - 1}; use a wider one or a "
            "smaller size"
        )
    if unique and size < count:
        raise SpecError(f"size={size} has fewer than {count} different indices; raise it")
    tiles = check_tiles("around", around)
    places = tuple(edges(0, size - 1, tiles, place=at, also=_WRAPS) for at in range(count))
    drawn = _indices(size, of_dtype, unique, places)
    return bounded("indices", (count,), drawn, itemsize=of_dtype.itemsize)


def page_tables(
    sequences: int,
    *,
    pages_each: int,
    pages: int,
    shared: bool = True,
) -> SearchStrategy[Ints]:
    """A strategy for the pages of a cache where each sequence's tokens are kept.

    Example::

        page_tables(2, pages_each=3, pages=8)
        # draws [[0, 1, 2], [3, 4, 5]], [[7, 2, 0], [5, 1, 6]], [[4, 0, 3], [4, 0, 6]] (a shared
        # prefix), [[7, 7, 7], [7, 7, 7]]; shrinks to the first

    Args:
      sequences: how many sequences.
      pages_each: the pages of each one.
      pages: all pages of the cache.
      shared: whether sequences may share pages, as prefix caching does. Without it, each page
        belongs to one sequence, so ``pages`` must be enough.

    Draws int32 arrays of shape ``(sequences, pages_each)``, elements from 0 to ``pages - 1``.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("sequences", sequences, 1)
    check_int("pages_each", pages_each, 1)
    check_int("pages", pages, 1)
    if not shared and pages < sequences * pages_each:
        raise SpecError(
            f"pages={pages} is less than the {sequences * pages_each} that {sequences} sequences "
            f"of {pages_each} pages need; raise it, or allow sequences to share pages with "
            "shared=True"
        )
    table = _page_tables(sequences, pages_each, pages, shared)
    return bounded("page_tables", (sequences, pages_each), table)


@st.composite
def _permutations(draw: DrawFn, length: int) -> Ints:
    kind = draw(st.sampled_from(("same", "swapped", "reversed", "moved", "shuffled", "shuffled")))
    made = np.arange(length, dtype=np.int32)
    if kind == "swapped":
        one, other = draw(st.integers(0, length - 1)), draw(st.integers(0, length - 1))
        made[[one, other]] = made[[other, one]]
    if kind == "reversed":
        return made[::-1].copy()
    if kind == "moved":
        return np.roll(made, -draw(st.integers(0, length - 1)))
    if kind == "shuffled":
        np.random.default_rng(draw(SEEDS)).shuffle(made)
    return made


@st.composite
def _indices(
    draw: DrawFn,
    size: int,
    dtype: np.dtype[Any],
    unique: bool,
    places: tuple[SearchStrategy[int], ...],
) -> Ints:
    count = len(places)
    # The fewer places, the more draws it takes until every edge was in one of them.
    kinds = ("ascending", *("edges",) * (2 if count > 4 else 8), "descending", "shuffled")
    kind = draw(st.sampled_from((*kinds, *(() if unique else ("repeated",)))))
    # As many choices for every kind, because hypothesis takes fewer ones for simpler.
    edge = np.array([draw(place) for place in places])
    seed = draw(SEEDS)
    if kind == "repeated":
        return np.full(count, edge[0]).astype(dtype)
    if kind == "edges":
        return (_different(edge, size) if unique else edge).astype(dtype)
    if kind == "shuffled":
        rng = np.random.default_rng(seed)
        return rng.choice(size, count, replace=not unique).astype(dtype)
    made = np.arange(count) % size
    return (made[::-1] if kind == "descending" else made).astype(dtype)


@st.composite
def _page_tables(draw: DrawFn, sequences: int, pages_each: int, pages: int, shared: bool) -> Ints:
    needed = sequences * pages_each
    kinds = ("in order", "permuted", "permuted", "last", "prefix", "one page")
    kind = draw(st.sampled_from(kinds if shared else kinds[:4]))
    made = np.arange(needed) % pages
    if kind == "last":  # the end of the cache, in descending order
        made = pages - 1 - made
    if kind == "one page":
        made = np.full(needed, draw(edges(0, pages - 1, ())))
    if kind in ("permuted", "prefix"):
        rng = np.random.default_rng(draw(SEEDS))
        made = np.concatenate([rng.permutation(pages) for _ in range(-(-needed // pages))])
    table = made[:needed].reshape(sequences, pages_each).astype(np.int32)
    if kind == "prefix":
        common = draw(st.integers(1, pages_each))
        table[:, :common] = table[0, :common]
    return table


def _different(made: Ints, size: int) -> Ints:
    """``made``, where what appeared before is replaced by the next number that is free."""
    taken: set[int] = set()
    for number in made.tolist():
        while number in taken:
            number = (number + 1) % size
        taken.add(number)
        made[len(taken) - 1] = number
    return made
