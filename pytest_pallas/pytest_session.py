"""The session of a run of pytest, kept in ``config.stash``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.processes import gang
from pytest_pallas.decoding import Exact
from pytest_pallas.errors import GoldenError
from pytest_pallas.options import choose, place_of, read_options
from pytest_pallas.results import RunResults
from pytest_pallas.session import Harness, Session, SpecFacts

if TYPE_CHECKING:
    from pytest_pallas.backends.devices import Pinning
    from pytest_pallas.backends.protocol import Backend
    from pytest_pallas.backends.registry import DeviceFacts, Family
    from pytest_pallas.checks import Check
    from pytest_pallas.judge.tolerance import Tolerance
    from pytest_pallas.mutate import Operator
    from pytest_pallas.record import NotApplicable
    from pytest_pallas.replay.goldens import LoadedExample
    from pytest_pallas.spec import KernelSpec


@dataclass(kw_only=True)
class PytestSession(Session):
    """The plugin's state of a session. One per process, made in ``pytest_configure``."""

    config: pytest.Config
    #: The backend of ``pallas_backend`` in tests that cannot be repeated for each selected backend.
    unrepeated: Backend | None = None
    #: What each worker of pytest-xdist sees, in the process that starts them; None for all devices.
    pinning: Pinning | None = None
    #: Whether this process only starts others, which have the devices (``gang.plugin``).
    delegates: bool = False
    #: Whether something opened an accelerator in this process, so that no worker can own it.
    opened_early: bool = False
    #: The devices that these have told of, by the name of their backend.
    told_devices: dict[str, DeviceFacts] = field(default_factory=dict[str, "DeviceFacts"])
    #: Whether this process reports; one host of several does.
    reports: bool = True
    #: The generators of ``pallas_rng``, which are reset for each test.
    generators: list[Any] = field(default_factory=list[Any])
    #: Mutants that a test or spec of this process, or an earlier run, killed: key and name.
    killed: dict[str, str] = field(default_factory=dict[str, str])
    #: Those that an earlier run killed: ``--pallas-mutate-after``.
    killed_earlier: dict[str, str] = field(default_factory=dict[str, str])
    #: Keys of survivors of an earlier run that a spec marked as equivalent.
    marked: set[str] = field(default_factory=set[str])
    #: What another process has learned of specs: this one runs tests for it, and draws and traces
    #: nothing at collection. None if it learns that itself.
    given_facts: Mapping[tuple[str, str], SpecFacts] | None = None
    #: The spec, by file and name, of which this process learns for another one.
    learns: tuple[str, str] | None = None
    #: Node ids of the tests to run, if other processes than this one collect them; else None.
    remote_tests: Sequence[str] | None = None
    #: Number of collected items, before deselection.
    collected: int = 0
    #: Checks that do not apply, by their node id.
    not_applicable: dict[str, NotApplicable] = field(default_factory=dict[str, "NotApplicable"])
    #: The check that raised first, by kernel, backend and mesh; see ``run.item``.
    raised: dict[str, tuple[str, str, bool]] = field(
        default_factory=dict[str, tuple[str, str, bool]]
    )
    #: Digests of the modules of the suite, by name, once tests are collected.
    suite_digests: dict[str, str] = field(default_factory=dict[str, str])
    #: Digests of the Python files of the suite and of the tests, by path, likewise.
    file_digests: dict[str, str] = field(default_factory=dict[str, str])
    #: Node ids of the tests that the run that is taken up has finished; see ``--pallas-resume``.
    done: frozenset[str] = frozenset()
    #: Those of them that were collected.
    done_items: list[pytest.Item] = field(default_factory=list[pytest.Item])
    #: A line about the shard that runs; "" for the whole.
    shard_line: str = ""
    #: Runs the check of an item by the function, which runs it here. ``isolate`` may do so in
    #: another process.
    run_item: Callable[[Any, Callable[[], None]], None] = lambda _, here: here()
    #: Replaces the items of a spec, by node and spec. ``mutate`` makes one of them.
    replace_items: Callable[[Any, KernelSpec, Iterable[pytest.Item]], Iterable[pytest.Item]] = (
        lambda _, __, items: items
    )
    #: The workers of ``--pallas-fleet``; None without it.
    fleet: FleetFacts | None = None
    #: Whether other shards have all tests.
    empty_shard: bool = False
    #: The usage error of a worker of pytest-xdist that collected tests; "" if there is none.
    refusal: str = ""
    #: Whether this process has the timeline of a failed test.
    traced_failure: bool = False

    @cached_property
    def operator_names(self) -> tuple[str, ...]:
        """Names of the known mutation operators, including those of the hook. Imports JAX.

        Raises:
          OptionError: two have the same name.
        """
        from pytest_pallas.mutate import added_operators, known_operators

        extra = self.config.hook.pytest_pallas_mutation_operators(config=self.config)
        added = cast("list[Sequence[Operator]]", extra)
        own = [operator for operators in added for operator in operators]
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
        source = place_of(self.config, "mutate_operators")
        return choose(self.options.mutate_operators, self.operator_names, source)

    @property
    def chosen_operators(self) -> bool:
        """Whether only some mutation operators are used."""
        return set(self.operators) != set(self.operator_names)

    def devices_told(self, name: str) -> DeviceFacts:
        """Return the devices that a process of this one has told of."""
        from pytest_pallas.backends.registry import DeviceFacts

        return self.told_devices.get(name) or DeviceFacts(problem="no worker has told of one")

    @property
    def in_worker(self) -> bool:
        """Whether this process runs isolated tests for another one."""
        return self.config.pluginmanager.has_plugin(WORKER)

    @property
    def leaves_out(self) -> bool:
        """Whether checks that apply to no kernel are left out; not if one example is selected.

        The process of isolated tests collects everything, and runs requested items.
        """
        narrow = self.options.replay or self.options.mutate is not None
        learns = not self.in_worker or self.learns is not None or gang() is not None
        return not narrow and learns

    @cached_property
    def replayed(self) -> LoadedExample | None:
        """The example of ``--pallas-replay``, if a file is given.

        Raises:
          OptionError: the file is missing or damaged, or safetensors is not installed.
        """
        file = self.options.replay.file
        if file is None:
            return None
        from pytest_pallas.replay.goldens import load_example

        path = self.config.invocation_params.dir / file
        try:
            return load_example(path)
        except GoldenError as error:
            neither = "" if path.exists() else ", and it is no blob that a failure prints"
            raise OptionError(f"{place_of(self.config, 'replay')}: {error}{neither}") from None


def harness_of(config: pytest.Config) -> Harness:
    """Return the ``Harness`` of pytest."""

    def families() -> Sequence[Family]:
        extra = config.hook.pytest_pallas_backends(config=config)
        return [family for families in cast("list[Sequence[Family]]", extra) for family in families]

    def checks() -> Sequence[Check]:
        extra = config.hook.pytest_pallas_checks(config=config)
        return [check for checks in cast("list[Sequence[Check]]", extra) for check in checks]

    def tolerance(**call: Any) -> Tolerance | None:
        return config.hook.pytest_pallas_tolerance(config=config, **call)

    def cache(name: str) -> Path | None:
        return config.cache.mkdir(name) if hasattr(config, "cache") else None

    return Harness(
        families=families,
        checks=checks,
        tolerance=tolerance,
        root=config.rootpath,
        cache=cache,
        at_end=config.add_cleanup,
        processes=getattr(config, "workerinput", {}).get("workercount", 1),  # under pytest-xdist
    )


#: The name of the plugin in processes that run isolated tests for another one.
WORKER = "pallas-worker"

SESSION = pytest.StashKey[PytestSession]()

#: Set on an item whose kernel raised: ``SpecItem.kernel_key``, the check, the item's name, and
#: whether that was expected.
RAISED = pytest.StashKey[tuple[str, str, str, bool]]()

#: Set on an item that does not run because the kernel raised: the name of the item where it did.
STOPPED_BY = pytest.StashKey[str]()


@dataclass(frozen=True)
class Part:
    """A part of an item; see ``distribute.parts``.

    Attributes:
      kind: ``"rounds"`` of fuzzing, or ``"mutants"``.
      first: number of its first round or mutant, from 0.
      last: number of its last one, which is included. Numbers beyond the end of the item are left
        out.
    """

    kind: Literal["rounds", "mutants"]
    first: int
    last: int


#: The part of an item to run, and the seconds to fuzz it, if another process asks for them.
PART = pytest.StashKey[Part]()
SECONDS = pytest.StashKey[float]()

#: The result of a part of an item, as plain JSON values.
PART_OUTCOME = pytest.StashKey[dict[str, Any]]()

#: The attribute of a report with the records of its test as plain JSON values.
RECORDS = "pallas_records"

#: The title of the plugin's section on the report of a failed test.
SECTION = "pallas"

#: The attribute of a report with the value of ``PART_OUTCOME``.
PART_RESULT = "pallas_part"

#: The attribute of a report with the value of ``RAISED``.
RAISED_ON = "pallas_raised"

#: The attribute with the status of a test that the plugin skipped: it is counted under that, and
#: ``-ra`` does not list it.
STATUS = "pallas_status"

#: The key of the checks that do not apply in the output of an xdist worker.
OUTPUT = "pallas_not_applicable"

#: Likewise for the line about a shard, and whether it is empty.
SHARD = "pallas_shard"

#: Likewise for its devices.
DEVICES = "pallas_devices"

#: Likewise for its usage error.
REFUSAL = "pallas_refusal"

#: The key of the tests that are done in the input of an xdist worker.
DONE = "pallas_done"

#: The error of a test's marks; the test fails with it, and other tests run.
PROBLEM = pytest.StashKey[str]()


def note_raised(session: PytestSession, report: pytest.TestReport) -> None:
    """Record the kernel of a report that raised, here or in another process.

    Its other tests do not run.
    """
    raised = getattr(report, RAISED_ON, None)
    if raised is not None:
        key, check, name, expected = raised
        session.raised.setdefault(key, (check, name, expected))


def variant_of(item: pytest.Item) -> str:
    """Return the parameters of a user-written test, as in its node id, without the backend."""
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None:
        return ""
    from pytest_pallas.backends.protocol import label

    backend = callspec.params.get("pallas_backend")
    if backend is None or isinstance(backend, str):
        return callspec.id
    text = callspec.id.replace(label(backend), "", 1)
    return "-".join(word for word in text.split("-") if word)


def start(config: pytest.Config) -> PytestSession:
    """Parse and validate all options, and store the session in ``config.stash``.

    Raises:
      pytest.UsageError: an option, ini value or name is wrong.
    """
    options = read_options(config)
    session = PytestSession(config=config, options=options, harness=harness_of(config))
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


def current(config: pytest.Config) -> PytestSession:
    """Return the session from ``start``."""
    return config.stash[SESSION]


def _validated_places(session: PytestSession) -> None:
    """Reject places of ``--pallas-database`` that cannot be opened."""
    from pytest_pallas.draw.database import validate

    try:
        validate(session.options.database, session.harness.root)
    except OptionError as error:
        raise OptionError(f"{place_of(session.config, 'database')}: {error}") from None


def look_for_named_backends(session: PytestSession) -> None:
    """Check the named backends, so that a wrong name stops pytest before collection.

    This starts JAX, so the number of devices must be set before. If other processes have the
    devices, this one must not open them, and only names are checked.

    Raises:
      OptionError: a name is unknown, or its backend is not available here.
    """
    from pytest_pallas.backends.registry import WORDS, parse
    from pytest_pallas.errors import BackendUnavailableError

    automatic = "backend" not in session.options.explicit or session.options.backend == ("auto",)
    if automatic and session.elsewhere is None:
        return
    if session.in_worker and gang() is None:
        return  # the process that asks decides; each request says which devices it needs
    try:
        if session.pinning is not None or session.delegates:
            for word in session.options.backend:
                if word not in WORDS:
                    parse(word, session.families, others=WORDS)
            return
        session.selection  # noqa: B018 - found at its first use
    except (OptionError, BackendUnavailableError) as error:
        raise OptionError(f"{place_of(session.config, 'backend')}: {error}") from None
    try:
        if session.options.arithmetic:
            session.require_arithmetic()
    except OptionError as error:
        raise OptionError(f"{place_of(session.config, 'arithmetic')}: {error}") from None


# What an earlier part of the same run has done, as all processes of this part must know it.


@dataclass(frozen=True)
class Done:
    """The tests that ended, and what they left behind for others.

    Attributes:
      tests: their node ids.
      raised: the kernels that raised; see ``PytestSession.raised``.
      killed: the mutants that they killed, as far as no test before them is left; see
        ``PytestSession.killed``.
    """

    tests: frozenset[Exact] = frozenset()
    raised: Mapping[Exact, tuple[Exact, Exact, bool]] = field(default_factory=dict[str, Any])
    killed: Mapping[Exact, Exact] = field(default_factory=dict[str, str])


def done_of(results: RunResults) -> Done:
    """Return what a run has done so far."""
    ended = frozenset(test.test for test in results.tests)
    raised: dict[str, tuple[str, str, bool]] = {}
    for test in results.tests:
        if test.raised:
            key, check, name, expected = test.raised
            raised.setdefault(key, (check, name, expected))
    killed: dict[str, str] = {}
    # A kill counts for the tests after it only.
    first = frozenset(takewhile(ended.__contains__, results.collected))
    for record in results.records:
        for verdict in record.mutants if record.test in first else ():
            if verdict["status"] == "killed":
                # a spec names its check there, with the backend
                by = record.kernel if verdict.get("on") else verdict["by"]
                killed.setdefault(verdict["key"], by)
    return Done(ended, raised, killed)


# What a run knows of the workers of ``--pallas-fleet``.


@dataclass(kw_only=True)
class FleetFacts:
    """The workers of a run.

    Attributes:
      place: as on the command line.
      processes: number of worker processes that were started on this machine; 0 for none.
      workers: number of workers that took part.
      threads: number of tests that they run at a time, now.
      refused: why workers did not take part, by worker.
      lost: workers that were lost, with how they ended.
      tasks: number of kernels and other tests.
      done: number of those that are done.
      sent: number of tasks that were sent: parts and repeated ones count.
      repeated: number of times that the worker of a task was lost.
    """

    place: str
    processes: int = 0
    workers: int = 0
    threads: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])
    lost: dict[str, str] = field(default_factory=dict[str, str])
    tasks: int = 0
    done: int = 0
    sent: int = 0
    repeated: int = 0

    @property
    def encrypted(self) -> bool:
        """Whether the scheduler asks for certificates (TLS)."""
        return self.place.startswith(("tls://", "wss://"))


#: The path of an item's journal, where it has one.
JOURNAL = pytest.StashKey[str]()
