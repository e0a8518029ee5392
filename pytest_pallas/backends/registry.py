"""The known backends by name, and the selection of backends such as ``tpu-interpret:v6e,gpu``."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from pallas_sim.chips import TARGETS, Label, Target, targets_of
from pallas_sim.errors import OptionError
from pallas_sim.findings import Text
from pytest_pallas.backends.protocol import Backend, Call, Kind, Outcome, label
from pytest_pallas.errors import BackendUnavailableError, IsolationError


@dataclass(frozen=True, kw_only=True)
class Family:
    """A backend without a target. Projects add their own with ``pytest_pallas_backends``.

    Attributes:
      name: as written on the command line.
      make: makes the backend for a target, or for None.
      kind: the kind of the backend.
      targets: names of its targets.
      implied: whether kernels that name no backends run on it. With ``auto``, the simulator
        replaces JAX's interpreters.
    """

    name: str
    make: Callable[[Target | None], Backend]
    kind: Kind
    targets: Collection[str] = ()
    implied: bool = False


def _family(name: str, kind: Kind, module: str, *, implied: bool = False) -> Family:
    """Return a family whose backends a function of a module makes, imported when one is made.

    Most pytest runs need none. The function is named like the family, which begins with its
    platform.
    """

    def make(target: Target | None) -> Backend:
        function = f"pytest_pallas.backends.{module}:{name.replace('-', '_')}"
        return pkgutil.resolve_name(function)(target)

    targets = targets_of(name.partition("-")[0])
    return Family(name=name, make=make, kind=kind, targets=targets, implied=implied)


#: The backends that do not need the session, in the order of reports.
FAMILIES: tuple[Family, ...] = (
    _family("tpu-sim", "simulating", "simulators", implied=True),
    _family("gpu-sim", "simulating", "simulators"),
    _family("interpret", "interpreting", "interpreters", implied=True),
    _family("tpu-interpret", "interpreting", "interpreters", implied=True),
    _family("gpu-interpret", "interpreting", "interpreters"),
    _family("tpu", "hardware", "hardware"),
    _family("gpu", "hardware", "hardware"),
)


def compiling(service: Callable[[], Any]) -> tuple[Family, ...]:
    """Return the compiling backends, and the simulated GPU that asks the compiler of GPUs.

    That one takes the place of the ``gpu-sim`` of ``FAMILIES``.

    Args:
      service: returns the ``compilers.service.Service`` that compiles.
    """

    def maker(platform: str) -> Callable[[Target | None], Backend]:
        @functools.cache
        def lowering() -> Any:  # one for all targets
            from pytest_pallas.compile.backends import Lowering

            return Lowering(platform)

        def make(target: Target | None) -> Backend:
            from pytest_pallas.compile.backends import Compiler

            return Compiler(f"{platform}-compile", platform, service, lowering, target)

        return make

    families = [
        Family(name=f"{p}-compile", make=maker(p), kind="compiling", targets=targets_of(p))
        for p in ("tpu", "gpu")
    ]

    def simulated(target: Target | None) -> Backend:
        from pytest_pallas.backends.simulators import gpu_sim

        compiler: Any = families[1].make(target)
        return dataclasses.replace(gpu_sim(target), compiler=compiler)

    (own,) = (family for family in FAMILIES if family.name == "gpu-sim")
    return (*families, dataclasses.replace(own, make=simulated))


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The devices of a hardware backend in the process that owns them.

    Attributes:
      platform: of the backend.
      kinds: the kind of each device, as JAX names it; empty if there is none.
      problem: why the backend is not available; "" if it is.
    """

    platform: str = ""
    kinds: tuple[str, ...] = ()
    problem: Text = ""


def devices_of(families: Iterable[Family]) -> dict[str, DeviceFacts]:
    """Return the devices of each hardware backend that this process finds, by name."""
    facts: dict[str, DeviceFacts] = {}
    for family in families:
        if family.kind == "hardware":
            backend: Any = family.make(None)
            problem = backend.available() or ""
            kinds = getattr(backend, "device_kinds", tuple) if not problem else tuple
            facts[family.name] = DeviceFacts(
                platform=backend.platform, kinds=tuple(kinds()), problem=problem
            )
    return facts


@dataclass(frozen=True)
class _Wrapped:
    """A hardware backend of a project, which is run as ``Hardware`` is.

    Attributes:
      backend: the backend, for what else it has.
      name, platform, target, kind: its own.
    """

    backend: Any
    name: str
    platform: str
    target: Target | None
    kind: Kind = "hardware"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the backend."""
        return getattr(self.backend, name)

    def available(self) -> str | None:
        """As the backend."""
        return self.backend.available()

    def run(self, call: Call) -> Outcome:
        """Run a call, tell its observer, and read what a device says of its failure."""
        from pytest_pallas.backends import statuses
        from pytest_pallas.compat.fuzzing import is_rejection

        call.settings.observer.traced(call, None, ())
        try:
            outcome = self.backend.run(call)
        except Exception as error:
            if is_rejection(error):
                raise
            outcome = Outcome(error=error)
        finally:
            call.settings.observer.ended(call)
        if outcome.error is None:
            return outcome
        error = statuses.readable(outcome.error, outcome.kernels)
        return dataclasses.replace(outcome, error=error)


@dataclass(frozen=True)
class OwnedElsewhere:
    """A hardware backend whose devices another process owns: this one does not even make it.

    Attributes:
      name, target, kind: its own.
      facts: returns the devices of a backend, by its name.
    """

    name: str
    target: Target | None
    facts: Callable[[str], DeviceFacts] = field(compare=False, repr=False)
    kind: Kind = "hardware"

    @property
    def platform(self) -> str:
        """The platform of its kernels; the name is that of JAX's platforms."""
        return self.facts(self.name).platform or self.name

    def available(self) -> str | None:
        """None if the process that owns the devices has such a device, else the reason."""
        facts = self.facts(self.name)
        if not facts.problem and self.target is not None and facts.kinds:
            return difference(self.platform, facts.kinds[0], self.target)
        return facts.problem or None

    def run(self, call: Call) -> Outcome:
        """Refuse: only the process that owns the devices runs calls."""
        del call
        raise IsolationError(
            f"{label(self)}: this process does not own its devices. Call kernels in tests and "
            "fixtures, which run in the process that does, or run with --pallas-isolate=never"
        )


def difference(platform: str, kind: str, target: Target) -> str | None:
    """Return how a device differs from a target; None if it is one."""
    if kind == target.device_kind:
        return None
    return f"the {platform.upper()} here is a {kind}"


def owned_elsewhere(
    family: Family, facts: Callable[[], Callable[[str], DeviceFacts] | None]
) -> Family:
    """Return a family of hardware, with the devices of another process if ``facts`` tells of them.

    Those of a project have devices here otherwise, and are run as ``Hardware``.

    Args:
      family: the family; returned as it is unless it is hardware.
      facts: returns what tells of the devices, when a backend is made; None for those of this
        process.
    """
    if family.kind != "hardware":
        return family

    own = any(family is known for known in FAMILIES)

    def make(target: Target | None) -> Backend:
        elsewhere = facts()
        if elsewhere is not None:
            return OwnedElsewhere(family.name, target, elsewhere)
        backend = family.make(target)
        return backend if own else _Wrapped(backend, backend.name, backend.platform, target)

    return dataclasses.replace(family, make=make)


@dataclass(frozen=True)
class Selection:
    """The selected backends of a session.

    Attributes:
      backends: the selected backends, in order, without repetition.
      named: whether they were named, rather than selected by ``auto`` or ``all``.
      left_out: backends that ``all`` left out, with the reasons.
      automatic: labels of backends that only ``auto`` selected, and of simulators that only
        ``auto`` or ``all`` selected: these run only the kernels that they support.
    """

    backends: tuple[Backend, ...]
    named: bool
    left_out: Mapping[str, str]
    automatic: frozenset[str] = frozenset()

    def replaced(self, backend: Backend) -> bool:
        """Return whether a simulator replaces a backend that ``auto`` selected."""
        instead = any(backend.name in REPLACED.get(other.name, ()) for other in self.backends)
        return instead and label(backend) in self.automatic


#: Values of ``--pallas-backend`` besides names.
WORDS = ("auto", "all", "interpreters")

#: Interpreters that each simulator replaces with ``auto``. The last one runs kernels that the
#: simulator does not support.
REPLACED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"tpu-sim": ("interpret", "tpu-interpret"), "gpu-sim": ("gpu-interpret",)}
)


def select(names: Iterable[str], families: Mapping[str, Family]) -> Selection:
    """Return the backends of a selection. Imports jax only for hardware.

    Args:
      names: ``auto``, ``all``, ``interpreters``, ``NAME``, ``NAME:TARGET`` or ``NAME:all``.
      families: the known backends by name.

    Raises:
      OptionError: an unknown backend or target; the message lists the valid ones.
      BackendUnavailableError: a backend that was named is not available on this machine.
    """
    chosen: dict[str, Backend] = {}
    left_out: dict[str, str] = {}
    named = False
    automatic: set[str] = set()
    kept: set[str] = set()
    for name in names:
        implied: set[str] = set()
        if name == "auto":
            backends = _auto(families)
            implied = {label(backend) for backend in backends}
        elif name == "interpreters":
            backends = [f.make(None) for f in families.values() if f.kind == "interpreting"]
        elif name == "all":
            candidates = [family.make(None) for family in families.values()]
            reasons = {label(backend): backend.available() for backend in candidates}
            left_out |= {name: reason for name, reason in reasons.items() if reason}
            backends = [_complete(b, families) for b in candidates if not reasons[label(b)]]
            implied = {label(backend) for backend in backends if backend.kind == "simulating"}
        else:
            backends = parse(name, families, others=WORDS)
            named = True
            _require(backends, families)
            chosen |= {label(backend): backend for backend in backends}
        automatic |= implied
        kept |= {label(backend) for backend in backends} - implied
        for backend in backends:
            chosen.setdefault(label(backend), backend)
    if not chosen:
        raise OptionError("no backend chosen; " + _valid(families))
    return Selection(tuple(chosen.values()), named, left_out, frozenset(automatic - kept))


def parse(
    text: str, families: Mapping[str, Family], *, others: Sequence[str] = ()
) -> list[Backend]:
    """Return the backends of ``NAME``, ``NAME:TARGET`` or ``NAME:all``, available or not.

    Args:
      text: the name.
      families: the known backends by name.
      others: other valid values, for the message.

    Raises:
      OptionError: an unknown backend or target.
    """
    named = Label.of(text)
    name, target = named.name, named.target
    family = families.get(name)
    if family is None:
        import difflib

        close = difflib.get_close_matches(name, [*families, *others], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"unknown backend {name!r}.{hint} {_valid(families)}")
    if ":" not in text:
        return [family.make(None)]
    if target == "all" and family.targets:
        return [family.make(TARGETS[chip]) for chip in family.targets]
    if target not in family.targets:
        raise OptionError(unknown_target(family, name, target, "all"))
    return [family.make(TARGETS[target])]


def unknown_target(family: Family, name: str, target: str, *others: str) -> str:
    """Return the message about a target that a backend does not have, which lists those it has."""
    valid = ", ".join([*family.targets, *others]) if family.targets else "none"
    return f"unknown target {target!r} of backend {name!r}; its targets: {valid}"


def with_target(backend: Backend, target: str, families: Mapping[str, Family]) -> Backend:
    """Return a backend without a target, for one of its family's targets."""
    made = families[backend.name].make(TARGETS[target])
    complete = getattr(backend, "otherwise", None) is not None
    return _complete(made, families) if complete else made


def _auto(families: Mapping[str, Family]) -> list[Backend]:
    """Return the hardware, if there is any, otherwise the simulators and all interpreters."""
    made = [(family, family.make(None)) for family in families.values()]
    hardware = [b for family, b in made if family.kind == "hardware" and b.available() is None]
    return hardware or [
        _complete(b, families)
        for family, b in made
        if family.kind in ("simulating", "interpreting")
    ]


def _complete(backend: Backend, families: Mapping[str, Family]) -> Backend:
    """Return a simulator with an interpreter for calls that it does not support yet."""
    name = next(iter(REPLACED.get(backend.name, ())[-1:]), "")
    if backend.kind != "simulating" or name not in families:
        return backend
    instead = families[name].make(backend.target)
    return dataclasses.replace(cast("Any", backend), otherwise=instead)


def _require(backends: Sequence[Backend], families: Mapping[str, Family]) -> None:
    for backend in backends:
        reason = backend.available()
        if reason is not None:
            instead = [
                family.name
                for family in families.values()
                if family.name != backend.name and family.make(None).available() is None
            ]
            raise BackendUnavailableError(
                f"backend {label(backend)!r} is not available: {reason}. "
                f"Available here: {', '.join(instead)}."
            )


def _valid(families: Mapping[str, Family]) -> str:
    names = [
        f"{f.name}[:{'|'.join(f.targets)}]" if f.targets else f.name for f in families.values()
    ]
    return f"Valid: {', '.join([*WORDS, *names])}."
