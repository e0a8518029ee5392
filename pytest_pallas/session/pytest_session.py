"""The session of a run of pytest, kept in ``config.stash``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_pallas.errors import GoldenError, OptionError
from pytest_pallas.options import choose, place_of, read_options
from pytest_pallas.session.state import Harness, Session

if TYPE_CHECKING:
    from pytest_pallas.backends import Backend, Family
    from pytest_pallas.checks import Check
    from pytest_pallas.goldens.example import Loaded
    from pytest_pallas.mutation import Operator
    from pytest_pallas.numerics import Tolerance
    from pytest_pallas.record import NotApplicable


@dataclass(kw_only=True)
class PytestSession(Session):
    """What the plugin knows of a session. One per process, made in ``pytest_configure``."""

    config: pytest.Config
    #: What ``pallas_backend`` gave to tests that cannot be repeated for each chosen backend.
    unrepeated: Backend | None = None
    #: The generators of ``pallas_rng``, which start anew in each test.
    generators: list[Any] = field(default_factory=list[Any])
    #: Mutants that a test or spec of this process, or an earlier run, has killed: key and name.
    killed: dict[str, str] = field(default_factory=dict[str, str])
    #: Keys of mutants that an earlier run did not catch, and that a spec said are no mistakes.
    marked: set[str] = field(default_factory=set[str])
    #: How many items were collected, before some were deselected.
    collected: int = 0
    #: Checks that do not apply, by the node id that they would have.
    not_applicable: dict[str, NotApplicable] = field(default_factory=dict[str, "NotApplicable"])
    #: Which check raised first, by kernel, backend and mesh; see ``items.item``.
    raised: dict[str, tuple[str, str, bool]] = field(
        default_factory=dict[str, tuple[str, str, bool]]
    )
    #: Whether a test of this process failed of which there is a timeline.
    traced_failure: bool = False

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

    @property
    def in_worker(self) -> bool:
        """Whether this process runs isolated tests for another one."""
        return self.config.pluginmanager.has_plugin(WORKER)

    @property
    def leaves_out(self) -> bool:
        """Whether checks that apply to no kernel are left out: not where one example is chosen.

        The process of isolated tests collects everything, and is asked for what was left.
        """
        told = self.options.replay or self.options.mutate is not None
        return not told and not self.in_worker

    @cached_property
    def replayed(self) -> Loaded | None:
        """The example of ``--pallas-replay``, if a file is given.

        Raises:
          OptionError: its file is none, or damaged, or safetensors is not installed.
        """
        file = self.options.replay.file
        if file is None:
            return None
        from pytest_pallas.goldens.example import load_example

        path = self.config.invocation_params.dir / file
        try:
            return load_example(path)
        except GoldenError as error:
            neither = "" if path.exists() else ", and it is no blob that a failure prints"
            raise OptionError(f"{place_of(self.config, 'replay')}: {error}{neither}") from None


def harness_of(config: pytest.Config) -> Harness:
    """pytest, as checks see it."""

    def families() -> Sequence[Family]:
        extra = config.hook.pytest_pallas_backends(config=config)
        return [family for each in cast("list[Sequence[Family]]", extra) for family in each]

    def checks() -> Sequence[Check]:
        extra = config.hook.pytest_pallas_checks(config=config)
        return [check for each in cast("list[Sequence[Check]]", extra) for check in each]

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


def start(config: pytest.Config) -> PytestSession:
    """Read and validate everything the user said, and keep the session in ``config.stash``.

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
    """The session that ``start`` made."""
    return config.stash[SESSION]


def _validated_places(session: PytestSession) -> None:
    """Refuse places of examples that cannot be opened."""
    from pytest_pallas.database.opening import validate

    try:
        validate(session.options.database, session.harness.root)
    except OptionError as error:
        raise OptionError(f"{place_of(session.config, 'database')}: {error}") from None


def look_for_named_backends(session: PytestSession) -> None:
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
