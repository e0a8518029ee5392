"""Coverage of the inputs that specs declare, from records only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_pallas import record as aspects
from pytest_pallas.record import VALUES, Aspect, Record
from pytest_pallas.report.section import Line, Results, section

#: Number of kernels with a line of their own, and of words in each.
LINES, WORDS = 5, 6

Words = dict[Aspect, dict[str, None]]


@dataclass
class Covered:
    """The inputs that all checks of one kernel drew on all backends.

    Attributes:
      kernel: its name.
      shapes: the distinct shapes.
      dtypes: the distinct dtypes.
      tried: for each aspect (see ``strategies.declared``) the drawn words.
      never: for each aspect the declared words that were not drawn.
      finished: whether a check ran all its examples; a failure stops a check.
    """

    kernel: str
    shapes: set[str] = field(default_factory=set[str])
    dtypes: set[str] = field(default_factory=set[str])
    tried: Words = field(default_factory=dict[Aspect, dict[str, None]])
    never: Words = field(default_factory=dict[Aspect, dict[str, None]])
    finished: bool = False


def covered(records: Iterable[Record]) -> list[Covered]:
    """Coverage of each kernel. Two files may have kernels of the same name."""
    found: dict[tuple[str, str], Covered] = {}
    for record in records:
        if not record.inputs:
            continue
        key = record.test.partition("::")[0], record.kernel
        one = found.setdefault(key, Covered(record.kernel))
        one.shapes.update(record.inputs["shapes"])
        one.finished |= record.outcome in ("passed", "xpassed")
        for title, into in (("tried", one.tried), ("never", one.never)):
            for aspect, words in aspects.aspects_from_json(record.inputs[title]).items():
                into.setdefault(aspect, {}).update(dict.fromkeys(words))
        one.dtypes.update(record.inputs["dtypes"])
    for one in found.values():
        for aspect, words in one.never.items():
            for word in one.tried.get(aspect, ()):
                words.pop(word, None)
    return list(found.values())


def summary(kernels: Sequence[Covered]) -> str:
    """One line that counts the drawn inputs."""
    dtypes = {dtype for one in kernels for dtype in one.dtypes}
    classes = {word for one in kernels for word in one.tried.get(VALUES, ())}
    counts = [
        _count(len(kernels), "kernel"),
        _count(sum(len(one.shapes) for one in kernels), "shape"),
        _count(len(dtypes), "dtype"),
    ]
    if classes:
        counts.append(_count(len(classes), "value class", "value classes"))
    for roles, title in ((("dim",), "boundary kinds"), (("option", "tuning"), "option values")):
        tried, every = _choices(kernels, roles)
        if every:
            counts.append(f"{tried} of {every} {title}")
    return f"inputs: {', '.join(counts)}"


def warnings(kernels: Sequence[Covered], *, every: bool = False) -> list[str]:
    """A line for each of the first kernels with declared words that were never drawn.

    With ``every``, a line for each kernel, with all such words.
    """
    if every:
        missed = [one for one in kernels if one.finished and any(one.never.values())]
        most = sum(len(words) for one in missed for words in one.never.values())
        return [f"never drawn: {one.kernel}: {_missed(one.never, most)}" for one in missed]
    missed = [one for one in kernels if one.finished and any(one.never.values())]
    lines = [f"never drawn: {one.kernel}: {_missed(one.never)}" for one in missed[:LINES]]
    if missed[LINES:]:
        lines.append(f"never drawn: choices of {len(missed) - LINES} more kernels")
    if lines:
        lines[-1] += " (--pallas-max-examples draws more, --pallas-results lists all)"
    return lines


def _choices(kernels: Sequence[Covered], roles: Sequence[str]) -> tuple[int, int]:
    """The number of drawn words and of all words, for aspects with more than one."""
    tried = every = 0
    for one in kernels:
        for aspect in dict.fromkeys((*one.tried, *one.never)):
            if aspect.role in roles:
                have, lack = len(one.tried.get(aspect, ())), len(one.never.get(aspect, ()))
                if have + lack > 1:
                    tried, every = tried + have, every + have + lack
    return tried, every


def _missed(never: Words, most: int = WORDS) -> str:
    """Some words that were never drawn: few words of each aspect, of many aspects."""
    left = most
    parts: list[str] = []
    for aspect, words in never.items():
        shown = list(words)[: max(left, 0)]
        left -= len(shown)
        if shown:
            parts.append(f"{aspect} {', '.join(shown)}")
    more = sum(map(len, never.values())) - (most - left)
    return "; ".join(parts) + (f"; {more} more" if more else "")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


@section("inputs", quiet=False)
def section_of_inputs(results: Results) -> Iterator[str]:
    """The drawn inputs. Compilers get no values."""
    kernels = covered(results.executed)
    if kernels:
        yield summary(kernels)


@section("untried inputs", quiet=False)
def section_of_untried(results: Results) -> Iterator[Line]:
    """The declared inputs that were not drawn."""
    for line in warnings(covered(results.executed), every=results.every):
        yield Line(line, "yellow")
