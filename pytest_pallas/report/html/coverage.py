"""How much of the declared inputs of each kernel was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_pallas.record import Record
from pytest_pallas.report.drawings.bars import share
from pytest_pallas.report.drawings.svg import Svg
from pytest_pallas.report.inputs import covered

#: Words of one aspect that are written out.
_WORDS = 40


@dataclass(frozen=True)
class Aspect:
    """One thing that is drawn, such as a dim."""

    name: str
    tried: Sequence[str]
    never: Sequence[str]


@dataclass(frozen=True)
class Coverage:
    """What was tried of one kernel's inputs."""

    kernel: str
    shapes: int
    tried: int
    every: int
    bar: Svg
    aspects: Sequence[Aspect]

    @property
    def missed(self) -> str:
        """What was never drawn, in words."""
        return "; ".join(
            f"{each.name}: {', '.join(each.never)}" for each in self.aspects if each.never
        )


def coverage(records: Sequence[Record]) -> list[Coverage]:
    """What was tried of each kernel, the least covered first. A kernel that compiles has none."""
    found: list[Coverage] = []
    for one in covered([record for record in records if not record.compiled]):
        names = dict.fromkeys((*one.tried, *one.never))
        aspects = [
            Aspect(name, _some(one.tried.get(name, {})), _some(one.never.get(name, {})))
            for name in names
        ]
        tried = sum(len(words) for words in one.tried.values())
        every = tried + sum(len(words) for words in one.never.values())
        bar = share(tried, every, f"{tried} of {every} declared choices were tried")
        found.append(Coverage(one.kernel, len(one.shapes), tried, every, bar, aspects))
    return sorted(found, key=lambda each: (each.tried / max(1, each.every), each.kernel))


def _some(words: Mapping[str, None]) -> list[str]:
    more = len(words) - _WORDS
    return [*list(words)[:_WORDS], *([f"{more} more"] if more > 0 else [])]
