"""What the judgements of the candidates of a task share: the reference, evaluated once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.chips import Label
from pallas_sim.dtypes import float_facts, is_float, wide
from pallas_sim.errors import PallasError
from pytest_pallas.backends.ending import longest
from pytest_pallas.candidates.task import KernelTask, gradient_call
from pytest_pallas.candidates.work import work_of
from pytest_pallas.judge.oracle import ExpectedCache
from pytest_pallas.judge.tolerance import FINITE, classes
from pytest_pallas.run.standalone import calls_checker

#: Hidden calls whose work and padding are looked at, as those of the first call: that takes runs.
_MEASURED = 2


@dataclass
class Judge:
    """The judge of a task: what the judgements of its candidates share.

    Attributes:
      task: what candidates are to compute.
      labels: the backends.
      budget: seconds for a candidate.
      stop: whether a candidate's first failure ends its judgement.
      properties: what else is known of right answers, as keyword arguments of ``check``.
      expected: what the reference gives, by call.
    """

    task: KernelTask
    labels: Sequence[Label]
    budget: float
    stop: bool
    properties: Mapping[str, Any] = field(default_factory=dict[str, Any])
    expected: ExpectedCache = field(init=False)

    def __post_init__(self) -> None:
        """Make what is kept."""
        self.expected = ExpectedCache(seconds=longest(self.timeout))
        self.checker = functools.cache(self._checker)
        self.gradient = functools.cache(self._gradient)
        self.whole = functools.cache(self._whole)

    @property
    def timeout(self) -> float:
        """Seconds for a run; what takes longer is a mistake of the candidate."""
        return max(0.5, min(30.0, self.budget / 2))

    def _checker(self, target: str) -> Callable[..., Any]:
        """Return what checks calls on a backend."""
        return calls_checker(target, self.timeout, self.expected)

    def _gradient(self, number: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        """Return the arguments of the derivative of a call, and its reference."""
        call = self.task.calls[number]
        return gradient_call(call.reference, call.arguments.args, self.task.differentiable)

    def _whole(self, target: str, number: int) -> tuple[int, bool, bool]:
        """Return the work of the reference in a call.

        Returns:
          How many operations it has, 0 if that is not known; whether they are on integers only; and
          whether it returns one of its arguments.
        """
        import jax

        call = self.task.calls[number]
        args = call.arguments.args
        try:
            jaxpr = jax.make_jaxpr(call.reference)(*args)
            answers = jax.tree.leaves(call.reference(*args))
        except Exception:  # one that JAX cannot trace
            return 0, False, False
        copies = any(
            np.asarray(answer).tobytes() == np.asarray(arg).tobytes()
            for answer in answers
            for arg in args
        )
        for integers in (False, True):
            try:
                work = work_of(jaxpr, args, target, self.timeout, integers=integers)
            except PallasError:
                return 0, False, copies
            if work.outside:
                return work.outside, integers, copies
        return 0, False, copies

    @functools.cached_property
    def unusual(self) -> Sequence[tuple[str, tuple[Any, ...], Sequence[Any]]]:
        """Calls with NaN, infinity and huge numbers: name, arguments, what the reference gives."""
        import jax

        calls = [call for call in self.task.calls if not call.variant]
        smallest = min(calls, key=lambda call: _few(sum(map(np.size, call.arguments.args))))
        listed: list[tuple[str, tuple[Any, ...], Sequence[Any]]] = []
        self.smallest = self.task.calls.index(smallest)
        for name, args in unusual_inputs(smallest.arguments.args, self.task.seed):
            try:
                listed.append((name, args, jax.tree.leaves(smallest.reference(*args))))
            except Exception:
                continue
        return listed

    @property
    def of_relations(self) -> tuple[str, ...]:
        """The checks that relations between calls need."""
        related = self.properties.get("relations")
        return ("linearity", "permutation", "relation") if related else ()

    @functools.cached_property
    def measured(self) -> Sequence[int]:
        """Numbers of the calls whose work is measured: a given one, and large hidden ones."""
        hidden = [n for n, call in enumerate(self.task.calls) if call.hidden and not call.variant]
        hidden.sort(key=lambda n: -sum(map(np.size, self.task.calls[n].arguments.args)))
        hidden = hidden[: (len(hidden) + 1) // 2]
        rng = np.random.default_rng(self.task.seed)
        some = rng.choice(hidden, min(_MEASURED, len(hidden)), replace=False) if hidden else ()
        return [0, *map(int, some)]


def _few(elements: int) -> float:
    """Order numbers of elements: the fewest first, but at least 16."""
    return elements if elements >= 16 else np.inf


# NaN, infinity and huge numbers: what a report tells, and refuses nothing.
#
# The order of operations decides where a NaN goes: flash attention leaves out a block that is
# masked, and jnp multiplies what is in it with 0, which is NaN. So a right kernel may differ here.

#: Arguments that get such numbers, each alone.
_MOST_ARGUMENTS = 4


def unusual_inputs(args: Sequence[Any], seed: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield calls in which one element of one array of floats is unusual, each with its name."""
    rng = np.random.default_rng(seed)
    floats = [n for n, arg in enumerate(args) if np.size(arg) and is_float(arg.dtype)]
    for position in floats[:_MOST_ARGUMENTS]:
        largest = float_facts(args[position].dtype).largest
        for name, value in (("NaN", np.nan), ("infinity", np.inf), ("a huge number", largest / 4)):
            array = np.array(args[position])
            array.flat[int(rng.integers(array.size))] = value
            yield f"{name} in argument {position}", (*args[:position], array, *args[position + 1 :])


def difference(name: str, expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """Return how results differ in what is finite; "" if they do not.

    Args:
      name: of the call.
      expected: what the reference gives, in the kernel's dtypes.
      actual: what the candidate gives.
    """
    lost = added = other = total = 0
    for one, result in zip(expected, actual, strict=True):
        if np.shape(one) != np.shape(result) or not is_float(np.asarray(result).dtype):
            continue
        right, own = (classes(wide(np.asarray(value))) for value in (one, result))
        lost += int(np.count_nonzero((own == FINITE) & (right != FINITE)))
        added += int(np.count_nonzero((own != FINITE) & (right == FINITE)))
        other += int(np.count_nonzero((own != right) & (own != FINITE) & (right != FINITE)))
        total += right.size
    parts = [
        f"{count} {text}"
        for count, text in (
            (lost, "are finite, and NaN or infinite in the reference"),
            (added, "are NaN or infinite, and finite in the reference"),
            (other, "are NaN in place of infinite, or the other way round"),
        )
        if count
    ]
    return f"{name}: of {total} elements {', '.join(parts)}" if parts else ""
