"""Start compilations of an item while earlier items still wait."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import pytest

from pallas_sim.errors import PallasError
from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.backends.tracing import shape_of
from pytest_pallas.bindings.bound_checks import BoundCheck, context_of, run_example
from pytest_pallas.checks.compiled import start
from pytest_pallas.errors import CompilerFailedError
from pytest_pallas.isolation.leaks import leaving_nothing
from pytest_pallas.sampling.diversity import choose
from pytest_pallas.session import current
from pytest_pallas.strategies.arguments import as_arguments

#: Set on an item whose compilations have started.
_BEGUN = pytest.StashKey[bool]()


def begin(item: pytest.Item | None) -> None:
    """Start the compilations of an item, once.

    The item raises and reports any error here again.
    """
    from pytest_pallas.items.item import SpecItem

    if not isinstance(item, SpecItem) or _BEGUN in item.stash:
        return
    item.stash[_BEGUN] = True
    if any(item.iter_markers("skip")) or current(item.config).options.replay.blob:
        return
    session = current(item.config)
    with contextlib.suppress(Exception, OverdueError, pytest.skip.Exception):
        timeout = session.timeout(session.options_for(item))
        with leaving_nothing(session), ending_whole(timeout):
            bound = item.bound()
            for arguments, typical in _calls(bound):
                start(bound.check, context_of(bound, arguments, typical=typical))


def run_all(bound: BoundCheck) -> None:
    """Compile the typical calls of a spec, and half as many drawn calls as other backends run.

    Raises:
      PallasError: the first failure.
    """
    __tracebackhide__ = True
    for arguments, typical in _calls(bound):
        run_example(bound, arguments, typical=typical)


def worth_shrinking(error: PallasError) -> bool:
    """Whether to shrink a failure: not if each attempt may take the whole time limit."""
    return not (error.timed_out or isinstance(error, CompilerFailedError))


def _calls(bound: BoundCheck) -> Iterator[tuple[Any, bool]]:
    """The calls that an item compiles, and whether they are typical."""
    typical: Any = bound.spec.typical
    calls = cast("Sequence[Any]", typical(bound.mesh) if callable(typical) else typical)
    for call in calls:
        yield as_arguments(call), True
    for arguments in _drawn(bound):
        yield arguments, False


def _drawn(bound: BoundCheck) -> tuple[Any, ...]:
    """Drawn calls without their values, which are the same for every target."""
    options, drawn = bound.options, bound.session.drawn
    count = max(1, bound.check.examples(options.max_examples) // 2)
    key = (*bound.source, options.seed, count)
    found = drawn.get(key)
    if found is None:
        choice = choose(bound.strategy, seed=options.seed, examples=count)
        found = tuple(_abstract(as_arguments(each)) for each in choice.chosen.values())
        drawn.add(key, found)
    return found


def _abstract(arguments: Any) -> Any:
    """Arguments with shapes and dtypes instead of arrays, because a session keeps many."""
    args = jax.tree.map(
        lambda leaf: shape_of(leaf) if hasattr(leaf, "dtype") else leaf, arguments.args
    )
    return dataclasses.replace(arguments, args=args)
