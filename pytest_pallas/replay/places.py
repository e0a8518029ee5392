"""Where the call of a failure ran, as a script names it."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from jax.sharding import Mesh

from pytest_pallas.backends import FAMILIES, REPLACED, Backend, compiling, label, parse
from pytest_pallas.backends.interpreters import Interpreter
from pytest_pallas.checks.context import CheckContext, call


class NoScriptError(Exception):
    """Why there is no script."""


#: The backends that ``pytest_pallas.check`` knows by name.
_KNOWN = {family.name: family for family in (*FAMILIES, *compiling(lambda: None))}


def ran_on(context: CheckContext) -> Backend:
    """The backend that executed the call: an interpreter where the simulator lacks something."""
    backend: Any = context.backend
    otherwise = getattr(backend, "otherwise", None)
    if otherwise is not None:
        made = call(context, context.kernel, context.arguments.args)
        with contextlib.suppress(Exception):  # what the kernel raises when it is traced
            if backend.lacks(made) is not None:
                return otherwise
    return backend


def backend_name(backend: Backend, what: str) -> str:
    """The name of a backend.

    Raises:
      NoScriptError: a script does not know it.
    """
    if backend.name not in _KNOWN:
        raise NoScriptError(f"{what} {label(backend)} is one of the project, which a script lacks")
    return label(backend)


def without_mesh(function: Any) -> tuple[Any, Mesh | None]:
    """A function without the mesh that it is bound to, and that."""
    if isinstance(function, functools.partial) and not function.args:
        mesh = function.keywords.get("mesh")
        if isinstance(mesh, Mesh) and list(function.keywords) == ["mesh"]:
            return function.func, mesh
    return function, None


def interpreter_of(backend: Backend) -> Interpreter | None:
    """JAX's own interpreter, to run what a backend ran; None for hardware."""
    if backend.kind == "simulating":
        names = REPLACED.get(backend.name, ())
        backend = parse(names[-1], _KNOWN)[0] if names else backend
    return backend if isinstance(backend, Interpreter) else None
