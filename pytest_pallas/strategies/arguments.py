"""What a strategy draws for one call of a kernel: arrays, options, and how they came about."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.errors import SpecError

#: Elements of an array that is shown whole.
_SHORT = 16

_EMPTY: Mapping[str, Any] = MappingProxyType({})

#: Keyword arguments: strategies or constants by name, or a function from what was drawn to those.
Keywords = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]


class Drawn(tuple[Any, ...]):
    """A tuple of drawn arrays that remembers its recipe.

    It is a plain tuple to everybody else, so ``fn(*drawn)`` works. ``recipe`` maps words such as
    ``"m"`` (a dim), ``"dtype"``, ``"values"`` and ``"seed"`` to what was drawn for them, so that
    a failure can say it.
    """

    recipe: Mapping[str, Any]

    def __new__(cls, items: Iterable[Any], recipe: Mapping[str, Any] = _EMPTY) -> Drawn:
        """Build the tuple from ``items`` and keep ``recipe`` beside it."""
        self = super().__new__(cls, items)
        self.recipe = MappingProxyType(dict(recipe))
        return self

    def __repr__(self) -> str:
        return f"Drawn({_recipe_text(self.recipe) or _items_text(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Drawn, (tuple(self), dict(self.recipe))  # a mapping proxy cannot be pickled


# Comparing arrays gives arrays, so there is no useful equality of fields.
@dataclass(frozen=True, repr=False, eq=False)
class Arguments:
    """One call: ``kernel(*args, **options, **tuning)`` for ``reference(*args, **options)``.

    Attributes:
      args: positional arguments, numpy arrays or pytrees of them.
      options: keyword arguments that change the answer (``causal=True``); given to both.
      tuning: keyword arguments that must not change it (block sizes); given to the kernel only.
      recipe: how the arguments were drawn, for messages.
    """

    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tuning: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        parts = [_recipe_text(self.recipe) or _items_text(self.args)]
        for name, keywords in (("options", self.options), ("tuning", self.tuning)):
            if keywords:
                parts.append(f"{name}=({_keywords_text(keywords)})")
        return f"Arguments({', '.join(part for part in parts if part)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print the fields of a dataclass, elements too


def arguments(
    arrays: SearchStrategy[Any],
    *,
    then: Keywords = _EMPTY,
    options: Keywords = _EMPTY,
    tuning: Keywords = _EMPTY,
) -> SearchStrategy[Arguments]:
    """A strategy for whole calls: arrays, and keyword arguments beside them.

    Example::

        arguments(
            arrays("q d, k d, k d", around={"q": 128, "k": 128}, dims={"d": [64, 128]}),
            options={"causal": st.booleans(), "scale": 0.125},
            tuning=lambda drawn: {"block_q": st.sampled_from([64, 128])},
        )
        arguments(
            arrays("b k d"),
            then=lambda drawn: {
                "lengths": lengths(drawn.recipe["b"], max_length=drawn.recipe["k"])
            },
        )

    Args:
      arrays: draws the positional arguments: ``strategies.arrays(...)``, or any strategy for a
        tuple.
      then: positional arguments after those, in order: strategies or constants by a name for
        messages, or a function from what ``arrays`` drew to such a mapping.
      options: keyword arguments of kernel and reference. The values are strategies or constants;
        or it is a function from what ``arrays`` drew to such a mapping.
      tuning: likewise, for the kernel only.

    Raises:
      SpecError: one of the arguments cannot be used, or ``options`` and ``tuning`` share a name.
    """
    if not isinstance(arrays, SearchStrategy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(
            f"arrays must be a strategy such as strategies.arrays(...), not {arrays!r:.80}"
        )
    for argument, value in (("then", then), ("options", options), ("tuning", tuning)):
        if not callable(value):
            _check_keywords(argument, value)
    if not callable(options) and not callable(tuning):
        _check_disjoint(options, tuning)
    return _arguments(arrays, then, options, tuning)


def as_arguments(drawn: object) -> Arguments:
    """The ``Arguments`` that a strategy meant by what it drew.

    Raises:
      SpecError: ``drawn`` is neither ``Arguments`` nor a tuple of positional arguments.
    """
    if isinstance(drawn, Arguments):
        return drawn
    if isinstance(drawn, Drawn):
        return Arguments(tuple(drawn), recipe=dict(drawn.recipe))
    if isinstance(drawn, tuple):
        return Arguments(tuple(drawn))  # pyright: ignore[reportUnknownArgumentType]
    raise SpecError(
        f"the inputs strategy drew a {type(drawn).__name__}; it must draw a tuple of positional "
        "arguments, or strategies.Arguments (see strategies.arrays and strategies.arguments)"
    )


@st.composite
def _arguments(
    draw: DrawFn,
    arrays: SearchStrategy[Any],
    then: Keywords,
    options: Keywords,
    tuning: Keywords,
) -> Arguments:
    drawn = draw(arrays)
    base = as_arguments(drawn)
    given: dict[str, dict[str, Any]] = {"then": {}, "options": {}, "tuning": {}}
    for argument, value in (("then", then), ("options", options), ("tuning", tuning)):
        keywords = _check_keywords(argument, value(drawn)) if callable(value) else value
        for name, entry in keywords.items():
            given[argument][name] = draw(entry) if isinstance(entry, SearchStrategy) else entry
    merged = {**base.options, **given["options"]}, {**base.tuning, **given["tuning"]}
    _check_disjoint(*merged)
    recipe = dict(base.recipe)
    for name, value in given["then"].items():
        if name in recipe:
            raise SpecError(f"then: the recipe has a {name!r} already; rename the argument")
        recipe[name] = _keyword_text(value)
    return Arguments((*base.args, *given["then"].values()), *merged, recipe=recipe)


def _check_keywords(argument: str, value: object) -> Mapping[str, Any]:
    """``value`` as a mapping from keyword to anything."""
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{argument} must be a mapping from keyword to strategy or constant, or a function "
            f"that returns one, not {value!r:.80}"
        )
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"{argument}: {name!r} cannot be the name of a keyword argument")
    return value


def _check_disjoint(options: Mapping[str, Any], tuning: Mapping[str, Any]) -> None:
    both = sorted(set(options) & set(tuning))
    if both:
        raise SpecError(
            f"options and tuning both have {', '.join(both)}; an option changes the answer and is "
            "given to the reference too, tuning must not change it: keep each in one of them"
        )


def _recipe_text(recipe: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in recipe.items())


def _word(value: object) -> str:
    """A recipe's value; names of dtypes and classes read better without quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(_word(item) for item in value)})"  # pyright: ignore[reportUnknownVariableType]
    return str(value)


def _items_text(items: Iterable[Any]) -> str:
    return ", ".join(_item_text(item) for item in items)


def _item_text(item: Any) -> str:
    """An argument without its elements: ``float32[3, 4]``; pytrees by the name of their type."""
    if hasattr(item, "shape") and hasattr(item, "dtype"):
        return f"{item.dtype}[{', '.join(str(size) for size in item.shape)}]"
    if isinstance(item, bool | int | float | str | None):
        return repr(item)
    return type(item).__name__


def _keywords_text(keywords: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_keyword_text(value)}" for name, value in keywords.items())


def _keyword_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _elements_text(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _item_text(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _elements_text(array: npt.NDArray[Any]) -> str:
    """A short array by its elements, any other with a number that tells it from others."""
    if array.size <= _SHORT and array.dtype.kind in "biu":
        return str(array.tolist()).replace(" ", "")
    number = zlib.crc32(np.ascontiguousarray(array).tobytes())
    return f"{_item_text(array)}#{number:08x}"
