"""What the options of a session say, as one frozen ``Options``.

Precedence: mark > command line > ini > profile > default. Marks are applied where a test is
known, by ``Options.replaced``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.budget import DEFAULT_MAX_BYTES
from pytest_pallas.database import Place
from pytest_pallas.devices.simulate import DEFAULT_COUNT
from pytest_pallas.errors import OptionError
from pytest_pallas.options.table import PROFILES, TABLE, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a session was asked to do. Field names are option names without ``pallas``.

    Attributes:
      simulated_examples: what a profile says in place of ``max_examples`` on the simulator, if
        that is more and nobody gave ``max_examples``. It is no option.
      explicit: names of the fields that were given on the command line or in the ini file.
    """

    backend: tuple[str, ...] = ("auto",)
    suite: tuple[str, ...] = ()
    devices: int = DEFAULT_COUNT
    profile: str = "ci"
    max_examples: int = 8
    simulated_examples: int = 0
    fuzz_time: float = 0.0
    max_bytes: int = DEFAULT_MAX_BYTES
    seed: int = 0
    checks: tuple[str, ...] = ("all",)
    sanitize: tuple[str, ...] = ("all",)
    timeout: float = 60.0
    isolate: str = "auto"
    missing: str = "skip"
    results: Path | None = None
    html: Path | None = None
    trace: Path | None = None
    dump: Path | None = None
    cost: str = "off"
    cost_file: Path = Path("pallas_costs.json")
    cost_limit: float = 5.0
    golden: str = "off"
    golden_dir: Path = Path("pallas_goldens")
    replay: Path | None = None
    worker_memory: float = 8.0
    mutate: int | None = None
    mutate_time: float = 0.0
    mutate_min: float = 0.0
    mutate_operators: tuple[str, ...] = ("all",)
    mutate_after: Path | None = None
    example: str = ""
    database: tuple[Place, ...] = ()
    explicit: frozenset[str] = frozenset()

    def examples_on(self, kind: str, devices: int = 1) -> int:
        """How many examples each check draws on a kind of backend.

        Args:
          kind: of the backend.
          devices: of the mesh. A run on several is as many runs, so half as many are drawn.
        """
        if kind != "simulating" or "max_examples" in self.explicit:
            return self.max_examples
        return max(self.max_examples, self.simulated_examples // (1 if devices == 1 else 2))

    def replaced(self, *, where: str = "mark pallas", **values: Any) -> Options:
        """These options with what a mark says in place of some.

        Args:
          where: what the messages call the mark, or what stands for one.
          values: the values, by option.

        Raises:
          OptionError: the mark names no option that a mark can set, or gives a bad value.
        """
        fields: dict[str, Any] = {}
        for name, value in values.items():
            option = next((o for o in TABLE if o.name == name and o.marked), None)
            if option is None:
                valid = ", ".join(o.name for o in TABLE if o.marked)
                raise OptionError(f"the pallas mark has no argument {name!r}; it takes {valid}")
            text = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
            fields[name] = _parsed(option, text, f"{where}({name}=...)")
        return dataclasses.replace(self, **fields, explicit=self.explicit | set(fields))


def read_options(config: pytest.Config) -> Options:
    """The options of a session: command line, else ini, else profile, else default.

    Raises:
      pytest.UsageError: a value that cannot be read, with the option and the place it came from.
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
    """Where the value of an option came from, in the words of its user."""
    option = next(option for option in TABLE if option.name == name)
    given = config.getoption(option.ini) is not None
    return option.flag if given else f"ini value {option.ini}"


def choose(
    chosen: Sequence[str],
    valid: Mapping[str, Any] | Sequence[str],
    option: str,
    every: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The names that a list option means: ``all``, ``none``, or some of ``valid``.

    ``every`` are those that ``all`` means, if it leaves some out.

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


def _parsed(option: Option, text: str, place: str) -> Any:
    try:
        return option.parse(text)
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from None
