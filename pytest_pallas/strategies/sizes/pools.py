"""Pools: the few sizes that a dim may have, chosen where kernels break.

A kernel that works on tiles of ``b`` fails at the edges of a tile: one element alone, one short of
a tile, a full tile, one over, and the same for two tiles. A pool holds those and a few primes, and
nothing else: every new shape costs a trace and a compile (0.3 to 1 s), so shapes must repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import SpecError

#: One tile, several tiles, or either by the name of a dim.
Tiles = int | Sequence[int] | Mapping[str, int | Sequence[int]]

#: Sizes of one dim: a fixed one, some to choose from, or a strategy that draws one.
Sizes = int | Sequence[int] | SearchStrategy[int]

_NOTHING: Mapping[str, tuple[int, ...]] = MappingProxyType({})

#: Primes fill a pool up to this many sizes; boundaries are never left out.
POOL_SIZE = 9

#: Sizes of a dim that is not specified.
SMALL = (1, 2, 3, 4, 5, 7, 8, 13, 17)


@dataclass(frozen=True)
class SizePool:
    """The sizes that a dim may have.

    Attributes:
      sizes: from the simplest on: ascending, but an empty dim comes second.
      plain: position in ``sizes`` of the ordinary case, e.g. one full tile.
      tiles: that the sizes were chosen around, or are multiples of.
      listed: whether the user listed the sizes.
      unsaid: whether the user did not specify them.
    """

    sizes: tuple[int, ...]
    plain: int = 0
    tiles: tuple[int, ...] = ()
    listed: bool = False
    unsaid: bool = False


def make_pools(
    names: Sequence[str],
    *,
    around: Tiles | None = None,
    multiple_of: Tiles | None = None,
    dims: Mapping[str, Sizes] | None = None,
    max_dim: int | None = None,
    min_dim: int = 1,
    learned: Mapping[str, tuple[int, ...]] = _NOTHING,
) -> dict[str, SizePool | SearchStrategy[int]]:
    """The pool, or the strategy in its stead, of each dim in ``names``.

    Arguments by name have precedence over arguments for all dims, and ``multiple_of`` for all dims
    over ``around`` for all dims. The arguments are those of ``strategies.dims``; unspecified dims
    are around the tiles in ``learned``, or small.

    Raises:
      SpecError: an argument that cannot be used, by name.
    """
    check_int("min_dim", min_dim, 0)
    if max_dim is not None:
        check_int("max_dim", max_dim, max(1, min_dim))
    if dims is not None and not isinstance(dims, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"dims must be a mapping from dim to sizes, not {dims!r}")
    mappings = {"around": around, "multiple_of": multiple_of, "dims": dims or {}}
    specified: dict[str, str] = {}
    for argument, value in mappings.items():
        for name in value if isinstance(value, Mapping) else ():
            if name not in names:
                raise SpecError(
                    f"{argument}: there is no dim {name!r} in the shapes; "
                    f"their dims are {', '.join(names) or 'none'}"
                )
            if name in specified:
                raise SpecError(
                    f"{argument}: {specified[name]} already gives the sizes of dim {name!r}; drop "
                    "one"
                )
            specified[name] = argument
    by_argument = {"around": _around, "multiple_of": _multiples}
    pools: dict[str, SizePool | SearchStrategy[int]] = {}
    for name in names:
        argument = specified.get(name) or _for_all(around, multiple_of)
        if argument == "dims":
            assert dims is not None
            pools[name] = _explicit(f"dims[{name!r}]", dims[name])
            continue
        if argument is None:
            pools[name] = replace(_unsaid(learned.get(name, ()), min_dim, max_dim), unsaid=True)
            continue
        value: Any = mappings[argument]
        label = f"{argument}[{name!r}]" if isinstance(value, Mapping) else argument
        tiles = _tiles(label, value[name] if isinstance(value, Mapping) else value)
        pools[name] = by_argument[argument](label, tiles, min_dim, max_dim)
    return pools


def boundary(size: int, pool: SizePool) -> str:
    """The kind of boundary that a size of a pool is.

    ``"fixed"`` in a pool of one size, and the size itself where the user listed several. Else
    ``"empty"``, ``"one"``, ``"tile-1"``, ``"tile"``, ``"tile+1"``, ``"2 tiles-1"`` and so on (with
    several tiles ``"128-1"``, ``"2*128-1"``), ``"prime"`` or ``"other"``: the first that it is.
    """
    if len(pool.sizes) == 1:
        return "fixed"
    if pool.listed:
        return str(size)
    if size < 2:
        return "one" if size else "empty"
    for count in (1, 2, 3):
        for tile in sorted(set(pool.tiles)):
            distance = size - count * tile
            if abs(distance) <= 1:
                return _edge(count, tile, len(set(pool.tiles)) > 1) + ("", "+1", "-1")[distance]
    return "prime" if _prime_above(size - 1) == size else "other"


def _edge(count: int, tile: int, several: bool) -> str:
    """The end of ``count`` tiles, in words; the tile's size if there are several tiles."""
    if several:
        return str(tile) if count == 1 else f"{count}*{tile}"
    return "tile" if count == 1 else f"{count} tiles"


def check_int(argument: str, value: object, least: int) -> int:
    """``value`` as an int of at least ``least``, else a SpecError that names ``argument``."""
    number = _as_int(value)
    if number is None or number < least:
        raise SpecError(f"{argument} must be an integer of at least {least}, not {value!r}")
    return number


def _as_int(value: object) -> int | None:
    """``value`` if it is an integer (numpy's too, but no bool), else None."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value.__index__())  # type: ignore[attr-defined]


def _for_all(around: Tiles | None, multiple_of: Tiles | None) -> str | None:
    """The argument for the dims that are not named."""
    for argument, value in (("multiple_of", multiple_of), ("around", around)):
        if value is not None and not isinstance(value, Mapping):
            return argument
    return None


def _tiles(label: str, value: object) -> tuple[int, ...]:
    """One tile or several, checked."""
    tiles = tuple(check_int(label, tile, 1) for tile in _several(value))
    if not tiles:
        raise SpecError(f"{label} is empty; give at least one tile, e.g. {label}=128")
    return tiles


def _several(value: Any) -> Sequence[Any]:
    """``value`` itself if it is a sequence, else a sequence of it."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _around(label: str, tiles: tuple[int, ...], low: int, high: int | None) -> SizePool:
    """Sizes around the edges of tiles, with primes where there is room."""
    if high is not None and high < max(tiles):
        raise SpecError(f"{label}: max_dim={high} is smaller than the tile {max(tiles)}")
    sizes = {1}
    for tile in tiles:
        sizes |= {tile - 1, tile, tile + 1, 2 * tile - 1, 2 * tile, 2 * tile + 1}
        if high is not None:  # three tiles are expensive, so only on request
            sizes |= {3 * tile, 3 * tile + 1}
    pool = _pool(sizes, low, high, plain=max(tiles))
    for prime in (7, _prime_above(3 * max(tiles) // 2), 3):
        if len(pool.sizes) < POOL_SIZE and prime < 2 * max(tiles):
            pool = _pool({*pool.sizes, prime}, low, high, plain=max(tiles))
    return replace(pool, tiles=tiles)


def _unsaid(tiles: Sequence[int], low: int, high: int | None) -> SizePool:
    """Sizes around the learned tiles, if they may be so large; otherwise small ones."""
    fitting = tuple(tile for tile in tiles if high is None or tile < high)
    if fitting:
        return _around("learned", fitting, low, high)
    limit = high if high is not None else max(SMALL)
    return _pool((*SMALL, limit), low, high, plain=8)


def _multiples(label: str, tiles: tuple[int, ...], low: int, high: int | None) -> SizePool:
    """One, two and three tiles."""
    multiples = [n * tile for tile in tiles for n in (1, 2, 3)]
    kept = [size for size in multiples if low <= size and (high is None or size <= high)]
    if not kept:
        raise SpecError(
            f"{label}: no size of {multiples} lies within min_dim={low}, max_dim={high}"
        )
    if low == 0:
        kept.append(0)
    return SizePool(tuple(sorted(set(kept), key=_simplicity)), tiles=tiles)


def _explicit(label: str, value: Any) -> SizePool | SearchStrategy[int]:
    """The sizes that ``dims`` gives for one dim, regardless of min_dim and max_dim."""
    if isinstance(value, SearchStrategy):
        return value
    sizes = {check_int(label, size, 0) for size in _several(value)}
    if not sizes:
        raise SpecError(f"{label} is empty; give at least one size")
    return SizePool(tuple(sorted(sizes, key=_simplicity)), listed=True)


def _pool(sizes: Iterable[int], low: int, high: int | None, *, plain: int) -> SizePool:
    """The ``sizes`` within the bounds, and the lower bound itself."""
    within = {size for size in sizes if low <= size and size and (high is None or size <= high)}
    ordered = sorted(within | {low, max(low, 1)}, key=_simplicity)
    return SizePool(tuple(ordered), ordered.index(plain) if plain in ordered else 0)


def _simplicity(size: int) -> float:
    """Ascending, but 0 after 1: a failure at size 1 is more useful than one of an empty array."""
    return size or 1.5


def _prime_above(number: int) -> int:
    """The smallest prime above ``number``."""
    candidate = number + 1
    while candidate < 2 or any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
        candidate += 1
    return candidate
