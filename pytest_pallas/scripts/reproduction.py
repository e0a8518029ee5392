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
from pytest_pallas.checks.context import CheckContext, CheckResult, Related
from pytest_pallas.checks.cross import accepted
from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.ignored import masks_of
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


def others(
    context: CheckContext, finding: CheckResult | None
) -> tuple[dict[str, Any], list[Backend]]:
    """What ``cross`` of the scripts needs, and the backends of the others.

    Only the pair that was found to differ; all that can be shown if the check came to no
    comparison. Nothing if there is none.
    """
    here = label(context.backend)
    chosen = [
        other
        for other in context.others
        if finding is None or other.name in finding.compared
        if label(other.backend) == here
        or (isinstance(other.backend, _HERE) and isinstance(context.backend, _HERE))
    ]
    if not chosen:
        return {}, []
    tuning = context.arguments.tuning
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


def unimportant(context: CheckContext) -> dict[str, Any]:
    """What ``padding`` of the scripts needs."""
    masks = masks_of(context.ignored, context.arguments)
    return {
        "fills": bool(getattr(context.backend, "fills", False)),
        "masks": tuple(masks or [None] * len(context.arguments.args)),
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
class Reproduction:
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


def reproduction(error: PallasTestError, failure: Failure) -> Reproduction:
    """What the script of a failure asks.

    Raises:
      NoScriptError: jax and numpy alone cannot show the failure.
    """
    context, check, finding = failure.context, failure.check, failure.finding
    more: dict[str, Any] = {}
    arguments = context.arguments
    if context.backend.kind == "compiling":
        if not isinstance(error, CompileError) or check not in COMPILED:
            raise NoScriptError("what a compiler says of its code is seen with this plugin only")
        more = _program(context, check) | {"lowering": error.kernel_error is not None}
        if not more["lowering"] and not more["topology"]:
            raise NoScriptError("to compile for a GPU that is not there needs the plugin")
        return Reproduction(programs.compiles, arguments, more=more)
    if isinstance(error, NoPallasCallError):
        more = {"look_in": "jaxpr", "names": tuple(sorted(KERNEL_PRIMITIVES))}
        if context.backend.kind == "hardware":
            more = {"look_in": "executable", "names": CUSTOM_CALLS[context.backend.platform]}
        return Reproduction(programs.holds_a_kernel, arguments, more=more)
    if not isinstance(error, (MismatchError, KernelError)) or context.reference is None:
        raise NoScriptError("it is no failure of the kernel")
    if isinstance(error, DmaError) and context.backend.kind != "simulating":
        raise NoScriptError("what a kernel leaves behind is seen with this plugin only")
    if not context.jit:
        raise NoScriptError("the kernel is called without jit, with values that were not kept")
    question, note, backends = QUESTIONS.get(check), "", list[Backend]()
    needs = f"{check} needs the plugin"
    if question is related.related and (finding is None or finding.related is None):
        question, needs = None, f"the kernel raised for one of the calls of {check}"
    if question is related.related and finding is not None and finding.related is not None:
        arguments, more = calls(finding.related, finding.comparisons)
        question = related.related if finding.related.others else questions.forward
    elif question is related.cross:
        more, backends = others(context, finding)
        needs = "a script runs one backend, or simulators and interpreters only"
        question = related.cross if more else None
    elif question is uninitialized.padding:
        more = unimportant(context)
    if question is None:
        finding, question = _forward(context, needs), questions.forward
        note = f"{needs}; this script asks forward, which fails for this call too."
    if check == "gradient":
        cotangents = None if finding is None else finding.cotangents
        more = {"by": tuple(context.differentiable), "cotangents": cotangents}
    elif check == "determinism":
        more = {"simulated": context.backend.kind == "simulating"}
    elif check == "sharding":
        count = len(jax.devices(places.platform_of(context.backend)))
        devices = tuple(n for n in (1, 2, 4, 8) if n <= count)
        more = {"batch_axes": tuple(context.batch_axes), "devices": devices}
    limits = {} if finding is None else _limits(finding, context)
    return Reproduction(question, arguments, note, more, limits, backends)


def _forward(context: CheckContext, needs: str) -> CheckResult | None:
    """What ``forward`` finds wrong; None if the kernel raises.

    Raises:
      NoScriptError: nothing.
    """
    try:
        finding = forward(context)
    except KernelError:
        return None
    except Exception as error:
        raise NoScriptError(needs) from error
    if finding.failed is None:
        raise NoScriptError(f"{needs}; forward passes for the drawn call")
    return finding


def _limits(finding: CheckResult, context: CheckContext) -> dict[str, parts.Limit]:
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
            context.tolerance.fraction,
            not context.check_dtype,
        )
        limits.setdefault(each.where or "output", limit)
    return limits


def _program(context: CheckContext, check: str) -> dict[str, Any]:
    """What a script compiles, and for which chip."""
    target = chip_of(context.backend)
    platform = {"gpu": "cuda"}.get(target.platform, target.platform)
    topology = tpu_chips.topology(target.name, context.devices) if platform == "tpu" else ""
    program = {"program": check, "platform": platform, "topology": topology}
    program |= {"devices": context.devices, "target": target.name}
    return program | ({"by": tuple(context.differentiable)} if check == "gradient" else {})
