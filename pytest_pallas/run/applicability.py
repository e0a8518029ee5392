"""Decide at collection which checks do not apply to a kernel."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.tracing import tracing_for
from pytest_pallas.backends.protocol import Backend, Call, RunSettings, chip_of, label
from pytest_pallas.backends.tracing import kernels_of
from pytest_pallas.checks import Check
from pytest_pallas.compat.testing import keywords_match
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.pytest_session import PytestSession, current
from pytest_pallas.record import Aspect, NotApplicable
from pytest_pallas.run.check_run import item_name
from pytest_pallas.run.item import SpecItem, node_id
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.grid.kernel_calls import KernelCall


def leave_out(
    session: PytestSession,
    parent: pytest.Collector,
    requirement: str,
    spec: KernelSpec,
    check: Check,
    backend: Backend,
    mesh: Mapping[str, int],
) -> None:
    """Record that a check does not apply to a spec on a backend."""
    test = node_id(parent, item_name(spec, check.name, backend, mesh))
    session.not_applicable[test] = NotApplicable(
        test=test,
        kernel=spec.name,
        family=spec.family,
        check=check.name,
        backend=label(backend),
        mesh=dict(mesh),
        requirement=requirement,
    )


def keep_selected(config: pytest.Config, items: Sequence[pytest.Item], *, narrowed: bool) -> None:
    """Remove entries of checks that the run does not select.

    Args:
      config: of the session.
      items: the selected items.
      narrowed: whether items were deselected: then kernels without an item were, too.
    """
    entries = current(config).not_applicable
    expression = config.getoption("keyword", "")
    kernels = {
        (_parent(item.nodeid), item.spec.name) for item in items if isinstance(item, SpecItem)
    }
    for test, entry in list(entries.items()):
        words = {*test.split("::"), entry.kernel, entry.family, entry.check, entry.backend}
        if (
            not _named(test, config.args)
            or (expression and not keywords_match(expression, words))
            or (narrowed and (_parent(test), entry.kernel) not in kernels)
        ):
            del entries[test]


def _named(test: str, args: Sequence[str]) -> bool:
    """Whether arguments select a test. Files and folders select all of their tests."""
    inner = test.split("::")[1:]
    named = [arg.split("::")[1:] for arg in args]
    return not named or any(inner[: len(each)] == each for each in named)


def _parent(test: str) -> str:
    """The node id of a test's parent."""
    return test.rpartition("::")[0]


#: Number of calls of a spec that are drawn, and that are traced.
MOST_DRAWS, MOST_TRACES = 4, 4


def unmet_by_kernels(
    session: Session, spec: KernelSpec, check: Check, backend: Backend, mesh: Mapping[str, int]
) -> str | None:
    """The reason why a check applies to no kernel of a spec on a backend, or None.

    A few calls are drawn and traced.
    """
    if check.requires_kernels is None or mesh or not session.leaves_out:
        return None  # the mesh exists only when the item runs
    if backend.kind == "hardware":
        return None
    reason = None
    with _garbage_kept():
        for kernels in _traces(session, spec, backend):
            reason = check.requires_kernels(spec, backend, kernels) if kernels else None
            if reason is None:
                return None
    return reason


@contextmanager
def _garbage_kept() -> Generator[None]:
    """Disable garbage collection, which takes a quarter of the time because of JAX's objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass
class Traces:
    """The kernels of a few calls, traced lazily and cached.

    Attributes:
      calls: the calls.
      context: makes the context to trace in.
      made: the kernels of each traced call; None for a call that cannot be traced.
    """

    calls: Sequence[Call]
    context: Callable[[], AbstractContextManager[Any]]
    made: list[Sequence[KernelCall] | None] = field(
        default_factory=list["Sequence[KernelCall] | None"]
    )

    def __iter__(self) -> Iterator[Sequence[KernelCall] | None]:
        """The kernels of each call."""
        for number, call in enumerate(self.calls):
            if number == len(self.made):
                self.made.append(kernels_of(call, self.context))
            yield self.made[number]


def _traces(session: Session, spec: KernelSpec, backend: Backend) -> Traces:
    """The traces, which all checks and all backends of one chip share."""
    target = chip_of(backend)
    kernel = spec.kernel_for(backend.platform)
    key = (spec.file, spec.name, target.name, id(kernel))
    kept = session.traces  # of the last spec alone, since a trace holds memory
    if any(other[:2] != key[:2] for other in kept):
        kept.clear()
    if key not in kept:
        # Simulators and interpreters have equal traces for a TPU, which JAX caches.
        own: Any = None if target.platform == "tpu" else getattr(backend, "context", None)
        context = (
            functools.partial(tracing_for, target) if own is None else lambda: own(races=False)
        )
        kept[key] = Traces(_calls(spec, kernel, session.options.timeout), context)
    return kept[key]


def _calls(spec: KernelSpec, kernel: Any, timeout: float) -> Sequence[Call]:
    """The calls to trace; none if they cannot be drawn, or do not cover all options."""
    try:
        chosen = representative(spec.inputs)
    except Exception:  # an error of the strategy, which the item will raise, too
        return ()
    return [
        Call(
            function=kernel,
            args=each.args,
            options={**each.options, **each.tuning},
            settings=RunSettings(timeout=timeout),
        )
        for each in chosen
    ]


def representative(strategy: Any) -> Sequence[Arguments]:
    """Calls of a strategy that cover every kind of option and tuning; none if a few cannot.

    Numbers from 2 on are one kind: more programs or larger blocks make no different kernel.
    """
    from pytest_pallas.draw.arguments import SEVERAL
    from pytest_pallas.draw.arrays import draw_once, draw_several

    first = draw_once(strategy)
    declared = {} if first.declared is None else first.declared.keyword_kinds
    # A tuning number from 2 on, from unknown choices, is taken as a block size.
    unknown = any(
        aspect not in declared and (aspect.role, kind) != ("tuning", SEVERAL)
        for aspect, kind in _keywords(first)
    )
    if not unknown and all(len(kinds) == 1 for kinds in declared.values()):
        return [first]
    several: dict[tuple[tuple[Aspect, str], ...], Arguments] = {}
    for drawn in (first, *draw_several(strategy, MOST_DRAWS)):
        several.setdefault(tuple(_keywords(drawn)), drawn)
    chosen = list(several.values())[:MOST_TRACES]
    shown = {pair for drawn in chosen for pair in _keywords(drawn)}
    wanted = {(aspect, kind) for aspect, kinds in declared.items() for kind in kinds}
    return chosen if wanted <= shown else ()


def _keywords(drawn: Arguments) -> Iterator[tuple[Aspect, str]]:
    """Each keyword argument of a call, with the kind of its value."""
    from pytest_pallas.draw.arguments import keyword_kind

    for role, keywords in (("option", drawn.options), ("tuning", drawn.tuning)):
        for name, value in keywords.items():
            yield Aspect(role, name), keyword_kind(value)
