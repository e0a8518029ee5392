"""The options of the command line and their ini values: one table.

Every run of pytest imports it, so it has no imports of its own but ``parsing``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_pallas.options import parsing


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
        parse=parsing.words,
        metavar="LIST",
        help="backends to run on: auto (default: the accelerator if there is one, otherwise the "
        "simulators, and JAX's interpreters for what they do not simulate), interpreters, all, or "
        "a list of NAME, NAME:TARGET, NAME:all, such as tpu-sim:v6e,gpu-sim",
    ),
    Option(
        name="suite",
        parse=parsing.words,
        metavar="PACKAGE",
        help="verify every KernelSpec in these packages or modules, without a test file",
    ),
    Option(
        name="devices",
        parse=parsing.whole(1),
        metavar="N",
        help="simulated devices to start JAX with (default: 8)",
    ),
    Option(
        name="profile",
        parse=parsing.one_of(*PROFILES),
        metavar="NAME",
        help="number of examples for each check, unless --pallas-max-examples gives it: quick "
        "(2), ci (8, the default) or thorough (128); on simulators quick draws 10 and ci "
        "16, half as many on meshes",
    ),
    Option(
        name="max_examples",
        parse=parsing.whole(1),
        metavar="N",
        help="number of examples for each check of a spec (default: 8, on simulators 16, on "
        "meshes 8; expensive checks draw fewer)",
        marked=True,
    ),
    Option(
        name="max_bytes",
        parse=parsing.size,
        metavar="BYTES",
        help="limit on the total size of the arrays of one example, such as 1GiB (default: "
        "64MiB); a strategy with a smaller max_bytes= keeps its own limit",
    ),
    Option(
        name="fuzz_time",
        parse=parsing.amount("seconds", zero=True),
        metavar="SECONDS",
        help="keep drawing examples for about this long; the kernels share the time equally",
    ),
    Option(
        name="fuzz_rounds",
        parse=parsing.whole(0),
        metavar="N",
        help="rounds of examples for each check: 1 is a usual run, each further one has 32 more "
        "draws with other values of each; the same on every machine (default: 0, no limit on the "
        "rounds of --pallas-fuzz-time)",
    ),
    Option(
        name="seed",
        parse=parsing.whole(0),
        metavar="N",
        help="seed of all examples: the same seed draws the same examples (default: 0)",
        marked=True,
    ),
    Option(
        name="checks",
        parse=parsing.words,
        metavar="LIST",
        help="checks to run on specs, such as forward,gradient (default: all)",
        marked=True,
    ),
    Option(
        name="sanitize",
        parse=parsing.words,
        metavar="LIST",
        help="sanitizers to run: all (default), none, or a list, such as races",
        marked=True,
    ),
    Option(
        name="arithmetic",
        parse=parsing.one_of("chip", "float32"),
        metavar="WHAT",
        help="how simulated GPUs add the products of tensor cores: chip, with the bits that they "
        "keep, or float32 (default: chip on h100 and h200, which were compared with a chip)",
        marked=True,
    ),
    Option(
        name="timeout",
        parse=parsing.amount("seconds"),
        metavar="SECONDS",
        help="time limit in seconds for blocked devices and for each compilation (default: 60)",
        marked=True,
    ),
    Option(
        name="isolate",
        parse=parsing.one_of("auto", "always", "never"),
        metavar="WHEN",
        help="run tests in a worker process, so that a crash or a hang ends the worker only: "
        "auto (default: collectives, kernels with semaphores or DMAs, tests that failed "
        "before), always or never",
        marked=True,
    ),
    Option(
        name="missing",
        parse=parsing.one_of("skip", "error"),
        metavar="WHAT",
        help="what to do with a test that needs more devices than are available: skip it "
        "(default) or error",
        marked=True,
    ),
    Option(
        name="results",
        parse=parsing.path,
        metavar="FILE.json",
        help="write one record for each check to this file; while the run goes on, they are in "
        "FILE.json.partial",
    ),
    Option(
        name="resume",
        parse=parsing.path,
        metavar="FILE.json",
        help="take up the run that wrote these results (--pallas-results), or that was cut off: "
        "tests that are done are not run again, and the results have all",
    ),
    Option(
        name="html",
        parse=parsing.path,
        metavar="FILE.html",
        help="write a self-contained HTML report (pip install 'pytest-pallas[report]')",
    ),
    Option(
        name="trace",
        parse=parsing.path,
        metavar="FILE.json",
        help="write a timeline of one simulated run, for https://ui.perfetto.dev or "
        "chrome://tracing: the failing example of the last failed test; without failures, the last "
        "example of the last test",
    ),
    Option(
        name="dump",
        parse=parsing.path,
        metavar="DIR",
        help="write the jaxpr, Mosaic or Triton IR, HLO and machine code of each compiled kernel "
        "to this folder",
    ),
    Option(
        name="cost",
        parse=parsing.one_of("off", "record", "compare", "skip"),
        metavar="WHAT",
        help="record the costs of the machine code of each kernel, or compare them with the "
        "recorded ones; compare fails on more spills, and on more bundles or VMEM than "
        "--pallas-cost-limit allows; skip compiles for TPUs in less time and reports no costs "
        "(default: off)",
    ),
    Option(
        name="cost_file",
        parse=parsing.path,
        metavar="FILE.json",
        help="the file of --pallas-cost, relative to pytest's root folder (default: "
        "pallas_costs.json)",
    ),
    Option(
        name="cost_limit",
        parse=parsing.amount("percent", zero=True),
        metavar="PERCENT",
        help="allowed growth of a kernel's cost in percent (default: 5)",
    ),
    Option(
        name="golden",
        parse=parsing.one_of("off", "record", "update", "replay"),
        metavar="WHAT",
        help="record the outputs of kernels, for a comparison on another machine; update also "
        "replaces outputs that differ if CI=true is set; replay runs the recorded calls and "
        "compares (default: off)",
    ),
    Option(
        name="golden_dir",
        parse=parsing.path,
        metavar="DIR",
        help="the folder of --pallas-golden, relative to pytest's root folder (default: "
        "pallas_goldens)",
    ),
    Option(
        name="replay",
        parse=parsing.replay,
        metavar="EXAMPLE",
        help="run one example only: a file that a failure names, which also says the check, or the "
        "blob that a failure prints, for the selected check",
    ),
    Option(
        name="shard",
        parse=parsing.shard,
        metavar="I/N",
        help="run part I of N of the tests, the same parts on every machine; auto reads I and N "
        "from variables of CI services; pytest-pallas merge joins the results",
    ),
    Option(
        name="shard_by",
        parse=parsing.path,
        metavar="FILE.json",
        help="results of an earlier run (--pallas-results): shards take equal times by its seconds",
    ),
    Option(
        name="processes",
        parse=parsing.whole(1),
        metavar="N",
        help="run every test as N processes of one jax.distributed program, which divide the "
        "accelerators of this machine or the simulated devices",
    ),
    Option(
        name="distributed",
        parse=parsing.distributed,
        metavar="auto",
        help="this is one of several hosts whose processes form one jax.distributed program: auto "
        "on TPU pods, under Slurm, Open MPI and Kubernetes, or I/N@HOST:PORT with the address of "
        "host 0, which reports",
    ),
    Option(
        name="join_timeout",
        parse=parsing.amount("seconds"),
        metavar="SECONDS",
        help="time limit in seconds for all processes of --pallas-processes or "
        "--pallas-distributed to start, and again to collect (default: 120)",
    ),
    Option(
        name="fleet",
        parse=parsing.fleet,
        metavar="ADDRESS",
        help="run the tests on the workers of a Dask scheduler, tcp://HOST:8786, or on N worker "
        "processes of this machine, local:N (pip install 'pytest-pallas[fleet]')",
    ),
    Option(
        name="worker_memory",
        parse=parsing.amount("GiB"),
        metavar="GIB",
        help="memory limit in GiB for each compiler and each isolated test (default: 8)",
    ),
    Option(
        name="mutate",
        parse=parsing.mutants,
        metavar="N",
        help="mutation testing: run the selected specs and tests on mutants, which are kernels "
        "with one mistake each, and report the mutants that survive; N limits the mutants "
        "of each kernel (default: off; without N: all)",
        bare="all",
    ),
    Option(
        name="mutate_time",
        parse=parsing.amount("seconds", zero=True),
        metavar="SECONDS",
        help="time limit in seconds for mutation testing; the kernels share the time equally",
    ),
    Option(
        name="mutate_min",
        parse=parsing.amount("percent", zero=True),
        metavar="SCORE",
        help="fail the run if the checks kill less than this percentage of the mutants",
    ),
    Option(
        name="mutate_operators",
        parse=parsing.words,
        metavar="LIST",
        help="mutation operators to use, such as mask,guard (default: all); docs/mutation.md "
        "lists them",
    ),
    Option(
        name="mutate_after",
        parse=parsing.path,
        metavar="FILE",
        help="results of an earlier run (--pallas-results): do not run the mutants that it killed",
    ),
    Option(
        name="database",
        parse=parsing.places,
        metavar="URL",
        help="database of failing examples, which later runs replay: a folder, "
        "redis://HOST:PORT/N, github:OWNER/REPO, readonly+ before one of these, a list of "
        "them, or none (default: that of Hypothesis' profile, .hypothesis/examples)",
    ),
)


#: The name of ``--pallas-replay`` for blobs before version 0.1; it goes with version 0.2.
OLD_REPLAY, OLD_REPLAY_FIELD = "--pallas-example", "pallas_example"


#: The option that reports on the machine in place of a test run.
DOCTOR, DOCTOR_FIELD = "--pallas-doctor", "pallas_doctor"


def uses_old_replay(config: pytest.Config) -> bool:
    """Whether the command line has the old name of ``--pallas-replay``."""
    return config.getoption(OLD_REPLAY_FIELD) is not None


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
    group.addoption(OLD_REPLAY, dest=OLD_REPLAY_FIELD, default=None, help=argparse.SUPPRESS)


def any_given(config: pytest.Config) -> bool:
    """Whether a run has one of these options, or its ini value."""
    return uses_old_replay(config) or any(
        config.getoption(each.ini) or config.getini(each.ini) for each in TABLE
    )
