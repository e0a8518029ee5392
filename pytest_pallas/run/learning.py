"""Validation of a spec: draws once, without running the kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError, PallasError
from pytest_pallas import spec as relations
from pytest_pallas.backends.ending import (
    OverdueError,
    UncaughtError,
    ending_whole,
    limit_of,
    raised_words,
)
from pytest_pallas.checks import Check
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.isolate import policy
from pytest_pallas.isolate.isolator import Isolator, isolator_of
from pytest_pallas.isolate.leaks import leaving_nothing
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.run.check_run import lacks_mesh, misfit
from pytest_pallas.session import SpecFacts
from pytest_pallas.spec import KernelSpec


def problem_with(spec: KernelSpec, checks: Mapping[str, Check], families: object) -> str | None:
    """The reason why a spec cannot be verified, or None.

    Args:
      spec: the spec.
      checks: the checks that exist, by name.
      families: the names of the backends that exist.
    """
    unknown = [name for name in spec.checks or () if name not in checks]
    if unknown:
        return f"unknown checks {unknown}; valid: {', '.join(checks)}"
    known = {*_names(families), "tpu-compile", "gpu-compile"}
    unknown = [name for name in _families_of((*spec.claimed, *spec.xfail)) if name not in known]
    if unknown:
        return f"unknown backends {unknown}; valid: {', '.join(sorted(known))}"
    if spec.meshes:
        return None  # its strategy needs the mesh, and a mesh needs JAX to start
    from pytest_pallas.draw.arrays import draw_once

    try:
        arguments = draw_once(spec.inputs)
    except PallasError as error:
        return str(error)
    except Exception as error:
        return f"its inputs strategy raised {type(error).__name__}: {error}"
    axes = spec.batch_axes
    if axes and len(axes) != len(arguments.args):
        return (
            f"batch_axes has {len(axes)} entries, but its inputs draw {len(arguments.args)} "
            "positional arguments; give one for each, None for an argument that is not split"
        )
    problem = None if spec.ignored is None else _ignored(spec.ignored, arguments)
    if problem is not None:
        return problem
    problem = relations.problem_with(spec.relations, len(arguments.args))
    if problem:
        return problem
    kernels = spec.kernel.values() if isinstance(spec.kernel, Mapping) else (spec.kernel,)
    for kernel in kernels:
        problem = _unbound(kernel, arguments, {**arguments.options, **arguments.tuning}, "kernel")
        if problem:
            return problem
    return _unbound(spec.reference, arguments, dict(arguments.options), "reference")


def _ignored(ignored: Callable[..., Any], arguments: Arguments) -> str | None:
    from pytest_pallas.checks.padding import masks_of

    try:
        masks_of(ignored, arguments)
    except PallasError as error:
        return str(error)
    return None


def _unbound(
    function: Callable[..., Any], arguments: Arguments, keywords: Mapping[str, Any], role: str
) -> str | None:
    problem = misfit(function, arguments.args, keywords)
    if problem is None:
        return None
    if lacks_mesh(function, arguments.args, keywords):
        return (
            f"the {role} needs mesh=, and the spec has no meshes: give it the sizes of its axes, "
            'such as meshes=({"x": 4},), and inputs=lambda mesh: ... for a strategy'
        )
    words = ", ".join(keywords) or "no keywords"
    return (
        f"its inputs draw {len(arguments.args)} positional arguments and {words}, but these do not "
        f"fit the {role}: {problem}"
    )


def _names(families: Any) -> list[str]:
    return list(families)


def _families_of(labels: Iterable[str]) -> list[str]:
    return [Label.of(text).name for text in labels]


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
    """The facts of a spec, closed.

    Args:
      session: of this process; keeps the facts.
      parent: the node whose items the spec becomes.
      spec: the spec.
      learn: learns what is not known.
    """
    key = spec.file, spec.name
    given = session.given_facts
    if given is not None and session.learns != key:
        return given.get(key) or SpecFacts(closed=True)
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
    waiting = functools.partial(_say_waiting, parent.config, spec, timeout)
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
        _say(parent.config, f"spec {spec.name!r} in {spec.file}: {facts.fault}")
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


def _say_waiting(config: pytest.Config, spec: KernelSpec, timeout: float) -> None:
    _say(
        config,
        f"collection still traces spec {spec.name!r} in {spec.file}; the limit is {timeout:g} s "
        "(--pallas-timeout)",
    )


def _say(config: pytest.Config, text: str) -> None:
    """Print a line, although pytest captures what is printed while it collects a file."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if terminal is None or config.get_verbosity() < -1:
        return
    if capture is None:
        terminal.write_line(f"pallas: {text}")
        return
    with capture.global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(f"pallas: {text}")
