"""The options of the command line and their ini values: ``Options`` declares each of them.

``add_options`` registers them, and ``read_options`` reads their values. Precedence: mark > command
line > ini > profile > default. ``Options.replaced`` applies the marks of a test.

Every run of pytest imports this module, so it imports little at its top. The options of all
features are here for the same reason: one module is read faster than one for each feature.
"""

# ruff: noqa: RUF009 - ``_option`` makes a field of a dataclass

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pallas_sim.errors import OptionError
    from pytest_pallas.database import DatabasePlace

#: Arguments of the ``pallas`` mark that are not options.
MARK_ONLY = ("backends", "targets", "reason")


def wrong(problem: str) -> OptionError:
    """Make the error for a wrong value."""
    from pallas_sim.errors import OptionError

    return OptionError(problem)


# What the text of an option means.


@dataclass(frozen=True)
class Shard:
    """Part ``index`` of ``count`` of the tests, counted from 1; see ``--pallas-shard``."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class Distributed:
    """The place of this host among several; see ``--pallas-distributed``.

    Attributes:
      address: ``host:port`` of the first host; "" to detect the place.
      index: the number of this host, from 0.
      count: the number of hosts.
    """

    address: str = ""
    index: int = 0
    count: int = 0

    def __str__(self) -> str:
        return f"{self.index}/{self.count}@{self.address}" if self.address else "auto"


@dataclass(frozen=True)
class FleetPlace:
    """The workers of ``--pallas-fleet``.

    Attributes:
      address: of a Dask scheduler; "" for workers on this machine.
      workers: number of worker processes to start on this machine; 0 with an address.
    """

    address: str = ""
    workers: int = 0

    def __str__(self) -> str:
        """The text of the command line."""
        return self.address or f"local:{self.workers}"


@dataclass(frozen=True)
class Replay:
    """The example to run in place of all others; nothing by default.

    Attributes:
      file: a saved example.
      blob: an example as Hypothesis prints it.
    """

    file: Path | None = None
    blob: str = ""

    def __bool__(self) -> bool:
        return self.file is not None or bool(self.blob)

    def __str__(self) -> str:
        """The text of the command line."""
        return self.blob if self.file is None else str(self.file)


def listed(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number[T: (int, float)](
    kind: Callable[[str], T | None], accepts: Callable[[T], bool], description: str
) -> Callable[[str], T]:
    """Make the parser of numbers of a kind, which refuses others by their description."""

    def parse(text: str) -> T:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not accepts(number):
            raise wrong(f"must be {description}, not {text!r}")
        return number

    return parse


def whole(least: int) -> Callable[[str], int]:
    """Make the parser of integers of at least ``least``."""
    return _number(int, lambda number: number >= least, f"an integer of at least {least}")


def amount(unit: str, *, zero: bool = False) -> Callable[[str], float]:
    """Make the parser of numbers of ``unit`` above 0, or of at least 0 with ``zero``."""
    least = "of at least 0" if zero else "above 0"

    def accepts(number: float) -> bool:
        return 0 < number < float("inf") or (zero and number == 0)

    return _number(float, accepts, f"a number of {unit} {least}")


#: Parses the percentage that a run must reach.
percentage = _number(float, lambda number: 0 <= number <= 100, "a percentage from 0 to 100")


def _bytes(text: str) -> int | None:
    from pytest_pallas.budget import parse_bytes

    return parse_bytes(text.strip())


#: Parses a number of bytes, such as ``64MiB``.
size = _number(_bytes, lambda _: True, "a number of bytes such as 64MiB, 1GiB or 65536")


def mutants(text: str) -> int | None:
    """Parse the number of mutants of a kernel: 0 for all, None for off."""
    if text in ("off", "all"):
        return None if text == "off" else 0
    try:
        return whole(1)(text)
    except Exception:
        raise wrong(
            f"must be all, off or the maximum number of mutants of a kernel, not {text!r}; before "
            "a path, write --pallas-mutate=all"
        ) from None


def schedules(text: str) -> int:
    """Parse the most runs of a call in different orders."""
    try:
        return whole(1)(text)
    except Exception:
        raise wrong(
            f"must be the most runs of a call, at least 1, not {text!r}; 1 runs no other order"
        ) from None


def witness(text: str) -> str:
    """Parse a witness; returns it as it is written."""
    if text:
        from pallas_sim import Witness

        Witness.parse(text)
    return text


def one_of(*valid: str) -> Callable[[str], str]:
    """Make the parser of one of some words."""

    def parse(text: str) -> str:
        if text not in valid:
            raise wrong(f"must be one of {', '.join(valid)}, not {text!r}")
        return text

    return parse


def places(text: str) -> tuple[DatabasePlace, ...]:
    """Parse the places of a database of failing examples."""
    from pytest_pallas.database import parse_places

    return parse_places(text)


def path(text: str) -> Path | None:
    """Parse a path; None for an empty text."""
    return Path(text) if text else None


#: Limit on the bytes of an example of Hypothesis, whose own limit is 8 KiB of choices.
_MOST_BLOB = 2**20


def replay(text: str) -> Replay:
    """Parse a file or a blob: Hypothesis' text in base64, which begins with a byte 0 or 1."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if content[:1] not in (b"\0", b"\1") or os.path.exists(text):
        return Replay(file=Path(text))
    if content[:1] == b"\1":  # what follows is compressed
        unpack, size = zlib.decompressobj(), 0
        with contextlib.suppress(zlib.error):
            size = len(unpack.decompress(content[1:], _MOST_BLOB + 1))
        if size > _MOST_BLOB or not unpack.eof:
            raise wrong(
                f"the blob of {len(text):,} characters is cut off, damaged or unpacks to more than "
                f"{_MOST_BLOB:,} bytes"
            )
    return Replay(blob=text)


def distributed(text: str) -> Distributed | None:
    """Parse ``auto``, or ``I/N@HOST:PORT``."""
    if text in ("", "auto"):
        return Distributed() if text else None
    position, at, address = text.partition("@")
    index, slash, count = position.partition("/")
    host, colon, port = address.rpartition(":")
    numbers = index.isdigit() and count.isdigit() and port.isdigit()
    if not (at and slash and colon and host and numbers and int(index) < int(count)):
        raise wrong(
            "must be auto, or I/N@HOST:PORT with the number of this host from 0, the number of "
            f"hosts and the address of host 0, such as 1/4@10.0.0.1:8476, not {text!r}"
        )
    return Distributed(address, int(index), int(count))


#: Variables with the number of a job among equal ones, that of all jobs, and where numbers begin.
_JOBS = (
    ("CI_NODE_INDEX", "CI_NODE_TOTAL", 1),  # GitLab
    ("CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL", 0),
    ("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", 0),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", 0),  # Kubernetes; the second is one's own
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", 0),
)


def shard(text: str) -> Shard | None:
    """Parse ``I/N``, ``auto/N`` with the number of the job from the environment, or ``auto``."""
    if not text:
        return None
    index, _, count = text.partition("/")
    if index == "auto":
        name, total, first = next((job for job in _JOBS if job[0] in os.environ), ("", "", 0))
        if not name:
            names = ", ".join(job[0] for job in _JOBS)
            raise wrong(f"auto reads the number of the job from {names}, and none is set")
        index = os.environ[name]
        count = count or os.environ.get(total, "")
        if not count:
            raise wrong(f"auto: {total} is not set; write auto/N for N jobs")
        index = str(int(index) - first + 1) if index.isdecimal() else index
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise wrong(f"must be I/N with I from 1 to N, such as 2/4, or auto, not {text!r}")
    return Shard(int(index), int(count))


def fleet(text: str) -> FleetPlace | None:
    """Parse ``local:N``, or the address of a Dask scheduler: ``HOST:PORT``, also with a scheme."""
    if not text:
        return None
    scheme, _, rest = text.rpartition("://")
    host, _, port = rest.rpartition(":")
    number = int(port) if port.isdecimal() else 0
    if host == "local" and not scheme and number:
        return FleetPlace(workers=number)
    known = scheme in ("", "tcp", "tls", "ucx", "ws", "wss")
    if not known or not host or host == "local" or not 0 < number < 2**16:
        raise wrong(
            "must be local:N for N worker processes on this machine, or the address of a Dask "
            f"scheduler, such as tcp://HOST:8786, not {text!r}"
        )
    return FleetPlace(address=f"{scheme or 'tcp'}://{rest}")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option and its ini value.

    Attributes:
      name: the field of ``Options``.
      parse: makes its value of a text, or raises an ``OptionError``.
      metavar: stands for the value in the help.
      help: what it does.
      marked: whether the ``pallas`` mark sets it for a test.
      bare: the value of the option without a value on the command line, if that is allowed.
    """

    name: str = ""
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


def _option(default: Any, parse: Callable[[str], Any], metavar: str, text: str, **rest: Any) -> Any:
    """Make a field of ``Options`` with this help text; ``rest`` are other fields of ``Option``."""
    option = Option(parse=parse, metavar=metavar, help=text, **rest)
    return dataclasses.field(default=default, metadata={"option": option})


#: Defaults of each profile. On simulators a new shape costs milliseconds.
PROFILES: Mapping[str, Mapping[str, Any]] = {
    "quick": {"max_examples": 2, "simulated_examples": 10, "growth": 20_000, "schedules": 10},
    "ci": {"simulated_examples": 16},
    "thorough": {
        "max_examples": 128,
        "backend": ("auto", "interpreters"),
        "growth": 1_000_000,
        "schedules": 200,
    },
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a session, each with its default, its parser and its help.

    Field names are option names without ``pallas``.

    Attributes:
      simulated_examples: the profile's number of examples on simulators, if it is larger than
        ``max_examples`` and ``max_examples`` is not given. It is not an option.
      explicit: names of the fields given on the command line, in the ini file or by a mark.
    """

    # fmt: off
    backend: tuple[str, ...] = _option(("auto",), listed, "LIST",
        "backends to run on: auto (default: the accelerator if there is one, otherwise the "
        "simulators, and JAX's interpreters for what they do not simulate), interpreters, all, or "
        "a list of NAME, NAME:TARGET, NAME:all, such as tpu-sim:v6e,gpu-sim")
    suite: tuple[str, ...] = _option((), listed, "PACKAGE",
        "verify every KernelSpec in these packages or modules, without a test file")
    devices: int = _option(8, whole(1), "N",
        "simulated devices to start JAX with (default: 8)")
    profile: str = _option("ci", one_of(*PROFILES), "NAME",
        "number of examples for each check, unless --pallas-max-examples gives it: quick (2), ci "
        "(8, the default) or thorough (128); on simulators quick draws 10 and ci 16, half as many "
        "on meshes, more of cheap examples and fewer of expensive ones")
    max_examples: int = _option(8, whole(1), "N",
        "number of examples for each check of a spec (default: 8, on simulators 16, on meshes 8; "
        "expensive checks draw fewer)", marked=True)
    growth: int = _option(100_000, whole(0), "STEPS",
        "steps of a simulator for further examples of a spec, larger and smaller ones, while a "
        "branch, a loop or a ring of buffers of its kernel has not run (default: 100000, with "
        "--pallas-profile=quick 20000, thorough 1000000; 0: none. None either where the number of "
        "examples is given)", marked=True)
    # The default is ``budget.DEFAULT_MAX_BYTES``.
    max_bytes: int = _option(64 * 2**20, size, "BYTES",
        "limit on the total size of the arrays of one example, such as 1GiB (default: 64MiB); a "
        "strategy with a smaller max_bytes= keeps its own limit")
    fuzz_time: float = _option(0.0, amount("seconds", zero=True), "SECONDS",
        "keep drawing examples for about this long; the kernels share the time equally")
    fuzz_rounds: int = _option(0, whole(0), "N",
        "rounds of examples for each check: 1 is a usual run, each further one has 32 more draws "
        "with other values of each; the same on every machine (default: 0, no limit on the rounds "
        "of --pallas-fuzz-time)")
    seed: int = _option(0, whole(0), "N",
        "seed of all examples: the same seed draws the same examples (default: 0). It changes what "
        "is drawn, and not the order of events in a simulated run: --pallas-sanitize=schedule runs "
        "several orders", marked=True)
    checks: tuple[str, ...] = _option(("all",), listed, "LIST",
        "checks to run on specs, such as forward,gradient (default: all)", marked=True)
    sanitize: tuple[str, ...] = _option(("all",), listed, "LIST",
        "sanitizers to run: all (default), none, or a list, such as races", marked=True)
    arithmetic: str = _option("", one_of("chip", "float32"), "WHAT",
        "how simulated chips compute: as the chip (chip: sums of tensor cores, functions of GPUs, "
        "passes of TPUs), or in float32 (default: chip on h100 and h200, which were compared with "
        "a chip)", marked=True)
    read_fences: str = _option("", one_of("kernel", "all", "none"), "WHICH",
        "which TMA copies of simulated GPUs need a fence (commit_smem) after threads have read "
        "what they overwrite: those that the kernel starts itself (kernel, the default), also "
        "those of JAX's pipelines (all), or none", marked=True)
    schedules: int = _option(20, schedules, "N",
        "most runs of a call in other orders of its threads and copies on a simulator, where the "
        "proof of one run does not decide all of them (default: 20, with --pallas-profile=quick "
        "10, thorough 200; 1: no other order)", marked=True)
    witness: str = _option("", witness, "TEXT",
        "run calls in the order that a failure names, in forward, races, dma, deadlock and "
        "schedule; with the rest of the command that the failure prints", marked=True)
    timeout: float = _option(60.0, amount("seconds"), "SECONDS",
        "time limit in seconds for blocked devices and for each compilation (default: "
        "60)", marked=True)
    isolate: str = _option("auto", one_of("auto", "always", "never"), "WHEN",
        "run tests in a worker process, so that a crash or a hang ends the worker only: auto "
        "(default: collectives, kernels with semaphores or DMAs, tests that failed before), "
        "always or never", marked=True)
    shrink_time: float = _option(0.0, amount("seconds", zero=True), "SECONDS",
        "shrink an example that ends its process, by a crash, a hang or a device that fails, for "
        "about this long: each try costs a process (default: 0)", marked=True)
    missing: str = _option("skip", one_of("skip", "error"), "WHAT",
        "what to do with a test that needs more devices than are available: skip it (default) or "
        "error", marked=True)
    results: Path | None = _option(None, path, "FILE.json",
        "write one record for each check to this file; while the run goes on, they are in "
        "FILE.json.partial")
    resume: Path | None = _option(None, path, "FILE.json",
        "take up the run that wrote these results (--pallas-results), or that was cut off: tests "
        "that are done are not run again, and the results have all")
    failures: Path | None = _option(None, path, "FILE.json",
        "write only the failures to this file, without pictures and empty fields")
    html: Path | None = _option(None, path, "FILE.html",
        "write a self-contained HTML report (pip install 'pytest-pallas[report]')")
    coverage: Path | None = _option(None, path, "FILE",
        "write what of the kernels ran on simulators to this file, as LCOV: conditions with both "
        "sides, loops, slots of buffers that are used again, masks")
    coverage_min: float = _option(0.0, percentage, "PERCENT",
        "fail the run if less than this percentage of what the kernels can do ran on simulators")
    trace: Path | None = _option(None, path, "FILE.json",
        "write a timeline of one simulated run, for https://ui.perfetto.dev or chrome://tracing: "
        "the failing example of the last failed test; without failures, the last example of the "
        "last test")
    dump: Path | None = _option(None, path, "DIR",
        "write the jaxpr, Mosaic or Triton IR, HLO and machine code of each compiled kernel to "
        "this folder")
    cost: str = _option("off", one_of("off", "record", "compare", "skip"), "WHAT",
        "record the costs of the machine code of each kernel, or compare them with the recorded "
        "ones; compare fails on more spills, and on more bundles or VMEM than --pallas-cost-limit "
        "allows; skip compiles for TPUs in less time and reports no costs (default: off)")
    cost_file: Path = _option(Path("pallas_costs.json"), path, "FILE.json",
        "the file of --pallas-cost, relative to pytest's root folder (default: pallas_costs.json)")
    cost_limit: float = _option(5.0, amount("percent", zero=True), "PERCENT",
        "allowed growth of a kernel's cost in percent (default: 5)")
    golden: str = _option("off", one_of("off", "record", "update", "replay"), "WHAT",
        "record the outputs of kernels, for a comparison on another machine; update also replaces "
        "outputs that differ if CI=true is set; replay runs the recorded calls and compares "
        "(default: off)")
    golden_dir: Path = _option(Path("pallas_goldens"), path, "DIR",
        "the folder of --pallas-golden, relative to pytest's root folder (default: "
        "pallas_goldens)")
    replay: Replay = _option(Replay(), replay, "EXAMPLE",
        "run one example only: a file that a failure names, which also says the check, or the "
        "blob that a failure prints, for the selected check")
    shard: Shard | None = _option(None, shard, "I/N",
        "run part I of N of the tests, the same parts on every machine; auto reads I and N from "
        "variables of CI services; pytest-pallas merge joins the results")
    shard_by: Path | None = _option(None, path, "FILE.json",
        "results of an earlier run (--pallas-results): shards take equal times by its seconds")
    processes: int = _option(0, whole(1), "N",
        "run every test as N processes of one jax.distributed program, which divide the "
        "accelerators of this machine or the simulated devices")
    distributed: Distributed | None = _option(None, distributed, "auto",
        "this is one of several hosts whose processes form one jax.distributed program: auto on "
        "TPU pods, under Slurm, Open MPI and Kubernetes, or I/N@HOST:PORT with the address of "
        "host 0, which reports")
    join_timeout: float = _option(120.0, amount("seconds"), "SECONDS",
        "time limit in seconds for all processes of --pallas-processes or --pallas-distributed to "
        "start, and again to collect (default: 120)")
    fleet: FleetPlace | None = _option(None, fleet, "ADDRESS",
        "run the tests on the workers of a Dask scheduler, tcp://HOST:8786, or on N worker "
        "processes of this machine, local:N (pip install 'pytest-pallas[fleet]')")
    worker_memory: float = _option(8.0, amount("GiB"), "GIB",
        "memory limit in GiB for each compiler and each isolated test (default: 8)")
    mutate: int | None = _option(None, mutants, "N",
        "mutation testing: run the selected specs and tests on mutants, which are kernels with "
        "one mistake each, and report the mutants that survive; N limits the mutants of each "
        "kernel (default: off; without N: all)", bare="all")
    mutate_time: float = _option(0.0, amount("seconds", zero=True), "SECONDS",
        "time limit in seconds for mutation testing; the kernels share the time equally")
    mutate_min: float = _option(0.0, percentage, "SCORE",
        "fail the run if the checks kill less than this percentage of the mutants")
    mutate_operators: tuple[str, ...] = _option(("all",), listed, "LIST",
        "mutation operators to use, such as mask,guard (default: all); docs/mutation.md lists "
        "them")
    mutate_after: Path | None = _option(None, path, "FILE",
        "results of an earlier run (--pallas-results): do not run the mutants that it killed")
    database: tuple[DatabasePlace, ...] = _option((), places, "URL",
        "database of failing examples, which later runs replay: a folder, redis://HOST:PORT/N, "
        "github:OWNER/REPO, readonly+ before one of these, a list of them, or none (default: that "
        "of Hypothesis' profile, .hypothesis/examples)")
    # fmt: on
    simulated_examples: int = 0
    explicit: frozenset[str] = frozenset()

    @property
    def writes(self) -> Sequence[str]:
        """The options that name a file which is written at the end of the session."""
        return [name for name in ("results", "failures", "html", "coverage") if getattr(self, name)]

    def examples_on(self, kind: str, devices: int = 1) -> int:
        """Return the number of examples for each check on a kind of backend.

        Args:
          kind: the kind of the backend.
          devices: number of devices of the mesh. Runs on several take longer, so half as many are
            drawn.
        """
        if kind != "simulating" or "max_examples" in self.explicit:
            return self.max_examples
        return max(self.max_examples, self.simulated_examples // (1 if devices == 1 else 2))

    @property
    def growth_steps(self) -> int:
        """Steps of a simulator for further examples: none where the number of examples is given."""
        exactly = "max_examples" in self.explicit and "growth" not in self.explicit
        return 0 if exactly else self.growth

    def replaced(self, *, where: str = "mark pallas", **values: Any) -> Options:
        """Return these options with the values of a mark.

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
                raise wrong(f"the pallas mark has no argument {name!r}; it takes {valid}")
            text = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
            fields[name] = _parsed(option, text, f"{where}({name}=...)")
        return dataclasses.replace(self, **fields, explicit=self.explicit | set(fields))


#: All options, in the order of the help.
TABLE = tuple(
    dataclasses.replace(field.metadata["option"], name=field.name)
    for field in dataclasses.fields(Options)
    if field.metadata
)

#: The option that reports on the machine in place of a test run.
DOCTOR, DOCTOR_FIELD = "--pallas-doctor", "pallas_doctor"


def add_options(parser: pytest.Parser) -> None:
    """Register every option of the table, and its ini value."""
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
    group.addoption(
        DOCTOR,
        dest=DOCTOR_FIELD,
        action="store_true",
        help="run no test: print versions and devices, and try a tiny kernel on each backend, for "
        "a bug report",
    )


def any_given(config: pytest.Config) -> bool:
    """Return whether a run has one of these options, or its ini value."""
    return any(config.getoption(option.ini) or config.getini(option.ini) for option in TABLE)


def read_options(config: pytest.Config) -> Options:
    """Read the options of a session: command line, else ini, else profile, else default.

    Raises:
      pytest.UsageError: a value cannot be parsed; the message has the option and its source.
    """
    from pallas_sim.errors import OptionError

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
    """Return the source of an option's value: command line or ini file."""
    option = next(option for option in TABLE if option.name == name)
    is_given = config.getoption(option.ini) is not None
    return option.flag if is_given else f"ini value {option.ini}"


def choose(
    chosen: Sequence[str],
    valid: Mapping[str, Any] | Sequence[str],
    option: str,
    every: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return the names of a list option: ``all``, ``none``, or some of ``valid``.

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
            raise wrong(f"{option}: unknown {word!r}; valid: all, none, {', '.join(valid)}")
    return tuple(dict.fromkeys(names))


def _parsed(option: Option, text: str, source: str) -> Any:
    from pallas_sim.errors import OptionError

    try:
        return option.parse(text)
    except OptionError as error:
        raise wrong(f"{source}: {error}") from None
