"""Say more about a wrong output once it is reported: what the kernel did, and a larger example.

``diagnose`` tests hypotheses about the output (``judge.hypotheses``), which takes seconds, so that
it is done for the reported failures and not for all that shrinking tries. ``show_larger`` adds an
example with several blocks to the failure of one that was shrunk too far to show a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.errors import Fact, PallasError
from pytest_pallas.backends.processes import gang
from pytest_pallas.checks.context import CheckContext, CheckResult
from pytest_pallas.checks.verdict import Failure, drawn_facts, writer_of
from pytest_pallas.errors import MismatchError, facts_of
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.grid.model import writers_of
from pytest_pallas.judge.explanation import for_arithmetic, slack_of
from pytest_pallas.judge.hypotheses import NamedArray, WrongOutput, first_fit
from pytest_pallas.judge.oracle import evaluate_in_float64
from pytest_pallas.judge.tolerance import Comparison

#: Facts that the facts added here follow.
_BEFORE = ("wrong at", "cause", "pattern")

#: Facts of a larger example that are shown.
_SHOWN = ("wrong at", "cause", "pattern")

#: Number of larger examples on which hypotheses are tested.
_TRIED = 3

#: The largest output, and the largest call, that hypotheses are tested on, in elements.
_MOST = 1 << 20


def diagnose(error: PallasError) -> None:
    """Add to the error of a wrong output what would give exactly that output, if that is known."""
    failure: Failure | None = facts_of(error).failure
    explanation = error.explanation
    if not isinstance(error, MismatchError) or failure is None or explanation is None:
        return
    if text := _hypothesis(failure):
        _add(error, failure, Fact("cause", text))


def _hypothesis(failure: Failure) -> str:
    """Return the first hypothesis that explains the wrong output of a failure; "" if none does."""
    result, context = failure.result, failure.context
    failed = None if result is None else result.failed
    if result is None or failed is None or failed.mask is None or gang() is not None:
        return ""
    # What goes wrong here must not hide the failure.
    with suppress(ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
        wrong = _wrong_output(result, failed, context)
        return "" if wrong is None else first_fit(wrong)
    return ""


def _wrong_output(
    result: CheckResult, failed: Comparison, context: CheckContext
) -> WrongOutput | None:
    """Gather the arrays of a wrong output; None if they were not kept, or are too large."""
    answer = result.answer
    if answer is None or failed.mask is None or failed.mask.size > _MOST:
        return None
    path = "" if failed.where == "output" else failed.where
    outputs, oracle = dict(answer.outputs), dict(answer.expected.oracle)
    if path not in outputs or path not in oracle:
        return None
    actual, right = for_arithmetic(np.asarray(outputs[path])), for_arithmetic(oracle[path])
    if not actual.shape == right.shape == failed.mask.shape:
        return None
    arguments, rebuild = _arguments(context.arguments.args)
    if sum(argument.values.size for argument in arguments) > _MOST:
        return None
    evaluate = None
    if context.reference is not None and not result.subject:
        evaluate = _evaluator(context, rebuild, path)
    return WrongOutput(
        mask=failed.mask,
        actual=actual,
        oracle=right,
        slack=slack_of(failed.allowed, np.asarray(outputs[path]).dtype),
        arguments=arguments,
        others=[
            NamedArray(f"output {name} of the reference", for_arithmetic(array))
            for name, array in oracle.items()
            if name != path
        ],
        evaluate=evaluate,
        block=_block_of(result, failed),
        sizes=_sizes_of([] if result.outcome is None else result.outcome.kernels),
    )


def _arguments(args: tuple[Any, ...]) -> tuple[list[NamedArray], Callable[[Sequence[Array]], Any]]:
    """Return the arrays of numbers among arguments, and a function that puts others in place."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(args)
    arrays: list[NamedArray] = []
    numbers: list[int] = []
    for number, (path, leaf) in enumerate(leaves):
        if not hasattr(leaf, "dtype") or jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
            continue
        first, *rest = path
        name = f"argument {getattr(first, 'idx', first)}{jax.tree_util.keystr(tuple(rest))}"
        arrays.append(NamedArray(name, np.asarray(leaf)))
        numbers.append(number)

    def rebuild(changed: Sequence[Array]) -> Any:
        values = [leaf for _, leaf in leaves]
        for number, array, before in zip(numbers, changed, arrays, strict=True):
            values[number] = array.astype(np.asarray(before.values).dtype)
        return jax.tree.unflatten(tree, values)

    return [NamedArray(name, for_arithmetic(values)) for name, values in arrays], rebuild


def _evaluator(
    context: CheckContext, rebuild: Callable[[Sequence[Array]], Any], path: str
) -> Callable[[Sequence[Array]], Array | None]:
    """Return the reference as a function of changed arrays; None where it does not take them."""
    reference = context.reference
    assert reference is not None

    def evaluate(arrays: Sequence[Array]) -> Array | None:
        try:
            leaves = evaluate_in_float64(reference, rebuild(arrays), context.arguments.options)
        except Exception:  # whatever a reference raises for arguments that it was not made for
            return None
        values = dict(leaves).get(path)
        return None if values is None else for_arithmetic(values)

    return evaluate


def _block_of(result: CheckResult, failed: Comparison) -> tuple[int, ...]:
    """Return the shape of the blocks of an output; empty if it is not known."""
    writer = None if result.outcome is None else writer_of(result.outcome, failed)
    if writer is None or writer[0].facts is None or not writer[0].facts.grid:
        return ()
    writers = writers_of(*writer, (0,) * len(failed.shape))
    return () if writers is None else tuple(map(int, writers[0]))


def _sizes_of(kernels: Iterable[KernelCall]) -> Mapping[int, Sequence[int]]:
    """Return the sizes of the blocks of kernels along an axis, by its length."""
    sizes: dict[int, dict[int, None]] = {}
    for kernel in kernels:
        facts = kernel.facts
        for window in () if facts is None else (*facts.inputs, *facts.outputs):
            for (kind, size, _), length in zip(window.dims, window.shape, strict=True):
                if kind == "Blocked" and size > 1:
                    sizes.setdefault(length, {})[size] = None
    return {length: tuple(several) for length, several in sizes.items()}


def _add(error: PallasError, failure: Failure, *facts: Fact) -> None:
    """Add facts to the explanation of a wrong output, and to the text of its error."""
    explanation = error.explanation
    assert explanation is not None
    before = [n for n, fact in enumerate(explanation.facts, 1) if fact.name in _BEFORE]
    position = max(before, default=len(explanation.facts))
    together = (*explanation.facts[:position], *facts, *explanation.facts[position:])
    error.explanation = replace(explanation, facts=together)
    error.args = (failure.text_of(error.explanation),)


# A larger example.


def show_larger(error: PallasError, others: Iterable[BaseException]) -> None:
    """Add the smallest failure with several blocks to one that has no pattern of its own.

    Args:
      error: of the reported example.
      others: the errors of further examples of the same cause.
    """
    failure: Failure | None = facts_of(error).failure
    explanation = error.explanation
    if not isinstance(error, MismatchError) or failure is None or explanation is None:
        return
    if not _is_too_small(failure):
        return
    size = _wrong_elements(failure)
    larger = [
        (_elements(other), number, other)
        for number, other in enumerate(others)
        if isinstance(other, MismatchError)
        and _has_blocks(facts_of(other).failure)
        and _wrong_elements(facts_of(other).failure) > size
    ]
    smallest = [other for _, _, other in sorted(larger)[:_TRIED]]
    causes = ((other, _hypothesis(facts_of(other).failure)) for other in smallest)
    shown = next(((other, text) for other, text in causes if text), None)
    if shown is None:
        telling = (o for o in smallest if size == 1 or not _is_all_wrong(facts_of(o).failure))
        shown = next(((other, "") for other in telling), None)
    if shown is not None:
        _add(error, failure, Fact("larger", "\n".join(_lines_of(*shown))))


def _lines_of(error: PallasError, hypothesis: str) -> Iterator[str]:
    """Yield what was drawn and what is wrong, in short."""
    explanation = error.explanation
    assert explanation is not None
    drawn = drawn_facts(facts_of(error).failure.context.arguments)
    yield ", ".join(fact.text for fact in drawn)
    yield explanation.summary
    facts = [fact for fact in explanation.facts if fact.name in _SHOWN]
    if hypothesis:
        facts.append(Fact("cause", hypothesis))
    yield from (f"{fact.name}: {fact.text}" for fact in facts)


def _is_too_small(failure: Failure) -> bool:
    """Return whether an output shows no pattern: it has one element, or one block, all wrong."""
    mask = _mask_of(failure)
    if mask is None:
        return False
    return mask.size == 1 or (bool(mask.all()) and not _has_blocks(failure))


def _has_blocks(failure: Failure | None) -> bool:
    """Return whether a kernel has several programs; of one without blocks, several elements."""
    mask = _mask_of(failure)
    if failure is None or failure.result is None or mask is None:
        return False
    kernels = () if failure.result.outcome is None else failure.result.outcome.kernels
    grids = [kernel.facts.grid for kernel in kernels if kernel.facts and kernel.facts.grid]
    if not grids:
        return mask.size > 1
    return any(None in grid or math.prod(grid) > 1 for grid in grids)


def _is_all_wrong(failure: Failure | None) -> bool:
    mask = _mask_of(failure)
    return mask is not None and bool(mask.all())


def _wrong_elements(failure: Failure | None) -> int:
    mask = _mask_of(failure)
    return 0 if mask is None else int(np.count_nonzero(mask))


def _mask_of(failure: Failure | None) -> Array | None:
    """Return where the output of a failure is wrong; None if no element was compared."""
    result = None if failure is None else failure.result
    failed = None if result is None else result.failed
    return None if failed is None else failed.mask


def _elements(error: BaseException) -> int:
    arguments = facts_of(error).failure.context.arguments
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(arguments.args))
