"""``donation``: an operand whose memory becomes an output's is used again, or read too late."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from pytest_pallas import compat
from pytest_pallas.backends import Outcome
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.checks.again import unchanged
from pytest_pallas.checks.trial import Finding, Trial, run
from pytest_pallas.errors import MismatchError, NotApplicableError
from pytest_pallas.numerics import Comparison, bitwise


def donation(trial: Trial) -> Finding:
    """Ask of a kernel with ``input_output_aliases``, or that changes refs in place, three things.

    Whether its answer, and the operand, are the same if the caller uses the operand again, in the
    same program; whether a second call with the same arrays gives the same; and, on an
    interpreter, whether the answer is the same if the output has memory of its own that starts as a
    copy of the input. If not, a block of the input is read after it was overwritten: which of both
    a chip reads depends on how far ahead it fetches blocks. (An input that the call deletes is the
    matter of the check ``immutability``.)

    Raises:
      NotApplicableError: no kernel has aliases or changes a ref in place.
      MismatchError: the last of these; with the kernel and the operands.
      KernelError: the kernel raised.
    """
    args = trial.arguments.args
    first = run(trial, trial.kernel, args)
    if trial.jit and not any(_in_place(kernel) for kernel in first.kernels):
        raise NotApplicableError(
            "in no example has the kernel input_output_aliases, or changes a ref in place"
        )
    seconds, comparisons = first.seconds, list[Comparison]()
    kept = run(trial, functools.partial(_used_again, trial.kernel), args, races=False)
    twice = run(trial, functools.partial(_called_twice, trial.kernel), args, races=False, jit=False)
    answer, operands = kept.values
    comparisons += _same(answer, first.values, "where the operands are used again")
    for number, (after, before) in enumerate(zip(operands, _arrays(args), strict=True)):
        where = f"input {number}, used again after the call"
        comparisons.append(bitwise(after, to_numpy(before), where=where))
    comparisons += _same(twice.values[1], twice.values[0], "of a second call with the same arrays")
    seconds += kept.seconds + twice.seconds
    pairs = [pair for kernel in first.kernels for pair in _pipelined(kernel)]
    if pairs and trial.backend.kind == "interpreting":
        apart = run(trial, trial.kernel, args, races=False, probe="separate")
        seconds += apart.seconds
        failed = [
            each
            for each in unchanged(first, apart, "with the memory shared and not shared")
            if not each.passed
        ]
        if failed:
            told = "; ".join(dict.fromkeys(pairs))
            raise MismatchError(
                f"{told}: a block of that input is read after it was overwritten. A chip fetches "
                "blocks ahead, so whether it reads the old or the new contents depends on its "
                "schedule. Read each block in the program that overwrites it or before, or drop "
                f"the alias.\n{failed[0].message}"
            )
    return Finding(comparisons=comparisons, outcome=first, seconds=seconds)


def _in_place(kernel: Any) -> bool:
    """Whether a kernel has an output that shares the memory of an operand, or is one."""
    eqn = kernel.eqn
    return bool(eqn.params.get("input_output_aliases")) or any(
        hasattr(var.aval, "inner_aval") for var in eqn.invars
    )


def _pipelined(kernel: Any) -> list[str]:
    if kernel.eqn.primitive.name != "pallas_call":
        return []
    where = f" ({kernel.source})" if kernel.source else ""
    return [
        f"operand {operand} and output {output} of {kernel.name}{where} share memory"
        for operand, output in compat.pipelined_aliases(kernel.eqn.params)
    ]


def _used_again(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(*args, **options), _arrays(args)


def _called_twice(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    answer = kernel(*args, **options)
    if any(isinstance(each, jax.Array) and each.is_deleted() for each in _arrays(args)):
        return answer, answer
    return answer, kernel(*args, **options)


def _arrays(args: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(args) if hasattr(leaf, "dtype")]


def _same(actual: Any, wanted: Any, words: str) -> list[Comparison]:
    return list(unchanged(Outcome(values=actual), Outcome(values=wanted), words))
