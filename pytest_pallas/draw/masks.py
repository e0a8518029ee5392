"""Draw attention masks: which keys each query sees (``masks``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.draw.arguments import bounded
from pytest_pallas.draw.covering import kind_of_list
from pytest_pallas.draw.indices import SEEDS, edges
from pytest_pallas.draw.sizes import check_int
from pytest_pallas.errors import SpecError

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _MaskRequest:
    """Holds the drawn parameters from which each kind makes its mask.

    Attributes:
      query: the index of each query, shape ``(queries, 1)``.
      key: the index of each key, shape ``(1, keys)``.
      block: rows and columns of a block.
      shift: query ``i`` of a causal mask sees the keys up to ``i + shift``: 0, or
        ``keys - queries``.
      window: how many keys each query of a local mask sees at most.
      rng: the generator for random elements.
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


def _block_sparse(request: _MaskRequest) -> Any:
    """Return a mask of whole blocks that shows at least one block."""
    rows, columns = request.block
    counts = -(-request.shape[0] // rows), -(-request.shape[1] // columns)
    chosen = request.rng.random(counts) < 0.5
    chosen.flat[request.rng.integers(chosen.size)] = True
    return chosen[request.query // rows, request.key // columns]


def _empty_rows(request: _MaskRequest) -> Any:
    """Return a random mask in which at least one query sees nothing."""
    shown = request.rng.random(request.shape) < 0.7
    shown[request.rng.random(request.shape[0]) < 0.3] = False
    shown[request.rng.integers(request.shape[0])] = False
    return shown


def _rows(request: _MaskRequest) -> Any:
    """Return a mask whose rows are full, empty, of one key, or up to the border of a block."""
    count, keys = request.shape
    kind = request.rng.permutation(np.arange(count) % 5)[:, None]
    last = request.rng.integers(0, -(-keys // request.block[1]), (count, 1))
    last = last * request.block[1] + request.rng.integers(-1, 2, (count, 1))
    one = request.key == request.rng.integers(0, keys, (count, 1))
    kinds = [kind == number for number in range(4)]
    return np.select(kinds, [True, False, one, request.key >= last], request.key < last)


#: The kinds of masks, the simplest first; Hypothesis shrinks to the first.
KINDS: dict[str, Callable[[_MaskRequest], Any]] = {
    "full": lambda request: np.ones(request.shape, bool),
    "causal": _causal,
    "local": lambda request: (
        _causal(request) & (request.key > request.query + request.shift - request.window)
    ),
    "block-sparse": _block_sparse,
    "empty-rows": _empty_rows,
    "rows": _rows,
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

    These are the kinds. A failure shrinks to the first of them that is selected:

    - ``"full"``: every query sees every key;
    - ``"causal"``: query ``i`` sees the keys up to ``i``; or up to ``i + keys - queries``, so that
      the last query sees all keys. If there are fewer keys than queries, the first queries then see
      none;
    - ``"local"``: causal, and a query sees only the latest of these keys, those in a window;
    - ``"block-sparse"``: about half of the blocks, each as a whole, so that a kernel can skip the
      others;
    - ``"empty-rows"``: random, and some queries see nothing;
    - ``"rows"``: a query sees all keys, none, one, or those before or after the border of a block;
    - ``"random"``: a query sees each key with probability 1/2;
    - ``"none"``: no query sees anything.

    Args:
      queries: the number of queries, at least 1.
      keys: the number of keys, at least 1.
      kinds: the kinds to draw, one or several.
      block: rows and columns of the blocks, or one number for both.
      batch: the number of masks in an array, each drawn with its own kind; None for an array
        without that axis.
      empty_rows: False if each query must see a key. A query that would see none then sees the key
        of the same index, or the last key; and the kind ``"none"`` is not drawn.

    The strategy draws bool arrays of shape ``(queries, keys)`` or ``(batch, queries, keys)``.

    Raises:
      SpecError: an argument is invalid.
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
        # Every kind draws shift, window and seed, even if it uses none of them: Hypothesis takes
        # fewer choices for simpler, and would prefer a kind that draws less.
        kind = kind_of_list(draw, "masks", names)
        request = _MaskRequest(
            query=np.arange(queries)[:, None],
            key=np.arange(keys)[None, :],
            block=(rows, columns),
            shift=draw(st.sampled_from(sorted({0, keys - queries}, key=abs))),
            window=draw(edges(1, keys, (rows, columns))),
            rng=np.random.default_rng(draw(SEEDS)),
        )
        drawn_mask = np.array(KINDS[kind](request), bool)
        if not empty_rows:
            (empty,) = np.nonzero(~drawn_mask.any(axis=1))
            drawn_mask[empty, np.minimum(empty, keys - 1)] = True
        return drawn_mask

    if batch is None:
        return bounded("masks", (queries, keys), mask(), itemsize=1)
    check_int("batch", batch, 1)
    several = st.lists(mask(), min_size=batch, max_size=batch).map(lambda drawn: np.stack(drawn))
    return bounded("masks", (batch, queries, keys), several, itemsize=1)


def _check_kinds(kinds: Any, empty_rows: bool) -> tuple[str, ...]:
    """Return the selected kinds, the simplest first; raise ``SpecError`` if none is left."""
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
