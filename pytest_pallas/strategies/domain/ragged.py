"""Ragged batches: ``lengths``, ``cu_seqlens``, ``group_sizes`` and ``segment_ids``.

All of them draw int32 arrays. Positions lie on the edges of tiles; every so often all sequences
are full, all are empty, or one has everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.bounded import bounded
from pytest_pallas.strategies.domain.edges import check_most, check_tiles, edges
from pytest_pallas.strategies.sizes.pools import check_int

Int32s = npt.NDArray[np.int32]


def lengths(
    count: int,
    *,
    max_length: int,
    min_length: int = 0,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """A strategy for the lengths of ``count`` sequences that are padded to ``max_length``.

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
    check_most("min_length", min_length, 0, max_length)
    tiles = check_tiles("around", around)
    each = tuple(edges(min_length, max_length, tiles, place=place) for place in range(count))
    return bounded("lengths", (count,), _lengths(min_length, max_length, each))


def group_sizes(
    groups: int,
    *,
    total: int,
    full: bool = False,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """A strategy for the sizes of consecutive groups of rows, as grouped matmuls take them.

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
    tiles = check_tiles("around", around)
    cuts = tuple(edges(0, total, tiles, place=place) for place in range(groups - full))
    return bounded("group_sizes", (groups,), _groups(groups, total, full, cuts))


def cu_seqlens(
    count: int,
    *,
    total: int,
    full: bool = False,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """A strategy for where each of ``count`` packed sequences starts and ends.

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
    return sizes.map(_offsets)


def segment_ids(
    length: int,
    *,
    batch: int | None = None,
    max_segments: int = 4,
    padding: int | None = None,
    contiguous: bool = True,
    around: int | Sequence[int] | None = None,
) -> SearchStrategy[Int32s]:
    """A strategy for the segment of each token of packed sequences.

    Example::

        segment_ids(8, max_segments=3)               # draws [0, 0, 0, 1, 1, 1, 1, 2]
        segment_ids(8, padding=0)                    # draws [1, 1, 1, 2, 2, 0, 0, 0]
        segment_ids(8, batch=2, contiguous=False)    # draws [[1, 0, 0, 1, ...], [...]]

    Shrinks to a single segment.

    Args:
      length: how many tokens, at least 1.
      batch: how many rows, each with segments of its own; None for an array without that axis.
      max_segments: the most segments of a row. Every so often each token has its own, though.
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
    tiles = check_tiles("around", around)
    positions = tuple(edges(0, length, tiles, place=place) for place in range(max_segments))
    row = _segments(length, padding, contiguous, positions)
    if batch is None:
        return bounded("segment_ids", (length,), row)
    check_int("batch", batch, 1)
    rows = st.lists(row, min_size=batch, max_size=batch).map(lambda rows: np.stack(rows))
    return bounded("segment_ids", (batch, length), rows)


@st.composite
def _lengths(draw: DrawFn, least: int, most: int, each: tuple[SearchStrategy[int], ...]) -> Int32s:
    # As many choices for every kind, because hypothesis takes fewer ones for simpler.
    kind = draw(st.sampled_from(("each", "each", "each", "full", "single", "least")))
    drawn = [draw(strategy) for strategy in each]
    which = draw(st.integers(0, len(each) - 1))
    if kind == "each":
        return np.array(drawn, np.int32)
    made = np.full(len(each), most if kind == "full" else least, np.int32)
    if kind == "single":
        made[which] = drawn[which]
    return made


@st.composite
def _groups(
    draw: DrawFn, groups: int, total: int, full: bool, cuts: tuple[SearchStrategy[int], ...]
) -> Int32s:
    kinds = ("even", "cuts", "cuts", "cuts", "one", *(() if full else ("none",)))
    kind = draw(st.sampled_from(kinds))
    made = np.zeros(groups, np.int32)
    if kind == "even":
        made[:] = total // groups
        made[: total % groups] += 1
    if kind == "one":
        made[draw(st.integers(0, groups - 1))] = total
    if kind == "cuts":
        ends = sorted(draw(position) for position in cuts)
        made[:] = np.diff([0, *ends, *([total] if full else [])])
    return made


@st.composite
def _segments(
    draw: DrawFn,
    length: int,
    padding: int | None,
    contiguous: bool,
    positions: tuple[SearchStrategy[int], ...],
) -> Int32s:
    kinds = ("one", "cuts", "cuts", "cuts", "each", *(() if contiguous else ("scattered",) * 2))
    kind = draw(st.sampled_from(kinds))
    # Often as many as there may be, since some of them are empty or padding.
    counts = st.integers(1, len(positions)) | st.just(len(positions))
    count = draw(counts) if kind in ("cuts", "scattered") else 1
    if kind == "each":
        number = np.arange(length)
    elif kind == "scattered":
        number = np.arange(length) * draw(st.integers(1, 7)) % count
    else:
        starts = sorted(draw(position) for position in positions[: count - 1])
        number = np.searchsorted(starts, np.arange(length), side="right")
    # Ids count from 0, without the one that means padding.
    _, made = np.unique(number, return_inverse=True)
    if padding is not None:
        made = np.where(made >= padding, made + 1, made) if padding >= 0 else made
        end = draw(st.one_of(st.just(length), positions[-1]))
        made = np.where(np.arange(length) < end, made, padding)
    return made.astype(np.int32)


def _offsets(sizes: Any) -> Int32s:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
