"""``pytest-pallas verify``: judge a kernel from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from pallas_sim.errors import OptionError, PallasError

_DESCRIPTION = """\
Judge a kernel that somebody else wrote, without running its code in this process. The exit status
is 0 if it passed, 1 if it failed, 2 if an argument cannot be used, and 3 if it could not be
judged: the reference raised, or a target is not there.

With --suite=jaxbench FOLDER, the candidates of a folder of JAXBench are judged by its own rule and
by this one: docs/judge.md."""

#: Devices of this process, for references that need several.
_DEVICES = 8

#: ``--json`` without a file.
_STDOUT = Path("-")

#: Arguments that a suite has itself, with their defaults.
_OF_KERNELS = ("reference", "inputs", "dtype", "size", "option", "target", "gradient")
_OF_SUITES = ("workload", "kernel")


def add_parser(commands: Any) -> None:
    """Add the command ``verify`` to the subparsers of an ``argparse.ArgumentParser``."""
    parser = commands.add_parser(
        "verify", help="judge a kernel that somebody else wrote", description=_DESCRIPTION
    )
    parser.add_argument(
        "candidates", nargs="+", metavar="FILE.py:FUNCTION", help="the kernels to judge, or FOLDER"
    )
    parser.add_argument("--reference", metavar="FILE.py:FUNCTION", help="the same function in jnp")
    parser.add_argument("--inputs", metavar="SHAPES", help="shapes of the arguments: 'm k, k n'")
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="of all arrays, or one for each (float32)"
    )
    parser.add_argument(
        "--hidden-dtype",
        action="append",
        metavar="DTYPE",
        help="of hidden calls, too (default: those that are usual for the chip); none for none",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a size of the first call"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="a keyword argument"
    )
    parser.add_argument(
        "--target",
        action="append",
        metavar="TARGET",
        help="a chip (v6e, h100) or a backend (tpu-sim:v6e, tpu-compile:v6e)",
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="for a candidate (60; of a suite 300)"
    )
    parser.add_argument("--seed", type=int, help="of the draws (default: a new one)")
    parser.add_argument(
        "--hidden", type=int, default=20, metavar="N", help="calls that are drawn (20)"
    )
    parser.add_argument(
        "--gradient", type=int, action="append", default=[], metavar="POSITION",
        help="judge the gradient by this argument, too",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="go on after the first failure")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=_STDOUT, metavar="FILE.json",
        help="write the reports, without a file to stdout",
    )  # fmt: skip
    suite = parser.add_argument_group("a suite of tasks")
    suite.add_argument("--suite", choices=("jaxbench",), help="FOLDER is one of this suite")
    suite.add_argument("--workload", default="", metavar="NAME", help="the only task of the suite")
    suite.add_argument(
        "--kernel", type=Path, metavar="FILE.py", help="the only candidate, anywhere"
    )
    suite.add_argument(
        "--tpu", choices=("v5e", "v6e", "auto"), default="auto", help="the chip (auto: v6e)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Judge the candidates, print the reports, and write them.

    Returns:
      The exit status.

    Raises:
      OptionError: an argument cannot be used.
    """
    from pallas_sim import set_platforms
    from pytest_pallas.backends.devices import simulate
    from pytest_pallas.candidates.judge import verify_many
    from pytest_pallas.candidates.verdicts import Report, to_json
    from pytest_pallas.errors import ShapeLanguageError, SpecError

    set_platforms()
    path = arguments.json
    if path not in (None, _STDOUT) and (path.is_dir() or not path.parent.is_dir()):
        raise OptionError(f"--json={path}: {path} is no file that can be written")
    if arguments.suite:
        return _run_suite(arguments)
    for name in _OF_SUITES:
        if getattr(arguments, name):
            raise OptionError(f"--{name} is of a suite: name it with --suite")
    if arguments.reference is None or arguments.inputs is None:
        raise OptionError("give --reference and --inputs, or --suite with a folder")
    simulate(_DEVICES, os.environ, explicit=False)
    reference = _loaded(arguments.reference)
    listed: list[Report] = []
    try:
        reports = verify_many(
            arguments.candidates,
            reference,
            arguments.inputs,
            targets=_targets(arguments.target),
            budget=60.0 if arguments.budget is None else arguments.budget,
            seed=arguments.seed,
            dtypes=tuple(arguments.dtype or ("float32",)),
            hidden_dtypes=_hidden_dtypes(arguments.hidden_dtype),
            sizes={name: _integer(name, value) for name, value in _pairs(arguments.size)},
            options={name: _value(value) for name, value in _pairs(arguments.option)},
            differentiable=tuple(arguments.gradient),
            hidden=arguments.hidden,
            stop=not arguments.all,
        )
        for report in reports:
            print(report, file=_shown(arguments), flush=True)
            listed.append(report)
    except OptionError:
        raise
    except (SpecError, ShapeLanguageError) as error:
        raise OptionError(str(error)) from error
    except (PallasError, OSError) as error:
        print(f"pytest-pallas: the judge failed: {error}", file=sys.stderr)  # noqa: T201
        for candidate in arguments.candidates[len(listed) :]:
            name = Path(candidate).name
            listed.append(
                Report(name=name, passed=False, score=0.0, stages=(), undecided=str(error))
            )
    facts = [to_json(report) for report in listed]
    _write_json(arguments.json, facts[0] if len(facts) == 1 else facts)
    return max((report.status for report in listed), default=0)


def _run_suite(arguments: argparse.Namespace) -> int:
    """Judge the candidates of a suite, print a table, and write the verdicts."""
    from pytest_pallas.candidates import jaxbench

    for name in _OF_KERNELS:
        if getattr(arguments, name):
            raise OptionError(f"--{name} is not used with --suite, which has it in its files")
    if len(arguments.candidates) != 1:
        raise OptionError(f"--suite={arguments.suite}: give one folder")
    folder = Path(arguments.candidates[0])
    tasks = jaxbench.find_tasks(folder, arguments.workload, arguments.kernel)
    tpu = "v6e" if arguments.tpu == "auto" else arguments.tpu
    print(jaxbench.table_head(), file=_shown(arguments), flush=True)
    verdicts: list[jaxbench.SuiteVerdict] = []
    judged = jaxbench.verify_suite(
        tasks,
        tpu=tpu,
        budget=jaxbench.BUDGET if arguments.budget is None else arguments.budget,
        seed=arguments.seed,
        hidden=arguments.hidden,
        stop=not arguments.all,
    )
    for verdict in judged:
        print(jaxbench.table_row(verdict), file=_shown(arguments), flush=True)
        verdicts.append(verdict)
    _write_json(arguments.json, jaxbench.suite_json(verdicts, tpu, single=bool(arguments.kernel)))
    return max((verdict.status for verdict in verdicts), default=0)


def _shown(arguments: argparse.Namespace) -> TextIO:
    """Return where tables and reports go: stdout, unless the JSON goes there."""
    return sys.stderr if arguments.json == _STDOUT else sys.stdout


def _write_json(path: Path | None, facts: Any) -> None:
    """Write facts to a file, or to stdout for ``-``; nothing without a path.

    Raises:
      OptionError: the file cannot be written.
    """
    if path is None:
        return
    text = json.dumps(facts, indent=1)
    if path == _STDOUT:
        print(text)  # noqa: T201
        return
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--json={path}: {error.strerror or error}") from None


def _loaded(target: str) -> Any:
    """Return the reference that ``FILE.py:FUNCTION`` names; it is trusted.

    Raises:
      OptionError: there is no such file or function, or importing it raises.
    """
    import importlib.util

    from pytest_pallas.candidates.source import divided

    path, name = divided(target)
    if not path.is_file():
        raise OptionError(f"--reference={target}: there is no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None:
        raise OptionError(f"--reference={target}: {path} is no module of Python")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # whatever a module raises
        raise OptionError(f"--reference={target}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"--reference={target}: {path} has no function {name!r}")
    return function


def _targets(named: Sequence[str] | None) -> tuple[str, ...]:
    """Return the backends that words for chips stand for.

    Raises:
      OptionError: there is no such chip.
    """
    from pallas_sim.chips import TARGETS
    from pytest_pallas.candidates.judge import TARGETS as USUAL

    if not named:
        return USUAL
    targets: list[str] = []
    for word in named:
        if "-" in word:
            targets.append(word)
            continue
        if word not in TARGETS:
            raise OptionError(f"--target={word}: valid chips are {', '.join(TARGETS)}")
        platform = TARGETS[word].platform
        targets += [f"{platform}-sim:{word}", f"{platform}-compile:{word}"]
    return tuple(targets)


def _hidden_dtypes(named: Sequence[str] | None) -> Sequence[str] | None:
    return named and [dtype for dtype in named if dtype != "none"]


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise OptionError(f"{text!r}: give NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _integer(name: str, value: str) -> int:
    if not value.isdigit() or not int(value):
        raise OptionError(f"--size {name}={value}: give a number from 1 on")
    return int(value)


def _value(text: str) -> Any:
    """Return the number, truth value or text that an option is."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    return value if value is None or isinstance(value, (bool, int, float, str)) else text
