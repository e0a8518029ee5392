"""What a script asks, given what failed: its question, what it runs, and what was allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from pytest_pallas.backends import Backend, chip_of, label
from pytest_pallas.backends.hardware import CUSTOM_CALLS
from pytest_pallas.backends.interpreters import Interpreter
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.checks.cross import accepted
from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.ignored import masks_of
from pytest_pallas.checks.trial import Related, Trial, TrialResult
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.compat.jaxprs import KERNEL_PRIMITIVES
from pytest_pallas.compilers import tpu_chips
from pytest_pallas.errors import (
    CompileError,
    DmaError,
    KernelError,
    MismatchError,
    NoPallasCallError,
    PallasTestError,
)
from pytest_pallas.numerics import Comparison
from pytest_pallas.relations import Relation
from pytest_pallas.scripts import places
from pytest_pallas.scripts.literals import UnwritableError, Writer
from pytest_pallas.scripts.standalone import parts, programs, questions, related, uninitialized
from pytest_pallas.strategies.arguments import Arguments

#: Backends that a script can have beside each other: they need nothing but the host's CPU.
_HERE = (Interpreter, Simulator)


def calls(related: Related, comparisons: Sequence[Comparison]) -> tuple[Arguments, dict[str, Any]]:
    """The call that is judged, and what ``related`` of the scripts needs: none if it has none."""
    if not related.others:
        return related.call, {}
    claim = dict(related.claim)
    if "expect" in claim:
        if claim["expect"] is Relation.expect:  # the default, of this package
            claim["expect"] = None
        else:
            claim["recipe"] = _writable(related.call.recipe)
    others = tuple((call.args, dict(call.options), dict(call.tuning)) for call in related.others)
    exact = any(comparison.kind == "bitwise" for comparison in comparisons)
    return related.call, {"others": others, "claim": claim, "exact": exact}


def others(trial: Trial, finding: TrialResult | None) -> tuple[dict[str, Any], list[Backend]]:
    """What ``cross`` of the scripts needs, and the backends of the others.

    Only the pair that was found to differ; all that can be shown if the check came to no
    comparison. Nothing if there is none.
    """
    here = label(trial.backend)
    chosen = [
        other
        for other in trial.others
        if finding is None or other.name in finding.compared
        if label(other.backend) == here
        or (isinstance(other.backend, _HERE) and isinstance(trial.backend, _HERE))
    ]
    if not chosen:
        return {}, []
    tuning = trial.arguments.tuning
    entries = tuple(
        (
            other.name,
            other.function,
            dict(tuning)
            if other.is_kernel
            else {name: tuning[name] for name in accepted(other.function, tuning)},
        )
        for other in chosen
    )
    return {"here": here, "others": entries}, [other.backend for other in chosen]


def unimportant(trial: Trial) -> dict[str, Any]:
    """What ``padding`` of the scripts needs."""
    masks = masks_of(trial.ignored, trial.arguments)
    return {
        "fills": bool(getattr(trial.backend, "fills", False)),
        "masks": tuple(masks or [None] * len(trial.arguments.args)),
    }


def _writable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a script can hold."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            Writer().write(value)
        except UnwritableError:
            continue
        found[name] = value
    return found


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
    "padding": uninitialized.padding,
    "linearity": related.related,
    "permutation": related.related,
    "relation": related.related,
    "cross": related.cross,
}

#: The checks whose program ``programs.compiles`` makes.
COMPILED = ("forward", "gradient", "vmap")

#: The questions of what does not come to be executed.
PROGRAMS = (programs.holds_a_kernel, programs.compiles)


@dataclass(frozen=True)
class Asked:
    """What a script asks.

    Attributes:
      question: which question.
      arguments: of which call.
      note: on the question; "" if there is none.
      more: what else it needs.
      limits: what the test allowed each output.
      backends: those of what the kernel is compared with, in order.
    """

    question: Callable[[parts.Case], bool]
    arguments: Arguments
    note: str = ""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: Mapping[str, parts.Limit] = field(default_factory=dict[str, parts.Limit])
    backends: Sequence[Backend] = ()


def asked(error: PallasTestError, failure: Failure) -> Asked:
    """What the script of a failure asks.

    Raises:
      NoScriptError: jax and numpy alone cannot show the failure.
    """
    trial, check, finding = failure.trial, failure.check, failure.finding
    more: dict[str, Any] = {}
    arguments = trial.arguments
    if trial.backend.kind == "compiling":
        if not isinstance(error, CompileError) or check not in COMPILED:
            raise NoScriptError("what a compiler says of its code is seen with this plugin only")
        more = _program(trial, check) | {"lowering": error.kernel_error is not None}
        if not more["lowering"] and not more["topology"]:
            raise NoScriptError("to compile for a GPU that is not there needs the plugin")
        return Asked(programs.compiles, arguments, more=more)
    if isinstance(error, NoPallasCallError):
        more = {"look_in": "jaxpr", "names": tuple(sorted(KERNEL_PRIMITIVES))}
        if trial.backend.kind == "hardware":
            more = {"look_in": "executable", "names": CUSTOM_CALLS[trial.backend.platform]}
        return Asked(programs.holds_a_kernel, arguments, more=more)
    if not isinstance(error, (MismatchError, KernelError)) or trial.reference is None:
        raise NoScriptError("it is no failure of the kernel")
    if isinstance(error, DmaError) and trial.backend.kind != "simulating":
        raise NoScriptError("what a kernel leaves behind is seen with this plugin only")
    if not trial.jit:
        raise NoScriptError("the kernel is called without jit, with values that were not kept")
    question, note, backends = QUESTIONS.get(check), "", list[Backend]()
    needs = f"{check} needs the plugin"
    if question is related.related and (finding is None or finding.related is None):
        question, needs = None, f"the kernel raised for one of the calls of {check}"
    if question is related.related and finding is not None and finding.related is not None:
        arguments, more = calls(finding.related, finding.comparisons)
        question = related.related if finding.related.others else questions.forward
    elif question is related.cross:
        more, backends = others(trial, finding)
        needs = "a script runs one backend, or simulators and interpreters only"
        question = related.cross if more else None
    elif question is uninitialized.padding:
        more = unimportant(trial)
    if question is None:
        finding, question = _forward(trial, needs), questions.forward
        note = f"{needs}; this script asks forward, which fails for this call too."
    if check == "gradient":
        cotangents = None if finding is None else finding.cotangents
        more = {"by": tuple(trial.differentiable), "cotangents": cotangents}
    elif check == "determinism":
        more = {"simulated": trial.backend.kind == "simulating"}
    elif check == "sharding":
        count = len(jax.devices(places.platform_of(trial.backend)))
        devices = tuple(n for n in (1, 2, 4, 8) if n <= count)
        more = {"batch_axes": tuple(trial.batch_axes), "devices": devices}
    limits = {} if finding is None else _limits(finding, trial)
    return Asked(question, arguments, note, more, limits, backends)


def _forward(trial: Trial, needs: str) -> TrialResult | None:
    """What ``forward`` finds wrong; None if the kernel raises.

    Raises:
      NoScriptError: nothing.
    """
    try:
        finding = forward(trial)
    except KernelError:
        return None
    except Exception as error:
        raise NoScriptError(needs) from error
    if finding.failed is None:
        raise NoScriptError(f"{needs}; forward passes for the drawn call")
    return finding


def _limits(finding: TrialResult, trial: Trial) -> dict[str, parts.Limit]:
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
    target = chip_of(trial.backend)
    platform = {"gpu": "cuda"}.get(target.platform, target.platform)
    topology = tpu_chips.topology(target.name, trial.devices) if platform == "tpu" else ""
    program = {"program": check, "platform": platform, "topology": topology}
    program |= {"devices": trial.devices, "target": target.name}
    return program | ({"by": tuple(trial.differentiable)} if check == "gradient" else {})
