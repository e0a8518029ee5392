"""How much of what a run asked is different: counted over the records of all processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_pallas.record import Record


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """What a run asked.

    Attributes:
      triples: how many different (spec, check, shape) triples. A shape is the shapes, dtypes and
        static arguments of a call; other values, backends and meshes make no other triple.
      examples: how many examples, over all backends and meshes.
    """

    triples: int
    examples: int


def distinct(records: Iterable[Record]) -> Distinct:
    """Count what was asked. Two files may have specs of the same name."""
    shapes: dict[tuple[str, str, str], set[str]] = {}
    examples = 0
    for record in records:
        key = record.test.partition("::")[0], record.kernel, record.check
        shapes.setdefault(key, set()).update(record.signatures)
        examples += record.examples
    return Distinct(triples=sum(map(len, shapes.values())), examples=examples)


def line(found: Distinct) -> str:
    """One line of the summary."""
    return (
        f"distinct: {found.triples:,} (spec, check, shape) triples in {found.examples:,} examples"
    )
