"""Run one check on one example, and raise an error that explains a failure."""

from __future__ import annotations

import functools
import math
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import ml_dtypes
import numpy as np

from pallas_sim.errors import Explanation, Fact, PallasError, explanation_of
from pytest_pallas.backends.execution import describe_arrays, describe_call
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import (
    Backend,
    Call,
    Fill,
    Outcome,
    Schedule,
    code_of,
    label,
)
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    as_kernel_error,
    call,
    judge_leaves,
    judge_together,
    process_facts,
)
from pytest_pallas.checks.grid import idle_kernels
from pytest_pallas.checks.memory import PAIR, never_written, unwritten
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import (
    CompileError,
    CostError,
    MismatchError,
    facts_of,
    is_library,
    is_own,
)
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.grid.model import describe_writer, inputs_beyond_edges
from pytest_pallas.judge.explanation import in_words, role_of
from pytest_pallas.judge.oracle import argument_name
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


@dataclass(frozen=True)
class Failure:
    """A failed check, for reports.

    Attributes:
      check: name of the check.
      name: name of the kernel.
      context: the call.
      result: the result of the check; None if an error stopped it.
      headline: kernel, check and backend.
    """

    check: str
    name: str
    context: CheckContext
    result: CheckResult | None = None
    headline: str = ""

    def text_of(self, explanation: Explanation) -> str:
        """Return the message of a wrong output with this explanation."""
        result = self.result
        if result is None or not result.subject:
            return f"{self.headline} is wrong\n{explanation}"
        # The headline has the subject.
        failed = result.failed
        own = None if failed is None else failed.explanation
        summary = explanation.summary if own is None else own.summary
        explanation = replace(explanation, summary=summary)
        return f"{self.headline} ({result.subject}) is wrong\n{explanation}"


def failing_call(error: BaseException) -> Call:
    """Make the failing call of an error again, under the schedule in which it failed."""
    context, schedule = facts_of(error).failure.context, facts_of(error).schedule
    made = call(context, context.kernel, context.arguments.args)
    return made if schedule is None else replace(made, schedule=schedule)


def run_check(
    check: Check,
    context: CheckContext,
    name: str,
    *,
    on_result: Callable[[CheckResult], None] = lambda _: None,
) -> CheckResult:
    """Run a check on one example.

    Args:
      check: the check.
      context: the example.
      name: of the kernel, for messages.
      on_result: called with the result, also with that of a failure.

    Raises:
      MismatchError: an output is wrong; the message explains it.
      PallasError: the kernel or the reference raised. In both cases, the message ends with the
        drawn example.
      PeerError: the check failed in another process of the program.
      GangError: the processes do different things.
    """
    __tracebackhide__ = True
    if gang() is None:
        return _run_alone(check, context, name, on_result)
    call_text = describe_call(call(context, context.kernel, context.arguments.args))
    return judge_together(
        functools.partial(_run_alone, check, context, name, on_result),
        subject=f"{name} {check.name}: {call_text}",
        timeout=context.settings.timeout,
    )


def _run_alone(
    check: Check, context: CheckContext, name: str, on_result: Callable[[CheckResult], None]
) -> CheckResult:
    """``run_check`` in this process."""
    __tracebackhide__ = True
    headline = f"{name}: {check.name} on {label(context.backend)}"
    result = _run(check, context, headline)
    if isinstance(result, PallasError):
        failed_context = facts_of(result).context or context
        facts_of(result).failure = Failure(check.name, name, failed_context, headline=headline)
        # Not in the handler: pytest would print the whole chain, which is JAX's internals.
        raise result
    result = replace(result, notes=(*result.notes, *_loosened(check, context, result)))
    on_result(result)
    failure = Failure(check.name, name, context, result, headline)
    if problem := _problem_of(result.outcome, context, name, check.name):
        error = _with_context(problem, headline, context)
    elif failed := result.failed:
        error = _mismatch(failure, failed, context)
        facts_of(error).schedule = result.schedule
    else:
        return result
    facts_of(error).failure = failure
    raise error


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
    """Return the result of a check, or the error that stopped it, with the drawn example."""
    try:
        if context.backend.kind == "compiling":
            return compiled(check, context)
        context = replace(context, run_seconds=[])
        result = check.run(context)
    except PallasError as error:
        return _with_context(error, headline, facts_of(error).context or context)
    notes = () if result.answer is None else result.answer.expected.notes
    seconds = result.seconds or sum(context.run_seconds)
    return replace(result, notes=(*result.notes, *notes), seconds=seconds)


def _loosened(check: Check, context: CheckContext, result: CheckResult) -> Iterator[Note]:
    """Yield a note if an answer passed, and would not have passed without its tolerance."""
    answer = result.answer
    if not check.base or not context.tolerance_given_by or answer is None or result.failed:
        return
    if all(comparison.kind == "exact" for comparison in result.comparisons):
        return  # no tolerance was used
    strict = replace(context, tolerance=Tolerance(), explained=False)
    judged = judge_leaves(strict, answer.outputs, answer.expected)
    if not all(comparison.passed for comparison in judged):
        yield Note(
            f"passes only by {context.tolerance}, from {context.tolerance_given_by}; the default "
            "rule rejects the answer: leave the tolerance out to see why",
            "tolerance",
        )


def _writer_facts(
    failed: Comparison, index: tuple[int, ...], outcome: Outcome, context: CheckContext
) -> Iterator[Fact]:
    """Yield the program that wrote the worst element, if one kernel wrote the whole output.

    A NaN may come from beyond the edge of an array, if that program has a block there.
    """
    writer, value = writer_of(outcome, failed), failed.actual_value
    idle = idle_kernels(context, outcome)
    if writer is None:
        for name, source, grid in idle:
            text = f"{name}{f' ({source})' if source else ''} has the grid {grid}: no program runs"
            yield Fact("cause", f"{text}, and nothing writes its outputs")
        return
    call, position = writer
    written, unwritten_elements = _was_written(failed, position, index, context)
    if idle:
        text = f"{call.name} has the grid {idle[0][2]}, so no program runs, and nothing is written"
        yield Fact("block", text)
    elif program := describe_writer(call, position, index, failed.shape, written=written):
        yield Fact("block", program)
    for text in unwritten_elements:
        yield Fact("cause", text)
    if not isinstance(value, float) or not math.isnan(value) or written is False:
        return
    for number, block in inputs_beyond_edges(call, position, index)[:_BLOCKS]:
        sizes = ", ".join(str(size) for _, size, _ in block.dims)
        dims = ", ".join(map(str, block.shape))
        yield Fact(
            "cause",
            f"perhaps elements beyond the edge: blocks [{sizes}] of {block.name or 'an input'} "
            f"(input {number} of {call.name}) hang over its array [{dims}]; mask them in the "
            "kernel",
        )


def _was_written(
    failed: Comparison, position: int, index: tuple[int, ...], context: CheckContext
) -> tuple[bool | None, Sequence[str]]:
    """Return whether a program wrote an element, and which elements nothing wrote.

    An element that may be memory as it was before is known to be that if it changes with the fill
    of uninitialized outputs. None if the backend cannot fill memory, or has no such run.
    """
    backend, dtype = context.backend, np.dtype(failed.dtype)
    fills = getattr(backend, "fills", False) and "outputs" in getattr(backend, "probes", ())
    if not _may_be_unwritten(failed.actual_value, dtype, zero=not fills):
        return True, ()
    if not fills or gang() is not None:
        return None, ()
    made = call(context, context.kernel, context.arguments.args)
    made = replace(made.with_settings(races=False, dma=False), probe="outputs")
    runs = [backend.run(replace(made, fill=Fill(contents, "output"))) for contents in PAIR]
    outputs = [run.probe_results for run in runs]
    if any(run.error is not None for run in runs) or [len(o) for o in outputs] != [1, 1]:
        return None, ()
    (_, old), (_, new) = (results[0] for results in outputs)
    missing = unwritten(np.asarray(old[position]), np.asarray(new[position]))
    if missing is None:
        return None, ()
    return (False, list(never_written(*outputs))) if missing[index] else (True, ())


def _may_be_unwritten(value: Any, dtype: np.dtype[Any], *, zero: bool) -> bool:
    """Return whether uninitialized memory may hold a value; 0 only if memory is not filled."""
    if zero and value == 0:
        return True
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        info = ml_dtypes.iinfo(dtype)
        return value in (info.min, info.max)
    return isinstance(value, float | complex) and bool(np.isnan(value))


def _tolerance_facts(failed: Comparison, context: CheckContext) -> Iterator[Fact]:
    """Yield the tolerance that an answer failed against, unless it is the default."""
    if context.tolerance_given_by and failed.kind in ("close", "rms", "explicit"):
        yield Fact("tolerance", f"{context.tolerance}, from {context.tolerance_given_by}")


def _product_facts(failed: Comparison, result: CheckResult) -> Iterator[Fact]:
    """Yield the precision of the baseline's products of float32, unless that is float32."""
    products = None if result.answer is None else result.answer.expected.products
    if products is not None and failed.kind in ("close", "rms"):
        yield Fact(
            "products",
            f"the baseline multiplies float32 as {products.name}, the lowest precision that the\n"
            "kernel asks for; jax.lax.Precision.HIGHEST asks for float32",
        )


def _problem_of(
    outcome: Outcome | None, context: CheckContext, name: str, check: str
) -> PallasError | None:
    """Return the error of a compiled program: it did not compile, or costs too much."""
    if outcome is None:
        return None
    if outcome.error is not None:
        return as_kernel_error(outcome.error)
    grown = None if context.costs is None else context.costs.grown(name, check, outcome.report)
    return None if grown is None else CostError(grown)


def _with_context(error: PallasError, headline: str, context: CheckContext) -> PallasError:
    """Add the headline, the line where the kernel raised, and the drawn example to an error."""
    if not context.explained:
        return error
    explanation = error.explanation or explanation_of(str(error))
    if not isinstance(error, CompileError):  # its message names the kernel's line
        details = (*explanation.details, *_raised_at(error.__cause__))
        explanation = replace(explanation, details=details)
    arguments = facts_of(error).arguments or context.arguments
    explanation = explanation.with_facts(
        *order_facts(error),
        *process_facts(),
        *drawn_facts(arguments),
        *content_facts(arguments),
    )
    problem = error.with_message(f"{headline}: {explanation}")
    problem.explanation = explanation
    facts = facts_of(problem)
    facts.kernel_error, facts.plain = error.__cause__, str(error)
    problem.__cause__ = None
    return problem


def _raised_at(cause: BaseException | None) -> Iterator[str]:
    """Describe the innermost line of the kernel, also of an installed kernel or one of JAX."""
    for frame in raised_frames(cause):
        if os.path.isfile(frame.filename):
            yield f"  raised at {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
        elif is_library(frame.filename):
            yield f"  raised in {frame.name}, line {frame.lineno} of code without a file"
        else:
            yield f"  raised in {frame.name}, {frame.filename}:{frame.lineno}: {frame.line}"


def raised_frames(cause: BaseException | None) -> list[traceback.FrameSummary]:
    """Return the innermost frame of the kernel in the traceback of an error, if there is one.

    It is followed by the innermost one of code that ``exec`` made, if that called what raised.
    """
    if cause is None or isinstance(cause, PallasError):
        return []
    frames: list[traceback.FrameSummary] = []
    for frame in traceback.extract_tb(cause.__traceback__):
        # ``dataclass`` makes ``__init__``, which calls what its author wrote.
        if not os.path.isfile(frame.filename) and not frame.name.startswith("__"):
            frames = [*frames[:1], frame]
        elif not (is_own(frame.filename) or is_library(frame.filename)):
            frames = [frame]
    return frames


def _mismatch(failure: Failure, failed: Comparison, context: CheckContext) -> MismatchError:
    """Return the error for a comparison that failed."""
    result = failure.result
    assert result is not None
    if not context.explained:
        return MismatchError(failure.headline)
    explanation = failed.explanation or Explanation("wrong")
    facts: list[Fact] = []
    side, outcome = result.side or (context, None if result.subject else result.outcome)
    if outcome is not None and failed.worst_index is not None:
        facts += _writer_facts(failed, failed.worst_index, outcome, side)
    if side.kernel is not context.kernel and (code := code_of(side.kernel)):
        facts.append(Fact("source", f"{code.co_filename}:{code.co_firstlineno}"))
    others = [c for c in result.comparisons if not c.passed and c is not failed]
    if others:
        facts.append(Fact("also wrong", ", ".join(other.where or "output" for other in others)))
    explanation = explanation.with_facts(
        *facts,
        *_product_facts(failed, result),
        *_tolerance_facts(failed, context),
        *witness_facts(result.schedule),
        *process_facts(),
        *drawn_facts(result.arguments or context.arguments),
        *content_facts(context.arguments),
    )
    error = MismatchError(failure.text_of(explanation))
    if result.subject:
        explanation = replace(explanation, summary=f"{result.subject}: {explanation.summary}")
    error.explanation = explanation
    return error


def witness_facts(schedule: Schedule | None) -> Iterator[Fact]:
    """Yield what runs an order again, if it is one of threads and copies."""
    if schedule is not None and schedule.witness:
        how = f"--pallas-witness={schedule.witness} runs an order in which it shows"
        yield Fact("witness", "\n".join([how, *schedule.story]))


def order_facts(error: PallasError) -> Iterator[Fact]:
    """Yield in which order an error shows; of a finding of the proof of order perhaps in none."""
    facts = facts_of(error)
    yield from witness_facts(facts.schedule)
    if facts.unconfirmed:
        yield Fact("witness", "unconfirmed: no run showed it, the proof of order says that one may")


def writer_of(outcome: Outcome, failed: Comparison) -> tuple[KernelCall, int] | None:
    """Return the only kernel, if it wrote the whole output, and the number of that output."""
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
    """Yield the drawn example: arrays, recipe, options, tuning and mesh."""
    yield Fact("inputs", describe_arrays(arguments.args) or "no arrays")
    for title, named_values in (
        ("drawn", arguments.recipe),
        ("options", arguments.options),
        ("tuning", arguments.tuning),
        ("mesh", arguments.mesh),
    ):
        if named_values:
            yield Fact(
                title, " ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in named_values.items())
            )


def content_facts(arguments: Arguments) -> Iterator[Fact]:
    """Describe the masks and ids among the arguments."""
    for where, role, array in contents_of(arguments)[:_CONTENTS]:
        yield Fact(role, f"{where}: {in_words(array)}")


def contents_of(arguments: Arguments) -> list[tuple[str, str, np.ndarray[Any, Any]]]:
    """Return the masks and ids among the arguments: where each is, its role, and the array."""
    contents: list[tuple[str, str, np.ndarray[Any, Any]]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments.args):
        if not isinstance(leaf, np.ndarray | jax.Array):
            continue
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
            continue
        array = np.asarray(leaf)
        role = role_of(array)
        if role:
            contents.append((argument_name(path), role, array))
    return contents


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
    """Make the call of a check's program; a gradient may need no output of the kernel."""
    assert check.program is not None
    made = call(context, *check.program(context))
    return replace(made, needs_kernel=check.differentiates != "only")


def compiled(check: Check, context: CheckContext) -> CheckResult:
    """Compile the program of a check. The result's outcome has the report and the error."""
    if check.program is None:
        return CheckResult(comparisons=(), notes=(Note("nothing to compile", "run"),))
    outcome = context.backend.run(_call(check, context))
    if outcome.report is not None:
        report = replace(outcome.report, typical=context.typical)
        outcome = replace(outcome, report=report)
    return CheckResult(
        comparisons=(), outcome=outcome, seconds=outcome.seconds, notes=outcome.notes
    )
