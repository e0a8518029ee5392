"""The backends ``tpu-sim`` and ``gpu-sim``: kernels on a simulated chip, without compilation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_sim.chips import Target, accumulations
from pallas_sim.errors import BoundsError, MissingRuleError, PallasError
from pallas_sim.findings import OF_TRANSFERS, Finding
from pytest_pallas.backends.ending import OverdueError, ending, ending_whole
from pytest_pallas.backends.protocol import (
    UNOBSERVED,
    Backend,
    Call,
    Kind,
    Outcome,
    Probe,
    Schedule,
    chip_of,
)
from pytest_pallas.budget import LastUsed
from pytest_pallas.compat.fuzzing import is_rejection
from pytest_pallas.errors import CapacityError, DmaError, RaceError, facts_of
from pytest_pallas.record import Note

if TYPE_CHECKING:
    from pallas_sim import Exploration, Machine, Timeline
    from pytest_pallas.compile.backends import Compiler

#: Limits on the runs that are kept, because checks repeat the same ones: on their number, their
#: bytes, and the bytes of one.
_RUNS, _RUN_BYTES, _KEPT_BYTES = 256, 1 << 26, 1 << 20


#: The first order of an exploration in words.
_FIRST = ("each thread goes on as long as it can, and copies move when no thread can",)


@dataclass(frozen=True)
class Simulator:
    """A backend that simulates kernels on the CPU of this process, in one thread.

    Attributes:
      target: the chip it stands for; None is the default.
      otherwise: runs calls that the simulator does not support yet; None if the simulator was
        named: then it rejects these.
      name: the family.
      platform: of the chip, ``"tpu"`` or ``"gpu"``.
      compiler: counts the shared memory of kernels of the Triton route, where it is available.
    """

    target: Target | None = None
    otherwise: Backend | None = None
    name: str = "tpu-sim"
    platform: str = "tpu"
    kind: Kind = "simulating"
    fills: bool = True
    probes: tuple[Probe, ...] = ("outputs", "separate", "late", "loads")
    reorders: bool = True
    detects_races: bool = True
    compiler: Compiler | None = field(default=None, repr=False, compare=False)
    _kept: LastUsed[_CachedRun] = field(
        default_factory=lambda: LastUsed(_RUNS, _RUN_BYTES), repr=False, compare=False, hash=False
    )
    _explored: LastUsed[Exploration] = field(
        default_factory=lambda: LastUsed(_RUNS, _RUN_BYTES), repr=False, compare=False, hash=False
    )

    @property
    def chip(self) -> Target:
        """The chip that is simulated."""
        return chip_of(self)

    def available(self) -> str | None:
        """Always None: the simulator needs nothing but numpy."""
        return None

    @functools.cached_property
    def installed_compiler(self) -> Compiler | None:
        """The compiler, if it is installed. To find out takes as long as a small run."""
        compiler = self.compiler
        return compiler if compiler is not None and compiler.available() is None else None

    def context(self) -> Any:
        """Return the context to trace in."""
        from pallas_sim.tracing import tracing_for

        return tracing_for(self.chip)

    def lacks(self, call: Call) -> str | None:
        """Say why a call cannot be simulated yet, or None. The call is traced, but not run.

        Raises:
          Exception: an error of the function while it is traced.
        """
        from pallas_sim import prepare

        try:
            with ending(call.settings.timeout):
                jaxpr = _traced(self, call).jaxpr
                prepare(jaxpr)
        except MissingRuleError as error:
            return str(error)
        return None

    def run(self, call: Call) -> Outcome:
        """Simulate a call; see ``Backend.run``. An equal jitted call returns the same outcome.

        A call without jit may depend on other state, so it runs each time.
        """
        key = _key(call) if call.settings.jit else None
        cached = None if key is None else self._kept.get(key)
        if cached is not None and (cached.monitored or not _is_monitored(call)):
            call.settings.observer.traced(
                call, cached.jaxpr, cached.outcome.kernels, simulated=True
            )
            call.settings.observer.ended(call)
            return self._judged(dataclasses.replace(cached.outcome, seconds=0.0), call)
        outcome, jaxpr = self._run(call)
        if isinstance(outcome.error, MissingRuleError) and self.otherwise is not None:
            return self._run_otherwise(call, outcome)
        if key is not None and outcome.error is None and outcome.nbytes <= _KEPT_BYTES:
            run = _CachedRun(outcome, jaxpr, _is_monitored(call))
            self._kept.add(key, run, outcome.nbytes)
        return self._judged(outcome, call)

    def run_anew(self, call: Call) -> Outcome:
        """As ``run``, without the cache, for timing."""
        outcome, _ = self._run(call)
        if isinstance(outcome.error, MissingRuleError) and self.otherwise is not None:
            return self._run_otherwise(call, outcome)
        return self._judged(outcome, call)

    def run_on_part(self, call: Call, multiprocessors: int) -> Outcome | None:
        """Simulate a call that has run, on a part of the GPU with so many multiprocessors.

        So a persistent program, of which there is one for each multiprocessor, has many tiles of a
        small array. None if its function does not ask for their number, refuses this one, or has a
        kernel without any program then: a cluster may need more.
        """
        from pytest_pallas.backends.tracing import asks_for, on_host

        static, _ = on_host(call.with_settings(rewriting=None))
        if not call.settings.jit or not asks_for(static, "core_count"):
            return None
        part = dataclasses.replace(
            self,
            target=dataclasses.replace(self.chip, multiprocessors=multiprocessors),
            _kept=LastUsed(_RUNS, _RUN_BYTES),
            _explored=LastUsed(_RUNS, _RUN_BYTES),
        )
        outcome, _ = part._run(call)
        missing = outcome.error is not None and not isinstance(outcome.error, PallasError)
        if missing or outcome.idle or isinstance(outcome.error, MissingRuleError):
            return None
        return part._judged(outcome, call)

    def trace(self, call: Call) -> tuple[Timeline, Exception | None]:
        """Simulate a call; returns its timeline and its error.

        The timeline is empty if the call runs no kernel or cannot be simulated yet.
        """
        from pallas_sim import Timeline

        timeline = Timeline()
        outcome, _ = self._run(call, timeline)
        return timeline, self._judged(outcome, call).error

    def explore(self, call: Call) -> Exploration | None:
        """Run a call in the orders of its threads and copies, within the budget of its settings.

        None if the budget is one run, or the call is not jitted. An equal call is explored once.
        """
        from pallas_sim import Exploration, explore_runs

        most = call.settings.schedules
        if most < 2 or not call.settings.jit:
            return None
        call = dataclasses.replace(call.with_settings(observer=UNOBSERVED), schedule=Schedule())
        key = (_key(call), most)
        exploration = self._explored.get(key)
        if exploration is not None:
            return exploration
        program = _program(self, call)
        begun = itertools.count()

        def new() -> tuple[Machine, Callable[[], Any]]:
            next(begun)
            machine, _ = _machine(self, call, None)

            def begin() -> Any:
                values, _ = _values(self, call, program, machine)
                machine.findings[:] = [f for f in machine.findings if not _is_harmless(f, self)]
                return values

            return machine, begin

        try:
            with ending_whole(call.settings.timeout):
                exploration = explore_runs(new, most)
        except OverdueError:
            runs = next(begun)
            exploration = Exploration(
                verdict="open",
                runs=runs,
                classes=runs,
                stopped=f"{runs} runs took {call.settings.timeout:g} s, the limit of "
                "--pallas-timeout",
            )
        self._explored.add(key, exploration, 0)
        return exploration

    def repeats(self, call: Call, witness: str) -> bool:
        """Return whether a call is still the one that an order was found in."""
        from pallas_sim import Witness

        jaxpr = _program(self, call).jaxpr if call.settings.jit else None
        return jaxpr is not None and Witness.parse(witness).is_of(jaxpr, chip_of(self).name)

    def _judged(self, outcome: Outcome, call: Call) -> Outcome:
        """Return the outcome of a finished run; findings that the call checks become its error.

        No chip runs a kernel that needs more memory than it has, whatever the call checks. Races
        that no order has are withdrawn if every order was run.
        """
        if outcome.error is not None or not outcome.findings:
            return outcome

        def of_kinds(*kinds: str) -> list[Finding]:
            return [finding for finding in outcome.findings if finding.kind in kinds]

        if excesses := of_kinds("capacity"):
            return dataclasses.replace(outcome, error=CapacityError.of(*excesses))
        beyond = [finding for finding in of_kinds("bounds") if not _is_harmless(finding, self)]
        races = of_kinds("race") if call.settings.races else []
        others = of_kinds(*OF_TRANSFERS) if call.settings.dma else []
        if not (beyond or races or others):
            return outcome
        plain = call.schedule == Schedule()
        exploration = self.explore(call) if plain and races and not (beyond or others) else None
        if exploration is not None and exploration.verdict == "proved":
            return _without_races(outcome, exploration)
        kind = BoundsError if beyond else RaceError if races else DmaError
        error = kind.of(*beyond, *races, *others)
        facts = facts_of(error)
        if call.schedule.witness:
            facts.schedule = dataclasses.replace(call.schedule, story=outcome.story)
        if exploration is not None:
            facts.unconfirmed = not exploration.confirmed
            if exploration.witness is not None:
                facts.schedule = Schedule.of(exploration)
        return dataclasses.replace(outcome, error=error, exploration=exploration)

    def _run_otherwise(self, call: Call, simulated: Outcome) -> Outcome:
        """Run a call on the interpreter; return what the simulator lacks if that cannot, either."""
        assert self.otherwise is not None
        outcome, name = self.otherwise.run(call), self.otherwise.name
        text = f"run on {name}, because the simulator does not support it yet"
        if outcome.error is not None and not isinstance(outcome.error, PallasError):
            # The kernel raises nothing itself: the simulator has traced it.
            text = (
                f"{name} does not run it, either: {type(outcome.error).__name__}: {outcome.error}"
            )
            outcome = dataclasses.replace(outcome, error=simulated.error)
        return dataclasses.replace(outcome, notes=(*outcome.notes, Note(text, "run")))

    def _run(self, call: Call, timeline: Timeline | None = None) -> tuple[Outcome, Any]:
        """Return the outcome of a call, with its findings, and the jaxpr that was simulated.

        A call without jit has no jaxpr.
        """
        started = time.perf_counter()
        outcome, program = Outcome(), None
        try:
            with ending(call.settings.timeout):
                program = _program(self, call) if call.settings.jit else None
                outcome = _evaluated(self, call, program, timeline)
                if outcome.error is None and any(map(_reads_at_0, outcome.findings)):
                    outcome = _without_unused_reads(self, call, program, outcome)
        except Exception as error:  # the kernel's error is a result, whatever it is
            if is_rejection(error):
                raise
            outcome = Outcome(error=error, kernels=() if program is None else program.kernels)
        finally:
            call.settings.observer.ended(call)
        outcome = dataclasses.replace(outcome, seconds=time.perf_counter() - started)
        return outcome, None if program is None else program.jaxpr


@dataclass(frozen=True)
class _CachedRun:
    """A cached run.

    Attributes:
      outcome: the outcome of the run; its findings are not errors yet.
      jaxpr: the simulated jaxpr.
      monitored: whether the ordering monitors ran.
    """

    outcome: Outcome
    jaxpr: Any
    monitored: bool


def _traced(backend: Simulator, call: Call) -> Any:
    """Return the trace of a call, without its rewriting; JAX caches it."""
    from pytest_pallas.backends.tracing import jitted, on_host

    static, arrays = on_host(call.with_settings(rewriting=None))
    with backend.context():
        return jitted(static).trace(arrays)


@dataclass(frozen=True)
class _TracedProgram:
    """What a call is simulated as.

    Attributes:
      jaxpr: rewritten, if the call says so.
      structure: the tree of the outputs.
      kernels: its kernels.
    """

    jaxpr: Any
    structure: Any
    kernels: tuple[Any, ...]


def _program(backend: Simulator, call: Call) -> _TracedProgram:
    import jax

    from pytest_pallas.backends.execution import kernels_of

    traced = _traced(backend, call)
    jaxpr = (
        traced.jaxpr if call.settings.rewriting is None else call.settings.rewriting(traced.jaxpr)
    )
    return _TracedProgram(jaxpr, jax.tree.structure(traced.out_info), kernels_of(call, jaxpr))


def _evaluated(
    backend: Simulator,
    call: Call,
    program: _TracedProgram | None,
    timeline: Timeline | None,
    *,
    drops_indices: bool = True,
) -> Outcome:
    """Return the outcome of a run: of a traced program, or without jit."""
    import jax

    from pallas_sim import order_matters
    from pytest_pallas.backends.execution import to_numpy

    machine, probe_results = _machine(backend, call, timeline)
    machine.drops_indices = drops_indices
    try:
        values, arrays = _values(backend, call, program, machine)
    except Exception as error:
        if call.schedule.witness:
            facts_of(error).schedule = dataclasses.replace(call.schedule, story=_story(machine))
        raise
    return Outcome(
        values=jax.tree.map(_read_only, values),
        inputs=tuple(_read_only(to_numpy(array)) for array in arrays),  # of random keys, the data
        kernels=() if program is None else program.kernels,
        probe_results=tuple(probe_results),
        findings=tuple(machine.findings),
        notes=_notes(backend, machine),
        unverified=tuple(machine.notes),
        idle=tuple((name, line, grid) for (name, line), grid in machine.idle.items()),
        coverage=machine.coverage.reached(),
        steps=machine.steps,
        every_order=machine.monitored and not order_matters(machine),
        by_seed=machine.choices.by_seed,
        story=_story(machine) if call.schedule.witness else (),
    )


def _story(machine: Machine) -> tuple[str, ...]:
    """Return the order of a run in lines."""
    return machine.choices.story or _FIRST


def _values(
    backend: Simulator, call: Call, program: _TracedProgram | None, machine: Machine
) -> tuple[Any, list[Any]]:
    """Run a call on a machine; returns what it gave, and its arrays, which it may have changed."""
    import jax

    from pallas_sim import evaluate, prepare, run_eagerly
    from pytest_pallas.backends.tracing import apply, on_host

    static, arrays = on_host(call)
    if program is None:
        call.settings.observer.traced(call, None, (), simulated=True)
        plain = dataclasses.replace(static, rewriting=None)
        change = call.settings.rewriting or (lambda jaxpr: jaxpr)
        with backend.context():
            values = run_eagerly(lambda *leaves: apply(plain, [*leaves]), machine, arrays, change)
        return values, arrays
    prepare(program.jaxpr)  # which raises for programs that cannot be simulated yet
    call.settings.observer.traced(call, program.jaxpr, program.kernels, simulated=True)
    return jax.tree.unflatten(program.structure, evaluate(program.jaxpr, machine, arrays)), arrays


def _without_races(outcome: Outcome, exploration: Exploration) -> Outcome:
    """Withdraw races of the proof of order: every order was run, and none has them."""
    kept = tuple(finding for finding in outcome.findings if finding.kind != "race")
    note = Note(
        f"a race that the proof of order reported is withdrawn: {exploration.runs} runs had every "
        "order, and the accesses are ordered in all of them",
        "run",
    )
    return dataclasses.replace(
        outcome, findings=kept, notes=(*outcome.notes, note), exploration=exploration
    )


def _is_harmless(finding: Finding, backend: Simulator) -> bool:
    """Return whether a finding is of a load that a chip makes without any effect.

    A TPU's load beyond a ref reads other memory of the core. One of a GPU may be to no memory.
    """
    return finding.dropped and backend.platform == "tpu"


def _reads_at_0(finding: Finding) -> bool:
    """Return whether a finding is of a load that lost its index, and read inside the array."""
    return finding.kind == "bounds" and [access.kind for access in finding.accesses] == ["read"]


def _without_unused_reads(
    backend: Simulator, call: Call, program: _TracedProgram | None, outcome: Outcome
) -> Outcome:
    """Leave out loads that lost their index if the answer does not depend on what they read.

    A pipeline may load ahead beyond the end, and never use it. Whether it does is seen in a second
    run, in which these loads give the zeros that they are documented to give.
    """
    unseen = call.with_settings(observer=UNOBSERVED)
    other = _evaluated(backend, unseen, program, None, drops_indices=False)
    if not _same_bits(outcome, other):
        return outcome
    kept = tuple(finding for finding in outcome.findings if not _reads_at_0(finding))
    return dataclasses.replace(outcome, findings=kept)


def _same_bits(one: Outcome, other: Outcome) -> bool:
    import jax

    pairs = zip(
        jax.tree.leaves((one.values, one.inputs)),
        jax.tree.leaves((other.values, other.inputs)),
        strict=True,
    )
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _is_monitored(call: Call) -> bool:
    """Return whether a call enables the detection of races or leftover DMAs."""
    return call.settings.races or call.settings.dma


def _machine(
    backend: Simulator, call: Call, timeline: Timeline | None
) -> tuple[Machine, list[Any]]:
    """Return the machine that a call runs on, and the list for the results of its probe."""
    from pallas_sim import Limits, LoadRecorder, Machine, replay
    from pytest_pallas.backends.protocol import filler_of

    probe_results: list[Any] = []
    machine = Machine(
        target=backend.chip.name,
        seed=call.schedule.seed,
        limits=Limits(out_of_bounds="fill"),
        cores=max(call.schedule.cores, backend.chip.cores),
        fill=filler_of(call.fill),
        ahead=call.probe != "late",
        separate=call.probe == "separate",
        monitored=_is_monitored(call),
        timeline=timeline,
        arithmetic=call.settings.arithmetic,
        error_seed=0,  # checks compare the bits of other schedules
        read_fences=call.settings.read_fences,
        shared_bytes=_counter(backend, call),
        # A mistake that was put in shall fail by what it does.
        refuses=call.settings.rewriting is None,
        named=backend.target is not None,
    )
    accumulations(machine.target, machine.arithmetic)  # which rejects what is not known
    if call.schedule.witness:
        replay(machine, call.schedule.witness, jit=call.settings.jit)
    if call.probe == "outputs":
        machine.outputs = lambda eqn, values: probe_results.append((eqn.params, list(values)))
    if call.probe == "loads":
        machine.inspector = LoadRecorder(loads=probe_results)
    return machine, probe_results


def _counter(backend: Simulator, call: Call) -> Callable[[Any], int | None] | None:
    """Return what counts the shared memory of a kernel; None if no compiler is there."""
    if call.settings.rewriting is not None:
        return lambda _: 0  # whether the kernel fits is not asked of a mistake that was put in
    compiler = backend.installed_compiler
    if compiler is None:
        return None
    return lambda kernel: compiler.shared_bytes(kernel, call.settings.timeout)


def _notes(backend: Simulator, machine: Machine) -> tuple[Note, ...]:
    names = ", ".join(sorted(machine.fallbacks))
    evaluated = f"evaluated by JAX, because the simulator has no rule: {names}"
    harmless = [str(finding) for finding in machine.findings if _is_harmless(finding, backend)]
    return tuple(Note(text, "run") for text in ([evaluated] if names else []) + harmless)


def _read_only(value: Any) -> Any:
    """Make a view for outcomes, which are cached: results may share memory with inputs."""
    view = value.view()
    view.flags.writeable = False
    return view


def _key(call: Call) -> Hashable:
    """Return the cache key: equal for calls with equal runs, whatever they do with findings."""
    from pytest_pallas.backends.execution import digest
    from pytest_pallas.backends.tracing import identity

    return (
        identity(call.function),
        digest((call.args, dict(call.options))),
        (
            call.settings.jit,
            call.settings.devices,
            call.needs_kernel,
            call.fill,
            call.probe,
            call.schedule,
        ),
        (call.settings.rewriting, call.settings.arithmetic, call.settings.read_fences),
    )


def tpu_sim(target: Target | None = None) -> Simulator:
    """Return the simulated TPU."""
    return Simulator(target)


def gpu_sim(target: Target | None = None) -> Simulator:
    """Return the simulated GPU.

    It has no prefetching, and aliased operands share memory, so there are no probes for these.
    """
    return Simulator(target, name="gpu-sim", platform="gpu", probes=("outputs", "loads"))
