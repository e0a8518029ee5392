"""Aspects: the choices of a draw, such as a dim or an option, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from pytest_pallas.decoding import Count

#: Roles of an aspect in a call: ``"dtype"`` and ``"values"`` of its arrays, ``"dim"``: a size,
#: ``"option"`` and ``"tuning"``: keyword arguments.
ROLES = ("dtype", "values", "dim", "option", "tuning")


class Aspect(NamedTuple):
    """A choice of each draw.

    Attributes:
      role: one of ``ROLES``.
      name: of the dim or keyword argument; "" for dtypes and values.
    """

    role: str
    name: str = ""

    def __str__(self) -> str:
        """For messages: ``dim k``."""
        return f"{self.role} {self.name}" if self.name else self.role


DTYPE, VALUES = Aspect("dtype"), Aspect("values")


def to_json(words: Mapping[Aspect, Iterable[str]]) -> list[dict[str, Any]]:
    """Words by aspect for JSON: a list of objects with role, name and words."""
    return [{**aspect._asdict(), "words": list(each)} for aspect, each in words.items()]


def from_json(data: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[str]]) -> Words:
    """The words from ``to_json``. In schema 1 of the records, the keys are the aspects' texts."""
    if isinstance(data, Mapping):
        return {_of_text(text): tuple(words) for text, words in data.items()}
    return {Aspect(each["role"], each["name"]): tuple(each["words"]) for each in data}


#: Words by aspect.
type Words = dict[Aspect, tuple[str, ...]]


class PlainWords(TypedDict):
    """Words of an aspect, as ``to_json`` gives them."""

    role: str
    name: str
    words: list[str]


class PlainInputs(TypedDict):
    """Coverage of inputs, as ``checks.inputs.to_json`` gives it; schema 1 has fewer fields."""

    shapes: list[str]
    tried: list[PlainWords] | dict[str, list[str]]
    never: list[PlainWords] | dict[str, list[str]]
    signatures: NotRequired[Count]
    dtypes: NotRequired[list[str]]


def _of_text(text: str) -> Aspect:
    role, _, name = text.partition(" ")
    return Aspect(role, name)
