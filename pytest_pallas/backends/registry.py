"""The known backends by name, and what a selection such as ``tpu-interpret:v6e,gpu`` means."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from pytest_pallas.backends.protocol import Backend, Kind, label
from pytest_pallas.devices.targets import TARGETS, ChipNames, Label, Target
from pytest_pallas.errors import BackendUnavailableError, OptionError


@dataclass(frozen=True, kw_only=True)
class Family:
    """A backend before a target is chosen. Projects add their own by ``pytest_pallas_backends``.

    Attributes:
      name: as written on the command line.
      make: makes the backend for a target, or for no particular one.
      kind: what the backend proves.
      targets: names of the targets it can stand for.
      implied: whether a kernel that names no backends is run on it. Under ``auto`` the simulator
        takes the place of JAX's interpreters.
    """

    name: str
    make: Callable[[Target | None], Backend]
    kind: Kind
    targets: Sequence[str] = ()
    implied: bool = False


def _maker(function: str) -> Callable[[Target | None], Backend]:
    """A backend's constructor, imported when it is called: most pytest runs need none."""

    def make(target: Target | None) -> Backend:
        return pkgutil.resolve_name(f"pytest_pallas.backends.{function}")(target)

    return make


#: The backends that need nothing of the session, in the order of reports.
FAMILIES: tuple[Family, ...] = (
    Family(
        name="tpu-sim",
        make=_maker("simulators:tpu_sim"),
        kind="simulating",
        targets=ChipNames("tpu"),
        implied=True,
    ),
    Family(
        name="gpu-sim",
        make=_maker("simulators:gpu_sim"),
        kind="simulating",
        targets=ChipNames("gpu"),
    ),
    Family(
        name="interpret", make=_maker("interpreters:interpret"), kind="interpreting", implied=True
    ),
    Family(
        name="tpu-interpret",
        make=_maker("interpreters:tpu_interpret"),
        kind="interpreting",
        targets=ChipNames("tpu"),
        implied=True,
    ),
    Family(
        name="gpu-interpret",
        make=_maker("interpreters:gpu_interpret"),
        kind="interpreting",
        targets=ChipNames("gpu"),
    ),
    Family(name="tpu", make=_maker("hardware:tpu"), kind="hardware", targets=ChipNames("tpu")),
    Family(name="gpu", make=_maker("hardware:gpu"), kind="hardware", targets=ChipNames("gpu")),
)


def compiling(service: Callable[[], Any]) -> tuple[Family, ...]:
    """The compiling backends.

    Args:
      service: gives the ``compilers.service.Service`` that they compile with.
    """

    def maker(platform: str) -> Callable[[Target | None], Backend]:
        @functools.cache
        def lowering() -> Any:  # one for all targets
            from pytest_pallas.backends.lowering import Lowering

            return Lowering(platform)

        def make(target: Target | None) -> Backend:
            from pytest_pallas.backends.compilation import Compiler

            return Compiler(f"{platform}-compile", platform, service, lowering, target)

        return make

    return tuple(
        Family(
            name=f"{platform}-compile",
            make=maker(platform),
            kind="compiling",
            targets=ChipNames(platform),
        )
        for platform in ("tpu", "gpu")
    )


@dataclass(frozen=True)
class Selection:
    """The backends chosen for a session.

    Attributes:
      backends: the chosen backends, in order, without repetition.
      named: whether they were named, rather than found by ``auto`` or ``all``.
      left_out: what ``all`` left out, with the reason.
      automatic: labels of those that only ``auto`` brought, and of simulators that only ``auto`` or
        ``all`` brought: these run what they can simulate.
    """

    backends: tuple[Backend, ...]
    named: bool
    left_out: Mapping[str, str]
    automatic: frozenset[str] = frozenset()

    def replaced(self, backend: Backend) -> bool:
        """Whether a simulator takes the place of a backend that ``auto`` brought."""
        instead = any(backend.name in REPLACED.get(each.name, ()) for each in self.backends)
        return instead and label(backend) in self.automatic


#: What ``--pallas-backend`` takes besides names.
WORDS = ("auto", "all", "interpreters")

#: Interpreters that each simulator takes the place of under ``auto``. The last one runs what the
#: simulator does not simulate.
REPLACED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"tpu-sim": ("interpret", "tpu-interpret"), "gpu-sim": ("gpu-interpret",)}
)


def select(words: Iterable[str], families: Mapping[str, Family]) -> Selection:
    """The backends that a selection means. Imports jax only where hardware is asked for.

    Args:
      words: ``auto``, ``all``, ``interpreters``, ``NAME``, ``NAME:TARGET`` or ``NAME:all``.
      families: the known backends by name.

    Raises:
      OptionError: an unknown backend or target; the message lists the valid ones.
      BackendUnavailableError: a backend that was named is not available on this machine.
    """
    chosen: dict[str, Backend] = {}
    left_out: dict[str, str] = {}
    named = False
    automatic: set[str] = set()
    asked: set[str] = set()
    for word in words:
        unasked: set[str] = set()
        if word == "auto":
            found = _auto(families)
            unasked = {label(backend) for backend in found}
        elif word == "interpreters":
            found = [f.make(None) for f in families.values() if f.kind == "interpreting"]
        elif word == "all":
            candidates = [family.make(None) for family in families.values()]
            reasons = {label(backend): backend.available() for backend in candidates}
            left_out |= {name: reason for name, reason in reasons.items() if reason}
            found = [_complete(b, families) for b in candidates if not reasons[label(b)]]
            unasked = {label(backend) for backend in found if backend.kind == "simulating"}
        else:
            found = parse(word, families, words=WORDS)
            named = True
            _require(found, families)
            chosen |= {label(backend): backend for backend in found}
        automatic |= unasked
        asked |= {label(backend) for backend in found} - unasked
        for backend in found:
            chosen.setdefault(label(backend), backend)
    if not chosen:
        raise OptionError("no backend chosen; " + _valid(families))
    return Selection(tuple(chosen.values()), named, left_out, frozenset(automatic - asked))


def parse(word: str, families: Mapping[str, Family], *, words: Sequence[str] = ()) -> list[Backend]:
    """The backends that ``NAME``, ``NAME:TARGET`` or ``NAME:all`` means, available or not.

    Args:
      word: the name.
      families: the known backends by name.
      words: what else may be meant, for the message.

    Raises:
      OptionError: an unknown backend or target.
    """
    found = Label.of(word)
    name, target = found.name, found.target
    family = families.get(name)
    if family is None:
        import difflib

        close = difflib.get_close_matches(name, [*families, *words], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"unknown backend {name!r}.{hint} {_valid(families)}")
    if ":" not in word:
        return [family.make(None)]
    if target == "all" and family.targets:
        return [family.make(TARGETS[each]) for each in family.targets]
    if target not in family.targets:
        valid = ", ".join([*family.targets, "all"]) if family.targets else "none"
        raise OptionError(f"unknown target {target!r} of backend {name!r}; its targets: {valid}")
    return [family.make(TARGETS[target])]


def with_target(backend: Backend, target: str, families: Mapping[str, Family]) -> Backend:
    """A backend that stands for no chip in particular, for one of its family's targets."""
    made = families[backend.name].make(TARGETS[target])
    complete = getattr(backend, "otherwise", None) is not None
    return _complete(made, families) if complete else made


def _auto(families: Mapping[str, Family]) -> list[Backend]:
    """Hardware if there is some, else the simulators and every interpreter."""
    made = [(family, family.make(None)) for family in families.values()]
    hardware = [b for family, b in made if family.kind == "hardware" and b.available() is None]
    return hardware or [
        _complete(b, families)
        for family, b in made
        if family.kind in ("simulating", "interpreting")
    ]


def _complete(backend: Backend, families: Mapping[str, Family]) -> Backend:
    """A simulator with an interpreter for what it does not simulate yet."""
    name = next(iter(REPLACED.get(backend.name, ())[-1:]), "")
    if backend.kind != "simulating" or name not in families:
        return backend
    instead = families[name].make(backend.target)
    return dataclasses.replace(cast("Any", backend), otherwise=instead)


def _require(found: Sequence[Backend], families: Mapping[str, Family]) -> None:
    for backend in found:
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
    words = [
        f"{f.name}[:{'|'.join(f.targets)}]" if f.targets else f.name for f in families.values()
    ]
    return f"Valid: {', '.join([*WORDS, *words])}."
