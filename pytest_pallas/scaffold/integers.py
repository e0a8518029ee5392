"""Strategies for arrays of integers that say where something is: lengths, indices, segments."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pytest_pallas.scaffold.guess import Guess


@dataclass(frozen=True)
class Integers:
    """An array that is drawn after the others, because its values depend on their sizes.

    Attributes:
      number: of the array.
      leaf: its name.
      strategy: the strategy in Python, where ``drawn`` are the other arrays.
      comment: what was guessed.
    """

    number: int
    leaf: str
    strategy: str
    comment: str


#: By the end of a name: the strategy for ``count`` integers about an axis of ``most`` elements.
_KINDS: tuple[tuple[str, Callable[[str, str], str], str], ...] = (
    (
        r"len(gth)?s?$|_lens?$|counts?$",
        lambda count, most: f"pst.lengths({count}, max_length={most})",
        "lengths of up to {most}",
    ),
    (
        r"sizes$",
        lambda count, most: f"pst.group_sizes({count}, total={most})",
        "sizes of groups that add up to {most} at most",
    ),
    (
        r"segment|^seg",
        lambda count, most: f"pst.segment_ids({count})",
        "the segment of each token",
    ),
    (
        r"perm",
        lambda count, most: f"pst.permutations({count})",
        "a permutation",
    ),
    (
        r"",
        lambda count, most: f"pst.indices({count}, size={most})",
        "indices from 0 to {most} - 1",
    ),
)


def integers_of(guess: Guess) -> tuple[Integers, ...]:
    """The arrays of integers with one axis whose name says what they are."""
    found = guess.found
    late = [
        number
        for number, (leaf, shape, dtype) in enumerate(
            zip(found.leaves, found.attempt.shapes, found.attempt.dtypes, strict=True)
        )
        if leaf.integers and "int" in dtype and len(shape) == 1
    ]
    if len(late) == len(found.leaves):
        return ()
    made: list[Integers] = []
    for number in late:
        leaf = found.leaves[number]
        count, most = _sizes(guess, number, late)
        for pattern, strategy, words in _KINDS:
            if re.search(pattern, leaf.name):
                comment = words.format(most=most.replace("drawn.recipe", "").strip('[]"'))
                made.append(Integers(number, leaf.name, strategy(count, most), comment))
                break
    return tuple(made)


def _sizes(guess: Guess, number: int, late: list[int]) -> tuple[str, str]:
    """How many integers there are, and the size of the axis that they are about."""
    names = {axis: dim.name for dim in guess.dims.dims for axis in dim.axes}
    shapes = guess.found.attempt.shapes
    [own] = [dim for dim in guess.dims.dims if (number, 0) in dim.axes]
    shared = [(n, axis) for n, axis in own.axes if n not in late]
    largest = max((n for n in range(len(shapes)) if n not in late), key=lambda n: len(shapes[n]))
    count = _size(own.name) if shared or own.name.isdigit() else "4"
    for n, axis in shared:
        if axis + 1 < len(shapes[n]):
            return count, _size(names[n, axis + 1])
    return count, _size(names[largest, 0]) if shapes[largest] else "1"


def _size(name: str) -> str:
    return name if name.isdigit() else f'drawn.recipe["{name}"]'
