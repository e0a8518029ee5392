"""``pytest-pallas verify``: judge a kernel from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pallas_sim.errors import OptionError, PallasError

_DESCRIPTION = """\
Judge a kernel that somebody else wrote, without running its code in this process. The exit status
is 0 if it passed, 1 if it failed, 2 if an argument cannot be used, and 3 if it could not be
judged: the reference raised, or a target is not there."""

#: Devices of this process, for references that need several.
_DEVICES = 8


def add_parser(commands: Any) -> None:
    """Add the command ``verify`` to the subparsers of an ``argparse.ArgumentParser``."""
    parser = commands.add_parser(
        "verify", help="judge a kernel that somebody else wrote", description=_DESCRIPTION
    )
    parser.add_argument(
        "candidates", nargs="+", metavar="FILE.py:FUNCTION", help="the kernels to judge"
    )
    parser.add_argument(
        "--reference", required=True, metavar="FILE.py:FUNCTION", help="the same function in jnp"
    )
    parser.add_argument(
        "--inputs", required=True, metavar="SHAPES", help="shapes of the arguments: 'm k, k n'"
    )
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="of all arrays, or one for each (float32)"
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
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, help="of the draws (default: a new one)")
    parser.add_argument(
        "--hidden", type=int, default=20, metavar="N", help="calls that are drawn (20)"
    )
    parser.add_argument(
        "--gradient", type=int, action="append", default=[], metavar="POSITION",
        help="judge the gradient by this argument, too",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="go on after the first failure")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="write the reports")
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
    from pytest_pallas.candidates.verdicts import to_json

    set_platforms()
    simulate(_DEVICES, os.environ, explicit=False)
    reference = _loaded(arguments.reference)
    try:
        reports = verify_many(
            arguments.candidates,
            reference,
            arguments.inputs,
            targets=_targets(arguments.target),
            budget=arguments.budget,
            seed=arguments.seed,
            dtypes=tuple(arguments.dtype or ("float32",)),
            sizes={name: _integer(name, value) for name, value in _pairs(arguments.size)},
            options={name: _value(value) for name, value in _pairs(arguments.option)},
            differentiable=tuple(arguments.gradient),
            hidden=arguments.hidden,
            stop=not arguments.all,
        )
        listed = []
        for report in reports:
            print(report, flush=True)  # noqa: T201
            listed.append(report)
    except OptionError:
        raise
    except (PallasError, OSError) as error:
        print(f"pytest-pallas: the judge failed: {error}", file=sys.stderr)  # noqa: T201
        return 3
    if arguments.json is not None:
        facts = [to_json(report) for report in listed]
        text = json.dumps(facts[0] if len(facts) == 1 else facts, indent=1)
        try:
            arguments.json.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise OptionError(f"--json={arguments.json}: {error.strerror or error}") from None
    return max((report.status for report in listed), default=0)


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


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise OptionError(f"{text!r}: give NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _integer(name: str, value: str) -> int:
    if not value.isdigit():
        raise OptionError(f"--size {name}={value}: give a number")
    return int(value)


def _value(text: str) -> Any:
    """Return the number, truth value or text that an option is."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    return value if value is None or isinstance(value, (bool, int, float, str)) else text
