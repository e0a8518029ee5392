"""The text of a script that asks what a failed check asked, of the call on which it failed."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from pytest_pallas.backends.interpreters import interpret
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.backends.variations import highest, lowest
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.compat.interpreters import quiet_callbacks
from pytest_pallas.compat.jaxprs import written_inputs
from pytest_pallas.errors import (
    DeadlockError,
    KernelError,
    PallasTestError,
    SimulationLimitError,
)
from pytest_pallas.explanations import first_line
from pytest_pallas.scripts import functions, places, simulated
from pytest_pallas.scripts.literals import UnwritableError, Writer
from pytest_pallas.scripts.reproduction import PROGRAMS, QUESTIONS, Reproduction, reproduction
from pytest_pallas.scripts.standalone import parts, programs, questions, related, uninitialized

#: What is raised for a kernel that does not end.
_ENDLESS = (DeadlockError, SimulationLimitError)


@dataclass(frozen=True)
class Script:
    """A script.

    Attributes:
      text: the source.
      arrays: what it reads from the file beside it: bytes by key; empty if it holds all itself.
      missing: what its reader must fill in before it runs.
    """

    text: str
    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])
    missing: tuple[str, ...] = ()


#: The imports that a script may need, by the word that shows that it does.
_IMPORTS = {
    "base64": "import base64",
    "contextlib": "import contextlib",
    "dataclasses": "import dataclasses",
    "functools": "import functools",
    "importlib": "import importlib.abc\nimport importlib.machinery\nimport importlib.util",
    "logging": "import logging",
    "sys": "import sys",
    "threading": "import threading",
    "traceback": "import traceback",
    "types": "import types",
    "Callable|Generator": "from collections.abc import Callable, Generator",
    "contextmanager": "from contextlib import contextmanager",
    "dataclass": "from dataclasses import dataclass, field, replace",
    "Path": "from pathlib import Path",
    "Any": "from typing import Any",
}

#: Functions of other modules whose source scripts get, too.
_OTHERS = (
    highest,
    lowest,
    quiet_callbacks,
    written_inputs,
)


def compose(
    error: PallasTestError, failure: Failure, *, test: str, replay: str, devices: int
) -> Script:
    """The script for a failure.

    Args:
      error: what the check raised.
      failure: the check and the call.
      test: the pytest node id.
      replay: the command that runs the example again with pytest.
      devices: how many CPU devices the failing process simulated.

    Raises:
      NoScriptError: jax and numpy alone cannot show the failure.
    """
    failure = _compiled(failure)
    script = reproduction(error, failure)
    context, writer, missing = failure.context, Writer(), list[str]()
    where = places.place_of(context.backend, schedule=error.schedule)
    names: list[str] = []
    for number, backend in enumerate(script.backends, 1):
        same = backend == context.backend
        names.append("backend" if same else f"backend_{number}")
        if not same:
            where = where.beside(places.place_of(backend), names[-1])

    def written(what: str, value: Any, indent: int = 4) -> str:
        try:
            return writer.write(value, indent)
        except UnwritableError as problem:
            missing.append(f"{what}: {problem}")
            return "None"

    arguments = script.arguments
    case = [
        f"kernel={written('the kernel', context.kernel)}",
        f"reference={written('the reference', context.reference)}",
        f"args={written('the arguments', tuple(arguments.args))}",
        f"options={written('the options', dict(arguments.options))}",
        f"tuning={written('the tuning', dict(arguments.tuning))}",
        "backend=backend",
    ]
    if script.limits:
        words = ", ".join(f"{name!r}: {limit!r}" for name, limit in script.limits.items())
        case.append(f"limits={{{words}}}")
    if script.more:
        case.append(f"more={written('the rest', dict(script.more))}")
    if script.backends:
        case.append(f"backends=({', '.join(names)},)")
    rest = ", raised=True" if isinstance(error, KernelError) else ""
    rest += f", seconds={context.timeout:g}" if isinstance(error, _ENDLESS) else ""
    seen = first_line(error)
    question = script.question.__name__
    lines = [f"MISSING = {missing!r}", "", "CASE = Case("]
    lines += [f"    {line}," for line in case]
    lines += [")", "", 'if __name__ == "__main__":']
    lines += ["    if MISSING:", '        print("fill in", *MISSING, sep="\\n  ")']
    lines += ["        sys.exit(2)", f"    main(CASE, {question}, {seen!r}{rest})", ""]
    tail = "\n".join(lines)
    loaded = [
        f"{functions.variable(name)} = load({name!r}, {folder!r}, {file!r})"
        for name, (folder, file) in sorted(writer.modules.items())
    ]
    body = "\n".join([*loaded, "", tail])
    starts = "\n".join(_stand_ins(_simulates(failure, script)))
    definitions = _definitions(f"{where.text}\n{starts}\n{body}", question)
    imports = sorted(writer.imports | set(where.imports))
    text = "\n".join(
        [
            *_header(error, failure, test, replay, script, bool(writer.arrays)),
            *_preamble(where, devices, "\n".join([definitions, where.text, body]), imports),
            definitions,
            where.text,
            starts,
            body,
        ]
    )
    return Script(text, writer.arrays, tuple(missing))


def _compiled(failure: Failure) -> Failure:
    """A failure to show with what jax compiles: a simulator runs nothing that was read back."""
    context = failure.context
    if failure.check != "export" or not isinstance(context.backend, Simulator):
        return failure
    return replace(failure, context=replace(context, backend=interpret(context.backend.target)))


def _simulates(failure: Failure, script: Reproduction) -> bool:
    """Whether a script needs the simulator."""
    backends = (failure.context.backend, *script.backends)
    return any(backend.kind == "simulating" for backend in backends)


def _stand_ins(simulated: bool) -> Iterator[str]:
    """What lets modules with kernels be imported where a test framework is not installed."""
    if simulated:
        yield "stand_in_beside_the_simulator()"
    yield 'sys.meta_path.append(StandIns("pytest_pallas", "hypothesis", "pytest", "_pytest"))'


def _header(
    error: PallasTestError,
    failure: Failure,
    test: str,
    replay: str,
    script: Reproduction,
    beside: bool,
) -> Iterator[str]:
    from pytest_pallas.backends import label

    backend = failure.context.backend
    yield f'"""{failure.name}: {failure.check} on {label(backend)} fails. This script shows it'
    if _simulates(failure, script):
        yield "with jax, numpy and pytest_pallas.simulator, which needs neither pytest nor"
        yield "hypothesis. It ends with 1 while the failure is there, with 0 when it is mended."
    else:
        yield "with jax and numpy alone, and ends with 1 while it does, with 0 when it is mended."
    yield '"""'
    yield ""
    yield f"# test: {test}"
    if replay:
        yield f"# With pytest and pytest-pallas: {replay}"
    if beside:
        yield "# Its arrays are in the file of the same name that ends in .npz."
    if script.note:
        yield f"# {script.note}"
    yield "#"
    for line in str(error).splitlines():
        yield f"# {line}".rstrip()
    yield ""


def _preamble(where: places.Place, devices: int, text: str, imports: list[str]) -> Iterator[str]:
    """Imports and settings: what decides devices comes before jax."""
    yield "from __future__ import annotations"
    yield ""
    yield "import os"
    for words, line in _IMPORTS.items():
        if re.search(rf"\b({words})\b", text):
            yield line
    yield ""
    for name, value in where.environment.items():
        yield f"os.environ[{name!r}] = {value!r}"
    if devices > 1 and "JAX_PLATFORMS" in where.environment:
        yield f'os.environ["JAX_NUM_CPU_DEVICES"] = "{devices}"'
        yield 'flags = os.environ.get("XLA_FLAGS", "").split()  # JAX refuses a second count'
        yield 'kept = [flag for flag in flags if "host_platform_device_count" not in flag]'
        yield 'os.environ["XLA_FLAGS"] = " ".join(kept)'
    yield ""
    yield "import jax"
    yield "import jax.export"
    yield "import jax.numpy as jnp"
    yield "import numpy as np"
    yield from (line for line in imports if line not in ("import jax", "import numpy"))
    yield ""
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        yield 'jax.config.update("jax_enable_x64", True)'
    precision = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    if precision is not None:
        yield f'jax.config.update("jax_default_matmul_precision", {precision!r})'
    yield ""
    yield "ARRAYS = (np.ndarray, jax.Array)"
    yield ""


def _definitions(text: str, question: str) -> str:
    """The definitions that a script needs, and that these need, in the order of their source.

    Args:
      text: the rest of the script.
      question: name of its question; those of other scripts are left out.
    """
    others = {each.__name__ for each in (*QUESTIONS.values(), *PROGRAMS)} - {question}
    known = {
        each.__name__: textwrap.dedent(inspect.getsource(each))
        for module in (parts, questions, programs, uninitialized, related, simulated)
        for each in vars(module).values()
        if inspect.isclass(each) or inspect.isfunction(each)
        if each.__module__ == module.__name__ and each.__name__ not in others
    }
    known |= {each.__name__: inspect.getsource(each) for each in _OTHERS}
    needed, left = set[str](), _names(text) | {"StandIns"}
    while left:
        name = left.pop()
        if name in known and name not in needed:
            needed.add(name)
            left |= _names(known[name])
    return "\n\n".join(known[name] for name in known if name in needed)


def _names(text: str) -> set[str]:
    """The names that a piece of Python uses."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
