"""Integers that mean something: lengths and offsets of ragged batches, segments, indices, pages.

Every strategy draws an array of integers. Their numbers lie on the edges of tiles (``edges``), and
every so often an array is of an extreme kind: all sequences full, all empty, one has everything,
indices in descending order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.draw.arguments import bounded
from pytest_pallas.draw.covering import kind_of_list
from pytest_pallas.draw.dtypes import as_dtype, is_int
from pytest_pallas.draw.sizes import check_int, check_tiles, simplicity
from pytest_pallas.draw.values import range_of
from pytest_pallas.errors import SpecError

#: Seeds of what is drawn by numpy; short, because people read them.
SEEDS = st.integers(0, 2**16 - 1)


def edges(
    least: int,
    most: int,
    tiles: Sequence[int],
    *,
    position: int = 0,
    also: Collection[int] = (),
) -> SearchStrategy[int]:
    """Return a strategy for a number at an edge of a tile or of the range.

    These are the first two tiles and the last one, each minus one, exactly, and plus one; the ends
    of the range, one less than its end, and its middle; and the numbers in ``also``. Shrinks to 1,
    or to ``least`` above it.

    Numbers for several positions of an array need strategies with different ``position``, because
    Hypothesis often copies draws between equal strategies.
    """
    numbers = {1, least, (least + most) // 2, most - 1, most, *also}
    for tile in tiles:
        starts = {tile, 2 * tile, most // tile * tile}
        numbers |= {start + step for start in starts for step in (-1, 0, 1)}
    within = sorted((n for n in numbers if least <= n <= most), key=simplicity)
    return st.sampled_from([(number, position) for number in within]).map(lambda pair: pair[0])


# Ragged batches.


Int32s = npt.NDArray[np.int32]


def lengths(
    count: int,
    *,
    max_length: int,
    min_length: int = 0,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """Return a strategy for the lengths of ``count`` sequences that are padded to ``max_length``.

    Example::

        lengths(4, max_length=256, around=128)
        # draws [129, 0, 256, 127], [256, 256, 256, 256], [0, 0, 7, 0]; shrinks to [1, 1, 1, 1]

    Args:
      count: how many sequences, at least 1.
      max_length: the most that a sequence can have.
      min_length: the least; 1 if the kernel promises nothing about empty sequences.
      around: a tile or several; lengths are then often one less, equal and one more.

    Draws int32 arrays of shape ``(count,)``.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("count", count, 1)
    check_int("max_length", max_length, 1)
    if check_int("min_length", min_length, 0) > max_length:
        raise SpecError(f"min_length must be at most {max_length}, not {min_length}")
    tiles = () if around is None else check_tiles("around", around)
    numbers = tuple(
        edges(min_length, max_length, tiles, position=position) for position in range(count)
    )

    kinds = ["each", "ascending", "descending", "full", "single", "least"]
    over = [n + 1 for tile in tiles for n in (tile, 2 * tile) if min_length <= n < max_length]
    kinds += [*(["over"] if over else []), *(["almost full"] if min_length < max_length else [])]
    if count > 1 and min_length == 0:
        kinds += ["empty first", "empty last", *(["empty within"] if count > 2 else [])]

    @st.composite
    def drawn(draw: DrawFn) -> Int32s:
        # As many choices for every kind, because hypothesis takes fewer ones for simpler.
        kind = kind_of_list(draw, "lengths", kinds)
        own = np.array([draw(number) for number in numbers], np.int32)
        single = draw(st.integers(0, count - 1))
        if kind in ("full", "almost full", "least", "single"):
            made = np.full(count, max_length if "full" in kind else min_length, np.int32)
            made[single] = own[single] if kind == "single" else made[single]
            made[single] -= kind == "almost full"
            return made
        if kind == "over":
            return np.array([over[number % len(over)] for number in own], np.int32)
        if kind != "each":  # one of them reaches the last tile, or the last page
            own[single] = max_length
            own = _different(own - min_length, max_length - min_length + 1) + min_length
        if kind in ("ascending", "descending"):
            return np.sort(own) if kind == "ascending" else np.sort(own)[::-1].copy()
        if kind.startswith("empty"):
            empty = {"empty first": 0, "empty within": count // 2, "empty last": count - 1}[kind]
            own[own == 0] = max_length
            own[empty] = 0
        return own

    return bounded("lengths", (count,), drawn())


def group_sizes(
    groups: int,
    *,
    total: int,
    full: bool = False,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """Return a strategy for the sizes of consecutive groups of rows, as grouped matmuls take them.

    Example::

        group_sizes(3, total=256, around=128)
        # draws [127, 0, 129], [256, 0, 0], [1, 128, 126]; shrinks to [86, 85, 85], the even groups

    Groups may be empty, start or end in the middle of a tile, and add up to less than ``total``.

    Args:
      groups: how many, at least 1.
      total: the number of rows.
      full: whether the sizes must add up to ``total``.
      around: a tile or several; groups then often start and end at its edges, or next to them.

    Draws int32 arrays of shape ``(groups,)``.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("groups", groups, 1)
    check_int("total", total, 0)
    tiles = () if around is None else check_tiles("around", around)
    cuts = tuple(edges(0, total, tiles, position=position) for position in range(groups - full))

    @st.composite
    def drawn(draw: DrawFn) -> Int32s:
        kinds = ["even", "cuts", "empty first", "empty last", "one", *([] if full else ["none"])]
        kinds += ["ascending", "descending"] if groups > 1 else []
        kinds += ["empty within"] if groups > 2 else []
        kind = kind_of_list(draw, "groups", kinds)
        made = np.zeros(groups, np.int32)
        if kind == "even":
            made[:] = total // groups
            made[: total % groups] += 1
        if kind == "one":
            made[draw(st.integers(0, groups - 1))] = total
        if kind not in ("even", "one", "none"):
            ends = [0, *sorted(draw(position) for position in cuts), *([total] if full else [])]
            if groups > 1 and kind.startswith("empty"):
                last = {"empty first": 1, "empty within": groups // 2 + 1}.get(kind, groups)
                ends[last - (last == groups)] = ends[last - (last < groups)]
            made[:] = np.diff(ends)
        if kind in ("ascending", "descending"):
            return np.sort(made) if kind == "ascending" else np.sort(made)[::-1].copy()
        return made

    return bounded("group_sizes", (groups,), drawn())


def cu_seqlens(
    count: int,
    *,
    total: int,
    full: bool = False,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """Return a strategy for where each of ``count`` packed sequences starts and ends.

    Example::

        cu_seqlens(3, total=256, around=128)
        # draws [0, 127, 127, 256], [0, 0, 0, 0], [0, 256, 256, 256]; shrinks to [0, 86, 171, 256]

    Sequence ``i`` is ``x[cu[i]:cu[i + 1]]``. The arguments are those of ``group_sizes``.

    Draws int32 arrays of shape ``(count + 1,)``, ascending from 0.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("count", count, 1)
    sizes = group_sizes(count, total=total, full=full, around=around)
    return sizes.map(lambda drawn: np.concatenate([[0], np.cumsum(drawn)]).astype(np.int32))


def segment_ids(
    length: int,
    *,
    batch: int | None = None,
    max_segments: int = 4,
    padding: int | None = None,
    contiguous: bool = True,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """Return a strategy for the segment of each token of packed sequences.

    Example::

        segment_ids(8, max_segments=3)               # draws [0, 0, 0, 1, 1, 1, 1, 2]
        segment_ids(8, padding=0)                    # draws [1, 1, 1, 2, 2, 0, 0, 0]
        segment_ids(8, batch=2, contiguous=False)    # draws [[1, 0, 0, 1, ...], [...]]

    Shrinks to a single segment.

    Args:
      length: how many tokens, at least 1.
      batch: how many rows, each with segments of its own; None for an array without that axis.
      max_segments: the most segments of a row. Every so often each token has its own, though. With
        three or more, the first id or the second one may have no tokens.
      padding: an id for the tokens after the last segment, often none and now and then all.
      contiguous: False for segments whose tokens are scattered, too.
      around: a tile or several; segments then often start at its edges, or next to them.

    Draws int32 arrays of shape ``(length,)`` or ``(batch, length)``.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("length", length, 1)
    check_int("max_segments", max_segments, 1)
    if padding is not None and not -(2**31) <= check_int("padding", padding, -(2**31)) < 2**31:
        raise SpecError(f"padding must fit in int32, not {padding}")
    tiles = () if around is None else check_tiles("around", around)
    positions = tuple(
        edges(0, length, tiles, position=position) for position in range(max_segments)
    )

    @st.composite
    def row(draw: DrawFn) -> Int32s:
        kinds = ("one", "cuts", "cuts", "cuts", "each", *(() if contiguous else ("scattered",) * 2))
        kinds += ("none first", "none within") if max_segments > 2 else ()
        kind = kind_of_list(draw, "segments", kinds)
        # Often as many as there may be, since some of them are empty or padding.
        counts = st.integers(1, len(positions)) | st.just(len(positions))
        count = draw(counts) if kind in ("cuts", "scattered") else 1
        missing = {"none first": 0, "none within": 1}.get(kind)
        if missing is not None:
            count = max_segments - 1
        if kind == "each":
            number = np.arange(length)
        elif kind == "scattered":
            number = np.arange(length) * draw(st.integers(1, 7)) % count
        else:
            starts = sorted(draw(position) for position in positions[: count - 1])
            number = np.searchsorted(starts, np.arange(length), side="right")
        # Ids count from 0, without the one that means padding.
        _, made = np.unique(number, return_inverse=True)
        if missing is not None:  # an id that no token has
            made = np.where(made >= missing, made + 1, made)
        if padding is not None:
            made = np.where(made >= padding, made + 1, made) if padding >= 0 else made
            end = draw(st.one_of(st.just(length), positions[-1]))
            made = np.where(np.arange(length) < end, made, padding)
        return made.astype(np.int32)

    if batch is None:
        return bounded("segment_ids", (length,), row())
    check_int("batch", batch, 1)
    rows = st.lists(row(), min_size=batch, max_size=batch).map(lambda rows: np.stack(rows))
    return bounded("segment_ids", (batch, length), rows)


# Indices for gathers and scatters.


Ints = npt.NDArray[Any]

#: The largest numbers of 15, 16 and 8 bits and their successors, where narrow indices wrap.
_WRAPS = (32_767, 32_768, 65_535, 65_536, 127, 128, 255, 256)


def permutations(length: int) -> SearchStrategy[Ints]:
    """Return a strategy for a permutation of ``length`` places.

    Example::

        permutations(4)  # draws [3, 2, 1, 0], [1, 2, 3, 0], [0, 1, 3, 2]; shrinks to [0, 1, 2, 3]

    It is the identity, a reversal, a rotation, a swap of two, or a shuffle.

    Draws int32 arrays of shape ``(length,)``.

    Raises:
      SpecError: ``length`` is less than 1.
    """
    check_int("length", length, 1)

    @st.composite
    def drawn(draw: DrawFn) -> Ints:
        kinds = ("same", "swapped", "reversed", "moved", "shuffled", "shuffled")
        kind = kind_of_list(draw, "permutations", kinds)
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

    return bounded("permutations", (length,), drawn())


def indices(
    count: int,
    *,
    size: int,
    dtype: npt.DTypeLike = "int32",
    unique: bool = False,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Ints]:
    """Return a strategy for ``count`` indices into an axis of ``size`` elements.

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
    if size - 1 > range_of(of_dtype).high:
        raise SpecError(
            f"dtype: {of_dtype.name} cannot hold the index {size - 1}; use a wider one or a "
            "smaller size"
        )
    if unique and size < count:
        raise SpecError(f"size={size} has fewer than {count} different indices; raise it")
    tiles = () if around is None else check_tiles("around", around)
    numbers = tuple(edges(0, size - 1, tiles, position=at, also=_WRAPS) for at in range(count))

    @st.composite
    def drawn(draw: DrawFn) -> Ints:
        # The fewer indices, the more draws it takes until every edge was in one of them.
        kinds = ("ascending", *("edges",) * (2 if count > 4 else 8), "descending", "shuffled")
        kinds = (*kinds, *(() if unique else ("repeated",)))
        kind = kind_of_list(draw, "indices", kinds)
        # As many choices for every kind, because hypothesis takes fewer ones for simpler.
        edge = np.array([draw(number) for number in numbers])
        seed = draw(SEEDS)
        if kind == "repeated":
            return np.full(count, edge[0]).astype(of_dtype)
        if kind == "edges":
            return (_different(edge, size) if unique else edge).astype(of_dtype)
        if kind == "shuffled":
            rng = np.random.default_rng(seed)
            return rng.choice(size, count, replace=not unique).astype(of_dtype)
        made = np.arange(count) % size
        return (made[::-1] if kind == "descending" else made).astype(of_dtype)

    return bounded("indices", (count,), drawn(), itemsize=of_dtype.itemsize)


def page_tables(
    sequences: int,
    *,
    pages_each: int,
    pages: int,
    shared: bool = True,
    used: Sequence[int] | None = None,
) -> SearchStrategy[Ints]:
    """Return a strategy for the pages of a cache where each sequence's tokens are kept.

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
      used: how many pages each sequence uses, if the kernel may not read the entries after these.
        They are then 0, a page of another sequence, or no page: -1, ``pages`` or the largest int32.

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
    counts = None if used is None else np.array([check_int("used", n, 0) for n in used], int)
    if counts is not None and (len(counts) != sequences or counts.max() > pages_each):
        raise SpecError(
            f"used must be {sequences} numbers of at most {pages_each}, one for each sequence, not "
            f"{counts.tolist()}"
        )

    beyond = st.sampled_from((0, -1, pages - 1, pages, 2**31 - 1))

    @st.composite
    def drawn(draw: DrawFn) -> Ints:
        needed = sequences * pages_each
        kinds = ("in order", "permuted", "permuted", "last", "across", "prefix", "one page")
        kind = kind_of_list(draw, "pages", kinds if shared else kinds[:5])
        made = np.arange(needed) % pages
        if kind == "last":  # the end of the cache, in descending order
            made = pages - 1 - made
        if kind == "across":  # as sequences that grow in turns get them
            made = made.reshape(pages_each, sequences).T.reshape(-1) if needed else made
        if kind == "one page":
            made = np.full(needed, draw(edges(0, pages - 1, ())))
        if kind in ("permuted", "prefix"):
            rng = np.random.default_rng(draw(SEEDS))
            made = np.concatenate([rng.permutation(pages) for _ in range(-(-needed // pages))])
        table = made[:needed].reshape(sequences, pages_each).astype(np.int32)
        if kind == "prefix":
            common = draw(st.integers(1, pages_each))
            table[:, :common] = table[0, :common]
        if counts is not None:
            table[np.arange(pages_each) >= counts[:, None]] = draw(beyond)
        return table

    return bounded("page_tables", (sequences, pages_each), drawn())


def _different(made: Ints, size: int) -> Ints:
    """Replace each number that appeared before by the next free one, modulo ``size``.

    If there are fewer numbers than places, those that are left repeat some.
    """
    taken: set[int] = set()
    for number in made[:size].tolist():
        while number in taken:
            number = (number + 1) % size
        taken.add(number)
        made[len(taken) - 1] = number
    return made
