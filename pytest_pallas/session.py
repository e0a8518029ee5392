"""The state of one pytest session, kept in ``config.stash``: options, backends, running test."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_pallas.checks import NAMES as CHECKS
from pytest_pallas.errors import GoldenError, OptionError
from pytest_pallas.options import Options, choose, place_of, read_options
from pytest_pallas.sanitizers import NAMES as SANITIZERS

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

    from pytest_pallas.backends import Backend, Call, Family, Selection
    from pytest_pallas.checks import Check
    from pytest_pallas.checks.golden import Goldens
    from pytest_pallas.compilers.costs import RecordedCosts
    from pytest_pallas.compilers.service import Service
    from pytest_pallas.goldens.example import Loaded
    from pytest_pallas.mutation import Operator
    from pytest_pallas.oracle.expected import ExpectedCache
    from pytest_pallas.record import NotApplicable
    from pytest_pallas.sanitizers.runs import Runs

#: Seconds that a kernel with a mutant may wait for what never comes.
_MUTANT_SECONDS = 15.0

#: What the ``pallas`` mark takes besides the options that it can set.
_MARK_ONLY = ("backends", "targets", "reason")


@dataclass(frozen=True)
class LastRun:
    """A call of a kernel that a test made: its name, where it ran, and the call."""

    kernel: str
    backend: Backend
    call: Call


@dataclass(kw_only=True)
class Session:
    """What the plugin knows of a session. One per process, made in ``pytest_configure``.

    Backends and checks are looked up when they are first asked for: most pytest runs need none.
    """

    config: pytest.Config
    options: Options
    #: What the running test has found so far, by (kernel, check, backend); see ``ResultBuilder``.
    builders: dict[tuple[str, str, str], Any] = field(default_factory=dict[Any, Any])
    #: Drawn calls for compiling backends, by spec and count; see ``items.precompile``.
    drawn: dict[Any, tuple[Any, ...]] = field(default_factory=dict[Any, Any])
    #: Where the checks of a spec draw from; see ``suites.variety``.
    sources: dict[Any, Any] = field(default_factory=dict[Any, Any])
    #: The running test.
    item: pytest.Item | None = None
    #: The generators of ``pallas_rng``, which start anew in each test.
    generators: list[Any] = field(default_factory=list[Any])
    #: Places of ``--pallas-database`` that could not be reached, and what that meant.
    lost_places: dict[str, str] = field(default_factory=dict[str, str])
    #: Who is told of each example and call, where tests are isolated; see ``isolation``.
    observer: Any = None
    #: The mistake that kernels are run with at the moment (``mutation.Mutant``), or None.
    mutant: Any = None
    #: Mutants that a test or spec of this process, or an earlier run, has killed: key and name.
    killed: dict[str, str] = field(default_factory=dict[str, str])
    #: How many items were collected, before some were deselected.
    collected: int = 0
    #: Checks that do not apply, by the node id that they would have.
    not_applicable: dict[str, NotApplicable] = field(default_factory=dict[str, "NotApplicable"])
    #: Which check raised first, by kernel, backend and mesh; see ``suites.raised``.
    raised: dict[str, tuple[str, str, bool]] = field(
        default_factory=dict[str, tuple[str, str, bool]]
    )
    #: Keys of mutants that an earlier run did not catch, and that a spec said are no mistakes.
    marked: set[str] = field(default_factory=set[str])
    #: What the running test ran last, kept for ``--pallas-trace`` only.
    ran: LastRun | None = None
    #: Whether a test of this process failed of which there is a timeline.
    traced_failure: bool = False

    def note_run(self, kernel: str, backend: Backend, make: Callable[[], Call]) -> None:
        """Keep a call that a test is about to make, if somebody may want its timeline."""
        if self.options.trace is not None:
            self.ran = LastRun(kernel, backend, make())

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """The known backends by name, those of the hook included."""
        from pytest_pallas.backends import FAMILIES, compiling

        extra = self.config.hook.pytest_pallas_backends(config=self.config)
        more = [family for each in cast("list[Sequence[Family]]", extra) for family in each]
        own = (*FAMILIES, *compiling(lambda: self.service))
        return {family.name: family for family in (*own, *more)}

    @cached_property
    def _hooked_checks(self) -> Sequence[Check]:
        """The checks and sanitizers that projects add by the hook."""
        extra = self.config.hook.pytest_pallas_checks(config=self.config)
        return [check for each in cast("list[Sequence[Check]]", extra) for check in each]

    @cached_property
    def checks(self) -> Mapping[str, Check]:
        """The known checks and sanitizers by name, those of the hook included. It imports JAX."""
        from pytest_pallas.checks import declared_checks
        from pytest_pallas.sanitizers import declared_sanitizers

        known = (*declared_checks(), *declared_sanitizers(), *self._hooked_checks)
        return {check.name: check for check in known}

    @cached_property
    def check_names(self) -> tuple[str, ...]:
        """The names of ``checks``, without JAX: options are read before it may be imported."""
        hooked = (check.name for check in self._hooked_checks)
        return tuple(dict.fromkeys((*CHECKS, *SANITIZERS, *hooked)))

    @cached_property
    def sanitizer_names(self) -> tuple[str, ...]:
        """The names of those that are sanitizers, likewise."""
        hooked = (check.name for check in self._hooked_checks if check.kind == "sanitizer")
        return tuple(dict.fromkeys((*SANITIZERS, *hooked)))

    @cached_property
    def base(self) -> Check:
        """The check that every other one builds on."""
        from pytest_pallas.checks import declared_checks

        return self.checks[next(check.name for check in declared_checks() if check.base)]

    @cached_property
    def operator_names(self) -> tuple[str, ...]:
        """Names of the known mutation operators, those of the hook included. It imports JAX.

        Raises:
          OptionError: two have the same name.
        """
        from pytest_pallas.mutation import added_operators, known_operators

        extra = self.config.hook.pytest_pallas_mutation_operators(config=self.config)
        own = [operator for each in cast("list[Sequence[Operator]]", extra) for operator in each]
        adding = contextlib.ExitStack()
        adding.enter_context(added_operators(own))
        self.config.add_cleanup(adding.close)
        return tuple(operator.name for operator in known_operators())

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """Names of the mutation operators to use.

        Raises:
          OptionError: an unknown name.
        """
        place = place_of(self.config, "mutate_operators")
        return choose(self.options.mutate_operators, self.operator_names, place)

    @property
    def chosen_operators(self) -> bool:
        """Whether only some of the mutation operators are used."""
        return set(self.operators) != set(self.operator_names)

    @cached_property
    def selection(self) -> Selection:
        """The chosen backends. The first use may import jax, to look for hardware."""
        from pytest_pallas.backends import select

        return select(self.options.backend, self.families)

    @cached_property
    def cache(self) -> ExpectedCache:
        """Expectations that checks and backends share."""
        from pytest_pallas.oracle.expected import ExpectedCache

        return ExpectedCache()

    @cached_property
    def runs(self) -> Runs:
        """Runs that sanitizers share."""
        from pytest_pallas.sanitizers.runs import Runs

        return Runs()

    @cached_property
    def service(self) -> Service:
        """The workers and the cache of the compiling backends, ended with the session."""
        from pytest_pallas.compilers.service import Service

        options = self.options
        cache = self.config.cache if hasattr(self.config, "cache") else None
        service = Service(
            workers=_cores_for(self.config),
            memory_bytes=int(options.worker_memory * 2**30),
            cache=None if cache is None else cache.mkdir("pallas-compile"),
            everything=options.dump is not None,
        )
        self.config.add_cleanup(service.close)
        return service

    @cached_property
    def costs(self) -> RecordedCosts | None:
        """What the code of kernels may cost; None unless it is to be compared."""
        if self.options.cost != "compare":
            return None
        from pytest_pallas.compilers.costs import load

        return load(self.cost_file, self.options.cost_limit)

    @cached_property
    def goldens(self) -> Goldens | None:
        """What is done with answers; None unless they are to be kept or compared."""
        if self.options.golden == "off":
            return None
        from pytest_pallas.checks.golden import Goldens
        from pytest_pallas.goldens.store import Store

        return Goldens(
            store=Store(self.config.rootpath / self.options.golden_dir),
            mode=cast("Any", self.options.golden),
            most=self.options.max_bytes,
            ci=os.environ.get("CI", "").lower() in ("true", "1"),
        )

    @cached_property
    def replayed(self) -> Loaded | None:
        """The example of ``--pallas-replay``, if one is given.

        Raises:
          OptionError: its file is none, or damaged, or safetensors is not installed.
        """
        if self.options.replay is None:
            return None
        from pytest_pallas.goldens.example import load_example

        try:
            return load_example(self.config.invocation_params.dir / self.options.replay)
        except GoldenError as error:
            raise OptionError(f"{place_of(self.config, 'replay')}: {error}") from None

    @cached_property
    def database(self) -> ExampleDatabase | None:
        """Where failing examples are kept: at the places asked for, or as hypothesis' profile says.

        None where none are kept.
        """
        from pytest_pallas.database.opening import default_database, open_places

        if not self.options.database:
            return default_database()
        root = self.config.rootpath
        return open_places(self.options.database, root, self.lost_places.setdefault)

    def database_for(self, owner: str) -> ExampleDatabase | None:
        """The database as a test of this name sees it, whose key other tests share."""
        from pytest_pallas.database.guarded import Owned

        return None if self.database is None else Owned(self.database, owner)

    @property
    def cost_file(self) -> Path:
        """The file of recorded costs."""
        return self.config.rootpath / self.options.cost_file

    def timeout(self, options: Options) -> float:
        """Seconds that a kernel may wait at the moment: fewer with a mutant, which may hang."""
        return options.timeout if self.mutant is None else min(options.timeout, _MUTANT_SECONDS)

    def dump_folder(self, name: str) -> str | None:
        """The folder that a test of this name dumps to; None unless dumps are wanted."""
        if self.options.dump is None:
            return None
        return str(self.options.dump / re.sub(r"[^\w.-]+", "-", name).strip("-"))

    def options_for(self, node: pytest.Item | pytest.Collector | None) -> Options:
        """The session's options with what the marks of a test say.

        Raises:
          OptionError: a mark has an argument or a value that it cannot have.
        """
        options = self.options
        if node is None:
            return options
        for mark in reversed(list(node.iter_markers("pallas"))):
            values = {k: v for k, v in mark.kwargs.items() if k not in _MARK_ONLY}
            options = options.replaced(**values)
            choose(options.checks, self.check_names, "mark pallas(checks=...)")
            choose(options.sanitize, self.sanitizer_names, "mark pallas(sanitize=...)")
        return options

    def checks_for(self, options: Options) -> list[Check]:
        """The checks that options choose, without sanitizers that ``--pallas-sanitize`` leaves out.

        Sanitizers that were chosen, by name or ``all``, run besides checks that were.

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
        return [each for each in chosen if each.kind == "check" or each.name in {*watching, *opted}]

    def sanitizers_for(self, options: Options) -> tuple[str, ...]:
        """Names of the sanitizers that ``--pallas-sanitize`` or a mark chooses.

        Raises:
          OptionError: an unknown name.
        """
        known = self.sanitizer_names
        usual = [name for name in known if not self.checks[name].opt_in]
        return choose(options.sanitize, known, "sanitize", usual)

    def watches(self, options: Options) -> frozenset[str]:
        """What the runs of every check look for, because of the sanitizers that options choose.

        Raises:
          OptionError: a sanitizer has an unknown name.
        """
        chosen = (self.checks[name].watches for name in self.sanitizers_for(options))
        return frozenset(field for field in chosen if field)

    def backends_for(
        self, marks: Sequence[pytest.Mark], *, every: bool = False
    ) -> tuple[list[Backend], str]:
        """The backends of a test with these marks (closest first), and why there are none.

        With ``every``, also those that only some kernels are run on.

        Raises:
          OptionError: a mark names an unknown backend or target, or gives positional arguments.
        """
        from pytest_pallas.backends import label, parse

        names, targets, reason = _marked(marks)
        if names is not None:
            wanted = [backend for name in names for backend in parse(name, self.families)]
        else:
            wanted = [b for b in self.selection.backends if every or self._takes(b)]
        if targets is not None:
            wanted = _with_targets(wanted, targets, self.families)
        missing = {label(b): why for b in wanted if (why := b.available()) is not None}
        found = [backend for backend in wanted if label(backend) not in missing]
        if found:
            return found, ""
        why = "; ".join(f"{name}: {text}" for name, text in missing.items())
        if not missing:
            have = ", ".join(label(backend) for backend in self.selection.backends)
            why = f"no target of {', '.join(targets or ())} among the backends {have}"
        return [], f"{reason}: {why}" if reason else why

    def _takes(self, backend: Backend) -> bool:
        """Whether a kernel of which nothing is known is run on a backend of the selection."""
        from pytest_pallas.backends import label

        chosen = self.selection
        if chosen.replaced(backend):
            return False
        named = chosen.named and label(backend) not in chosen.automatic
        return named or backend.kind == "hardware" or self.families[backend.name].implied


def variant_of(item: pytest.Item) -> str:
    """The parameters of a test of one's own, as in its node id, without the backend."""
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None:
        return ""
    from pytest_pallas.backends import label

    backend = callspec.params.get("pallas_backend")
    if backend is None or isinstance(backend, str):
        return callspec.id
    words = callspec.id.replace(label(backend), "", 1)
    return "-".join(word for word in words.split("-") if word)


def _cores_for(config: pytest.Config) -> int:
    """How many compilers this process may run: the cores, shared with other test processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = getattr(config, "workerinput", {}).get("workercount", 1)  # under pytest-xdist
    return max(1, (cores or 1) // processes)


SESSION = pytest.StashKey[Session]()

#: Set on an item whose kernel raised: where (``SpecItem.place``), the check, the item's name, and
#: whether that was expected.
RAISED = pytest.StashKey[tuple[str, str, str, bool]]()

#: Set on an item that is not run because the kernel has raised: the name of the item where it did.
STOPPED_BY = pytest.StashKey[str]()

#: The attribute of a report that holds what ``RAISED`` says.
RAISED_ON = "pallas_raised"

#: The attribute that holds what pytest is to call its test, where that was skipped for a reason of
#: ours: then it is counted, and not listed by ``-ra``.
STATUS = "pallas_status"

#: The key of what a worker of pytest-xdist tells when it ends: the checks that do not apply.
OUTPUT = "pallas_not_applicable"

#: What is wrong with the marks of a test; it fails with that, and other tests run.
PROBLEM = pytest.StashKey[str]()


def start(config: pytest.Config) -> Session:
    """Read and validate everything the user said, and keep the session in ``config.stash``.

    Raises:
      pytest.UsageError: an option, ini value or name is wrong.
    """
    options = read_options(config)
    session = Session(config=config, options=options)
    try:
        if "checks" in options.explicit:
            choose(options.checks, session.check_names, place_of(config, "checks"))
        if "sanitize" in options.explicit:
            choose(options.sanitize, session.sanitizer_names, place_of(config, "sanitize"))
        if options.database:
            _validated_places(session)
    except OptionError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SESSION] = session
    return session


def current(config: pytest.Config) -> Session:
    """The session that ``start`` made."""
    return config.stash[SESSION]


def _validated_places(session: Session) -> None:
    """Refuse places of examples that cannot be opened."""
    from pytest_pallas.database.opening import validate

    try:
        validate(session.options.database, session.config.rootpath)
    except OptionError as error:
        raise OptionError(f"{place_of(session.config, 'database')}: {error}") from None


def look_for_named_backends(session: Session) -> None:
    """Look for the backends that were named: a wrong name must stop pytest before it collects.

    This starts JAX, so the number of devices must be settled.

    Raises:
      OptionError: a name is unknown, or its backend is not available here.
    """
    from pytest_pallas.errors import BackendUnavailableError

    if "backend" not in session.options.explicit or session.options.backend == ("auto",):
        return
    try:
        session.selection  # noqa: B018 - found at its first use
    except (OptionError, BackendUnavailableError) as error:
        raise OptionError(f"{place_of(session.config, 'backend')}: {error}") from None


def _marked(marks: Sequence[pytest.Mark]) -> tuple[list[str] | None, list[str] | None, str]:
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


def _with_targets(
    wanted: Sequence[Backend], targets: Sequence[str], families: Mapping[str, Family]
) -> list[Backend]:
    """Backends for chosen targets: a backend without one takes each that its family has."""
    from pytest_pallas.backends import with_target

    known = {name for family in families.values() for name in family.targets}
    unknown = sorted(set(targets) - known)
    if unknown:
        raise OptionError(
            f"the pallas mark names unknown targets {unknown}; known: {', '.join(sorted(known))}"
        )
    found: list[Backend] = []
    for backend in wanted:
        family = families[backend.name]
        if not family.targets:
            found.append(backend)  # it stands for no chip in particular
        elif backend.target is None:
            for target in targets:
                if target in family.targets:
                    found.append(with_target(backend, target, families))
        elif backend.target.name in targets:
            found.append(backend)
    return found
