"""The options of the command line and their ini values: one table, and how their texts are read.

Every run of pytest imports it, so it imports nothing of this package at its top.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pallas_sim.errors import OptionError
    from pytest_pallas.database import DatabasePlace


def wrong(problem: str) -> OptionError:
    """The error for a wrong value."""
    from pallas_sim.errors import OptionError

    return OptionError(problem)


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


def _bytes(text: str) -> int | None:
    from pytest_pallas.budget import parse_bytes

    return parse_bytes(text.strip())


#: Parses a number of bytes, such as ``64MiB``.
size = _number(_bytes, lambda _: True, "a number of bytes such as 64MiB, 1GiB or 65536")


def mutants(text: str) -> int | None:
    """The number of mutants of a kernel: 0 for all, None for off."""
    if text in ("off", "all"):
        return None if text == "off" else 0
    try:
        return whole(1)(text)
    except Exception:
        raise wrong(
            f"must be all, off or the maximum number of mutants of a kernel, not {text!r}; before "
            "a path, write --pallas-mutate=all"
        ) from None


def one_of(*valid: str) -> Callable[[str], str]:
    """Parse one of some words."""

    def parse(text: str) -> str:
        if text not in valid:
            raise wrong(f"must be one of {', '.join(valid)}, not {text!r}")
        return text

    return parse


def places(text: str) -> tuple[DatabasePlace, ...]:
    """The places of a database of failing examples."""
    from pytest_pallas.database import parse_places

    return parse_places(text)


def path(text: str) -> Path | None:
    """A path, or None."""
    return Path(text) if text else None


#: Limit on the bytes of an example of Hypothesis, whose own limit is 8 KiB of choices.
_MOST_BLOB = 2**20


def replay(text: str) -> Replay:
    """A file or a blob: Hypothesis' text in base64, which begins with a byte 0 or 1."""

    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if content[:1] not in (b"\0", b"\1") or os.path.exists(text):
        return Replay(file=Path(text))
    if content[:1] == b"\1":  # what follows is compressed
        from pytest_pallas.decoding import DataError, unpacked

        try:
            unpacked(content[1:], _MOST_BLOB)
        except DataError as error:
            raise wrong(f"the blob of {len(text):,} characters {error}") from None
    return Replay(blob=text)


def distributed(text: str) -> Distributed | None:
    """``auto``, or ``I/N@HOST:PORT``."""

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
    """``I/N``, ``auto/N`` with the number of the job from the environment, or ``auto``."""

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
    """``local:N``, or the address of a Dask scheduler: ``HOST:PORT``, also with a scheme."""

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
    """One row of the table: an option, its ini value, and its parser.

    ``bare`` is the value of the option without a value on the command line, if that is allowed.
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


#: Defaults of each profile. On simulators a new shape costs milliseconds.
PROFILES: Mapping[str, Mapping[str, Any]] = {
    "quick": {"max_examples": 2, "simulated_examples": 10},
    "ci": {"simulated_examples": 16},
    "thorough": {"max_examples": 128, "backend": ("auto", "interpreters")},
}

TABLE: tuple[Option, ...] = (
    Option(
        name="backend",
        parse=listed,
        metavar="LIST",
        help="backends to run on: auto (default: the accelerator if there is one, otherwise the "
        "simulators, and JAX's interpreters for what they do not simulate), interpreters, all, or "
        "a list of NAME, NAME:TARGET, NAME:all, such as tpu-sim:v6e,gpu-sim",
    ),
    Option(
        name="suite",
        parse=listed,
        metavar="PACKAGE",
        help="verify every KernelSpec in these packages or modules, without a test file",
    ),
    Option(
        name="devices",
        parse=whole(1),
        metavar="N",
        help="simulated devices to start JAX with (default: 8)",
    ),
    Option(
        name="profile",
        parse=one_of(*PROFILES),
        metavar="NAME",
        help="number of examples for each check, unless --pallas-max-examples gives it: quick "
        "(2), ci (8, the default) or thorough (128); on simulators quick draws 10 and ci "
        "16, half as many on meshes",
    ),
    Option(
        name="max_examples",
        parse=whole(1),
        metavar="N",
        help="number of examples for each check of a spec (default: 8, on simulators 16, on "
        "meshes 8; expensive checks draw fewer)",
        marked=True,
    ),
    Option(
        name="max_bytes",
        parse=size,
        metavar="BYTES",
        help="limit on the total size of the arrays of one example, such as 1GiB (default: "
        "64MiB); a strategy with a smaller max_bytes= keeps its own limit",
    ),
    Option(
        name="fuzz_time",
        parse=amount("seconds", zero=True),
        metavar="SECONDS",
        help="keep drawing examples for about this long; the kernels share the time equally",
    ),
    Option(
        name="fuzz_rounds",
        parse=whole(0),
        metavar="N",
        help="rounds of examples for each check: 1 is a usual run, each further one has 32 more "
        "draws with other values of each; the same on every machine (default: 0, no limit on the "
        "rounds of --pallas-fuzz-time)",
    ),
    Option(
        name="seed",
        parse=whole(0),
        metavar="N",
        help="seed of all examples: the same seed draws the same examples (default: 0)",
        marked=True,
    ),
    Option(
        name="checks",
        parse=listed,
        metavar="LIST",
        help="checks to run on specs, such as forward,gradient (default: all)",
        marked=True,
    ),
    Option(
        name="sanitize",
        parse=listed,
        metavar="LIST",
        help="sanitizers to run: all (default), none, or a list, such as races",
        marked=True,
    ),
    Option(
        name="arithmetic",
        parse=one_of("chip", "float32"),
        metavar="WHAT",
        help="how simulated GPUs add the products of tensor cores: chip, with the bits that they "
        "keep, or float32 (default: chip on h100 and h200, which were compared with a chip)",
        marked=True,
    ),
    Option(
        name="timeout",
        parse=amount("seconds"),
        metavar="SECONDS",
        help="time limit in seconds for blocked devices and for each compilation (default: 60)",
        marked=True,
    ),
    Option(
        name="isolate",
        parse=one_of("auto", "always", "never"),
        metavar="WHEN",
        help="run tests in a worker process, so that a crash or a hang ends the worker only: "
        "auto (default: collectives, kernels with semaphores or DMAs, tests that failed "
        "before), always or never",
        marked=True,
    ),
    Option(
        name="missing",
        parse=one_of("skip", "error"),
        metavar="WHAT",
        help="what to do with a test that needs more devices than are available: skip it "
        "(default) or error",
        marked=True,
    ),
    Option(
        name="results",
        parse=path,
        metavar="FILE.json",
        help="write one record for each check to this file; while the run goes on, they are in "
        "FILE.json.partial",
    ),
    Option(
        name="resume",
        parse=path,
        metavar="FILE.json",
        help="take up the run that wrote these results (--pallas-results), or that was cut off: "
        "tests that are done are not run again, and the results have all",
    ),
    Option(
        name="html",
        parse=path,
        metavar="FILE.html",
        help="write a self-contained HTML report (pip install 'pytest-pallas[report]')",
    ),
    Option(
        name="trace",
        parse=path,
        metavar="FILE.json",
        help="write a timeline of one simulated run, for https://ui.perfetto.dev or "
        "chrome://tracing: the failing example of the last failed test; without failures, the last "
        "example of the last test",
    ),
    Option(
        name="dump",
        parse=path,
        metavar="DIR",
        help="write the jaxpr, Mosaic or Triton IR, HLO and machine code of each compiled kernel "
        "to this folder",
    ),
    Option(
        name="cost",
        parse=one_of("off", "record", "compare", "skip"),
        metavar="WHAT",
        help="record the costs of the machine code of each kernel, or compare them with the "
        "recorded ones; compare fails on more spills, and on more bundles or VMEM than "
        "--pallas-cost-limit allows; skip compiles for TPUs in less time and reports no costs "
        "(default: off)",
    ),
    Option(
        name="cost_file",
        parse=path,
        metavar="FILE.json",
        help="the file of --pallas-cost, relative to pytest's root folder (default: "
        "pallas_costs.json)",
    ),
    Option(
        name="cost_limit",
        parse=amount("percent", zero=True),
        metavar="PERCENT",
        help="allowed growth of a kernel's cost in percent (default: 5)",
    ),
    Option(
        name="golden",
        parse=one_of("off", "record", "update", "replay"),
        metavar="WHAT",
        help="record the outputs of kernels, for a comparison on another machine; update also "
        "replaces outputs that differ if CI=true is set; replay runs the recorded calls and "
        "compares (default: off)",
    ),
    Option(
        name="golden_dir",
        parse=path,
        metavar="DIR",
        help="the folder of --pallas-golden, relative to pytest's root folder (default: "
        "pallas_goldens)",
    ),
    Option(
        name="replay",
        parse=replay,
        metavar="EXAMPLE",
        help="run one example only: a file that a failure names, which also says the check, or the "
        "blob that a failure prints, for the selected check",
    ),
    Option(
        name="shard",
        parse=shard,
        metavar="I/N",
        help="run part I of N of the tests, the same parts on every machine; auto reads I and N "
        "from variables of CI services; pytest-pallas merge joins the results",
    ),
    Option(
        name="shard_by",
        parse=path,
        metavar="FILE.json",
        help="results of an earlier run (--pallas-results): shards take equal times by its seconds",
    ),
    Option(
        name="processes",
        parse=whole(1),
        metavar="N",
        help="run every test as N processes of one jax.distributed program, which divide the "
        "accelerators of this machine or the simulated devices",
    ),
    Option(
        name="distributed",
        parse=distributed,
        metavar="auto",
        help="this is one of several hosts whose processes form one jax.distributed program: auto "
        "on TPU pods, under Slurm, Open MPI and Kubernetes, or I/N@HOST:PORT with the address of "
        "host 0, which reports",
    ),
    Option(
        name="join_timeout",
        parse=amount("seconds"),
        metavar="SECONDS",
        help="time limit in seconds for all processes of --pallas-processes or "
        "--pallas-distributed to start, and again to collect (default: 120)",
    ),
    Option(
        name="fleet",
        parse=fleet,
        metavar="ADDRESS",
        help="run the tests on the workers of a Dask scheduler, tcp://HOST:8786, or on N worker "
        "processes of this machine, local:N (pip install 'pytest-pallas[fleet]')",
    ),
    Option(
        name="worker_memory",
        parse=amount("GiB"),
        metavar="GIB",
        help="memory limit in GiB for each compiler and each isolated test (default: 8)",
    ),
    Option(
        name="mutate",
        parse=mutants,
        metavar="N",
        help="mutation testing: run the selected specs and tests on mutants, which are kernels "
        "with one mistake each, and report the mutants that survive; N limits the mutants "
        "of each kernel (default: off; without N: all)",
        bare="all",
    ),
    Option(
        name="mutate_time",
        parse=amount("seconds", zero=True),
        metavar="SECONDS",
        help="time limit in seconds for mutation testing; the kernels share the time equally",
    ),
    Option(
        name="mutate_min",
        parse=amount("percent", zero=True),
        metavar="SCORE",
        help="fail the run if the checks kill less than this percentage of the mutants",
    ),
    Option(
        name="mutate_operators",
        parse=listed,
        metavar="LIST",
        help="mutation operators to use, such as mask,guard (default: all); docs/mutation.md "
        "lists them",
    ),
    Option(
        name="mutate_after",
        parse=path,
        metavar="FILE",
        help="results of an earlier run (--pallas-results): do not run the mutants that it killed",
    ),
    Option(
        name="database",
        parse=places,
        metavar="URL",
        help="database of failing examples, which later runs replay: a folder, "
        "redis://HOST:PORT/N, github:OWNER/REPO, readonly+ before one of these, a list of "
        "them, or none (default: that of Hypothesis' profile, .hypothesis/examples)",
    ),
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
    """Whether a run has one of these options, or its ini value."""
    return any(config.getoption(option.ini) or config.getini(option.ini) for option in TABLE)


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
