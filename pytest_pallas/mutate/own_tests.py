"""Run user-written tests on the mutants of the kernels that they run."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pallas_sim.traces import own_lines
from pytest_pallas.backends.protocol import UNOBSERVED, Observer, label
from pytest_pallas.compat.fuzzing import hypothesis_settings, set_hypothesis_settings
from pytest_pallas.decoding import jsonable
from pytest_pallas.errors import MutantError
from pytest_pallas.mutate import Mutant, mutants_of
from pytest_pallas.mutate.programs import TracedProgram, unchanged
from pytest_pallas.mutate.runner import (
    Journal,
    KilledBy,
    MutantRun,
    earlier_run,
    sampled,
    try_mutants,
)
from pytest_pallas.pytest_session import JOURNAL, PytestSession
from pytest_pallas.run.result import Result
from pytest_pallas.spec import KernelSpec

#: The name of the registered plugin.
PLUGIN = "pallas-mutants"


def mutants_instead(
    parent: pytest.Collector, spec: KernelSpec, items: Iterable[pytest.Item]
) -> Iterable[pytest.Item]:
    """Replace the items of a spec by the item of its mutants, if there is one."""
    from pytest_pallas.mutate.item import mutants_item

    items = list(items)
    item = mutants_item(parent, spec, items)
    return items if item is None else (item,)


def register_mutants(session: PytestSession, reseed: Callable[[PytestSession], None]) -> None:
    """Run the tests of a session on mutants, and the items of specs as mutants.

    Raises:
      OptionError: an operator has an unknown name, or the results of an earlier run cannot be read.
    """
    if "mutate_operators" in session.options.explicit:
        _ = session.operators  # imports JAX
    earlier = earlier_run(session.config)
    session.killed_earlier = earlier.killed
    session.killed |= earlier.killed
    session.marked |= earlier.marked
    session.config.pluginmanager.register(TestMutantRunner(session, reseed), PLUGIN)
    session.replace_items = mutants_instead


class _TraceRecorder(Observer):
    """Records traces, and forwards to another observer, if there is one."""

    def __init__(self, other: Observer | None) -> None:
        self.other = other or UNOBSERVED
        self.example, self.ended = self.other.example, self.other.ended
        self.programs: list[Any] = []

    def traced(
        self, call: Any, jaxpr: Any, kernels: Sequence[Any], *, simulated: bool = False
    ) -> None:
        """A call was traced."""
        if jaxpr is not None and all(jaxpr is not program for program in self.programs):
            self.programs.append(jaxpr)
        self.other.traced(call, jaxpr, kernels, simulated=simulated)


class TestMutantRunner:
    """The plugin for ``--pallas-mutate`` in a process that runs tests."""

    __test__ = False

    def __init__(self, session: PytestSession, reseed: Callable[[PytestSession], None]) -> None:
        """Create for a session, whose random generators ``reseed`` resets."""
        self.session, self.reseed = session, reseed

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        """Run a test, and then again with each mutant of the kernels that it ran."""
        __tracebackhide__ = True
        backend = getattr(getattr(pyfuncitem, "callspec", None), "params", {}).get("pallas_backend")
        if getattr(backend, "kind", None) not in ("simulating", "interpreting"):
            return (yield)
        before = self.session.observer
        self.session.observer = seen = _TraceRecorder(before)
        with own_lines():
            try:
                result = yield
            finally:
                self.session.observer = before
            if seen.programs:
                self._run_mutants(pyfuncitem, seen.programs)
        return result

    def _run_mutants(self, item: pytest.Function, jaxprs: Sequence[Any]) -> None:
        session = self.session
        options = session.options_for(item)
        mutants: dict[Mutant, None] = {}
        programs: list[TracedProgram] = []
        for jaxpr in jaxprs:
            inside = mutants_of(jaxpr, session.operators)
            programs.append(TracedProgram(jaxpr, frozenset(inside)))
            mutants.update(dict.fromkeys(inside))
        path = item.stash.get(JOURNAL, None)
        journal = Journal(None if path is None else Path(path))
        results = dict(session.results)
        backend = label(cast("Any", item).callspec.params["pallas_backend"])

        def same(mutant: Mutant) -> str:
            count = unchanged(programs, mutant)
            return f"the same program after simplification, in {count} calls" if count else ""

        def attempt(mutant: Mutant) -> MutantRun:
            error = self._failure(item, mutant)
            if isinstance(error, MutantError):
                return MutantRun(None, 1, str(error))
            if error is None:
                return MutantRun(None, 1, same=same(mutant))
            return MutantRun(KilledBy(item.name, type(error).__name__), 1)

        started = time.monotonic()
        until = started + options.mutate_time if options.mutate_time else None
        verdicts = try_mutants(
            sampled(list(mutants), options.mutate or 0, options.seed),
            attempt,
            journal=journal,
            name=item.name,
            killed=session.killed,
            until=until,
            same=same,
        )
        session.results.clear()
        session.results.update(results)
        for kernel in dict.fromkeys(verdict.kernel for verdict in verdicts):
            of_kernel = [verdict for verdict in verdicts if verdict.kernel == kernel]
            session.results[kernel, "mutants", backend] = Result(
                kernel=kernel,
                check="mutants",
                backend=backend,
                mutants=[jsonable(verdict) for verdict in of_kernel],
            )

    def _failure(self, item: pytest.Function, mutant: Mutant) -> BaseException | None:
        """Run the test with a mutant; return its error, or None if it passes."""
        session = self.session
        session.results.clear()
        self.reseed(session)
        session.mutant = mutant
        try:
            with _quick(item.obj):
                item.obj(**_arguments(item))
        except pytest.skip.Exception:
            return None
        except (Exception, pytest.fail.Exception) as error:
            return error
        finally:
            session.mutant = None
        return None


def _arguments(item: pytest.Function) -> dict[str, Any]:
    """Collect the fixtures that are arguments of the test function."""
    taken = inspect.signature(item.obj).parameters
    return {name: value for name, value in item.funcargs.items() if name in taken}


@contextlib.contextmanager
def _quick(function: Callable[..., Any]) -> Generator[None]:
    """Let Hypothesis stop at the first failure, and save none."""
    from hypothesis import Phase, settings

    own = hypothesis_settings(function)
    if own is None:
        yield
        return
    phases = tuple(p for p in own.phases if p in (Phase.explicit, Phase.generate))
    set_hypothesis_settings(
        function, settings(own, phases=phases, database=None, report_multiple_bugs=False)
    )
    try:
        yield
    finally:
        set_hypothesis_settings(function, own)
