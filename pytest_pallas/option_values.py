"""The values of the options of a session, as one frozen ``Options``.

Precedence: mark > command line > ini > profile > default. ``Options.replaced`` applies the marks of
a test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.devices import DEFAULT_COUNT
from pytest_pallas.budget import DEFAULT_MAX_BYTES
from pytest_pallas.database import DatabasePlace

if TYPE_CHECKING:
    from pallas_sim.errors import OptionError
    from pytest_pallas.database import DatabasePlace
from pytest_pallas.options import PROFILES, TABLE, Distributed, FleetPlace, Option, Replay, Shard

#: Arguments of the ``pallas`` mark that are not options.
MARK_ONLY = ("backends", "targets", "reason")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a session. Field names are option names without ``pallas``.

    Attributes:
      simulated_examples: the profile's number of examples on simulators, if it is larger than
        ``max_examples`` and ``max_examples`` is not given. It is not an option.
      explicit: names of the fields given on the command line, in the ini file or by a mark.
    """

    backend: tuple[str, ...] = ("auto",)
    suite: tuple[str, ...] = ()
    devices: int = DEFAULT_COUNT
    profile: str = "ci"
    max_examples: int = 8
    simulated_examples: int = 0
    fuzz_time: float = 0.0
    fuzz_rounds: int = 0
    max_bytes: int = DEFAULT_MAX_BYTES
    seed: int = 0
    checks: tuple[str, ...] = ("all",)
    sanitize: tuple[str, ...] = ("all",)
    arithmetic: str = ""
    timeout: float = 60.0
    isolate: str = "auto"
    missing: str = "skip"
    results: Path | None = None
    resume: Path | None = None
    html: Path | None = None
    trace: Path | None = None
    dump: Path | None = None
    cost: str = "off"
    cost_file: Path = Path("pallas_costs.json")
    cost_limit: float = 5.0
    golden: str = "off"
    golden_dir: Path = Path("pallas_goldens")
    replay: Replay = field(default_factory=Replay)
    shard: Shard | None = None
    shard_by: Path | None = None
    processes: int = 0
    distributed: Distributed | None = None
    join_timeout: float = 120.0
    fleet: FleetPlace | None = None
    worker_memory: float = 8.0
    mutate: int | None = None
    mutate_time: float = 0.0
    mutate_min: float = 0.0
    mutate_operators: tuple[str, ...] = ("all",)
    mutate_after: Path | None = None
    database: tuple[DatabasePlace, ...] = ()
    explicit: frozenset[str] = frozenset()

    def examples_on(self, kind: str, devices: int = 1) -> int:
        """The number of examples for each check on a kind of backend.

        Args:
          kind: the kind of the backend.
          devices: number of devices of the mesh. Runs on several take longer, so half as many are
            drawn.
        """
        if kind != "simulating" or "max_examples" in self.explicit:
            return self.max_examples
        return max(self.max_examples, self.simulated_examples // (1 if devices == 1 else 2))

    def replaced(self, *, where: str = "mark pallas", **values: Any) -> Options:
        """These options with the values of a mark.

        Args:
          where: the name of the mark, or of its replacement, in messages.
          values: the values, by option.

        Raises:
          OptionError: the mark names no option that a mark can set, or gives a bad value.
        """
        fields: dict[str, Any] = {}
        for name, value in values.items():
            option = next((o for o in TABLE if o.name == name and o.marked), None)
            if option is None:
                valid = ", ".join((*MARK_ONLY, *(o.name for o in TABLE if o.marked)))
                raise OptionError(f"the pallas mark has no argument {name!r}; it takes {valid}")
            text = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
            fields[name] = _parsed(option, text, f"{where}({name}=...)")
        return dataclasses.replace(self, **fields, explicit=self.explicit | set(fields))


def read_options(config: pytest.Config) -> Options:
    """The options of a session: command line, else ini, else profile, else default.

    Raises:
      pytest.UsageError: a value cannot be parsed; the message has the option and its source.
    """
    fields: dict[str, Any] = {}
    for option in TABLE:
        text = config.getoption(option.ini)
        if text is None:
            text = config.getini(option.ini)
        if text:
            try:
                fields[option.name] = _parsed(option, str(text), place_of(config, option.name))
            except OptionError as error:
                raise pytest.UsageError(str(error)) from None
    implied = PROFILES[fields.get("profile", Options.profile)]
    return Options(**{**implied, **fields}, explicit=frozenset(fields))


def place_of(config: pytest.Config, name: str) -> str:
    """The source of an option's value: command line or ini file."""
    option = next(option for option in TABLE if option.name == name)
    is_given = config.getoption(option.ini) is not None
    return option.flag if is_given else f"ini value {option.ini}"


def choose(
    chosen: Sequence[str],
    valid: Mapping[str, Any] | Sequence[str],
    option: str,
    every: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The names of a list option: ``all``, ``none``, or some of ``valid``.

    ``every`` are the names of ``all``, if it leaves some out.

    Raises:
      OptionError: an unknown name; the message lists the valid ones.
    """
    names: list[str] = []
    for word in chosen:
        if word == "all":
            names.extend(valid if every is None else every)
        elif word in valid:
            names.append(word)
        elif word != "none":
            raise OptionError(f"{option}: unknown {word!r}; valid: all, none, {', '.join(valid)}")
    return tuple(dict.fromkeys(names))


def _parsed(option: Option, text: str, source: str) -> Any:
    try:
        return option.parse(text)
    except OptionError as error:
        raise OptionError(f"{source}: {error}") from None
