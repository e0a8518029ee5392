"""``pytest-pallas simulate`` and ``analyze``: one call of a kernel, without a spec or a test.

Both take ``FILE.py:FUNCTION`` and the arrays of the call, written as in a failure's ``inputs``, and
print text or write JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import OptionError
from pytest_pallas.decoding import jsonable

if TYPE_CHECKING:
    from pytest_pallas.grid.analysis import Analysis

_SIMULATE = """\
Run one call of a kernel on a simulated chip, and print what is wrong with it and what it returns.
Nothing is compiled, and no accelerator is used."""

_ANALYZE = """\
Print the grid of each kernel of a call, the blocks of its programs and what is wrong with them,
without running it. With --compile, the chip's compiler says what the machine code costs."""

#: Simulated devices that JAX starts with.
_DEVICES = 8

#: Largest number of elements of an output that is written element by element.
_SHOWN = 64

#: An array of a call, ``float32[8, 128]``, which ``= [...]`` may follow, or a comma.
_ARRAY = re.compile(r"\s*(?P<dtype>\w+)\[(?P<dims>[\d\s,]*)\]\s*(?P<end>=|,|$)")


def add_parser(commands: Any) -> None:
    """Add ``simulate`` and ``analyze`` to the subparsers of an ``argparse.ArgumentParser``."""
    for name, function, text in (("simulate", simulate, _SIMULATE), ("analyze", analyze, _ANALYZE)):
        summary = text.partition(",")[0].lower()
        parser = commands.add_parser(name, help=summary, description=text)
        parser.add_argument(
            "kernel", metavar="FILE.py:FUNCTION", help="or MODULE:FUNCTION; it calls the kernel"
        )
        parser.add_argument(
            "--inputs",
            default="",
            metavar="ARRAYS",
            help="such as 'float32[8, 128], int32[3] = [3, 3, 2]'; values are drawn where none are",
        )
        parser.add_argument(
            "--options", default="{}", metavar="JSON", help="keyword arguments: '{\"block\": 8}'"
        )
        parser.add_argument(
            "--mesh", default="{}", metavar="JSON", help="a mesh for mesh=: '{\"x\": 4}'"
        )
        parser.add_argument("--target", default="", metavar="CHIP", help="such as v6e or h100")
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="of values and order")
        parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - prints it")
        parser.set_defaults(run=function)
        if name == "analyze":
            parser.add_argument("--compile", action="store_true", help="compile it for the chip")
        else:
            help_text = "the order of events of a failure, in place of that of the seed"
            parser.add_argument("--witness", default="", metavar="TEXT", help=help_text)


@dataclass(frozen=True)
class ExaminedCall:
    """A call that a command line names.

    Attributes:
      function: calls the kernel.
      arrays: its positional arguments, numpy arrays.
      options: its keyword arguments, with the mesh.
    """

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    options: Mapping[str, Any]


def call_of(arguments: argparse.Namespace) -> ExaminedCall:
    """Load the function and make its arguments.

    Raises:
      OptionError: there is no such function, or an option cannot be read.
    """
    from pallas_sim import set_platforms
    from pytest_pallas.backends.devices import make_mesh
    from pytest_pallas.backends.devices import simulate as simulate_devices
    from pytest_pallas.loading import load

    set_platforms()
    simulate_devices(_DEVICES, os.environ, explicit=False)
    options, axes = (_object(arguments, name) for name in ("options", "mesh"))
    arrays = tuple(parse_inputs(arguments.inputs, arguments.seed))
    function = load(arguments.kernel).function
    if axes:
        options["mesh"] = make_mesh(axes, "cpu")
    return ExaminedCall(function, arrays, options)


def _object(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    text = getattr(arguments, name)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise OptionError(f"--{name}={text}: give a JSON object, such as '{{\"block\": 8}}'")
    return value  # pyright: ignore[reportUnknownVariableType]


def parse_inputs(text: str, seed: int) -> Iterator[Any]:
    """Yield the arrays that ``--inputs`` names.

    Args:
      text: ``"float32[8, 128], int32[3] = [3, 3, 2]"``. An array without values gets small
        integers, whose sums are exact.
      seed: of these.

    Raises:
      OptionError: it cannot be read, has an unknown dtype, or values of another shape.
    """
    import jax.numpy as jnp
    import numpy as np

    from pytest_pallas.draw.values import generate

    at, index = 0, 0
    while text[at:].strip():
        match = _ARRAY.match(text, at)
        if match is None:
            raise OptionError(
                f"--inputs: {text[at:].strip()!r} is no array; write dtype[shape], such as "
                "float32[8, 128], and values behind it as int32[3] = [3, 3, 2]"
            )
        named = match[0].strip().rstrip(",=").strip()
        try:
            dtype = jnp.dtype(match["dtype"])
        except TypeError:
            raise OptionError(f"--inputs: {match['dtype']!r} of {named} is no dtype") from None
        shape = tuple(int(dim) for dim in match["dims"].replace(" ", "").split(",") if dim)
        at = match.end()
        if match["end"] == "=":
            skipped = len(text[at:]) - len(text[at:].lstrip())
            try:
                values, at = json.JSONDecoder().raw_decode(text, at + skipped)
                array = np.asarray(values).astype(dtype)
            except ValueError:
                raise OptionError(f"--inputs: the values of {named} are no JSON list") from None
            if array.shape != shape:
                raise OptionError(f"--inputs: the values of {named} have the shape {array.shape}")
            rest = re.compile(r"\s*(,|$)").match(text, at)
            if rest is None:
                raise OptionError(f"--inputs: a comma must follow the values of {named}")
            at = rest.end()
        else:
            array = generate("integers", shape, dtype, seed=seed, index=index)
        yield array
        index += 1


def simulate(arguments: argparse.Namespace) -> int:
    """Run the call on the simulator, and report.

    Returns:
      The exit status: 0, or 1 if something is wrong with the kernel.
    """
    import jax

    import pallas_sim
    from pallas_sim.findings import text_of
    from pytest_pallas.record import error_fields

    call = call_of(arguments)
    named = {name: getattr(arguments, name) for name in ("target", "seed", "witness")}
    report: dict[str, Any] = {**named, "inputs": [_summary(array) for array in call.arrays]}
    try:
        run = pallas_sim.simulate(call.function, *call.arrays, **named, **call.options)
    except OptionError:
        raise
    except Exception as error:
        report |= {"outcome": "failed", **error_fields(error)}
        report.pop("others", None)
        report["raised_at"] = _raised_at(error)
    else:
        outputs = jax.tree_util.tree_leaves_with_path(run.values)
        report |= {
            "outcome": "failed" if run.findings else "passed",
            "findings": [finding.to_json() for finding in run.findings],
            "text": text_of(run.findings),
            "outputs": [
                {"where": jax.tree_util.keystr(path), **_summary(array)} for path, array in outputs
            ],
            "steps": run.steps,
            "fallbacks": run.fallbacks,
            "unverified": list(run.notes),
        }
    _write(report, arguments.json, lambda: _text_of_run(report))
    return int(report["outcome"] == "failed")


def _raised_at(error: Exception) -> str:
    """Return ``file:line`` of the innermost line that is neither JAX's nor ours, or ""."""
    from pytest_pallas.checks.verdict import raised_frames

    frames = raised_frames(error)
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else ""


def _summary(value: Any) -> dict[str, Any]:
    """Describe an array: its values if they are few, otherwise their range."""
    import numpy as np

    array = np.asarray(value)
    plain: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind in "cO":
        return plain
    wide = array if array.dtype.kind in "biu" else array.astype(np.float64)
    if array.size <= _SHOWN:
        return {**plain, "values": jsonable(wide.tolist())}
    finite = wide[np.isfinite(wide)]
    extremes = {"min": finite.min(), "max": finite.max()} if finite.size else {}
    return {**plain, **jsonable(extremes), "nan": int(np.isnan(wide).sum())}


def _text_of_run(report: Mapping[str, Any]) -> str:
    if "message" in report:
        at = f"\n  raised at {report['raised_at']}" if report["raised_at"] else ""
        return f"{report['error_type']}: {report['message']}{at}"
    lines = [report["text"]] if report["text"] else []
    return "\n".join([*lines, *(f"output {json.dumps(output)}" for output in report["outputs"])])


def analyze(arguments: argparse.Namespace) -> int:
    """Analyze the grids of the call, compile it if asked, and report.

    Returns:
      The exit status: 0, or 1 if the grid is wrong or the compiler refuses the kernel.
    """
    import pytest_pallas
    from pallas_sim.chips import DEFAULT_TARGETS, TARGETS
    from pallas_sim.errors import PallasError
    from pytest_pallas.backends.analyzing import analyze_for
    from pytest_pallas.compile.service import to_json
    from pytest_pallas.errors import BackendUnavailableError
    from pytest_pallas.record import error_fields

    name = arguments.target or DEFAULT_TARGETS["tpu"]
    if name not in TARGETS:
        raise OptionError(f"unknown target {name!r}; known: {', '.join(TARGETS)}")
    call = call_of(arguments)
    report: dict[str, Any] = {"target": name}
    try:
        analysis = analyze_for(TARGETS[name], call.function, *call.arrays, **call.options)
        report |= _of_analysis(analysis)
        if arguments.compile:
            mesh = {key: call.options[key] for key in call.options if key == "mesh"}
            options = {key: call.options[key] for key in call.options if key != "mesh"}
            compiled = pytest_pallas.check(
                call.function,
                *call.arrays,
                backend=f"{TARGETS[name].platform}-compile:{name}",
                options=options,
                **mesh,
            )
            report["compiled"] = to_json(compiled)
    except (OptionError, BackendUnavailableError) as error:
        raise OptionError(str(error)) from None
    except PallasError as error:
        report |= {"outcome": "failed", **error_fields(error)}
        report.pop("others", None)
    _write(report, arguments.json, lambda: _text_of_analysis(report))
    return int(report["outcome"] == "failed")


def _of_analysis(analysis: Analysis) -> dict[str, Any]:
    """Return an analysis as plain values."""
    return {
        "outcome": "failed" if analysis.errors else "passed",
        "kernels": [
            {"kernel": call.call.name, "line": call.call.source, "grid": list(call.grid)}
            for call in analysis.calls
        ],
        "findings": jsonable(analysis.findings),
        "report": analysis.report(),
    }


def _text_of_analysis(report: Mapping[str, Any]) -> str:
    lines = [report["report"]] if "report" in report else []
    if "message" in report:
        lines.append(f"{report['error_type']}: {report['message']}")
    if "compiled" in report:
        lines.append(json.dumps(report["compiled"], indent=1))
    return "\n".join(lines)


def _write(report: Mapping[str, Any], file: str | None, text: Callable[[], str]) -> None:
    """Write a report as JSON to a file, or print it.

    Raises:
      OptionError: the file cannot be written.
    """
    if file is None or file == "-":
        print(text() if file is None else json.dumps(report, indent=1))  # noqa: T201
        return
    try:
        Path(file).write_text(json.dumps(report, indent=1), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--json={file} cannot be written: {error.strerror}") from None
