"""``Session``: the state that checks share, with pytest or without.

It has options, backends, checks, expected values and the running test. A ``Harness`` has the
services of the test framework, such as hooks; ``pytest_session`` makes that of pytest.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import pytest

from pallas_sim.errors import OptionError, PallasError
from pallas_sim.findings import Text
from pytest_pallas.budget import LastUsed
from pytest_pallas.checks import NAMES as CHECKS
from pytest_pallas.checks import SANITIZERS
from pytest_pallas.decoding import Exact
from pytest_pallas.options import MARK_ONLY, Options, choose

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

    from pytest_pallas.backends.protocol import Backend, Call, RunSettings
    from pytest_pallas.backends.registry import DeviceFacts, Family, Selection
    from pytest_pallas.checks import Check
    from pytest_pallas.checks.golden import Goldens
    from pytest_pallas.checks.schedule import Runs
    from pytest_pallas.compile.costs import RecordedCosts
    from pytest_pallas.compile.service import Service
    from pytest_pallas.judge.oracle import ExpectedCache
    from pytest_pallas.judge.tolerance import Tolerance
    from pytest_pallas.replay.goldens import LoadedExample

#: Time limit in seconds for blocked devices of a kernel with a mutant.
_MUTANT_SECONDS = 15.0


@dataclass(frozen=True)
class LastRun:
    """The last call of a kernel in a test: name, backend and call."""

    kernel: str
    backend: Backend
    call: Call


@dataclass(kw_only=True)
class SpecFacts:
    """What collection learns of a spec: it draws and traces a few calls.

    Attributes:
      problem: why it cannot be verified; None if it can.
      is_for_gpus: whether its plain function is a kernel for GPUs; None if that is not known.
      lacks: why a simulator cannot run it, by the simulator's label; None if it can.
      unmet: why a check applies to none of its kernels, by check and backend; None if it does.
      closed: whether nothing more is traced: what is not known takes its default.
      fault: why collection could not learn more; "" if it could.
      isolated: why its tests run in a process of their own; "" if nothing speaks for it.
      path: the file whose collection learned it.
    """

    problem: Text | None = None
    is_for_gpus: bool | None = None
    lacks: dict[str, Text | None] = field(default_factory=dict[str, Any])
    unmet: dict[tuple[str, str], Text | None] = field(default_factory=dict[Any, Any])
    closed: bool = False
    fault: Text = ""
    isolated: Text = ""
    path: Exact = ""


@dataclass(frozen=True, kw_only=True)
class Harness:
    """The services of the test framework for checks; by default there is no test framework.

    Attributes:
      families: returns additional families of backends.
      checks: returns additional checks and sanitizers.
      tolerance: returns the tolerance of a call by its kernel, check, backend and dtypes, or None.
      root: the folder for relative paths.
      cache: returns a persistent folder by name, or None.
      at_end: registers a function to call at the end of the run.
      processes: number of processes that share the cores of the machine, with this one.
    """

    families: Callable[[], Sequence[Family]] = tuple
    checks: Callable[[], Sequence[Check]] = tuple
    tolerance: Callable[..., Tolerance | None] = lambda **_: None
    root: Path = field(default_factory=Path.cwd)
    cache: Callable[[str], Path | None] = lambda _: None
    at_end: Callable[[Callable[[], None]], object] = atexit.register
    processes: int = 1


@dataclass
class CallsOfTest:
    """The calls of a kernel in a ``@given`` test, by their names (``draw_name``).

    Attributes:
      ended: those that ended in time.
      overdue: what those raised that did not, and where.
    """

    ended: set[str] = field(default_factory=set[str])
    overdue: dict[str, tuple[PallasError, TracebackType | None]] = field(
        default_factory=dict[str, tuple[PallasError, TracebackType | None]]
    )


@dataclass(kw_only=True)
class Session:
    """The state that checks share. Backends and checks are loaded at their first use."""

    options: Options
    harness: Harness = field(default_factory=Harness)
    #: Results of the running test so far, by kernel, check and place; see ``CheckRun``.
    results: dict[tuple[str, str, str], Any] = field(default_factory=dict[Any, Any])
    #: Drawn calls for compiling backends, by spec and count; see ``run.drawn``.
    drawn: LastUsed[tuple[Any, ...]] = field(default_factory=lambda: LastUsed(64))
    #: Sizes of blocks by dim, for the specs that ran; see ``run.backends.adapted``.
    tiles: dict[Any, tuple[dict[str, tuple[int, ...]], int, tuple[str, int] | None]] = field(
        default_factory=dict[Any, Any]
    )
    #: The meshes that specs draw, by spec and backend; see ``run.backends.inputs_on``.
    meshes: dict[Any, Any] = field(default_factory=dict[Any, Any])
    #: Sources of examples, by spec; see ``draw.examples``.
    sources: dict[Any, Any] = field(default_factory=dict[Any, Any])
    #: The traces of one spec; see ``run.nodes``.
    traces: dict[Any, Any] = field(default_factory=dict[Any, Any])
    #: What collection has learned of specs, by file and name.
    facts: dict[tuple[str, str], SpecFacts] = field(default_factory=dict[Any, Any])
    #: The running test; None outside of pytest.
    item: pytest.Item | None = None
    #: Places of ``--pallas-database`` that could not be reached, and the messages.
    lost_places: dict[str, str] = field(default_factory=dict[str, str])
    #: Receives events of examples and calls in isolated tests; see ``isolation``.
    observer: Any = None
    #: Returns the devices of a hardware backend, by its name, where another process owns them; None
    #: where this one does.
    elsewhere: Callable[[str], DeviceFacts] | None = None
    #: The current ``mutate.Mutant`` of kernels, or None.
    mutant: Any = None
    #: The last call of the running test, for ``--pallas-trace`` only.
    ran: LastRun | None = None
    #: The order of a failure that a script repeats: see ``RunSettings.saved_witness``.
    saved_witness: str = ""
    #: The state that each kernel left changed, and a failed test has told: see ``isolate.leaks``.
    leaked: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    #: State that was left changed before a check, and could not be undone (``isolate.leaks``).
    untold: list[Any] = field(default_factory=list[Any])
    #: Whether a check changed state of this process that could not be undone.
    stained: bool = False
    #: Whether no kernel of this session is code of a user, so that none can leave state changed.
    only_programs: bool = False
    #: The calls in ``@given`` tests, by test and kernel; see ``once_in_a_test``.
    calls: dict[tuple[str, str], CallsOfTest] = field(default_factory=dict[Any, Any])

    @cached_property
    def replayed(self) -> LoadedExample | None:
        """The only example to run, or None."""
        return None

    @property
    def leaves_out(self) -> bool:
        """Whether checks that apply to no kernel of a spec are left out."""
        return True

    def note_run(self, kernel: str, backend: Backend, make: Callable[[], Call]) -> None:
        """Record the next call of a test, if a timeline may be needed."""
        if self.options.trace is not None:
            self.ran = LastRun(kernel, backend, make())

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """The known backends by name, including those of the hook."""
        from pytest_pallas.backends.registry import FAMILIES, compiling, owned_elsewhere

        own = (*FAMILIES, *compiling(lambda: self.service), *self.harness.families())
        return {family.name: owned_elsewhere(family, lambda: self.elsewhere) for family in own}

    def devices(self, name: str) -> DeviceFacts:
        """Return the devices of a hardware backend, by its name.

        Raises:
          DeviceError: the process that owns them died when it opened them.
        """
        from pytest_pallas.backends.registry import devices_of

        if self.elsewhere is not None:
            return self.elsewhere(name)
        return devices_of([self.families[name]])[name]

    @cached_property
    def _added_checks(self) -> Sequence[Check]:
        return self.harness.checks()

    @cached_property
    def checks(self) -> Mapping[str, Check]:
        """The known checks and sanitizers by name, including those of the hook. Imports JAX."""
        from pytest_pallas.checks import declared_checks, declared_sanitizers

        known = (*declared_checks(), *declared_sanitizers(), *self._added_checks)
        return {check.name: check for check in known}

    @cached_property
    def check_names(self) -> tuple[str, ...]:
        """The names of ``checks``, without JAX: options are parsed before its import."""
        hooked = (check.name for check in self._added_checks)
        return tuple(dict.fromkeys((*CHECKS, *SANITIZERS, *hooked)))

    @cached_property
    def sanitizer_names(self) -> tuple[str, ...]:
        """The names of the sanitizers, likewise."""
        hooked = (check.name for check in self._added_checks if check.kind == "sanitizer")
        return tuple(dict.fromkeys((*SANITIZERS, *hooked)))

    @cached_property
    def base(self) -> Check:
        """The check that all other checks depend on."""
        from pytest_pallas.checks import declared_checks

        return self.checks[next(check.name for check in declared_checks() if check.base)]

    @cached_property
    def selection(self) -> Selection:
        """The selected backends. The first use may import jax, to look for hardware."""
        from pytest_pallas.backends.registry import select

        return select(self.options.backend, self.families)

    @cached_property
    def cache(self) -> ExpectedCache:
        """The cache of expected values, which checks and backends share."""
        from pytest_pallas.backends.ending import longest
        from pytest_pallas.judge.oracle import ExpectedCache

        return ExpectedCache(seconds=longest(self.options.timeout))

    @cached_property
    def runs(self) -> Runs:
        """The cache of runs, which sanitizers share."""
        from pytest_pallas.checks.schedule import Runs

        return Runs()

    @cached_property
    def service(self) -> Service:
        """The workers and the cache of the compiling backends, closed with the session."""
        from pytest_pallas.compile.service import Service

        options = self.options
        service = Service(
            workers=max(1, _cores() // self.harness.processes),
            memory_bytes=int(options.worker_memory * 2**30),
            cache=self.harness.cache("pallas-compile"),
            everything=options.dump is not None,
            costs=options.cost != "skip" or options.dump is not None,
        )
        self.harness.at_end(service.close)
        return service

    @cached_property
    def costs(self) -> RecordedCosts | None:
        """The recorded costs; None unless ``--pallas-cost=compare``."""
        if self.options.cost != "compare":
            return None
        from pytest_pallas.compile.costs import load

        return load(self.cost_file, self.options.cost_limit)

    @cached_property
    def goldens(self) -> Goldens | None:
        """The goldens; None without ``--pallas-golden``."""
        if self.options.golden == "off":
            return None
        from pytest_pallas.checks.golden import Goldens
        from pytest_pallas.replay.goldens import Store

        return Goldens(
            store=Store(self.harness.root / self.options.golden_dir),
            mode=cast("Any", self.options.golden),
            most=self.options.max_bytes,
            ci=os.environ.get("CI", "").lower() in ("true", "1"),
        )

    @cached_property
    def database(self) -> ExampleDatabase | None:
        """The database of failing examples: of ``--pallas-database``, or of Hypothesis' profile.

        None without a database.
        """
        from pytest_pallas.draw.database import default_database, open_places

        if not self.options.database:
            return default_database()
        root = self.harness.root
        return open_places(self.options.database, root, self.lost_places.setdefault)

    def database_for(
        self, owner: str, *, others: bool = False, through: ExampleDatabase | None = None
    ) -> ExampleDatabase | None:
        """Return the failing examples of the test with this name, or of others with its key.

        ``through`` stands for the database, where there is one.
        """
        from pytest_pallas.draw.database import Owned

        if self.database is None:
            return None
        return Owned(self.database if through is None else through, owner, others=others)

    @property
    def cost_file(self) -> Path:
        """The file of recorded costs."""
        return self.harness.root / self.options.cost_file

    def settings(
        self, options: Options, backend: Backend, *, test: str = "", **rest: Any
    ) -> RunSettings:
        """Return how kernels run on a backend, in the test with this name, if it may dump them.

        ``rest`` are other fields of ``RunSettings``.
        """
        from pytest_pallas.backends.protocol import UNOBSERVED, RunSettings

        watched = self.watches(options)
        dump = self.options.dump if test else None
        replayed = self.replayed
        return RunSettings(
            timeout=self.timeout(options),
            races="races" in watched,
            dma="dma" in watched,
            observer=self.observer or UNOBSERVED,
            # Mutants run where kernels are executed.
            rewriting=None if backend.kind == "compiling" else self.mutant,
            arithmetic=self.arithmetic(options, backend),
            read_fences=options.read_fences,
            schedules=options.schedules,
            witness=options.witness,
            saved_witness=self.saved_witness if replayed is None else replayed.example.witness,
            dump=dump and str(dump / re.sub(r"[^\w.-]+", "-", test).strip("-")),
            **rest,
        )

    def timeout(self, options: Options) -> float:
        """Return the seconds that devices may be blocked, which are fewer with a mutant."""
        return options.timeout if self.mutant is None else min(options.timeout, _MUTANT_SECONDS)

    def arithmetic(self, options: Options, backend: Backend) -> str:
        """Return how a backend computes: ``"chip"``, ``"float32"``, or "" for the default.

        A simulator that only ``auto`` or ``all`` selected keeps its default where the arithmetic of
        its chip is not known.
        """
        from pallas_sim.chips import is_known
        from pytest_pallas.backends.protocol import chip_of, label

        automatic = options.arithmetic and label(backend) in self.selection.automatic
        if automatic and not is_known(chip_of(backend).name):
            return ""
        return options.arithmetic

    def require_arithmetic(self) -> None:
        """Reject ``--pallas-arithmetic=chip`` for named simulators without a known one.

        Raises:
          OptionError: the message names the chip, and those whose arithmetic is known.
        """
        from pallas_sim.chips import accumulations
        from pytest_pallas.backends.protocol import chip_of

        for backend in self.selection.backends:
            if backend.kind == "simulating":
                accumulations(chip_of(backend).name, self.arithmetic(self.options, backend))

    def options_for(self, node: pytest.Item | pytest.Collector | None) -> Options:
        """Return the session's options with the marks of a test.

        Raises:
          OptionError: a mark has a wrong argument or value.
        """
        options = self.options
        if node is None:
            return options
        for mark in reversed(list(node.iter_markers("pallas"))):
            values = {k: v for k, v in mark.kwargs.items() if k not in MARK_ONLY}
            options = options.replaced(**values)
            choose(options.checks, self.check_names, "mark pallas(checks=...)")
            choose(options.sanitize, self.sanitizer_names, "mark pallas(sanitize=...)")
        return options

    def usual_options_for(self, node: pytest.Item) -> Options:
        """Return a test's options; those of the session if a mark is wrong, as its set-up says."""
        try:
            return self.options_for(node)
        except OptionError:
            return self.options

    def checks_for(self, options: Options) -> list[Check]:
        """Return the checks that options select, without sanitizers that they leave out.

        Selected sanitizers, by name or ``all``, run in addition to selected checks.

        Raises:
          OptionError: a check has an unknown name.
        """
        watching = self.sanitizers_for(options)
        usual = [name for name, check in self.checks.items() if not check.opt_in]
        names = choose(options.checks, self.checks, "checks", usual)
        if "sanitize" in options.explicit:
            names = tuple(dict.fromkeys((*names, *watching)))
        chosen = [self.checks[name] for name in names]
        opted = {check.name for check in chosen if check.opt_in and check.name in options.checks}
        run = {*watching, *opted}
        return [check for check in chosen if check.kind == "check" or check.name in run]

    def sanitizers_for(self, options: Options) -> tuple[str, ...]:
        """Return names of the sanitizers that ``--pallas-sanitize`` or a mark selects.

        Raises:
          OptionError: an unknown name.
        """
        known = self.sanitizer_names
        usual = [name for name in known if not self.checks[name].opt_in]
        return choose(options.sanitize, known, "sanitize", usual)

    def watches(self, options: Options) -> frozenset[str]:
        """Return the detectors that the selected sanitizers enable in the runs of all checks.

        Raises:
          OptionError: a sanitizer has an unknown name.
        """
        chosen = (self.checks[name].watches for name in self.sanitizers_for(options))
        return frozenset(field for field in chosen if field)

    def backends_for(
        self, marks: Sequence[pytest.Mark], *, every: bool = False
    ) -> tuple[list[Backend], str]:
        """Return the backends of a test with these marks (closest first), and the reason if none.

        With ``every``, also backends that run only some kernels.

        Raises:
          OptionError: a mark names an unknown backend or target, or gives positional arguments.
        """
        from pytest_pallas.backends.protocol import label
        from pytest_pallas.backends.registry import parse

        names, targets, reason = names_and_targets(marks)
        if names is not None:
            backends = [backend for name in names for backend in parse(name, self.families)]
        else:
            backends = [b for b in self.selection.backends if every or self._takes(b)]
        if targets is not None:
            backends = with_targets(backends, targets, self.families)
        missing = {label(b): why for b in backends if (why := b.available()) is not None}
        available = [backend for backend in backends if label(backend) not in missing]
        if available:
            return available, ""
        why = "; ".join(f"{name}: {text}" for name, text in missing.items())
        if not missing:
            have = ", ".join(label(backend) for backend in self.selection.backends)
            why = f"no target of {', '.join(targets or ())} among the backends {have}"
        return [], f"{reason}: {why}" if reason else why

    def _takes(self, backend: Backend) -> bool:
        """Return whether a kernel without a spec runs on a backend of the selection."""
        from pytest_pallas.backends.protocol import label

        chosen = self.selection
        if chosen.replaced(backend):
            return False
        named = chosen.named and label(backend) not in chosen.automatic
        return named or backend.kind == "hardware" or self.families[backend.name].implied


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


# The backends in the ``pallas`` marks of a test.


def names_and_targets(
    marks: Sequence[pytest.Mark],
) -> tuple[list[str] | None, list[str] | None, str]:
    """Return the names of backends and of targets, each None if no mark has them, and the reason.

    Args:
      marks: closest first.

    Raises:
      OptionError: a mark has a positional argument.
    """
    names: list[str] | None = None
    targets: list[str] | None = None
    reason = ""
    for mark in reversed(marks):
        if mark.args:
            raise OptionError(
                f"the pallas mark takes keywords only, such as backends=[...], not {mark.args!r}"
            )
        if "backends" in mark.kwargs:
            names = _names(mark.kwargs["backends"])
        if "targets" in mark.kwargs:
            targets = _names(mark.kwargs["targets"])
        reason = mark.kwargs.get("reason", reason)
    return names, targets, reason


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def with_targets(
    backends: Sequence[Backend], targets: Sequence[str], families: Mapping[str, Family]
) -> list[Backend]:
    """Return backends for selected targets: one without a target gets each of its family's.

    Raises:
      OptionError: no family has such a target.
    """
    from pytest_pallas.backends.registry import with_target

    known = {name for family in families.values() for name in family.targets}
    unknown = sorted(set(targets) - known)
    if unknown:
        raise OptionError(
            f"the pallas mark names unknown targets {unknown}; known: {', '.join(sorted(known))}"
        )
    targeted: list[Backend] = []
    for backend in backends:
        family = families[backend.name]
        if not family.targets:
            targeted.append(backend)  # it has no targets
        elif backend.target is None:
            for target in targets:
                if target in family.targets:
                    targeted.append(with_target(backend, target, families))
        elif backend.target.name in targets:
            targeted.append(backend)
    return targeted
