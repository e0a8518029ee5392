"""``device``: NVIDIA's compute-sanitizer monitors the kernel on the GPU.

The check writes the call to a file, and runs this module on it in another process, under the tool:
``compute-sanitizer python -m pytest_pallas.checks.device FILE``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pallas_sim.errors import BoundsError, KernelError
from pytest_pallas.backends.protocol import Backend, expected_warnings
from pytest_pallas.checks import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult
from pytest_pallas.errors import HangError, NotApplicableError, RaceError
from pytest_pallas.spec import KernelSpec

#: The command, on the PATH.
COMMAND = "compute-sanitizer"

#: The tools that look for errors inside a kernel.
TOOLS = ("memcheck", "racecheck")

#: The exit status if the tool reports an error.
FOUND = 86

_LINE = re.compile(r"^=========(.*)$", re.MULTILINE)

#: The first line of a report: an access or a hazard.
_HAZARD = re.compile(
    r"^ (?:Invalid __\w+__|Error: (?:Potential )?\w+ hazard|Error: Race reported"
    r"|Warning: Race reported|Misaligned|Invalid (?:read|write|atomic))"
)

#: Messages of a tool that cannot run.
_UNUSABLE = re.compile(
    r"^ (?:Error: )?((?:Device not supported|Unable to|Target application terminated before|"
    r"Internal Sanitizer Error|Failed to initialize|The application may have hit).*)$"
)

#: Number of lines of a report that are shown, and of reports.
_SHOWN_LINES, _SHOWN = 3, 4


@dataclass(frozen=True)
class SanitizerReport:
    """The tool's report of one run.

    Attributes:
      hazards: one text for each error.
      unusable: the reason why the tool cannot run on this machine, or "".
      failed: another failure of the program, or "".
    """

    hazards: tuple[str, ...] = ()
    unusable: str = ""
    failed: str = ""


def command(tool: str, program: Sequence[str]) -> list[str]:
    """Return the command line that runs a program under a tool."""
    return [COMMAND, "--tool", tool, "--error-exitcode", str(FOUND), *program]


def parse(text: str, status: int) -> SanitizerReport:
    """Parse a run's output and exit status."""
    reports: list[list[str]] = []
    unusable = ""
    for line in _LINE.findall(text):
        if _HAZARD.match(line):
            reports.append([line.strip()])
        elif reports and line.startswith("     ") and len(reports[-1]) < _SHOWN_LINES:
            reports[-1].append(line.strip())
        elif not unusable and (match := _UNUSABLE.match(line)):
            unusable = match[1].strip()
    hazards = list(dict.fromkeys("; ".join(lines) for lines in reports))
    if len(hazards) > _SHOWN:
        hazards = [*hazards[:_SHOWN], f"and {len(hazards) - _SHOWN} more"]
    failed = ""
    if status and not hazards and not unusable:
        printed = [line for line in text.splitlines() if line and not line.startswith("=====")]
        failed = f"exit status {status}" + (f": {printed[-1]}" if printed else "")
    return SanitizerReport(hazards=tuple(hazards), unusable=unusable, failed=failed)


#: compute-sanitizer slows a kernel down by one or two orders of magnitude, and monitors XLA's own
#: kernels, too.
SLOWER = 10.0

#: Seconds to import JAX, start CUDA and compile under the tool.
START = 120.0


def requires_spec(spec: KernelSpec) -> str | None:
    """The monitored process has one device."""
    if spec.meshes:
        return "the check runs compute-sanitizer on one device, and the kernel runs on a mesh"
    return None


def requires_backend(backend: Backend) -> str | None:
    """Code must run on a GPU, and NVIDIA's tool must be installed."""
    if backend.kind != "hardware" or backend.platform != "gpu":
        return f"{backend.name} is not a GPU: compute-sanitizer needs code that runs on one"
    if shutil.which(COMMAND) is None:
        return "compute-sanitizer is not on the PATH; it comes with NVIDIA's CUDA toolkit"
    return None


@declare_sanitizer(
    "device",
    asks="does compute-sanitizer report an out-of-bounds access or a race on the GPU?",
    requires_spec=requires_spec,
    requires_backend=requires_backend,
    example_fraction=0.25,
    opt_in=True,  # every example takes half a minute
    tries_mutants=False,  # it runs the function in another process
)
def device(context: CheckContext) -> CheckResult:
    """Run the call in a process of its own, under memcheck and under racecheck.

    The first finds accesses out of bounds and misaligned ones in global, shared and local memory,
    the second hazards in shared memory.

    Raises:
      NotApplicableError: the function cannot be pickled, or the tool does not work on this machine;
        with its message.
      BoundsError: memcheck reports an error.
      RaceError: racecheck reports a hazard.
      HangError: it did not end in time.
      KernelError: the call failed for another reason.
    """
    try:
        payload = pickle.dumps(_call(context))
    except Exception as error:  # pickling may call code of the function's module
        raise NotApplicableError(
            f"the call cannot be pickled for another process ({error}); compute-sanitizer needs a "
            "kernel that can be imported by name"
        ) from None
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pytest-pallas-") as folder:
        path = Path(folder, "call")
        path.write_bytes(payload)
        for tool in TOOLS:
            _judge(tool, _watched(tool, path, START + SLOWER * context.settings.timeout))
    return CheckResult(comparisons=(), seconds=time.perf_counter() - started)


def _call(context: CheckContext) -> tuple[Any, ...]:
    """Return the input of ``run_call``: the module of the function, and then the call."""
    arguments, function = context.arguments, inspect.unwrap(context.kernel)
    while isinstance(function, functools.partial):
        function = function.func
    home = sys.modules.get(getattr(function, "__module__", None) or "")
    args = jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, arguments.args
    )
    called = (context.kernel, args, {**arguments.options, **arguments.tuning}, context.settings.jit)
    return (
        getattr(home, "__name__", ""),
        getattr(home, "__file__", None) or "",
        pickle.dumps(called),
    )


def _watched(tool: str, call: Path, timeout: float) -> SanitizerReport:
    """Return the tool's report of the call in a file."""
    child = [sys.executable, "-m", "pytest_pallas.checks.device", str(call)]
    # This process may hold most of the GPU's memory already.
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["JAX_TRACEBACK_FILTERING"] = "off"  # the last line is then the error
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        done = subprocess.run(
            command(tool, child),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise HangError(
            f"the kernel did not end within {timeout:.0f} s under {COMMAND} --tool {tool}; "
            "if it is only slow, raise --pallas-timeout"
        ) from None
    return parse(done.stdout + done.stderr, done.returncode)


def _judge(tool: str, report: SanitizerReport) -> None:
    if report.hazards:
        kind = RaceError if tool == "racecheck" else BoundsError
        raise kind(f"{COMMAND} --tool {tool}: " + "\n  ".join(report.hazards))
    if report.unusable:
        raise NotApplicableError(f"{COMMAND} does not work on this machine: {report.unusable}")
    if report.failed:
        raise KernelError(f"the kernel failed under {COMMAND} --tool {tool}: {report.failed}")


# In the process under the tool.


def run_call(path: str) -> None:
    """Load the call that ``_call`` wrote, run it on the first device, and wait for its output."""
    module, file, called = pickle.loads(Path(path).read_bytes())
    _import(module, file)
    function, args, options, jit = pickle.loads(called)
    call: Any = functools.partial(function, **options)
    with expected_warnings():
        jax.block_until_ready((jax.jit(call) if jit else call)(*args))


def _import(module: str, file: str) -> None:
    """Import a module from its file if it cannot be imported by name, such as a test module."""
    if not file or module == "__main__":
        return
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        for end in range(1, len(parts := module.split("."))):
            package = ".".join(parts[:end])
            sys.modules.setdefault(package, types.ModuleType(package))
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


if __name__ == "__main__":
    run_call(sys.argv[1])
