"""Command line and ini options: one table, one frozen ``Options``.

Precedence: mark > command line > ini > profile > default. Marks are applied where a test is
known, by ``Options.replaced``.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.budget import DEFAULT_MAX_BYTES, parse_bytes
from pytest_pallas.database import Place, parse_places
from pytest_pallas.errors import OptionError


def words(text: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise OptionError(f"must be a whole number of at least {least}, not {text!r}")
        return number

    return parse


def _amount(unit: str, *, zero: bool = False) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not (0 < number < float("inf") or (zero and number == 0)):
            least = "of at least 0" if zero else "above 0"
            raise OptionError(f"must be a number of {unit} {least}, not {text!r}")
        return number

    return parse


def _bytes(text: str) -> int:
    number = parse_bytes(text.strip())
    if number is None:
        raise OptionError(f"must be a number of bytes such as 64MiB, 1GiB or 65536, not {text!r}")
    return number


def _mutants(text: str) -> int | None:
    """How many mutants of a kernel: 0 is all, None that there are none at all."""
    if text in ("off", "all"):
        return None if text == "off" else 0
    try:
        return _whole(1)(text)
    except OptionError:
        raise OptionError(
            f"must be all, off or the most mutants of a kernel, not {text!r}; before a path, "
            "write --pallas-mutate=all"
        ) from None


def _one_of(*valid: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in valid:
            raise OptionError(f"must be one of {', '.join(valid)}, not {text!r}")
        return text

    return parse


def _path(text: str) -> Path | None:
    return Path(text) if text else None


@dataclass(frozen=True)
class Replay:
    """What to run again in place of all other examples; nothing by default.

    Attributes:
      file: a saved example.
      blob: an example as hypothesis writes it down.
    """

    file: Path | None = None
    blob: str = ""

    def __bool__(self) -> bool:
        return self.file is not None or bool(self.blob)

    def __str__(self) -> str:
        """As it is given on the command line."""
        return self.blob if self.file is None else str(self.file)


def _replay(text: str) -> Replay:
    """A file or a blob: hypothesis' text in base64, which begins with a byte 0 or 1."""
    try:
        begins = base64.b64decode(text, validate=True)[:1]
    except ValueError:
        begins = b""
    blob = begins in (b"\0", b"\1") and not os.path.exists(text)
    return Replay(blob=text) if blob else Replay(file=Path(text))


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
    devices: int = 8
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
    replay: Replay = Replay()
    worker_memory: float = 8.0
    mutate: int | None = None
    mutate_time: float = 0.0
    mutate_min: float = 0.0
    mutate_operators: tuple[str, ...] = ("all",)
    mutate_after: Path | None = None
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


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row of the table: an option, its ini twin, and how its text is read.

    ``bare`` is what the option means on a command line without a value, if it may have none.
    """

    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    marked: bool = False
    bare: str | None = None

    @property
    def flag(self) -> str:
        """The command-line spelling."""
        return "--pallas-" + self.name.replace("_", "-")

    @property
    def ini(self) -> str:
        """The ini spelling, and the destination in ``config.option``."""
        return f"pallas_{self.name}"


#: What profiles say of options that are not given. On simulators a new shape costs milliseconds.
PROFILES: Mapping[str, Mapping[str, Any]] = {
    "quick": {"max_examples": 2, "simulated_examples": 10},
    "ci": {"simulated_examples": 16},
    "thorough": {"max_examples": 128, "backend": ("auto", "interpreters")},
}

TABLE: tuple[Option, ...] = (
    Option(
        name="backend",
        parse=words,
        metavar="LIST",
        help="backends to run on: auto (default: the accelerator if there is one, otherwise the "
        "simulators, and JAX's interpreters for what they do not simulate), interpreters, all, or "
        "a list of NAME, NAME:TARGET, NAME:all, such as tpu-sim:v6e,gpu-sim",
    ),
    Option(
        name="suite",
        parse=words,
        metavar="PACKAGE",
        help="verify every KernelSpec in these packages or modules, without a test file",
    ),
    Option(
        name="devices",
        parse=_whole(1),
        metavar="N",
        help="simulated devices to start JAX with (default: 8)",
    ),
    Option(
        name="profile",
        parse=_one_of(*PROFILES),
        metavar="NAME",
        help="how much to draw where nothing else is said: quick (2 examples a check), ci (8, the "
        "default) or thorough (128); on simulators quick draws 10 and ci 16, half of it on meshes",
    ),
    Option(
        name="max_examples",
        parse=_whole(1),
        metavar="N",
        help="examples drawn for each check of a spec (default: 8, on simulators 16, on "
        "meshes 8; checks that cost more a piece draw fewer)",
        marked=True,
    ),
    Option(
        name="max_bytes",
        parse=_bytes,
        metavar="BYTES",
        help="the most that all arrays of one draw may have together, such as 1GiB (default: "
        "64MiB); strategies with a smaller max_bytes= of their own keep to that",
    ),
    Option(
        name="fuzz_time",
        parse=_amount("seconds", zero=True),
        metavar="SECONDS",
        help="go on drawing examples for about this long, shared fairly over the kernels of the "
        "suites",
    ),
    Option(
        name="seed",
        parse=_whole(0),
        metavar="N",
        help="seed of everything drawn: same seed, same draws (default: 0)",
        marked=True,
    ),
    Option(
        name="checks",
        parse=words,
        metavar="LIST",
        help="checks to run on specs, such as forward,gradient (default: all)",
        marked=True,
    ),
    Option(
        name="sanitize",
        parse=words,
        metavar="LIST",
        help="sanitizers to run: all (default), none, or a list, such as races",
        marked=True,
    ),
    Option(
        name="timeout",
        parse=_amount("seconds"),
        metavar="SECONDS",
        help="stop a kernel whose simulated devices wait, or a compiler that works, longer than "
        "this (default: 60)",
        marked=True,
    ),
    Option(
        name="isolate",
        parse=_one_of("auto", "always", "never"),
        metavar="WHEN",
        help="run a test in a worker process, which a crash or a hang ends in its place: auto "
        "(default: collectives, kernels with semaphores or DMAs, what failed before), always or "
        "never",
        marked=True,
    ),
    Option(
        name="missing",
        parse=_one_of("skip", "error"),
        metavar="WHAT",
        help="a test that needs more devices than there are: skip it (default) or error",
        marked=True,
    ),
    Option(
        name="results",
        parse=_path,
        metavar="FILE.json",
        help="write one record a check to this file",
    ),
    Option(
        name="html",
        parse=_path,
        metavar="FILE.html",
        help="write a report to read in a browser: one file that needs nothing else (pip install "
        "'pytest-pallas[report]')",
    ),
    Option(
        name="trace",
        parse=_path,
        metavar="FILE.json",
        help="write a timeline of one simulated run, for https://ui.perfetto.dev or "
        "chrome://tracing: the failing example of the last test that failed, or else the last "
        "example of the last test",
    ),
    Option(
        name="dump",
        parse=_path,
        metavar="DIR",
        help="keep what compiling backends make of each kernel: jaxpr, Mosaic or Triton IR, HLO, "
        "machine code",
    ),
    Option(
        name="cost",
        parse=_one_of("off", "record", "compare"),
        metavar="WHAT",
        help="record what the machine code of each kernel costs, or compare with what was "
        "recorded: more spills fail, and more bundles or VMEM than --pallas-cost-limit allows "
        "(default: off)",
    ),
    Option(
        name="cost_file",
        parse=_path,
        metavar="FILE.json",
        help="the file of --pallas-cost, seen from pytest's root folder (default: "
        "pallas_costs.json)",
    ),
    Option(
        name="cost_limit",
        parse=_amount("percent", zero=True),
        metavar="PERCENT",
        help="by how much a kernel's cost may grow (default: 5)",
    ),
    Option(
        name="golden",
        parse=_one_of("off", "record", "update", "replay"),
        metavar="WHAT",
        help="record what kernels answer, to be compared with on another machine; update also "
        "replaces what differs where CI=true is set; replay runs the recorded calls here, and "
        "compares (default: off)",
    ),
    Option(
        name="golden_dir",
        parse=_path,
        metavar="DIR",
        help="the folder of --pallas-golden, seen from pytest's root folder (default: "
        "pallas_goldens)",
    ),
    Option(
        name="replay",
        parse=_replay,
        metavar="EXAMPLE",
        help="run one example again, and no other: a file that a failure names and that says which "
        "check it is of, or the blob that a failure prints for the selected check",
    ),
    Option(
        name="worker_memory",
        parse=_amount("GiB"),
        metavar="GIB",
        help="stop a compiler or an isolated test that takes more memory than this (default: 8)",
    ),
    Option(
        name="mutate",
        parse=_mutants,
        metavar="N",
        help="mutation testing: make mistakes in every kernel that the selected specs and tests "
        "run, one at a time, and report which ones their checks do not notice; N limits the "
        "mutants of a kernel (default: off; without N: all)",
        bare="all",
    ),
    Option(
        name="mutate_time",
        parse=_amount("seconds", zero=True),
        metavar="SECONDS",
        help="stop mutation testing after about this long, shared fairly over kernels",
    ),
    Option(
        name="mutate_min",
        parse=_amount("percent", zero=True),
        metavar="SCORE",
        help="fail the run if less than this percentage of the mutants was killed",
    ),
    Option(
        name="mutate_operators",
        parse=words,
        metavar="LIST",
        help="mutation operators to use, such as mask,guard (default: all); docs/mutation.md "
        "lists them",
    ),
    Option(
        name="mutate_after",
        parse=_path,
        metavar="FILE",
        help="do not try again what an earlier run killed, whose --pallas-results this file is",
    ),
    Option(
        name="database",
        parse=parse_places,
        metavar="URL",
        help="where failing examples are kept and replayed from: a folder, redis://HOST:PORT/N, "
        "github:OWNER/REPO, readonly+ before one of these, a list of them, or none (default: "
        "what hypothesis' profile says, .hypothesis/examples)",
    ),
)


#: What ``--pallas-replay`` was called for blobs; it goes with version 0.2.
OLD_REPLAY, _OLD_REPLAY = "--pallas-example", "pallas_example"


def uses_old_replay(config: pytest.Config) -> bool:
    """Whether the command line has the old name of ``--pallas-replay``."""
    return config.getoption(_OLD_REPLAY) is not None


def add_options(parser: pytest.Parser) -> None:
    """Register every option of the table with its ini twin."""
    group = parser.getgroup("pallas", "verification of JAX Pallas kernels")
    for option in TABLE:
        optional = {} if option.bare is None else {"nargs": "?", "const": option.bare}
        group.addoption(
            option.flag,
            dest=option.ini,
            default=None,
            metavar=option.metavar,
            help=option.help,
            **optional,
        )
        parser.addini(option.ini, f"default of {option.flag}", default=None)
    group.addoption(OLD_REPLAY, dest=_OLD_REPLAY, default=None, help=argparse.SUPPRESS)


def read_options(config: pytest.Config) -> Options:
    """The options of a session: command line, else ini, else profile, else default.

    Raises:
      pytest.UsageError: a value that cannot be read, with the option and the place it came from.
    """
    fields: dict[str, Any] = {}
    if uses_old_replay(config) and config.option.pallas_replay is None:
        config.option.pallas_replay = config.getoption(_OLD_REPLAY)
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
