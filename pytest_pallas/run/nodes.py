"""The items of a spec: one for each check, backend and mesh. Importing this imports JAX.

``spec_items`` learns what the items depend on (``SpecFacts``): collection draws and traces a few
calls, in this process or in the one for isolated tests. A check that applies to none of the
kernels gets no item; it is recorded.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError, PallasError
from pallas_sim.tracing import collecting_later, tracing_for
from pytest_pallas.backends.ending import (
    OverdueError,
    UncaughtError,
    ending_whole,
    limit_of,
    raised_words,
)
from pytest_pallas.backends.protocol import Backend, Call, chip_of, label
from pytest_pallas.backends.registry import Family, unknown_target
from pytest_pallas.backends.tracing import kernels_of
from pytest_pallas.checks import Check
from pytest_pallas.checks.padding import masks_of
from pytest_pallas.compat.testing import keywords_match, say
from pytest_pallas.draw.arguments import SEVERAL, Arguments, keyword_kind
from pytest_pallas.draw.arrays import draw_once, draw_several
from pytest_pallas.draw.meshes import MeshAxes, fixed_sizes
from pytest_pallas.errors import SpecError
from pytest_pallas.isolate import policy
from pytest_pallas.isolate.isolator import Isolator, isolator_of
from pytest_pallas.isolate.leaks import leaving_nothing
from pytest_pallas.pytest_session import PytestSession, current
from pytest_pallas.record import Aspect, NotApplicable
from pytest_pallas.run.backends import (
    backends_before,
    call_of,
    on_claimed_chips,
    on_its_platform,
    with_named,
    without_replaced,
)
from pytest_pallas.run.check_run import item_name, lacks_mesh, misfit
from pytest_pallas.run.item import SpecItem, node_id
from pytest_pallas.run.result import Result
from pytest_pallas.session import Session, SpecFacts
from pytest_pallas.spec import KernelSpec, problem_with_relations

if TYPE_CHECKING:
    from pytest_pallas.grid.kernel_calls import KernelCall


def spec_items(parent: pytest.Collector, spec: KernelSpec) -> Iterator[pytest.Item]:
    """Yield the items of one spec.

    Raises:
      SpecError: the spec cannot be verified.
    """
    session = current(parent.config)
    facts = facts_of(session, parent, spec, functools.partial(_learn, session, parent, spec))
    if facts.problem is not None:
        raise SpecError(f"spec {spec.name!r} in {spec.file}: {facts.problem}")
    spec = on_its_platform(session, spec, facts)
    yield from session.replace_items(parent, spec, _spec_items(session, parent, spec, facts))


def _learn(
    session: PytestSession,
    parent: pytest.Collector,
    spec: KernelSpec,
    facts: SpecFacts,
    tracing: Callable[[], object] = lambda: None,
) -> None:
    """Learn what the items of a spec depend on: draw and trace a few of its calls."""
    facts.problem = problem_with(spec, session.checks, session.families)
    if facts.problem is None:
        tracing()
        for _ in _planned(session, parent, on_its_platform(session, spec, facts), facts):
            pass


@dataclass(frozen=True)
class _Plan:
    """A check of a spec on a backend: an item for each of its meshes, unless it is ``unmet``."""

    spec: KernelSpec
    backend: Backend
    check: Check
    before: Sequence[Backend]
    unmet: str | None


def _planned(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, facts: SpecFacts
) -> Iterator[_Plan | Backend]:
    """Yield the checks of one spec, and named backends that it does not claim.

    What the facts lack is learned, unless they are closed.
    """
    backends, named, automatic = _backends(session, parent)
    backends, automatic = on_claimed_chips(session, spec, backends, automatic)
    timeout = session.options.timeout
    backends = without_replaced(facts, spec, backends, automatic, timeout)
    for backend in backends:
        if not spec.claims(label(backend)):
            if named:
                yield backend
            continue
        checks = list(_checks(session, parent, spec, backend))
        here = with_named(spec, backend, session.options_for(parent).checks)
        for check in checks:
            before = backends_before(spec, backend, backends, (session.base, check))
            key = check.name, label(backend)
            if key not in facts.unmet:
                unmet = check.unmet(here, backend, before)
                if unmet is None and not here.meshes and not facts.closed:
                    unmet = unmet_by_kernels(session, here, check, backend, {})
                facts.unmet[key] = unmet
            yield _Plan(here, backend, check, before, facts.unmet[key])


def _spec_items(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, facts: SpecFacts
) -> Iterator[pytest.Item]:
    """Yield the items of one spec."""
    for plan in _planned(session, parent, spec, facts):
        if not isinstance(plan, _Plan):
            yield UnclaimedItem.from_parent(parent, spec=spec, backend=plan)
            continue
        for axes in spec.mesh_axes or ({},):
            if plan.unmet is not None:
                leave_out(session, parent, plan.unmet, spec, plan.check, plan.backend, axes)
                continue
            yield SpecItem.from_parent(
                parent,
                spec=plan.spec,
                check=plan.check,
                backend=plan.backend,
                axes=axes,
                before=plan.before,
            )


def _backends(
    session: PytestSession, parent: pytest.Collector
) -> tuple[Sequence[Backend], bool, Collection[str]]:
    """Return the backends that the marks of a test module select, or else the session.

    Returns whether they were named, too, and the labels of those that were not.
    """
    selection = session.selection
    marks = list(parent.iter_markers("pallas"))
    if not any("backends" in mark.kwargs or "targets" in mark.kwargs for mark in marks):
        return selection.backends, selection.named, selection.automatic
    try:
        backends, reason = session.backends_for(marks, every=True)
    except OptionError as error:
        raise parent.CollectError(str(error)) from None
    if not backends:
        pytest.skip(f"no backend for these specs: {reason}")
    if any("backends" in mark.kwargs for mark in marks):
        return backends, True, ()
    automatic = [label(backend) for backend in backends if backend.name in selection.automatic]
    return backends, False, automatic


def _checks(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, backend: Backend
) -> Iterator[Check]:
    """Yield the selected checks of the spec, which may limit them."""
    try:
        chosen = session.checks_for(session.options_for(parent))
    except OptionError as error:
        raise parent.CollectError(str(error)) from None
    for check in chosen:
        if backend.kind == "compiling" and check.program is None:
            continue
        if spec.checks is None or check.name in spec.checks:
            yield check


class UnclaimedItem(pytest.Item):
    """A skipped item for a named backend that the spec does not claim."""

    spec: KernelSpec
    backend: Backend

    @classmethod
    def from_parent(
        cls, parent: Any, *, spec: KernelSpec, backend: Backend, **rest: Any
    ) -> UnclaimedItem:
        """Return the item ``spec-unclaimed[backend]``."""
        name = f"{spec.name}-unclaimed[{label(backend)}]"
        self = super().from_parent(parent, name=name, nodeid=node_id(parent, name), **rest)
        self.spec, self.backend = spec, backend
        return self

    @property
    def result(self) -> Result:
        """The result of this item, which stays empty."""
        return current(self.config).results.setdefault(
            (self.spec.name, "all", label(self.backend)),
            Result.of(self.spec, "all", self.backend),
        )

    def runtest(self) -> None:
        """Skip."""
        known = current(self.config).families
        names = [name for name in self.spec.claimed if Label.of(name).name in known]
        pytest.skip(f"the spec claims only {', '.join(names) or 'no backend'}")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip


# Learn what the items of a spec depend on, so that no function that is traced ends the session.
#
# Collection draws and traces a few calls of each spec. It does so here under the guard of a test,
# or in the process for isolated tests, if the code may end its process.


#: Learns the facts of a spec that are not known, and adds them. Takes ``tracing=``, to be called
#: between drawing and tracing.
Learn = Callable[..., None]

#: The step of a worker that draws.
DRAWING = "drawing the inputs of a spec"

#: Seconds after which the terminal says which spec collection waits for.
PATIENCE = 5.0


def facts_of(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, learn: Learn
) -> SpecFacts:
    """Return the facts of a spec, closed.

    Args:
      session: of this process; keeps the facts.
      parent: the node whose items the spec becomes.
      spec: the spec.
      learn: learns what is not known.
    """
    key = spec.file, spec.name
    learned = session.given_facts
    if learned is not None and session.learns != key:
        return learned.get(key) or SpecFacts(closed=True)
    facts = SpecFacts()
    session.facts[key] = facts
    if spec.meshes:  # known only when its items run
        learn(facts)
    else:
        _learn_safely(session, parent, spec, facts, learn)
    facts.closed = True
    facts.path = str(parent.path)
    return facts


def _learn_safely(
    session: PytestSession,
    parent: pytest.Collector,
    spec: KernelSpec,
    facts: SpecFacts,
    learn: Learn,
) -> None:
    """Learn here, or in the process for isolated tests."""
    try:
        timeout = session.timeout(session.options_for(parent))
    except OptionError as error:  # of a mark of the module
        raise parent.CollectError(str(error)) from None
    waiting = functools.partial(
        say,
        parent.config,
        f"collection still traces spec {spec.name!r} in {spec.file}; the limit is {timeout:g} s "
        "(--pallas-timeout)",
        verbosity=-1,
    )
    if session.learns is not None:  # for another process, which watches this one
        alarm, limit = session.observer, limit_of(timeout)
        alarm.begin(DRAWING, timeout, limit=limit)
        learn = functools.partial(
            learn, tracing=lambda: alarm.begin("tracing a spec", timeout, limit=limit)
        )
        _learn_here(session, facts, learn, timeout, waiting)
        alarm.begin("collection", timeout)
        return
    isolator = isolator_of(parent.config)
    reason = ""
    if isolator is not None:
        reason = policy.reason_to_learn_apart(parent, spec, isolator.history)
    if isolator is None:
        _learn_here(session, facts, learn, timeout, waiting)
    elif reason:
        _learn_apart(isolator, parent, spec, facts, timeout, waiting)
        facts.isolated = reason
    else:
        with isolator.history.running(policy.key_of_spec(spec)):
            _learn_here(session, facts, learn, timeout, waiting)
    if facts.fault and facts.problem is None:
        say(parent.config, f"spec {spec.name!r} in {spec.file}: {facts.fault}", verbosity=-1)
        facts.closed = True
        # Here nothing is traced: this learns which checks need not even that.
        _learn_here(session, facts, learn, timeout, waiting)


def _learn_here(
    session: PytestSession,
    facts: SpecFacts,
    learn: Learn,
    timeout: float,
    waiting: Callable[[], None],
) -> None:
    """Learn in this process; what the functions leave behind is undone.

    Their tests trace them again, and fail for it.
    """
    try:
        with leaving_nothing(session), ending_whole(timeout, waiting, PATIENCE):
            learn(facts)
    except OverdueError as late:
        where = f", in {late.line}" if late.line else ""
        facts.fault = (
            f"collection did not trace it within {timeout:g} s (--pallas-timeout){where}; its "
            "tests say more"
        )
    except UncaughtError as error:
        kind, text = raised_words(error)
        facts.problem = f"drawing its inputs raised {kind}: {text}"


def _learn_apart(
    isolator: Isolator,
    parent: pytest.Collector,
    spec: KernelSpec,
    facts: SpecFacts,
    timeout: float,
    waiting: Callable[[], None],
) -> None:
    """Learn in the process for isolated tests; a ``fault`` of the facts if that ends."""
    patience = 3 * PATIENCE  # the process may have to start first
    learned, step = isolator.learn(parent, (spec.file, spec.name), timeout, waiting, patience)
    if not isinstance(learned, str):
        vars(facts).update(vars(learned))
        isolator.history.remove(policy.key_of_spec(spec))
        return
    facts.fault = learned
    if step == DRAWING:
        facts.problem = f"drawing its inputs failed: {learned}"


# What can be wrong with a spec, without running its kernel.


def problem_with(
    spec: KernelSpec, checks: Mapping[str, Check], families: Mapping[str, Family]
) -> str | None:
    """Return the reason why a spec cannot be verified, or None.

    Args:
      spec: the spec.
      checks: the checks that exist, by name.
      families: the backends that exist, by name.
    """
    unknown = [name for name in spec.checks or () if name not in checks]
    if unknown:
        return f"unknown checks {unknown}; valid: {', '.join(checks)}"
    known = {*families, "tpu-compile", "gpu-compile"}
    labels = [Label.of(text) for text in (*spec.claimed, *spec.xfail)]
    unknown = [chip.name for chip in labels if chip.name not in known]
    if unknown:
        return f"unknown backends {unknown}; valid: {', '.join(sorted(known))}"
    for name, target in ((chip.name, chip.target) for chip in labels):
        if target and name in families and target not in families[name].targets:
            return unknown_target(families[name], name, target)
    if spec.meshes:
        return None  # its strategy needs the mesh, and a mesh needs JAX to start
    try:
        arguments = draw_once(spec.inputs)
    except PallasError as error:
        return str(error)
    axes = spec.batch_axes
    if axes and len(axes) != len(arguments.args):
        return (
            f"batch_axes has {len(axes)} entries, but its inputs draw {len(arguments.args)} "
            "positional arguments; give one for each, None for an argument that is not split"
        )
    try:
        if spec.ignored is not None:
            masks_of(spec.ignored, arguments)
    except PallasError as error:
        return str(error)
    if problem := problem_with_relations(spec.relations, len(arguments.args)):
        return problem
    keywords = {**arguments.options, **arguments.tuning}
    kernels = spec.kernel.values() if isinstance(spec.kernel, Mapping) else (spec.kernel,)
    for kernel in kernels:
        if problem := _unbound(kernel, arguments, keywords, "kernel"):
            return problem
    return _unbound(spec.reference, arguments, dict(arguments.options), "reference")


def _unbound(
    function: Callable[..., Any], arguments: Arguments, keywords: Mapping[str, Any], role: str
) -> str | None:
    problem = misfit(function, arguments.args, keywords)
    if problem is None:
        return None
    if lacks_mesh(function, arguments.args, keywords):
        return (
            f"the {role} needs mesh=, and the spec has no meshes: give it the names of its axes, "
            'such as meshes="x", and inputs=lambda mesh: ... for a strategy'
        )
    names = ", ".join(keywords) or "no keywords"
    return (
        f"its inputs draw {len(arguments.args)} positional arguments and {names}, but these do not "
        f"fit the {role}: {problem}"
    )


# Which checks do not apply to a kernel, seen in the traces of a few calls.


def leave_out(
    session: PytestSession,
    parent: pytest.Collector,
    requirement: str,
    spec: KernelSpec,
    check: Check,
    backend: Backend,
    axes: MeshAxes,
) -> None:
    """Record that a check does not apply to a spec on a backend."""
    test = node_id(parent, item_name(spec, check.name, backend, axes))
    session.not_applicable[test] = NotApplicable(
        test=test,
        kernel=spec.name,
        family=spec.family,
        check=check.name,
        backend=label(backend),
        mesh=fixed_sizes(axes),
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
        names = {*test.split("::"), entry.kernel, entry.family, entry.check, entry.backend}
        if (
            not _named(test, config.args)
            or (expression and not keywords_match(expression, names))
            or (narrowed and (_parent(test), entry.kernel) not in kernels)
        ):
            del entries[test]


def _named(test: str, args: Sequence[str]) -> bool:
    """Return whether arguments select a test. Files and folders select all of their tests."""
    inner = test.split("::")[1:]
    named = [arg.split("::")[1:] for arg in args]
    return not named or any(inner[: len(names)] == names for names in named)


def _parent(test: str) -> str:
    """Return the node id of a test's parent."""
    return test.rpartition("::")[0]


#: Number of calls of a spec that are drawn, and that are traced.
MOST_DRAWS, MOST_TRACES = 4, 4


def unmet_by_kernels(
    session: Session, spec: KernelSpec, check: Check, backend: Backend, axes: MeshAxes
) -> str | None:
    """Return the reason why a check applies to no kernel of a spec on a backend, or None.

    A few calls are drawn and traced.
    """
    if check.requires_kernels is None or axes or not session.leaves_out:
        return None  # the mesh exists only when the item runs
    if backend.kind == "hardware":
        return None
    reason = None
    with collecting_later():
        for kernels in _traces(session, spec, backend):
            reason = check.requires_kernels(spec, backend, kernels) if kernels else None
            if reason is None:
                return None
    return reason


@dataclass
class Traces:
    """The kernels of a few calls, traced lazily and cached.

    Attributes:
      calls: the calls.
      context: makes the context to trace in.
      limit: seconds for a trace. No other call is traced after one that takes longer.
      overdue: whether one did.
      made: the kernels of each traced call; None for a call that cannot be traced.
    """

    calls: Sequence[Call]
    context: Callable[[], AbstractContextManager[Any]]
    limit: float
    overdue: bool = False
    made: list[Sequence[KernelCall] | None] = field(
        default_factory=list["Sequence[KernelCall] | None"]
    )

    def __iter__(self) -> Iterator[Sequence[KernelCall] | None]:
        """The kernels of each call."""
        for number, call in enumerate(self.calls):
            if number == len(self.made):
                begin = time.monotonic()
                self.made.append(None if self.overdue else kernels_of(call, self.context))
                took = time.monotonic() - begin
                self.overdue |= self.made[number] is None and took >= self.limit
            yield self.made[number]


def _traces(session: Session, spec: KernelSpec, backend: Backend) -> Traces:
    """Return the traces, which all checks and all backends of one chip share."""
    target = chip_of(backend)
    kernel = spec.kernel_for(backend.platform)
    key = (spec.file, spec.name, target.name, id(kernel))
    kept = session.traces  # of the last spec alone, since a trace holds memory
    if any(other[:2] != key[:2] for other in kept):
        kept.clear()
    if key not in kept:
        # Simulators and interpreters have equal traces for a TPU, which JAX caches.
        own: Any = None if target.platform == "tpu" else getattr(backend, "context", None)
        context = own or functools.partial(tracing_for, target)
        limit = session.options.timeout
        overdue = any(traces.overdue for traces in kept.values())  # those of this spec
        kept[key] = Traces(_calls(spec, kernel, limit), context, limit, overdue)
    return kept[key]


def _calls(spec: KernelSpec, kernel: Any, timeout: float) -> Sequence[Call]:
    """Return the calls to trace; none if they cannot be drawn, or do not cover all options."""
    try:
        chosen = representative(spec.inputs)
    except Exception:  # an error of the strategy, which the item will raise, too
        return ()
    return [call_of(kernel, arguments, timeout) for arguments in chosen]


def representative(strategy: Any) -> Sequence[Arguments]:
    """Return calls of a strategy that cover every kind of option and tuning; none if a few cannot.

    Numbers from 2 on are one kind: more programs or larger blocks make no different kernel.
    """
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
    every = {(aspect, kind) for aspect, kinds in declared.items() for kind in kinds}
    return chosen if every <= shown else ()


def _keywords(drawn: Arguments) -> Iterator[tuple[Aspect, str]]:
    """Yield each keyword argument of a call, with the kind of its value."""
    for role, keywords in (("option", drawn.options), ("tuning", drawn.tuning)):
        for name, value in keywords.items():
            yield Aspect(role, name), keyword_kind(value)
