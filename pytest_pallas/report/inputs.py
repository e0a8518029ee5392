"""Report which of the inputs that specs declare were drawn, from records only.

An aspect is a choice of each draw, such as a dim or an option. Its values are texts, of those that
were chosen and of those that could have been (``checks.inputs``). Coverage counts values. A warning
names the values that no check of a kernel drew, unless every check failed: a failed check stops
before it draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_pallas.record import VALUES, Aspect, Record, aspects_from_json
from pytest_pallas.report.section import Line, Results, number, section

#: Number of kernels with a line of their own, and of values in each.
LINES, VALUES_LISTED = 5, 6

#: The values of each aspect, in order.
type Values = dict[Aspect, dict[str, None]]


@dataclass
class Covered:
    """The inputs that all checks of one kernel drew on all backends.

    Attributes:
      kernel: its name.
      shapes: the distinct shapes.
      dtypes: the distinct dtypes.
      tried: for each aspect the drawn values.
      never: for each aspect the declared values that were not drawn.
      pairs: of choices: those that came together in the examples of one check, in that where they
        are most, and those that may.
      finished: whether a check ran all its examples; a failure stops a check.
    """

    kernel: str
    shapes: set[str] = field(default_factory=set[str])
    dtypes: set[str] = field(default_factory=set[str])
    tried: Values = field(default_factory=dict[Aspect, dict[str, None]])
    never: Values = field(default_factory=dict[Aspect, dict[str, None]])
    pairs: tuple[int, int] = (0, 0)
    finished: bool = False

    @property
    def aspects(self) -> Sequence[Aspect]:
        """All aspects."""
        return list(dict.fromkeys((*self.tried, *self.never)))

    @property
    def drawn(self) -> int:
        """The number of drawn values."""
        return sum(map(len, self.tried.values()))

    @property
    def declared(self) -> int:
        """The number of declared values, drawn or not."""
        return self.drawn + sum(map(len, self.never.values()))


def covered(records: Iterable[Record]) -> list[Covered]:
    """Collect the coverage of each kernel. Two files may have kernels of the same name."""
    kernels: dict[tuple[str, str], Covered] = {}
    for record in records:
        if not record.inputs:
            continue
        key = record.test.partition("::")[0], record.kernel
        kernel = kernels.setdefault(key, Covered(record.kernel))
        kernel.shapes.update(record.inputs["shapes"])
        kernel.dtypes.update(record.inputs["dtypes"])
        kernel.finished |= record.outcome in ("passed", "xpassed")
        together, possible = record.inputs.get("pairs", (0, 0))
        kernel.pairs = max(kernel.pairs, (together, possible))
        for title, into in (("tried", kernel.tried), ("never", kernel.never)):
            for aspect, values in aspects_from_json(record.inputs[title]).items():
                into.setdefault(aspect, {}).update(dict.fromkeys(values))
    for kernel in kernels.values():
        for aspect, values in kernel.never.items():
            for value in kernel.tried.get(aspect, ()):
                values.pop(value, None)
    return list(kernels.values())


def summary(kernels: Sequence[Covered]) -> str:
    """Count the drawn inputs, in one line."""
    dtypes = {dtype for kernel in kernels for dtype in kernel.dtypes}
    classes = {value for kernel in kernels for value in kernel.tried.get(VALUES, ())}
    shapes = sum(len(kernel.shapes) for kernel in kernels)
    counts = [number(len(kernels), "kernel"), number(shapes, "shape"), number(len(dtypes), "dtype")]
    if classes:
        counts.append(f"{len(classes)} value class{'es' if len(classes) > 1 else ''}")
    for roles, title in ((("dim",), "boundary kinds"), (("option", "tuning"), "option values")):
        pairs = [
            (len(kernel.tried.get(aspect, ())), len(kernel.never.get(aspect, ())))
            for kernel in kernels
            for aspect in kernel.aspects
            if aspect.role in roles
        ]
        choices = [(tried, tried + never) for tried, never in pairs if tried + never > 1]
        if choices:
            tried, declared = map(sum, zip(*choices, strict=True))
            counts.append(f"{tried} of {declared} {title}")
    together, possible = map(sum, zip(*(kernel.pairs for kernel in kernels), strict=True))
    if possible:
        counts.append(f"{together} of {possible} pairs")
    return f"inputs: {', '.join(counts)}"


def warnings(kernels: Sequence[Covered], *, every: bool = False) -> list[str]:
    """Name the declared values that were never drawn: a line for each of the first kernels.

    With ``every``, there is a line for each kernel, with all such values.
    """
    missed = [kernel for kernel in kernels if kernel.finished and any(kernel.never.values())]
    most = max((kernel.declared for kernel in missed), default=0) if every else VALUES_LISTED
    shown = missed if every else missed[:LINES]
    lines = [f"never drawn: {kernel.kernel}: {_missed(kernel.never, most)}" for kernel in shown]
    if len(shown) < len(missed):
        lines.append(f"never drawn: choices of {len(missed) - len(shown)} more kernels")
    if lines and not every:
        lines[-1] += " (--pallas-max-examples draws more, --pallas-results lists all)"
    return lines


def _missed(never: Values, most: int) -> str:
    """List up to ``most`` values that were never drawn, by aspect, and count the others."""
    left = most
    parts: list[str] = []
    for aspect, values in never.items():
        shown = list(values)[: max(left, 0)]
        left -= len(shown)
        if shown:
            parts.append(f"{aspect} {', '.join(shown)}")
    more = sum(map(len, never.values())) - (most - left)
    return "; ".join(parts) + (f"; {more} more" if more else "")


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
