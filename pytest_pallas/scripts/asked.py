"""What a script asks, given what failed: its question, and what the test allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from pytest_pallas import compat
from pytest_pallas.backends.hardware import CUSTOM_CALLS
from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.trial import Finding, Trial
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.compilers import tpu_chips
from pytest_pallas.errors import (
    CompileError,
    KernelError,
    MismatchError,
    NoPallasCallError,
    PallasTestError,
)
from pytest_pallas.scripts import parts, places, programs, questions


class NoScriptError(Exception):
    """Why there is none."""


#: The question of each check. What another check finds is shown by ``forward``, if at all.
QUESTIONS: Mapping[str, Callable[[parts.Case], bool]] = {
    "forward": questions.forward,
    "gradient": questions.gradient,
    "vmap": questions.vmap,
    "determinism": questions.determinism,
    "immutability": programs.immutability,
    "dtype": questions.dtype,
    "jit": questions.without_jit,
    "export": questions.export,
    "blocks": questions.blocks,
    "sharding": questions.sharding,
}

#: The questions of what does not come to be executed.
PROGRAMS = (programs.holds_a_kernel, programs.compiles)


def asked(
    error: PallasTestError, failure: Failure
) -> tuple[Callable[[parts.Case], bool], str, dict[str, Any], dict[str, parts.Limit]]:
    """The question of a script, a note on it, what more it needs, and what the test allowed.

    Raises:
      NoScriptError: jax and numpy alone cannot show the failure.
    """
    trial, check, finding = failure.trial, failure.check, failure.finding
    more: dict[str, Any] = {}
    if trial.backend.kind == "compiling":
        if not isinstance(error, CompileError) or check not in ("forward", "gradient", "vmap"):
            raise NoScriptError("what a compiler says of its code is seen with this plugin only")
        more = _program(trial, check) | {"lowering": error.kernel_error is not None}
        if not more["lowering"] and not more["topology"]:
            raise NoScriptError("to compile for a GPU that is not there needs the plugin")
        return programs.compiles, "", more, {}
    if isinstance(error, NoPallasCallError):
        more = {"look_in": "jaxpr", "names": tuple(sorted(compat.KERNEL_PRIMITIVES))}
        if trial.backend.kind == "hardware":
            more = {"look_in": "executable", "names": CUSTOM_CALLS[trial.backend.platform]}
        return programs.holds_a_kernel, "", more, {}
    if not isinstance(error, (MismatchError, KernelError)) or trial.reference is None:
        raise NoScriptError("it is no failure of the kernel")
    if not trial.jit:
        raise NoScriptError("the kernel is called without jit, with values that were not kept")
    note = ""
    if check not in QUESTIONS:
        finding = _forward(trial)
        note = f"{check} needs the plugin; this script asks forward, which fails for this call too."
    if check == "gradient":
        cotangents = None if finding is None else finding.cotangents
        more = {"by": tuple(trial.differentiable), "cotangents": cotangents}
    elif check == "sharding":
        count = len(jax.devices(places.platform_of(trial.backend)))
        devices = tuple(n for n in (1, 2, 4, 8) if n <= count)
        more = {"batch_axes": tuple(trial.batch_axes), "devices": devices}
    limits = {} if finding is None else _limits(finding, trial)
    return QUESTIONS.get(check, questions.forward), note, more, limits


def _forward(trial: Trial) -> Finding | None:
    """What ``forward`` finds wrong; None if the kernel raises.

    Raises:
      NoScriptError: nothing.
    """
    try:
        finding = forward(trial)
    except KernelError:
        return None
    except Exception as error:
        raise NoScriptError("what this check does needs the plugin") from error
    if finding.failed is None:
        raise NoScriptError("what this check does needs the plugin; forward passes for this call")
    return finding


def _limits(finding: Finding, trial: Trial) -> dict[str, parts.Limit]:
    """What each output was allowed; of several comparisons of one, the failed one counts."""
    rules = {"rms": "rms", "exact": "exact", "shape": "type", "dtype": "type", "tree": "type"}
    limits: dict[str, parts.Limit] = {}
    comparisons = sorted(finding.comparisons, key=lambda each: (each.passed, -each.allowed))
    for each in comparisons:
        if each.kind == "bitwise":
            continue
        limit = parts.Limit(
            rules.get(each.kind, "close"),
            each.allowed,
            each.worst_index or (),
            trial.tolerance.fraction,
            not trial.check_dtype,
        )
        limits.setdefault(each.where or "output", limit)
    return limits


def _program(trial: Trial, check: str) -> dict[str, Any]:
    """What a script compiles, and for which chip."""
    target = places.target_of(trial.backend)
    platform = {"gpu": "cuda"}.get(target.platform, target.platform)
    topology = tpu_chips.topology(target.name, trial.devices) if platform == "tpu" else ""
    program = {"program": check, "platform": platform, "topology": topology}
    program |= {"devices": trial.devices, "target": target.name}
    return program | ({"by": tuple(trial.differentiable)} if check == "gradient" else {})
