"""Run one check on one example, and raise an error that explains a failure."""

from __future__ import annotations

import dataclasses
import functools
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pallas_sim.errors import Explanation, Fact, PallasError, explanation_of
from pytest_pallas.backends.execution import describe_call
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import Backend, Call, Outcome, label
from pytest_pallas.checks.check import Check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    as_kernel_error,
    call,
    judge_leaves,
    judge_together,
    process_facts,
)
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import CompileError, CostError, MismatchError, facts_of, is_own
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.grid.unwritten import describe_writer, inputs_beyond_edges
from pytest_pallas.judge.explanation import in_words, role_of
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Comparison, Tolerance
from pytest_pallas.record import Note

#: Primitives around a kernel that pass its output on as it is; vmap and shard_map do not.
_TRANSPARENT = frozenset(
    {"jit", "pjit", "closed_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_jvp_call"}
)

#: How many operands with blocks that hang over are named.
_BLOCKS = 3

#: How many masks and arrays of ids of a call are described.
_CONTENTS = 6

#: A folder without kernel code: the standard library.
_STANDARD = Path(traceback.__file__).parent


@dataclass(frozen=True)
class Failure:
    """A failed check, for reports.

    Attributes:
      check: name of the check.
      name: name of the kernel.
      context: the call.
      finding: the result of the check; None if an error stopped it.
    """

    check: str
    name: str
    context: CheckContext
    finding: CheckResult | None = None


def run_check(
    check: Check,
    context: CheckContext,
    name: str,
    *,
    found: Callable[[CheckResult], None] = lambda _: None,
) -> CheckResult:
    """Run a check on one example.

    Args:
      check: the check.
      context: the example.
      name: of the kernel, for messages.
      found: called with the result, also with that of a failure.

    Raises:
      MismatchError: an output is wrong; the message explains it.
      PallasError: the kernel or the reference raised. In both cases, the message ends with the
        drawn example.
      PeerError: the check failed in another process of the program.
      GangError: the processes do different things.
    """
    __tracebackhide__ = True
    if gang() is None:
        return _run_alone(check, context, name, found)
    asked = describe_call(call(context, context.kernel, context.arguments.args))
    return judge_together(
        functools.partial(_run_alone, check, context, name, found),
        subject=f"{name} {check.name}: {asked}",
        timeout=context.settings.timeout,
    )


def _run_alone(
    check: Check, context: CheckContext, name: str, found: Callable[[CheckResult], None]
) -> CheckResult:
    """``run_check`` in this process."""
    __tracebackhide__ = True
    headline = f"{name}: {check.name} on {label(context.backend)}"
    finding = _run(check, context, headline)
    if isinstance(finding, PallasError):
        facts_of(finding).failure = Failure(check.name, name, context)
        # Not in the handler: pytest would print the whole chain, which is JAX's internals.
        raise finding
    finding = replace(finding, notes=(*finding.notes, *_loosened(check, context, finding)))
    found(finding)
    problem = _problem_of(finding.outcome, context, name, check.name)
    if problem is not None:
        error = _with_context(problem, headline, context)
        facts_of(error).failure = Failure(check.name, name, context, finding)
        raise error
    failed = finding.failed
    if failed is not None:
        error = _mismatch(headline, finding, failed, context)
        facts_of(error).failure = Failure(check.name, name, context, finding)
        raise error
    return finding


def conclude(check: Check, evidence: Sequence[Any], name: str, backend: Backend) -> None:
    """Let a check conclude over all examples, after the last.

    Args:
      check: the check.
      evidence: the evidence of the examples' results, in order.
      name: of the kernel, for messages.
      backend: where the examples ran.

    Raises:
      MismatchError: something is wrong over all of them.
    """
    __tracebackhide__ = True
    if check.conclude is None or not evidence:
        return  # nothing was run, as where a time was over
    problem = check.conclude(evidence)
    if problem is not None:
        raise MismatchError.explained(
            explanation_of(problem), f"{name}: {check.name} on {label(backend)}"
        )


def _run(check: Check, context: CheckContext, headline: str) -> CheckResult | PallasError:
    """The result of a check, or the error that stopped it, with the drawn example."""
    try:
        if context.backend.kind == "compiling":
            return compiled(check, context)
        return _with_notes(check.run(context))
    except PallasError as error:
        return _with_context(error, headline, context)


def _with_notes(finding: CheckResult) -> CheckResult:
    """A result with the notes on its reference."""
    notes = () if finding.answer is None else finding.answer.expected.notes
    return replace(finding, notes=(*finding.notes, *notes)) if notes else finding


def _loosened(check: Check, context: CheckContext, finding: CheckResult) -> Iterator[Note]:
    """A note if an answer passed, and would not have passed without its tolerance."""
    answer = finding.answer
    if not check.base or not context.tolerance_given_by or answer is None or finding.failed:
        return
    if all(comparison.kind == "exact" for comparison in finding.comparisons):
        return  # no tolerance was used
    strict = replace(context, tolerance=Tolerance(), explained=False)
    if any(not each.passed for each in judge_leaves(strict, answer.outputs, answer.expected)):
        yield Note(
            f"passes only by {context.tolerance}, from {context.tolerance_given_by}; the default "
            "rule rejects the answer: leave the tolerance out to see why",
            "tolerance",
        )


def _beyond_facts(failed: Comparison, outcome: Outcome) -> Iterator[Fact]:
    """That NaN may come from beyond the edge of an array, if its program has a block there."""
    value, writer = failed.actual_value, writer_of(outcome, failed)
    is_nan = isinstance(value, float) and math.isnan(value)
    if not is_nan or writer is None or failed.worst_index is None:
        return
    call, position = writer
    for number, block in inputs_beyond_edges(call, position, failed.worst_index)[:_BLOCKS]:
        sizes = ", ".join(str(size) for _, size, _ in block.dims)
        dims = ", ".join(map(str, block.shape))
        yield Fact(
            "cause",
            f"perhaps elements beyond the edge: blocks [{sizes}] of {block.name or 'an input'} "
            f"(input {number} of {call.name}) hang over its array [{dims}]; mask them in the "
            "kernel",
        )


def _tolerance_facts(failed: Comparison, context: CheckContext) -> Iterator[Fact]:
    """The tolerance that an answer failed against, unless it is the default."""
    if context.tolerance_given_by and failed.kind in ("close", "rms", "explicit"):
        yield Fact("tolerance", f"{context.tolerance}, from {context.tolerance_given_by}")


def _product_facts(failed: Comparison, finding: CheckResult) -> Iterator[Fact]:
    """The precision of the baseline's products of float32, unless that is float32."""
    products = None if finding.answer is None else finding.answer.expected.products
    if products is not None and failed.kind in ("close", "rms"):
        yield Fact(
            "products",
            f"the baseline multiplies float32 as {products.name}, the lowest precision that the\n"
            "kernel asks for; jax.lax.Precision.HIGHEST asks for float32",
        )


def _problem_of(
    outcome: Outcome | None, context: CheckContext, name: str, check: str
) -> PallasError | None:
    """The error of a compiled program: it did not compile, or costs too much."""
    if outcome is None:
        return None
    if outcome.error is not None:
        return as_kernel_error(outcome.error)
    grown = None if context.costs is None else context.costs.grown(name, check, outcome.report)
    return None if grown is None else CostError(grown)


def _with_context(error: PallasError, headline: str, context: CheckContext) -> PallasError:
    """The error with the headline, the line where the kernel raised, and the drawn example."""
    if not context.explained:
        return error
    explanation = error.explanation or explanation_of(str(error))
    if not isinstance(error, CompileError):  # its message names the kernel's line
        details = (*explanation.details, *_raised_at(error.__cause__))
        explanation = replace(explanation, details=details)
    explanation = explanation.with_facts(
        *process_facts(), *drawn_facts(context.arguments), *content_facts(context.arguments)
    )
    problem = error.with_message(f"{headline}: {explanation}")
    problem.explanation = explanation
    facts = facts_of(problem)
    facts.kernel_error, facts.plain = error.__cause__, str(error)
    problem.__cause__ = None
    return problem


def _raised_at(cause: BaseException | None) -> Iterator[str]:
    """The innermost line of the kernel, also of an installed kernel or one of JAX."""
    if cause is None or isinstance(cause, PallasError):
        return
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if not is_own(frame.filename)
        and Path(frame.filename).parent != _STANDARD
        and "jax/_src/" not in Path(frame.filename).as_posix()
    ]
    if frames:
        last = frames[-1]
        yield f"  raised at {last.filename}:{last.lineno} in {last.name}: {last.line}"


def _mismatch(
    headline: str, finding: CheckResult, failed: Comparison, context: CheckContext
) -> MismatchError:
    """The error for a comparison that failed."""
    if not context.explained:
        return MismatchError(headline)
    explanation = failed.explanation or Explanation("wrong")
    facts: list[Fact] = []
    if finding.outcome is not None and failed.worst_index is not None and not finding.subject:
        writer = _writer(finding.outcome, failed)
        facts += [Fact("block", writer)] if writer else []
        facts += _beyond_facts(failed, finding.outcome)
    others = [c for c in finding.comparisons if not c.passed and c is not failed]
    if others:
        facts.append(Fact("also wrong", ", ".join(other.where or "output" for other in others)))
    explanation = explanation.with_facts(
        *facts,
        *_product_facts(failed, finding),
        *_tolerance_facts(failed, context),
        *process_facts(),
        *drawn_facts(context.arguments),
        *content_facts(context.arguments),
    )
    subject = f" ({finding.subject})" if finding.subject else ""
    error = MismatchError(f"{headline}{subject} is wrong\n{explanation}")
    if finding.subject:
        explanation = replace(explanation, summary=f"{finding.subject}: {explanation.summary}")
    error.explanation = explanation
    return error


def _writer(outcome: Outcome, failed: Comparison) -> str:
    """The program that wrote the worst element, if one kernel wrote the whole output."""
    writer = writer_of(outcome, failed)
    if writer is None or failed.worst_index is None:
        return ""
    return describe_writer(*writer, failed.worst_index, failed.shape)


def writer_of(outcome: Outcome, failed: Comparison) -> tuple[KernelCall, int] | None:
    """The only kernel, if it wrote the whole output, and the number of that output."""
    if len(outcome.kernels) != 1:
        return None
    kernel = outcome.kernels[0]
    if any(name not in _TRANSPARENT for name in kernel.path):
        return None
    paths = [path or "" for path, _ in flatten(outcome.values)]
    where = "" if failed.where == "output" else failed.where
    position = paths.index(where) if where in paths else 0
    avals = kernel.eqn.params.get("out_avals", ())
    if position >= len(avals) or len(avals) != len(paths):
        return None
    written = tuple(avals[position].shape)
    if len(written) != len(failed.shape) or any(
        w < f for w, f in zip(written, failed.shape, strict=True)
    ):
        return None
    return kernel, position


def drawn_facts(arguments: Arguments) -> Iterator[Fact]:
    """The drawn example: arrays, recipe, options and tuning."""
    shapes = [
        f"{leaf.dtype}[{', '.join(map(str, np.shape(leaf)))}]"
        for leaf in jax.tree.leaves(arguments.args)
        if hasattr(leaf, "dtype")
    ]
    yield Fact("inputs", ", ".join(shapes) or "no arrays")
    for title, words in (
        ("drawn", arguments.recipe),
        ("options", arguments.options),
        ("tuning", arguments.tuning),
    ):
        if words:
            yield Fact(title, " ".join(f"{k}={_short(v)}" for k, v in words.items()))


def content_facts(arguments: Arguments) -> Iterator[Fact]:
    """What masks and ids among the arguments hold."""
    for where, role, array in contents_of(arguments)[:_CONTENTS]:
        yield Fact(role, f"{where}: {in_words(array)}")


def contents_of(arguments: Arguments) -> list[tuple[str, str, np.ndarray[Any, Any]]]:
    """The masks and ids among the arguments: where each is, its role, and the array."""
    found: list[tuple[str, str, np.ndarray[Any, Any]]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments.args):
        if not isinstance(leaf, np.ndarray | jax.Array):
            continue
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
            continue
        array = np.asarray(leaf)
        role = role_of(array)
        if role:
            first, *rest = path
            where = f"argument {getattr(first, 'idx', first)}{jax.tree_util.keystr(tuple(rest))}"
            found.append((where, role, array))
    return found


def _short(value: Any) -> str:
    return getattr(value, "__name__", None) or str(value)


# Checks on compiling backends: they compile the program of a check and do not execute it.


def start(check: Check, context: CheckContext) -> Callable[[], Outcome] | None:
    """Start to compile the program of a check; the returned function waits for the outcome.

    None if the check has nothing to compile, or the backend cannot start a compilation in advance.
    """
    begin = getattr(context.backend, "start", None)
    if check.program is None or begin is None:
        return None
    return begin(_call(check, context))


def _call(check: Check, context: CheckContext) -> Call:
    """The call of a check's program; a gradient may need no output of the kernel."""
    assert check.program is not None
    made = call(context, *check.program(context))
    return dataclasses.replace(made, needs_kernel=check.differentiates != "only")


def compiled(check: Check, context: CheckContext) -> CheckResult:
    """Compile the program of a check. The result's outcome has the report and the error."""
    if check.program is None:
        return CheckResult(comparisons=(), notes=(Note("nothing to compile", "run"),))
    outcome = context.backend.run(_call(check, context))
    if outcome.report is not None:
        report = dataclasses.replace(outcome.report, typical=context.typical)
        outcome = dataclasses.replace(outcome, report=report)
    return CheckResult(
        comparisons=(), outcome=outcome, seconds=outcome.seconds, notes=outcome.notes
    )
