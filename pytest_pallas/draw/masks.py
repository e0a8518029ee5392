"""``masks``: which key each query may see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.draw.arguments import bounded
from pytest_pallas.draw.indices import SEEDS, edges
from pytest_pallas.draw.sizes import check_int
from pytest_pallas.errors import SpecError

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _MaskRequest:
    """What a kind of mask is made from.

    Attributes:
      query: the numbers of the queries, shape ``(queries, 1)``.
      key: the numbers of the keys, shape ``(1, keys)``.
      block: rows and columns of a block.
      shift: 0, or the number of keys that precede the first query.
      window: how many keys a local mask shows.
      rng: for what is random.
    """

    query: npt.NDArray[np.int64]
    key: npt.NDArray[np.int64]
    block: tuple[int, int]
    shift: int
    window: int
    rng: np.random.Generator

    @property
    def shape(self) -> tuple[int, int]:
        return self.query.size, self.key.size


def _causal(request: _MaskRequest) -> Any:
    return request.key <= request.query + request.shift


def _blocks(request: _MaskRequest) -> Any:
    rows, columns = request.block
    counts = -(-request.shape[0] // rows), -(-request.shape[1] // columns)
    chosen = request.rng.random(counts) < 0.5
    chosen.flat[request.rng.integers(chosen.size)] = True
    return chosen[request.query // rows, request.key // columns]


def _rows(request: _MaskRequest) -> Any:
    shown = request.rng.random(request.shape) < 0.7
    shown[request.rng.random(request.shape[0]) < 0.3] = False
    shown[request.rng.integers(request.shape[0])] = False
    return shown


#: The kinds of mask from the simplest on; shrinking goes towards the first.
KINDS: dict[str, Callable[[_MaskRequest], Any]] = {
    "full": lambda request: np.ones(request.shape, bool),
    "causal": _causal,
    "local": lambda request: (
        _causal(request) & (request.key > request.query + request.shift - request.window)
    ),
    "block-sparse": _blocks,
    "empty-rows": _rows,
    "random": lambda request: request.rng.random(request.shape) < 0.5,
    "none": lambda request: np.zeros(request.shape, bool),
}


def masks(
    queries: int,
    keys: int,
    *,
    kinds: str | Collection[str] = tuple(KINDS),
    block: int | Sequence[int] = 16,
    batch: int | None = None,
    empty_rows: bool = True,
) -> SearchStrategy[Mask]:
    """Return a strategy for an attention mask, True where a query sees a key.

    Example::

        masks(100, 130, block=(16, 128))
        masks(64, 64, kinds=("causal", "local"), empty_rows=False)

    The kinds are, and it shrinks to the first of the selected ones:

    - ``"full"``: every query sees every key;
    - ``"causal"``: query ``i`` sees the keys up to ``i``; or up to ``i + keys - queries``, so that
      the last query sees all (with fewer keys than queries the first ones then see none);
    - ``"local"``: of those, a window of the latest ones;
    - ``"block-sparse"``: whole blocks, about half of them, so that some can be skipped;
    - ``"empty-rows"``: random, and some queries see nothing;
    - ``"random"``: each with a chance of one half;
    - ``"none"``: no query sees anything.

    Args:
      queries: how many, at least 1.
      keys: how many, at least 1.
      kinds: one or several of the above.
      block: rows and columns of the blocks of ``"block-sparse"``, or one number for both.
      batch: how many masks, each of its own kind; None for an array without that axis.
      empty_rows: False if each query must see a key. One that sees none then sees the key of its
        own number, or the last one, and ``"none"`` is left out.

    Draws bool arrays of shape ``(queries, keys)`` or ``(batch, queries, keys)``.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("queries", queries, 1)
    check_int("keys", keys, 1)
    names = _check_kinds(kinds, empty_rows)
    sides = tuple(block) if isinstance(block, Sequence) else (block, block)
    if len(sides) != 2:
        raise SpecError(f"block must be an integer or rows and columns, not {block!r}")
    rows, columns = (check_int("block", side, 1) for side in sides)

    @st.composite
    def mask(draw: DrawFn) -> Mask:
        # As many choices for every kind, because hypothesis takes fewer ones for simpler.
        kind = draw(st.sampled_from(names))
        request = _MaskRequest(
            query=np.arange(queries)[:, None],
            key=np.arange(keys)[None, :],
            block=(rows, columns),
            shift=draw(st.sampled_from(sorted({0, keys - queries}, key=abs))),
            window=draw(edges(1, keys, (rows, columns))),
            rng=np.random.default_rng(draw(SEEDS)),
        )
        made = np.array(KINDS[kind](request), bool)
        if not empty_rows:
            (blind,) = np.nonzero(~made.any(axis=1))
            made[blind, np.minimum(blind, keys - 1)] = True
        return made

    if batch is None:
        return bounded("masks", (queries, keys), mask(), itemsize=1)
    check_int("batch", batch, 1)
    several = st.lists(mask(), min_size=batch, max_size=batch).map(lambda drawn: np.stack(drawn))
    return bounded("masks", (batch, queries, keys), several, itemsize=1)


def _check_kinds(kinds: Any, empty_rows: bool) -> tuple[str, ...]:
    """Return the selected kinds, from the simplest on."""
    names: tuple[Any, ...] = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for name in names:
        if name not in KINDS:
            raise SpecError(f"kinds: there is no kind {name!r}; valid: {', '.join(KINDS)}")
    kept = tuple(name for name in KINDS if name in names and (empty_rows or name != "none"))
    if not kept:
        raise SpecError(
            f"kinds={kinds!r} leaves no kind of mask; give at least one"
            + (", or allow empty_rows" if names else "")
        )
    return kept
