"""The text of a script that checks the call on which a check failed, by ``pytest_pallas.check``."""

from __future__ import annotations

import contextlib
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from pallas_sim.errors import PallasError
from pytest_pallas.backends import label
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.errors import CostError, MismatchError
from pytest_pallas.replay import functions
from pytest_pallas.replay.literals import UnwritableError, Writer, quoted
from pytest_pallas.replay.places import NoScriptError, backend_name, ran_on, without_mesh
from pytest_pallas.replay.plain_jax import in_plain_jax
from pytest_pallas.replay.promises import of_project, promises_of, reads
from pytest_pallas.session import Session


@dataclass(frozen=True)
class Script:
    """A script.

    Attributes:
      text: the source.
      arrays: what it reads from the file beside it, by key; empty if it holds all itself.
      missing: what its reader must fill in before it runs.
    """

    text: str
    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])
    missing: tuple[str, ...] = ()


def script_of(
    session: Session, error: PallasError, failure: Failure, *, test: str, replay: str
) -> Script:
    """The script for a failure.

    Args:
      session: of the failing test.
      error: what the check raised.
      failure: the check and the call.
      test: the pytest node id.
      replay: the command that runs the example again with pytest.

    Raises:
      NoScriptError: a script cannot repeat the failure.
    """
    if isinstance(error, CostError):
        raise NoScriptError("it would not have the recorded costs to compare with")
    text = _Text(Writer(), timed_out=error.timed_out)
    lines = list(text.check(session, failure))
    if text.writer.arrays:  # then all of them are better in the file
        text = _Text(Writer(most=0), timed_out=error.timed_out)
        lines = list(text.check(session, failure))
    if failure.check == "forward" and isinstance(error, MismatchError):
        lines += in_plain_jax(failure)
    return Script(
        "\n".join(
            [
                *_header(error, failure, test, replay, stored=bool(text.writer.arrays)),
                *text.imports(session, failure, "\n".join(lines)),
                *([f"sys.exit({'fill in ' + '; '.join(text.missing)!r})"] if text.missing else []),
                *lines,
                "",
            ]
        ),
        text.writer.arrays,
        tuple(text.missing),
    )


@dataclass
class _Text:
    """What is written of a failure, and what of it cannot be written."""

    writer: Writer
    missing: list[str] = field(default_factory=list[str])
    timed_out: bool = False

    def written(self, what: str, value: Any) -> str:
        """The expression for a value; ``None`` where there is none, which is noted."""
        try:
            return self.writer.write(value)
        except UnwritableError as problem:
            self.missing.append(f"{what}: {problem}")
            return "None"

    def check(self, session: Session, failure: Failure) -> Iterator[str]:
        """The call of ``pytest_pallas.check``.

        Raises:
          NoScriptError: the backend is one of the project.
        """
        context, arguments = failure.context, failure.context.arguments
        # A trace that did not end would not end here either.
        executed = context.backend if self.timed_out else ran_on(context)
        backend = backend_name(executed, "the backend")
        kernel, mesh = without_mesh(context.kernel)
        reference, _ = without_mesh(context.reference)
        yield f"kernel = {self.written('the kernel', kernel)}"
        words = ["kernel", "*args"]
        if reference is not None:
            yield f"reference = {self.written('the reference', reference)}"
            words.append("reference=reference")
        yield f"args = {self.written('the arguments', tuple(arguments.args))}"
        given: dict[str, Any] = {"options": arguments.options, "tuning": arguments.tuning}
        asks = any(
            getattr(context, each) and reads(failure.check, each)
            for each in ("relations", "raises")
        )
        if asks and arguments.recipe:
            words[1] = "call"  # their functions may read what was drawn
            given["recipe"] = self._writable(arguments.recipe)
        given = {name: dict(value) for name, value in given.items() if value}
        for name, value in given.items():
            yield f"{name} = {self.written(f'the {name}', value)}"
        if words[1] == "call":
            named = "".join(f", {name}={name}" for name in given)
            yield f"call = pytest_pallas.Arguments(args{named})"
        else:
            words += [f"{name}={name}" for name in given]
        words += [f'backend="{backend}"', f"checks={self._check(session, failure.check)}"]
        if context.arithmetic:
            words.append(f'arithmetic="{context.arithmetic}"')
        if mesh is not None:
            words.append(f"mesh={self.writer.mapping(mesh.shape)}")
        for name, value in promises_of(failure, kernel).items():
            words.append(f"{name}={self.written(f'{name}=', value)}")
        if getattr(kernel, "__name__", "") != failure.name:
            words.append(f'name="{failure.name}"')
        yield ""
        yield from _called("pytest_pallas.check", words)
        yield 'print("no failure")'

    def _check(self, session: Session, name: str) -> str:
        """The name of a check, or the expression for one of the project's."""
        if of_project(name):
            return self.written(f"the check {name}", session.checks[name])
        return f'"{name}"'

    def _writable(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those that a script can hold."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            with contextlib.suppress(UnwritableError):
                Writer().write(value)
                found[name] = value
        return found

    def imports(self, session: Session, failure: Failure, text: str) -> Iterator[str]:
        """Imports and settings: what decides devices comes before what may start JAX."""
        context, writer = failure.context, self.writer
        imports = {"import pytest_pallas", *writer.imports}
        folders = [folder for folder, _ in writer.modules.values() if folder]
        if folders or self.missing:
            imports.add("import sys")
        several = failure.check == "sharding" or context.devices > 1 or writer.meshes
        simulated = several and context.backend.kind != "hardware"
        if simulated:
            imports |= {"import os", "from pytest_pallas.devices.simulate import simulate"}
        settings = list(_settings())
        for word, line in (
            ("functools", "import functools"),
            ("np", "import numpy as np"),
            ("jnp", "import jax.numpy as jnp"),
            ("jax", "import jax"),
        ):
            if re.search(rf"\b({word})\b", text):
                imports.add(line)
        if settings:
            imports.add("import jax")
        if writer.arrays:
            imports |= {"from pathlib import Path", "import numpy as np"}
        if any(not folder for folder, _ in writer.modules.values()):
            imports.add("from pytest_pallas.replay.parts import load")
        standard = {line for line in imports if line.split()[1] in sys.stdlib_module_names}
        for group in (standard, imports - standard):
            yield from sorted(group, key=lambda line: (not line.startswith("import"), line))
            yield from ("",) if group else ()
        if simulated:
            count = session.options.devices
            yield f"simulate({count}, os.environ, explicit=True)  # before JAX starts"
        yield from settings
        for folder in dict.fromkeys(folders):
            yield f"sys.path.insert(0, {quoted(folder)})"
        for name, (folder, file) in sorted(writer.modules.items()):
            variable = functions.variable(name)
            if folder:
                yield f"import {name} as {variable}"
            else:
                yield f"{variable} = load({quoted(name)}, {quoted(file)})"
        if writer.arrays:
            yield 'STORED = np.load(Path(__file__).with_suffix(".npz"))'
        yield ""


def _called(function: str, words: Sequence[str]) -> Iterator[str]:
    """The lines of a call: one if it fits, else as many arguments on a line as fit."""
    line = f"{function}({', '.join(words)})"
    if len(line) <= 100 and "\n" not in line:
        yield line
        return
    yield f"{function}("
    line = ""
    for word in words:
        if "\n" in word or len(line) + len(word) > 88:
            yield from [f"    {line.rstrip()}"] if line else []
            line = ""
        if "\n" in word:
            yield from textwrap.indent(f"{word},", "    ").splitlines()
        else:
            line += f"{word}, "
    yield from [f"    {line.rstrip()}"] if line else []
    yield ")"


def _header(
    error: PallasError, failure: Failure, test: str, replay: str, *, stored: bool
) -> Iterator[str]:
    backend = failure.context.backend
    yield f'"""{failure.name}: {failure.check} on {label(backend)} fails.'
    yield ""
    yield "This script repeats the failure. It needs pytest-pallas, and no pytest session."
    yield '"""'
    yield f"# test: {test}"
    if replay:
        yield f"# With pytest: {replay}"
    if stored:
        yield "# Its arrays are in the file of the same name that ends in .npz."
    yield "#"
    for line in str(error).splitlines():
        yield f"# {line}".rstrip()
    yield ""


def _settings() -> Iterator[str]:
    """What of JAX's settings changes answers."""
    config: Any = jax.config
    if config.jax_enable_x64:
        yield 'jax.config.update("jax_enable_x64", True)'
    precision = config.jax_default_matmul_precision
    if precision is not None:
        yield f'jax.config.update("jax_default_matmul_precision", {precision!r})'
