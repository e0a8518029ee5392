"""The shape language: ``"m k, k n"`` are two matrices that share ``k``.

Grammar, where a name is an ASCII identifier and an integer is positive::

    shapes = array {"," array} [";" constraint {("," | ";") constraint}]
    array  = {dim} | "()"          (without dims it is a scalar)
    dim    = name | integer

A ``;`` ends the arrays. After it come constraints, which may have names of their own: in
``"b h q d, b g k d; h = g*r, q <= k"`` there is a size ``r`` that no array has. Read ``parse`` and
``Constraint`` first; ``make_pools`` says which sizes a dim may have.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import CodeType
from typing import Any, SupportsIndex

from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import ShapeLanguageError, SpecError

#: Reserved words of a recipe, which cannot be dims.
RESERVED = frozenset({"dtype", "values", "seed"})

_TOKEN = re.compile(r"\(\)|,|[^\s,()]+|[()]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_INTEGER = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True)
class ShapeSpec:
    """Shapes of some arrays with named sizes.

    Attributes:
      text: its source text.
      arrays: per array its dims, each a name or a size; ``()`` for a scalar.
      constraints: what must hold between the sizes.
    """

    text: str
    arrays: tuple[tuple[str | int, ...], ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dims, each once, in order of appearance."""
        dims = (dim for array in self.arrays for dim in array if isinstance(dim, str))
        return tuple(dict.fromkeys(dims))

    @property
    def variables(self) -> tuple[str, ...]:
        """``names``, and after them the names that only constraints have."""
        more = (name for constraint in self.constraints for name in constraint.names)
        return tuple(dict.fromkeys((*self.names, *more)))


def parse(text: str) -> ShapeSpec:
    """Parse shapes such as ``"b q d, b k d; q <= k"``, ``"m 128, "`` or ``"()"``.

    Example::

        parse("m k, k n, ()").arrays == (("m", "k"), ("k", "n"), ())

    Raises:
      ShapeLanguageError: the text is wrong; the message has a caret under the position.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeLanguageError(
            f"shapes must be a string such as 'm k, k n', not {type(text).__name__} {text!r}"
        )
    arrays: list[tuple[str | int, ...]] = []
    dims: list[str | int] = []
    scalar_at: int | None = None
    end = text.find(";") if ";" in text else len(text)
    for match in _TOKEN.finditer(text, 0, end):
        token, position = match.group(), match.start()
        if token == ",":
            arrays.append(tuple(dims))
            dims, scalar_at = [], None
        elif token == "()":
            if dims or scalar_at is not None:
                problem = "'()' is a scalar and must stand alone; put a comma here"
                raise _error(text, position, problem)
            scalar_at = position
        elif scalar_at is not None:
            raise _error(text, position, "a dim after '()', which is a scalar; put a comma here")
        else:
            dims.append(_dim(text, token, position))
    arrays.append(tuple(dims))
    return ShapeSpec(text, tuple(arrays), tuple(_constraints(text, end)))


def concrete(shapes: ShapeSpec, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Return the shape of every array, given the size of every name in ``shapes.names``."""
    return tuple(
        tuple(sizes[dim] if isinstance(dim, str) else dim for dim in array)
        for array in shapes.arrays
    )


def _dim(text: str, token: str, position: int) -> str | int:
    """Return the dim that ``token`` stands for."""
    if _INTEGER.fullmatch(token):
        if int(token) == 0:
            problem = "a size must be at least 1; for empty arrays name the dim and pass min_dim=0"
            raise _error(text, position, problem)
        return int(token)
    if not _NAME.fullmatch(token):
        problem = f"{token!r} is not a dim; a dim is a name or a positive integer"
        raise _error(text, position, problem)
    if token in RESERVED:
        raise _error(text, position, f"{token!r} is a reserved word of the recipe; rename the dim")
    return token


def _constraints(text: str, end: int) -> Iterator[Constraint]:
    """Yield the constraints that follow the arrays, which end at ``end``."""
    for match in re.finditer(r"[,;]([^,;]*)", text[end:]):
        part = match[1]
        position = end + match.start(1) + len(part) - len(part.lstrip())
        try:
            constraint = parse_constraint(part)
        except ValueError as error:
            raise _error(text, position, str(error)) from None
        for name in constraint.names:
            if not _NAME.fullmatch(name) or name in RESERVED:
                raise _error(text, position, f"{name!r} cannot be the name of a dim; rename it")
        yield constraint


def _error(text: str, position: int, problem: str) -> ShapeLanguageError:
    """Return an error that shows ``text`` on one line with a caret at ``position``."""
    line = re.sub(r"\s", " ", text)
    return ShapeLanguageError(f"shapes: {problem}\n    {line}\n    {' ' * position}^")


# Constraints between dims: ``"h = g*r"``, ``"q < k <= 2*q"``, ``"k % 8 = 0"``.
#
# They are comparisons of integers, dims and their sums, differences, products, quotients (``//``)
# and remainders (``%``), in Python's own syntax, except that ``=`` may stand for ``==``.


#: Nodes of Python's syntax that a constraint may have, besides integers.
_ALLOWED = (
    *(ast.BinOp, ast.Name, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)

# A single "=" that is no part of another comparison.
_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


@dataclass(frozen=True)
class Constraint:
    """A comparison between dims.

    Attributes:
      text: its source text.
      names: the dims in it, each once, in order of appearance.
      defines: the dim that stands alone left of the only ``=``, and nowhere right of it.
      comparison: its syntax tree.
    """

    text: str
    names: tuple[str, ...]
    defines: str | None
    comparison: ast.Compare = field(repr=False, compare=False)


def parse_constraint(text: str) -> Constraint:
    """Parse one constraint.

    Raises:
      ValueError: it is not a constraint; the message has the reason.
    """
    try:
        parsed = ast.parse(_EQUALS.sub("==", text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, ast.Compare):
        raise ValueError(
            f"{text.strip()!r} is not a constraint; a constraint compares dims, such as "
            "'h = g*r', 'q < k' or 'k % 8 = 0'"
        )
    for part in (*_sides(parsed), *parsed.ops):
        for node in ast.walk(part):
            _check(node)
    names = [name for side in _sides(parsed) for name in _names(side)]
    left, right = parsed.left, parsed.comparators[0]
    alone = len(parsed.ops) == 1 and isinstance(parsed.ops[0], ast.Eq)
    defines = None
    if alone and isinstance(left, ast.Name) and left.id not in _names(right):
        defines = left.id
    return Constraint(text.strip(), tuple(dict.fromkeys(names)), defines, parsed)


def holds(constraint: Constraint, sizes: Mapping[str, int]) -> bool:
    """Return whether ``sizes``, with a size for each of its names, satisfy a constraint.

    One that divides by zero is not satisfied.
    """
    return bool(_value(constraint.comparison, sizes))


def defined(constraint: Constraint, sizes: Mapping[str, int]) -> int | None:
    """Return the size of the dim that a constraint defines, or None if it divides by 0."""
    return _value(constraint.comparison.comparators[0], sizes)


def definitions(
    constraints: Iterable[Constraint], known: Iterable[str]
) -> tuple[Sequence[Constraint], Sequence[Constraint]]:
    """Split constraints into those that define dims, in order of evaluation, and the rest.

    A dim is defined at most once, not if it is in ``known``, and not by way of itself.
    """
    defining: dict[str, Constraint] = {}
    ordered: list[Constraint] = []
    rest: list[Constraint] = []
    for constraint in constraints:
        name = constraint.defines
        if name is None or name in known or name in defining:
            rest.append(constraint)
            continue
        try:
            ordered = _ordered(defining | {name: constraint})
            defining[name] = constraint
        except graphlib.CycleError:
            rest.append(constraint)
    return ordered, rest


def _ordered(defining: Mapping[str, Constraint]) -> list[Constraint]:
    """Return the constraints that define dims, each after those that it computes with."""
    graph = {
        name: [other for other in constraint.names if other in defining and other != name]
        for name, constraint in defining.items()
    }
    return [defining[name] for name in graphlib.TopologicalSorter(graph).static_order()]


def _check(node: ast.AST) -> None:
    """Raise a ValueError if a part of a comparison is not in the language."""
    if isinstance(node, _ALLOWED):
        return
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return
    if isinstance(node, ast.Div):
        raise ValueError("'/' is not allowed for sizes; write '//'")
    raise ValueError(
        "a constraint may have dims, integers, + - * // % and comparisons, but not "
        f"{type(node).__name__.lower()}"
    )


def _names(node: ast.AST) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def _sides(comparison: ast.Compare) -> list[ast.expr]:
    return [comparison.left, *comparison.comparators]


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a checked expression, or None if it divides by zero."""
    try:
        return eval(_code(node), {"__builtins__": {}}, sizes)
    except ZeroDivisionError:
        return None


@functools.lru_cache(maxsize=256)
def _code(node: ast.expr) -> CodeType:
    return compile(ast.Expression(node), "<constraint>", "eval")


# Pools: the few sizes that a dim may have, chosen where kernels break.
#
# A kernel that works on tiles of ``b`` fails at the edges of a tile: one element alone, one short
# of a tile, a full tile, one over, and the same for two tiles. A pool holds those and a few
# primes, and nothing else: every new shape costs a trace and a compile (0.3 to 1 s), so shapes
# must repeat.


#: One tile, several tiles, or either by the name of a dim.
Tiles = int | Sequence[int] | Mapping[str, int | Sequence[int]]

#: Sizes of one dim: a fixed one, some to choose from, or a strategy that draws one.
Sizes = int | Sequence[int] | SearchStrategy[int]


@dataclass(frozen=True, kw_only=True)
class SizeArguments:
    """The arguments of strategies for the sizes of dims; see ``strategies.dims``."""

    around: Tiles | None = None
    multiple_of: Tiles | None = None
    dims: Mapping[str, Sizes] | None = None
    unequal: bool | Sequence[str] = ()
    max_dim: int | None = None
    min_dim: int = 1

    @property
    def by_argument(self) -> dict[str, Any]:
        """The arguments that may be mappings from dim, by name."""
        return {"around": self.around, "multiple_of": self.multiple_of, "dims": self.dims or {}}


#: Primes fill a pool up to this many sizes; boundaries are never left out.
POOL_SIZE = 9

#: Sizes of a dim that is not specified.
SMALL = (1, 2, 3, 4, 5, 7, 8, 13, 17)


@dataclass(frozen=True)
class Learned:
    """What the trace of a kernel says about useful sizes.

    Attributes:
      tiles: the sizes of its blocks along dims that the strategy does not specify, by dim.
      long: a dim, and a size of it that is too large for integers of 16 bits; None if that is
        expensive.
      stretched: whether the current draw has that size, or a larger one.
      grows: whether examples may grow, for what of the kernel has not run.
    """

    tiles: tuple[tuple[str, tuple[int, ...]], ...] = ()
    long: tuple[str, int] | None = None
    stretched: bool = False
    grows: bool = False


@dataclass(frozen=True)
class SizePool:
    """The sizes that a dim may have.

    Attributes:
      sizes: from the simplest on: ascending, but an empty dim comes second.
      plain: position in ``sizes`` of the ordinary case, e.g. one full tile.
      tiles: that the sizes were chosen around, or are multiples of.
      listed: whether the user listed the sizes.
      unsaid: whether the user did not specify them.
      further: sizes that only examples have which grow.
      high: the largest size that the user allows; None without a limit.
    """

    sizes: tuple[int, ...]
    plain: int = 0
    tiles: tuple[int, ...] = ()
    listed: bool = False
    unsaid: bool = False
    further: tuple[int, ...] = ()
    high: int | None = None

    @functools.cached_property
    def every(self) -> tuple[int, ...]:
        """All sizes, also the further ones, from the simplest on."""
        return tuple(sorted({*self.sizes, *self.further}, key=simplicity))


def make_pools(
    names: Sequence[str], arguments: SizeArguments, learned: Learned
) -> dict[str, SizePool | SearchStrategy[int]]:
    """Return the pool of each dim in ``names``, or the strategy that replaces it.

    Arguments by name have precedence over arguments for all dims, and ``multiple_of`` for all dims
    over ``around`` for all dims. Unspecified dims are around the tiles in ``learned``, or small.

    Raises:
      SpecError: an argument that cannot be used, by name.
    """
    low, high, dims = arguments.min_dim, arguments.max_dim, arguments.dims
    check_int("min_dim", low, 0)
    if high is not None:
        check_int("max_dim", high, max(1, low))
    if dims is not None and not isinstance(dims, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"dims must be a mapping from dim to sizes, not {dims!r}")
    by_argument = arguments.by_argument
    specified: dict[str, str] = {}
    for argument, value in by_argument.items():
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
    for_all = [
        argument
        for argument in ("multiple_of", "around")
        if by_argument[argument] is not None and not isinstance(by_argument[argument], Mapping)
    ]
    tiles_of = dict(learned.tiles)
    pools: dict[str, SizePool | SearchStrategy[int]] = {}
    for name in names:
        argument = specified.get(name) or next(iter(for_all), None)
        if argument is None:
            unsaid = replace(_unsaid(tiles_of.get(name, ()), low, high), unsaid=True)
            pools[name] = _growing(unsaid, low, high, learned)
            continue
        value: Any = by_argument[argument]
        label = f"{argument}[{name!r}]" if isinstance(value, Mapping) else argument
        value = value[name] if isinstance(value, Mapping) else value
        if argument == "dims":
            pools[name] = _explicit(label, value)
        else:
            make = _around if argument == "around" else _multiples
            pool = make(label, check_tiles(label, value), low, high)
            pools[name] = _growing(pool, low, high, learned, whole=argument == "multiple_of")
    return pools


def stretched(pools: Mapping[str, SizePool], long: str, least: int) -> dict[str, SizePool]:
    """Return pools of one size each: more than ``least`` for one dim, the simplest for others.

    The long one ends within a tile, or with a whole one if it always does.
    """
    pool = pools[long]
    tile = max(pool.tiles, default=8)
    whole = (least // tile + 1) * tile
    size = whole if min(pool.sizes) >= tile else whole - tile // 2 + 1
    return {
        name: SizePool((size if name == long else pool.sizes[0],)) for name, pool in pools.items()
    }


def boundary(size: int, pool: SizePool) -> str:
    """Return the kind of boundary that a size of a pool is.

    ``"fixed"`` in a pool of one size, and the size itself where the user listed several. Else
    ``"empty"`` or ``"one"``; around tiles ``"tile-1"``, ``"tile"``, ``"tile+1"``, ``"2 tiles"``,
    ``"2 tiles+1"``, ``"3 tiles"`` (with several ``"128-1"``, ``"128"``, ``"2*128"`` ...), or
    ``"ragged"``, any other size; without tiles ``"prime"`` or ``"other"``. It is the first that
    fits: the more kinds there are, the fewer pairs of them come together.
    """
    if len(pool.sizes) == 1:
        return "fixed"
    if pool.listed:
        return str(size)
    if size < 2:
        return "one" if size else "empty"
    tiles = sorted(set(pool.tiles))
    for count, tile in product((1, 2, 3), tiles):
        if len(tiles) > 1:
            edge = str(tile) if count == 1 else f"{count}*{tile}"
        else:
            edge = "tile" if count == 1 else f"{count} tiles"
        if size == count * tile:
            return edge
        if size == tile - 1:
            return f"{edge}-1"
        if size == count * tile + 1 and count <= (2 if len(tiles) == 1 else 1):
            return f"{edge}+1"
    if tiles:
        return "ragged"
    return "prime" if _prime_above(size - 1) == size else "other"


def exceeding(sizes: Mapping[str, int], tiles: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """Return how sizes exceed tiles.

    ``"several"``: more than one tile along every dim with tiles. ``"ragged"``: the last of several
    tiles is partial along one of them. Empty if no dim has tiles.

    Args:
      sizes: of all dims.
      tiles: of dims that have some.
    """
    if not tiles or any(sizes[name] <= max(tiles[name]) for name in tiles):
        return frozenset()
    whole = all(sizes[name] % max(tiles[name]) == 0 for name in tiles)
    return frozenset({"several"} if whole else {"several", "ragged"})


def check_int(argument: str, value: object, least: int) -> int:
    """Check that ``value`` is an integer of at least ``least``, and return it as an int."""
    # numpy's integers are some, too, but no bool is
    number: int | None = None
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
    if number is None or number < least:
        raise SpecError(f"{argument} must be an integer of at least {least}, not {value!r}")
    return number


def check_tiles(label: str, value: object) -> tuple[int, ...]:
    """Check that ``value`` is one tile or several, and return them as a tuple.

    Raises:
      SpecError: there is none, or they are not positive integers; the message has ``label``.
    """
    tiles = tuple(check_int(label, tile, 1) for tile in _several(value))
    if not tiles:
        raise SpecError(f"{label} is empty; give at least one tile, e.g. {label}=128")
    return tiles


def _several(value: Any) -> Sequence[Any]:
    """Return ``value`` itself if it is a sequence, else a sequence of it."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _around(label: str, tiles: tuple[int, ...], low: int, high: int | None) -> SizePool:
    """Make the pool of sizes around the edges of tiles, with primes where there is room."""
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
    """Make the pool around the learned tiles, if they may be so large; else of small sizes."""
    fitting = tuple(tile for tile in tiles if high is None or tile < high)
    if fitting:
        return _around("learned", fitting, low, high)
    limit = high if high is not None else max(SMALL)
    return _pool((*SMALL, limit), low, high, plain=8)


def _multiples(label: str, tiles: tuple[int, ...], low: int, high: int | None) -> SizePool:
    """Make the pool of one, two and three tiles."""
    multiples = [n * tile for tile in tiles for n in (1, 2, 3)]
    kept = [size for size in multiples if low <= size and (high is None or size <= high)]
    if not kept:
        raise SpecError(
            f"{label}: no size of {multiples} lies within min_dim={low}, max_dim={high}"
        )
    if low == 0:
        kept.append(0)
    return SizePool(tuple(sorted(set(kept), key=simplicity)), tiles=tiles)


#: The numbers of tiles of further sizes, and the largest of those without ``max_dim``.
COUNTS = (*range(1, 18), 24, 25, *(n + more for n in (32, 64, 128, 256, 512) for more in (0, 1)))
_LARGEST = 1 << 14


def _growing(
    pool: SizePool, low: int, high: int | None, learned: Learned, *, whole: bool = False
) -> SizePool:
    """Add further sizes, if examples may grow; only of ``whole`` tiles, or partial ones, too."""
    if not learned.grows:
        return pool
    tile = max(pool.tiles, default=1)
    counts = [tile * count for count in COUNTS]
    sizes = {*counts, *(size + 1 for size in counts if not whole)}
    most = _LARGEST if high is None else high
    further = {size for size in sizes - {*pool.sizes} if low <= size <= most}
    return replace(pool, further=tuple(sorted(further)), high=high)


#: More sizes of a dim than this cannot be listed.
_MOST_LISTED = 1024


def _explicit(label: str, value: Any) -> SizePool | SearchStrategy[int]:
    """Make the pool that ``dims`` gives for one dim, regardless of min_dim and max_dim."""
    if isinstance(value, SearchStrategy):
        return value
    if len(_several(value)) > _MOST_LISTED:
        raise SpecError(
            f"{label} lists {len(_several(value))} sizes; list those at the boundaries of the "
            "kernel, or give a strategy such as st.integers(1, 512)"
        )
    sizes = {check_int(label, size, 0) for size in _several(value)}
    if not sizes:
        raise SpecError(f"{label} is empty; give at least one size")
    return SizePool(tuple(sorted(sizes, key=simplicity)), listed=True)


def _pool(sizes: Iterable[int], low: int, high: int | None, *, plain: int) -> SizePool:
    """Make the pool of ``sizes`` within the bounds, and the lower bound itself."""
    within = {size for size in sizes if low <= size and size and (high is None or size <= high)}
    ordered = sorted(within | {low, max(low, 1)}, key=simplicity)
    return SizePool(tuple(ordered), ordered.index(plain) if plain in ordered else 0)


def simplicity(size: int) -> float:
    """Return the key for sorting sizes: ascending, but 0 after 1.

    A failure at size 1 is more useful than one of an empty array.
    """
    return size or 1.5


def _prime_above(number: int) -> int:
    """Return the smallest prime above ``number``."""
    candidate = number + 1
    while candidate < 2 or any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
        candidate += 1
    return candidate
