"""Rounds of fuzzing: one of ``--pallas-max-examples``, or many within a time limit."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast

from pallas_sim.coverage import Kind, Point
from pytest_pallas.budget import ExampleBudget
from pytest_pallas.checks import Check
from pytest_pallas.checks.inputs import Inputs
from pytest_pallas.coverage import PlainReached, reached_from_json, reached_to_json
from pytest_pallas.decoding import Count, DataError, decode, jsonable, tagged, untagged
from pytest_pallas.draw.arguments import Declared
from pytest_pallas.draw.examples import draw_name
from pytest_pallas.draw.growth import Growth
from pytest_pallas.errors import SpecError
from pytest_pallas.isolate.messages import Change
from pytest_pallas.record import Aspect
from pytest_pallas.run.agreement import agreed
from pytest_pallas.run.check_run import CheckRun, run_example
from pytest_pallas.run.fuzzing import Fuzz, fuzz, fuzz_round, fuzz_until
from pytest_pallas.run.result import ExampleResults, Result

#: Number of rounds without a new example after which fuzzing stops.
EXHAUSTED = 3


def fuzz_for(
    what: Fuzz, seconds: float, *, seed: int, budget: ExampleBudget, pulse: Callable[[], None]
) -> None:
    """Fuzz until the time is over, or no new example is drawn.

    The first round is that of a run without a time limit: few values of many shapes. The others
    have their own seeds and more variants of each draw. The last one may end early.

    Args:
      what: the check to fuzz.
      seconds: the time limit.
      seed: seed of the first round, and of the seeds of the others.
      budget: of the examples of the first round.
      pulse: called after each round.

    Raises:
      Exception: as ``fuzz``.
    """
    __tracebackhide__ = True
    until = time.monotonic() + seconds
    fuzz(what, seed=seed, budget=budget, until=until)
    pulse()
    idle = 0
    for number in itertools.count(1):
        if agreed(time.monotonic() >= until) or idle == EXHAUSTED:
            return
        before = len(what.passed)
        fuzz_until(what, seed=seed_of(seed, number), until=until, varies=budget.varies)
        pulse()
        idle = idle + 1 if len(what.passed) == before else 0


# The results of rounds as data, which travels between processes and is merged again.


@dataclass
class ExampleOutcome:
    """One example that ran.

    Attributes:
      digest: of the words that identify it among the examples of its item.
      result: the result of this example alone.
      passed: whether it raised nothing.
    """

    digest: str
    result: Result
    passed: bool = False


@dataclass
class RoundOutcome:
    """One round.

    Attributes:
      number: of the round.
      examples: what ran, in order, without what had passed before in the same process.
      failed: whether it ended with a failure.
      why: for ways that no example went, why the examples that grew did not.
    """

    number: int
    examples: list[ExampleOutcome] = field(default_factory=list[ExampleOutcome])
    failed: bool = False
    why: dict[tuple[Point, str], str] = field(default_factory=dict[tuple[Point, str], str])


@dataclass(frozen=True)
class MergedRounds:
    """Rounds, in order, as one process would have run them.

    Attributes:
      result: the result of the whole item.
      count: number of rounds that count: those before the first one that is missing, up to the
        first that failed, or the last that an exhausted item needs.
      failed: the round whose failure is that of the item, or None.
      exhausted: whether the last rounds brought nothing new, so that no further one is needed.
    """

    result: Result
    count: int
    failed: int | None = None
    exhausted: bool = False


def merge_rounds(result: Result, rounds: Iterable[RoundOutcome]) -> MergedRounds:
    """Merge rounds from several processes.

    Args:
      result: of the item, without examples.
      rounds: the rounds, in any order, some perhaps more than once.
    """
    by_number: dict[int, RoundOutcome] = {}
    for outcome in rounds:
        by_number.setdefault(outcome.number, outcome)
    passed: set[str] = set()
    idle = number = 0
    while number in by_number:
        outcome, before = by_number[number], len(passed)
        for example in outcome.examples:
            if example.digest not in passed:
                result.absorb(example.result)
            if example.passed:
                passed.add(example.digest)
        if outcome.why:
            result.explain(outcome.why)
        if outcome.failed:
            return MergedRounds(result, number + 1, failed=number)
        idle = idle + 1 if number and len(passed) == before else 0
        number += 1
        if idle == EXHAUSTED:
            return MergedRounds(result, number, exhausted=True)
    return MergedRounds(result, number)


def digest_of(words: str) -> str:
    """Return a digest of an example's words."""
    return hashlib.blake2b(words.encode(), digest_size=12).hexdigest()


class _PlainInputs(TypedDict):
    """``Inputs``, with numbers of what is declared."""

    shapes: str
    signature: str
    choices: tuple[tuple[Aspect, str], ...]
    dtypes: tuple[str, ...]
    declared: list[Count]


@dataclass(kw_only=True)
class _PlainExample(ExampleResults):
    """An ``ExampleOutcome``, with numbers of its inputs. Fields with defaults are left out."""

    coverage: tuple[PlainReached, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]

    digest: str
    passed: bool = False
    inputs: list[Count] = field(default_factory=list[int])


class _PlainRound(TypedDict):
    """``RoundOutcome``, with the fields of points."""

    number: Count
    failed: bool
    examples: list[_PlainExample]
    why: NotRequired[list[tuple[Kind, str, str, str, str, str]]]


class RoundsPart(TypedDict):
    """The result of a part of rounds as plain values."""

    kind: Literal["rounds"]
    first: Count
    last: Count
    declared: list[list[tuple[Aspect, tuple[str, ...]]]]
    inputs: list[_PlainInputs]
    rounds: list[_PlainRound]
    fail: NotRequired[tuple[float | None, float | None, float | None] | None]
    database: NotRequired[list[Change]]


def rounds_to_json(rounds: Sequence[RoundOutcome], check: Check) -> dict[str, Any]:
    """Return rounds as plain JSON values; equal inputs are written once.

    Raises:
      SpecError: the evidence of the check is no data.
    """
    results = [example.result for outcome in rounds for example in outcome.examples]
    inputs = _numbered(call for result in results for call in result.inputs)
    declared = _numbered(choices for call in inputs for choices in call.declared)
    return {
        "declared": [jsonable(list(choices.choices.items())) for choices in declared],
        "inputs": [
            jsonable(vars(call) | {"declared": [declared[choices] for choices in call.declared]})
            for call in inputs
        ],
        "rounds": [
            {
                "number": outcome.number,
                "failed": outcome.failed,
                "examples": [
                    _plain_example(example, inputs, check) for example in outcome.examples
                ],
                "why": [[*point, way, why] for (point, way), why in outcome.why.items()],
            }
            for outcome in rounds
        ],
    }


def _numbered[T](values: Iterable[T]) -> dict[T, int]:
    """Return different values with their numbers, in the order in which they come."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _plain_example(
    example: ExampleOutcome, inputs: Mapping[Inputs, int], check: Check
) -> dict[str, Any]:
    default = vars(_PlainExample(digest=""))
    fields = {name: value for name, value in vars(example.result).items() if name in default}
    fields |= {
        "digest": example.digest,
        "passed": example.passed,
        "inputs": [inputs[call] for call in example.result.inputs],
        "coverage": tuple(map(reached_to_json, example.result.coverage)),
        "evidence": [_plain_evidence(evidence, check) for evidence in example.result.evidence],
    }
    return {name: jsonable(value) for name, value in fields.items() if value != default[name]}


def _plain_evidence(evidence: Any, check: Check) -> Any:
    """Return the evidence of an example as plain values.

    Raises:
      SpecError: it is no data.
    """
    try:
        return tagged(evidence) if check.evidence is None else jsonable(evidence)
    except DataError as error:
        raise SpecError(
            f"the evidence of the check {check.name} {error}. It goes to another process as data: "
            "give numbers, texts and collections of those, or a dataclass of them that the check "
            "names, as in declare_check(..., evidence=Evidence)"
        ) from None


def rounds_from_json(plain: Mapping[str, Any], like: Result, check: Check) -> list[RoundOutcome]:
    """Return the rounds of a ``RoundsPart``. Nothing of it is executed.

    Args:
      plain: from ``rounds_to_json``.
      like: a result of the same item.
      check: that of the item.

    Raises:
      DataError: it is none.
    """
    part: RoundsPart = decode(RoundsPart, plain)
    declared = [Declared(choices=dict(pairs)) for pairs in part["declared"]]

    def outcome_of(example: _PlainExample) -> ExampleOutcome:
        fields: dict[str, Any] = dict(vars(example))
        digest, passed = fields.pop("digest"), fields.pop("passed")
        fields["inputs"] = [inputs[number] for number in example.inputs]
        fields["coverage"] = tuple(map(reached_from_json, example.coverage))
        fields["evidence"] = [
            untagged(evidence) if check.evidence is None else decode(check.evidence, evidence)
            for evidence in example.evidence
        ]
        return ExampleOutcome(digest, dataclasses.replace(like, **fields), passed)

    try:
        inputs = [
            Inputs(**dict(call, declared=tuple(declared[n] for n in call["declared"])))
            for call in cast("list[dict[str, Any]]", part["inputs"])
        ]
        return [
            RoundOutcome(
                outcome["number"],
                list(map(outcome_of, outcome["examples"])),
                outcome["failed"],
                {
                    (Point(kind, line, kernel, name), way): why
                    for kind, line, kernel, name, way, why in outcome.get("why", ())
                },
            )
            for outcome in part["rounds"]
        ]
    except IndexError:
        raise DataError("has the number of an input that is not there") from None


# Rounds of fuzzing in a fixed order, so that any process can run any of them.
#
# What a round draws depends on its number and the seed alone. What earlier rounds have run matters
# only for examples that were drawn before: they do not run again, and do not count again.


def seed_of(seed: int, number: int) -> int:
    """Return the seed of a round."""
    return zlib.crc32(f"{seed}/{number}".encode()) if number else seed


def run_rounds(
    run: CheckRun,
    what: Fuzz,
    numbers: Iterable[int],
    *,
    first_round: Callable[[Fuzz], None],
    seconds: float | None = None,
    pulse: Callable[[], None] = lambda: None,
    log: list[RoundOutcome] | None = None,
) -> None:
    """Run rounds in ascending order, until some in a row bring nothing new, or the time is over.

    Args:
      run: of the check.
      what: the check to fuzz.
      numbers: the numbers of the rounds.
      first_round: runs round 0, which is that of a run without rounds.
      seconds: the time after which no further round starts; None for no limit.
      pulse: called after each round.
      log: gets what each round brought; None to keep nothing.

    Raises:
      Exception: as ``fuzz``. The log has the round that failed, too.
    """
    __tracebackhide__ = True
    until = None if seconds is None else time.monotonic() + seconds
    idle = 0
    for started, number in enumerate(numbers):
        if started and until is not None and time.monotonic() >= until:
            return
        outcome = RoundOutcome(number)
        if log is not None:
            log.append(outcome)
        before = len(what.passed)
        noted = dataclasses.replace(what, run=_noting(run, outcome, keep=log is not None))
        if what.growth is not None and number == 0:
            noted = dataclasses.replace(noted, growth=_explaining(what.growth, outcome))
        try:
            if number == 0:
                first_round(noted)
            else:
                fuzz_round(noted, seed=seed_of(run.options.seed, number))
        except Exception:
            outcome.failed = True
            raise
        pulse()
        idle = idle + 1 if number and len(what.passed) == before else 0
        if idle == EXHAUSTED:
            return


def _explaining(growth: Growth, outcome: RoundOutcome) -> Growth:
    """Return growth whose reasons the outcome keeps, too."""

    def explain(reasons: Mapping[tuple[Point, str], str]) -> None:
        outcome.why.update(reasons)
        growth.explain(reasons)

    return dataclasses.replace(growth, explain=explain)


def _noting(run: CheckRun, outcome: RoundOutcome, *, keep: bool) -> Callable[[Any], object]:
    """Run an example with a result of its own, which the outcome keeps."""

    def run_alone(drawn: Any) -> object:
        __tracebackhide__ = True
        whole, alone = run.result, dataclasses.replace(run, results={})
        alone.result.earlier = whole.examples
        example = ExampleOutcome(digest_of(draw_name(drawn)), alone.result)
        if keep:
            outcome.examples.append(example)
        try:
            result = run_example(alone, drawn)
        finally:
            whole.absorb(alone.result)
        example.passed = True
        return result

    return run_alone
