"""Outputs that are spread over several processes: each judges what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from pallas_sim.errors import Fact, PallasError, first_line
from pytest_pallas.backends import Outcome
from pytest_pallas.devices.processes import agree, gang
from pytest_pallas.devices.shards import LocalShards, describe_index
from pytest_pallas.errors import (
    KERNEL_RUNS,
    RAISED_BY_KERNEL,
    GangError,
    NotApplicableError,
    PeerError,
)
from pytest_pallas.numerics import Comparison
from pytest_pallas.oracle.expected import Leaves

type _Array = np.ndarray[Any, Any]

#: The step of ``agree`` after a check.
JUDGE = "judge"

#: Compares outputs by path, given where those are present that are not whole.
type Compare = Callable[[Leaves, Mapping[str, _Array]], Sequence[Comparison]]


def gathered(outcome: Outcome, timeout: float) -> Outcome:
    """An outcome with whole arrays, of all processes; all of them must call it.

    Args:
      outcome: of a call that returned.
      timeout: seconds to wait for the others, so that none of them gathers alone.

    Raises:
      PeerError: the call raised in another process.
      GangError: another process does something else.
    """
    leaves = jax.tree.leaves((outcome.values, outcome.inputs))
    if not any(isinstance(leaf, LocalShards) for leaf in leaves):
        return outcome
    agree("gather", timeout=timeout)
    values, inputs = jax.tree.map(
        lambda leaf: leaf.gather() if isinstance(leaf, LocalShards) else leaf,
        (outcome.values, outcome.inputs),
    )
    return replace(outcome, values=values, inputs=inputs)


def compare_shards(outputs: Leaves, compare: Compare) -> Sequence[Comparison]:
    """Compare outputs, of those that are spread only what this process holds.

    Where devices hold different copies of one part, each is compared, and the worst is returned.
    """
    spread = {path: leaf.layers() for path, leaf in outputs if isinstance(leaf, LocalShards)}
    if not spread:
        return compare(outputs, {})
    shards = {path: leaf for path, leaf in outputs if isinstance(leaf, LocalShards)}
    found: list[Sequence[Comparison]] = []
    for number in range(max(map(len, spread.values()))):
        layers = {path: all_[min(number, len(all_) - 1)] for path, all_ in spread.items()}
        leaves = [(path, layers[path][0] if path in layers else leaf) for path, leaf in outputs]
        compared = compare(leaves, {path: present for path, (_, present) in layers.items()})
        found.append([_with_shard(each, shards, layers) for each in compared])
    return [max(several, key=_badness) for several in zip(*found, strict=True)]


def judge_together[T](judge: Callable[[], T], *, subject: str, timeout: float) -> T:
    """Judge in all processes, so that all of them go on, or none.

    What comes next, such as the next draw, depends on whether a check passed.

    Args:
      judge: raises if the check fails in this process.
      subject: what is judged; equal in all processes.
      timeout: seconds to wait for the others.

    Raises:
      Exception: what ``judge`` raised in this process.
      PeerError: it raised in another process.
      GangError: the processes judge different things.
    """
    __tracebackhide__ = True
    result: T | None = None
    problem: Exception | None = None
    try:
        result = judge()
    except GangError:
        raise
    except PeerError as error:
        if error.gone:
            error.shared = error.step == JUDGE  # they judge the same, and have ended it, too
            raise
        problem = error
    except Exception as error:
        problem = error
    failed = problem is not None and not isinstance(problem, NotApplicableError)
    statements = agree(
        JUDGE,
        subject=subject,
        problem=f"{type(problem).__name__}: {first_line(problem)}" if failed and problem else "",
        kernel_raised=_kernel_raised(problem),
        value="not applicable" if problem is not None and not failed else "",
        timeout=timeout,
    )
    if len({statement.value for statement in statements if not statement.problem}) > 1:
        ended = [f"process {each.process}: {each.value or 'passed'}" for each in statements]
        words = "; ".join(ended)
        raise GangError(f"{subject}: the check applies in some processes only: {words}")
    if problem is not None:
        if isinstance(problem, PallasError):
            problem.shared = True
        raise problem
    assert result is not None
    return result


def _kernel_raised(problem: Exception | None) -> bool:
    if isinstance(problem, PeerError):
        return problem.kernel_raised
    return isinstance(problem, RAISED_BY_KERNEL) and not isinstance(problem, KERNEL_RUNS)


def process_facts() -> Iterator[Fact]:
    """Which process a failure is of, where there are several."""
    processes = gang()
    if processes is not None:
        yield Fact("process", f"{processes.process} of {processes.count}, on {processes.host}")


def _badness(comparison: Comparison) -> tuple[bool, float]:
    return (not comparison.passed, comparison.multiple)


def _with_shard(
    compared: Comparison,
    shards: Mapping[str, LocalShards],
    layers: Mapping[str, tuple[_Array, _Array]],
) -> Comparison:
    """A failed comparison with the shard that holds its worst element."""
    index, path = compared.worst_index, compared.where
    if compared.explanation is None or index is None or path not in shards:
        return compared
    holders = shards[path].holders(index, layers[path][0][index])
    if not holders:
        return compared
    devices = ", ".join(shard.device for shard in holders)
    noun = "device" if len(holders) == 1 else "devices"
    fact = Fact("shard", f"{describe_index(holders[0].index)} on {noun} {devices}")
    return replace(compared, explanation=compared.explanation.with_facts(fact))
