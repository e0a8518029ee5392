"""What must hold of the kernel of a failure, as keyword arguments of ``pytest_pallas.check``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_pallas.checks import NAMES as CHECKS
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.numerics import Tolerance
from pytest_pallas.options.values import Options
from pytest_pallas.replay.places import backend_name, without_mesh
from pytest_pallas.sanitizers import NAMES as SANITIZERS

#: The checks that read a promise of a spec, where not every check does. One of a project may.
READERS: Mapping[str, tuple[str, ...]] = {
    "differentiable": ("gradient", "grid"),
    "batch_axes": ("sharding",),
    "relations": ("linearity", "permutation", "relation"),
    "raises": ("raises",),
    "others": ("cross",),
    "ignored": ("padding",),
    "claimed": ("grid",),
}

#: The keyword arguments besides, and what they are where nobody gives them.
_USUAL: Mapping[str, Any] = {
    "exact": False,
    "differentiable": (),
    "batch_axes": (),
    "relations": (),
    "raises": (),
    "ignored": None,
    "claimed": (),
    "tolerance": Tolerance(),
    "deterministic": True,
    "nan_ok": False,
    "check_dtype": True,
    "jit": True,
    "timeout": Options.timeout,
}

#: The fields of ``RunSettings`` that are set because a sanitizer watches every run.
_WATCHES = ("races", "dma")


def of_project(check: str) -> bool:
    """Whether a check is one that a project adds."""
    return check not in (*CHECKS, *SANITIZERS)


def reads(check: str, promise: str) -> bool:
    """Whether a check may read a promise."""
    return of_project(check) or check in READERS.get(promise, (check,))


def promises_of(failure: Failure, kernel: Any) -> dict[str, Any]:
    """The keyword arguments that the check reads, and that are not the usual ones.

    Args:
      failure: what failed.
      kernel: the kernel as it is written into the script.

    Raises:
      NoScriptError: it is compared with a backend of the project.
    """
    context = failure.context
    found: dict[str, Any] = {
        name: getattr(context, name)
        for name, usual in _USUAL.items()
        if reads(failure.check, name) and _differs(getattr(context, name), usual)
    }
    if reads(failure.check, "others"):
        found |= _others(context, kernel)
    watched = [name for name in _WATCHES if getattr(context.settings, name)]
    if watched != list(_WATCHES):
        found["sanitize"] = watched or "none"
    return found


def _differs(value: Any, usual: Any) -> bool:
    return bool(value) if usual == () else value != usual


def _others(context: CheckContext, kernel: Any) -> dict[str, Any]:
    """What the kernel is compared with, as keyword arguments."""
    peers = {
        backend_name(each.backend, "the peer"): each for each in context.others if each.is_kernel
    }
    functions = {name: without_mesh(each.function)[0] for name, each in peers.items()}
    found: dict[str, Any] = {}
    if functions:
        alike = all(function is kernel for function in functions.values())
        found["peers"] = tuple(functions) if alike else functions
    implementations = {
        each.name: without_mesh(each.function)[0] for each in context.others if not each.is_kernel
    }
    return found | ({"implementations": implementations} if implementations else {})
