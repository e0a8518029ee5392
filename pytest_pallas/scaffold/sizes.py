"""Which axes of the arrays have one size, and which sizes the function accepts.

All axes begin with one size. If the function accepts another size for one axis alone, that is free.
If it does not, the fewest other axes are looked for that must change with it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_pallas.scaffold.docstrings import multiples
from pytest_pallas.scaffold.search import Found
from pytest_pallas.scaffold.source import innermost
from pytest_pallas.scaffold.trials import Trace

#: Position of an axis: number of the array, and of the axis.
type Axis = tuple[int, int]

#: Sizes around blocks, to see whether any size will do.
_ODD = (1, 7, 100, 129, 257)

#: How many other axes may have the size of one, and how many sets of so many are tried.
_MOST_PARTNERS, _MOST_TRIED = 4, 60

#: Multiples to try where not every size will do.
_TILES = (8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Dim:
    """Axes that have one size.

    Attributes:
      name: for the shapes.
      axes: the axes.
      multiple_of: sizes must be multiples of it; 1 if any size will do.
      sizes: the only sizes that were accepted; empty if ``multiple_of`` says it.
      least: the least size that was accepted, where all larger ones may be.
      refused: a size that the function refused, and its error; None if it refused none.
    """

    name: str
    axes: tuple[Axis, ...]
    multiple_of: int = 1
    sizes: tuple[int, ...] = ()
    least: int = 1
    refused: tuple[int, str] | None = None


@dataclass(frozen=True)
class Dims:
    """The dims of a call, and constraints between them, in the language of shapes."""

    dims: tuple[Dim, ...]
    constraints: tuple[str, ...]

    def text(self, ranks: Sequence[int]) -> str:
        """The shapes of arrays of these ranks: ``"m k, k n"``."""
        names = {axis: dim.name for dim in self.dims for axis in dim.axes}
        arrays = [
            " ".join(names[number, axis] for axis in range(rank)) or "()"
            for number, rank in enumerate(ranks)
        ]
        return "; ".join(
            [", ".join(arrays), *([", ".join(self.constraints)] * any(self.constraints))]
        )


def dims_of(found: Found) -> Dims:
    """The dims of a call that the function accepts."""
    groups = _groups(found)
    literal = _literal(found)
    free = [group for group in groups if group[0] not in literal]
    tied = _merged(found, _tied(found, free))
    names = _names(found, [*tied, *[g for g in groups if g[0] in literal]])
    dims: list[Dim] = []
    relations = dict(_relations(found, tied))
    for group, name in zip(tied, names, strict=False):
        partners = [
            other for pair in relations for other in pair if group in pair and other != group
        ]
        dims.append(_sized(found, Dim(name, group), partners))
    for group in groups:
        if group[0] in literal:
            dims.append(Dim(str(literal[group[0]]), group))
    label = {dim.axes: dim.name for dim in dims}
    constraints = [text.format(label[a], label[b]) for (a, b), text in relations.items()]
    constraints += [f"{dim.name} >= {dim.least}" for dim in dims if dim.least > 1]
    return Dims(tuple(dims), tuple(constraints))


def refusal(found: Found, sizes: Mapping[Axis, int]) -> str:
    """Why the call with other sizes of some axes is not right, or ""."""
    trace = _traced(found, sizes)
    if trace.error or (trace.reference_problem and not found.trace.reference_problem):
        return trace.error or trace.reference_problem
    beyond = trace.wrong_blocks and not found.trace.wrong_blocks
    return "its grid does not fit the arrays" if beyond else ""


def _traced(found: Found, sizes: Mapping[Axis, int]) -> Trace:
    shapes = tuple(
        tuple(sizes.get((number, axis), size) for axis, size in enumerate(shape))
        for number, shape in enumerate(found.attempt.shapes)
    )
    return found.lab.trace(replace(found.attempt, shapes=shapes))


def _literal(found: Found) -> dict[Axis, int]:
    """Axes whose size is said as a number."""
    return {
        (number, axis): int(dim)
        for number, leaf in enumerate(found.leaves)
        for axis, dim in enumerate(leaf.dims or ())
        if dim.isdigit() and len(leaf.dims or ()) == len(found.attempt.shapes[number])
    }


def _groups(found: Found) -> list[tuple[Axis, ...]]:
    """Axes of one name are together where a name stands for a size."""
    groups: dict[object, list[Axis]] = {}
    for number, (leaf, shape) in enumerate(zip(found.leaves, found.attempt.shapes, strict=True)):
        fits = leaf.named and leaf.dims is not None and len(leaf.dims) == len(shape)
        for axis in range(len(shape)):
            name = (leaf.dims or ())[axis] if fits else ""
            key = name if name and not name.isdigit() else (number, axis)
            groups.setdefault(key, []).append((number, axis))
    return [tuple(axes) for axes in groups.values()]


def _tied(found: Found, groups: Sequence[tuple[Axis, ...]]) -> list[tuple[Axis, ...]]:
    """Groups of axes that have one size."""
    rest, made = list(groups), list[tuple[Axis, ...]]()
    while rest:
        group = rest[0]
        with_it = _needed(found, group, rest)
        made.append(tuple(sorted(axis for each in with_it for axis in each)))
        rest = [each for each in rest if each not in with_it]
    return sorted(made)


def _merged(found: Found, tied: Sequence[tuple[Axis, ...]]) -> list[tuple[Axis, ...]]:
    """The groups, where one that is no larger than another is one with it if there is no reference.

    A kernel whose blocks all lie in an array that is larger than it should be cannot tell.
    """
    if found.lab.reference is not None:
        return list(tied)
    made = list(tied)
    for (big, small), text in _relations(found, tied):
        if "%" not in text and big in made and small in made:
            made = [each for each in made if each not in (big, small)]
            made.append(tuple(sorted((*big, *small))))
    return sorted(made)


def _others(size: int) -> tuple[int, ...]:
    """Other sizes than the usual one: half of it, twice, one and a half times."""
    return tuple(other for other in (2 * size, size // 2, 3 * size // 2) if other and other != size)


def _needed(
    found: Found, group: tuple[Axis, ...], rest: Sequence[tuple[Axis, ...]]
) -> list[tuple[Axis, ...]]:
    """The groups that must have the size of one, that one included."""
    others = _others(found.size)
    partners = sorted(
        (each for each in rest if each != group), key=lambda each: _apart(group, each)
    )
    for count in range(min(len(partners), _MOST_PARTNERS) + 1):
        # Those of the same position first: the batch of q, k and v.
        for more in itertools.islice(itertools.combinations(partners, count), _MOST_TRIED):
            if any(_with(found, [group, *more], other) for other in others):
                return [group, *more]
    for other in others:
        if _with(found, rest, other):
            return list(rest)
    return [group]  # it has one size only


def _apart(one: tuple[Axis, ...], other: tuple[Axis, ...]) -> int:
    """How far apart the positions of axes are."""
    return min(abs(a - b) for _, a in one for _, b in other)


def _with(found: Found, groups: Sequence[tuple[Axis, ...]], size: int) -> bool:
    return refusal(found, {axis: size for group in groups for axis in group}) == ""


def _relations(
    found: Found, tied: Sequence[tuple[Axis, ...]]
) -> Iterator[tuple[tuple[tuple[Axis, ...], tuple[Axis, ...]], str]]:
    """Pairs of dims where one must divide the other, or be no larger."""
    size = found.size
    larger, smaller = list[tuple[Axis, ...]](), list[tuple[Axis, ...]]()
    for group in tied:
        double, half = _with(found, [group], 2 * size), _with(found, [group], size // 2)
        if double and not half:
            larger.append(group)
        if half and not double:
            smaller.append(group)
    for big, small in itertools.product(larger, smaller):
        if not _with(found, [big, small], size // 2) or not _with(found, [big, small], 2 * size):
            continue
        divides = not _with(found, [big], 3 * size // 2)
        yield (big, small), "{0} % {1} = 0" if divides else "{1} <= {0}"


def _sized(found: Found, dim: Dim, partners: Sequence[tuple[Axis, ...]]) -> Dim:
    """A dim with the sizes that the function does not refuse.

    A grid that does not fit, or outputs of other shapes, are mistakes that tests must find. So
    where only small sizes are refused, the others need be no multiples, unless the docstring says
    so: a function that forgets its last rows accepts any number of them from one block on.
    """
    axes = tuple(_axes([dim.axes, *partners]))

    def refused(size: int) -> str:
        return _traced(found, dict.fromkeys(axes, size)).refused

    errors = {size: refused(size) for size in _ODD}
    if found.trace.refused or not any(errors.values()):
        return dim
    first = next((size, error) for size, error in errors.items() if error)
    largest = max(size for size, error in errors.items() if error)
    accepted = [size for size, error in errors.items() if not error]
    said = multiples(inspect.getdoc(innermost(found.lab.function)))
    if accepted and largest < min(accepted) and not said:
        return replace(dim, least=_least(refused, largest, min(accepted)), refused=first)
    for tile in _TILES:
        if not any(refused(tile * times) for times in (1, 2, 3)):
            return replace(dim, multiple_of=tile, refused=first)
    every = (*_ODD, *_TILES, 2, 4, 384, 768, 1024, found.size)
    fine = tuple(sorted({size for size in every if not refused(size)}))
    return replace(dim, sizes=fine or (found.size,), refused=first)


def _least(refused: Callable[[int], str], below: int, accepted: int) -> int:
    """The least size that is accepted, if it is beyond ``below`` and all larger ones are."""
    while accepted - below > 1:
        middle = (accepted + below) // 2
        if refused(middle):
            below = middle
        else:
            accepted = middle
    return accepted


def _axes(groups: Sequence[tuple[Axis, ...]]) -> Iterator[Axis]:
    return (axis for group in groups for axis in group)


#: Names for the axes of an array that nobody names, by its rank.
_USUAL = {1: "n", 2: "mn", 3: "bmn", 4: "bhsd", 5: "abcmn"}
_MORE = "kpqrtuvwxyzcefgijlo"


def _names(found: Found, groups: Sequence[tuple[Axis, ...]]) -> list[str]:
    """A name for each group: what the annotation, docstring or source says, or a letter."""
    names: list[str] = []
    for group in groups:
        said = [_said(found, axis) for axis in group]
        usual = [
            letters[axis]
            for number, axis in group
            if (letters := _USUAL.get(len(found.attempt.shapes[number])))
        ]
        # The sum of a product has a name of its own: x (m, k) and y (k, n).
        contracted = len({axis for _, axis in group}) > 1 and len(group) == 2
        choices = [*filter(None, said), *(["k"] if contracted else []), *usual, *_MORE]
        names.append(next((name for name in choices if name not in names), f"d{len(names)}"))
    return names


def _said(found: Found, axis: Axis) -> str:
    number, position = axis
    dims = found.leaves[number].dims
    if dims is None or len(dims) != len(found.attempt.shapes[number]):
        return ""
    name = dims[position]
    return "" if not name.isidentifier() or name in ("dtype", "values", "seed") else name
