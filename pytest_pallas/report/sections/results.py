"""The table of executed checks, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_pallas.report import terminal
from pytest_pallas.report.section import Results, section
from pytest_pallas.report.summary import summary

#: Lines of the table without ``-v``, so that all of it fits on a screen.
_MOST_LINES = 24


@section("results")
def table(results: Results) -> Iterator[str]:
    """A row for each kernel, a column for each backend."""
    if results.executed:
        yield summary(
            results.executed,
            families=list(results.session.families),
            width=results.width,
            color=results.color,
            only_failed=results.verbosity < 0,
            lines=None if results.every else _MOST_LINES,
        )


@section("footnotes", quiet=False)
def footnotes(results: Results) -> Iterator[str]:
    """The reasons of skips and expected failures, and the notes of checks."""
    yield from terminal.footnotes(results.executed, every=results.every)


@section("distinct", quiet=False)
def distinct(results: Results) -> Iterator[str]:
    """The number of distinct examples."""
    found = terminal.distinct((*results.executed, *results.compiled))
    if found.triples:
        yield terminal.line(found)
