"""Numbers at the edges of tiles, for lengths and positions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.sizes.pools import check_int

#: Seeds of what is drawn by numpy; short, because people read them.
SEEDS = st.integers(0, 2**16 - 1)


def edges(
    least: int,
    most: int,
    tiles: Sequence[int],
    *,
    place: int = 0,
    also: Collection[int] = (),
) -> SearchStrategy[int]:
    """A strategy for a number from ``least`` to ``most``, at an edge of a tile or of the range.

    These are the first two tiles and the last one, each minus one, exactly, and plus one; the ends
    of the range, one less than its end, and its middle; and the numbers in ``also``. Shrinks to 1,
    or to ``least`` above it.

    Numbers for several positions of an array need strategies with different ``place``, because
    Hypothesis often copies draws between equal strategies.
    """
    found = {1, least, (least + most) // 2, most - 1, most, *also}
    for tile in tiles:
        starts = {tile, 2 * tile, most // tile * tile}
        found |= {start + step for start in starts for step in (-1, 0, 1)}
    # as for dims, a failure at 1 is more useful than one at 0
    within = sorted((n for n in found if least <= n <= most), key=lambda n: n or 1.5)
    return st.sampled_from([(number, place) for number in within]).map(lambda pair: pair[0])


def check_tiles(argument: str, value: int | Sequence[int] | None) -> tuple[int, ...]:
    """A tile, several or none, as a tuple.

    Raises:
      SpecError: they are not positive integers.
    """
    if value is None:
        return ()
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return tuple(check_int(argument, tile, 1) for tile in several)


def check_most(argument: str, value: object, least: int, most: int) -> int:
    """``value`` as an int from ``least`` to ``most``, else a SpecError that names ``argument``."""
    number = check_int(argument, value, least)
    if number > most:
        raise SpecError(f"{argument} must be at most {most}, not {number}")
    return number
