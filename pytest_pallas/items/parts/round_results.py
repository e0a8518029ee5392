"""What rounds of fuzzing brought, as data that travels between processes, and merged again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pallas_sim.findings import Text
from pytest_pallas import notes
from pytest_pallas.aspects import Aspect
from pytest_pallas.checks import Check
from pytest_pallas.checks.inputs import Inputs
from pytest_pallas.compilers.report import CompileReport
from pytest_pallas.compilers.report import to_json as plain_report
from pytest_pallas.decoding import (
    Checked,
    Count,
    DataError,
    Seconds,
    decode,
    jsonable,
    tagged,
    untagged,
)
from pytest_pallas.errors import SpecError
from pytest_pallas.isolation.messages import Change
from pytest_pallas.items.time_budget import EXHAUSTED
from pytest_pallas.notes import PlainNote
from pytest_pallas.result_builder import ExamplePoint, ResultBuilder
from pytest_pallas.strategies.declared import Declared


@dataclass
class ExampleOutcome:
    """One example that ran.

    Attributes:
      digest: of the words that identify it among the examples of its item.
      builder: the builder of this example alone.
      passed: whether it raised nothing.
    """

    digest: str
    builder: ResultBuilder
    passed: bool = False


@dataclass
class RoundOutcome:
    """One round.

    Attributes:
      number: of the round.
      examples: what ran, in order, without what had passed before in the same process.
      failed: whether it ended with a failure.
    """

    number: int
    examples: list[ExampleOutcome] = field(default_factory=list[ExampleOutcome])
    failed: bool = False


@dataclass(frozen=True)
class MergedRounds:
    """Rounds, in order, as one process would have run them.

    Attributes:
      builder: the builder of the whole item.
      count: number of rounds that count: those before the first one that is missing, up to the
        first that failed, or the last that an exhausted item needs.
      failed: the round whose failure is that of the item, or None.
      exhausted: whether the last rounds brought nothing new, so that no further one is needed.
    """

    builder: ResultBuilder
    count: int
    failed: int | None = None
    exhausted: bool = False


def merge_rounds(builder: ResultBuilder, rounds: Iterable[RoundOutcome]) -> MergedRounds:
    """Merge rounds from several processes.

    Args:
      builder: of the item, without examples.
      rounds: the rounds, in any order, some perhaps more than once.
    """
    by_number: dict[int, RoundOutcome] = {}
    for each in rounds:
        by_number.setdefault(each.number, each)
    passed: set[str] = set()
    idle = number = 0
    while number in by_number:
        found, before = by_number[number], len(passed)
        for example in found.examples:
            if example.digest not in passed:
                builder.absorb(example.builder)
            if example.passed:
                passed.add(example.digest)
        if found.failed:
            return MergedRounds(builder, number + 1, failed=number)
        idle = idle + 1 if number and len(passed) == before else 0
        number += 1
        if idle == EXHAUSTED:
            return MergedRounds(builder, number, exhausted=True)
    return MergedRounds(builder, number)


def digest_of(words: str) -> str:
    """A digest of an example's words."""
    return hashlib.blake2b(words.encode(), digest_size=12).hexdigest()


class _PlainInputs(TypedDict):
    """``Inputs``, with numbers of what is declared."""

    shapes: str
    signature: str
    words: list[tuple[Aspect, str]]
    dtypes: tuple[str, ...]
    declared: list[Count]


class _PlainExample(TypedDict):
    """An example, without fields that are empty."""

    digest: str
    errors: tuple[float | None, float | None, float | None]
    passed: NotRequired[bool]
    examples: NotRequired[Count]
    failed: NotRequired[bool]
    kernel_seconds: NotRequired[Seconds]
    withdrawn: NotRequired[Text]
    inputs: NotRequired[list[Count]]
    points: NotRequired[list[tuple[dict[str, Count], float | None, float | None, bool]]]
    compiled: NotRequired[
        list[Annotated[dict[str, Any], Checked(lambda: CompileReport, plain_report)]]
    ]
    notes: NotRequired[list[PlainNote]]
    unverified: NotRequired[list[Text]]
    goldens: NotRequired[dict[str, Count]]
    used_goldens: NotRequired[list[str]]
    evidence: NotRequired[list[Any]]


class _PlainRound(TypedDict):
    number: Count
    failed: bool
    examples: list[_PlainExample]


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
    """Rounds as plain JSON values; equal inputs are written once.

    Raises:
      SpecError: the evidence of the check is no data.
    """
    declared: dict[Declared, int] = {}
    inputs: dict[Inputs, int] = {}
    for each in rounds:
        for example in each.examples:
            for call in example.builder.inputs:
                inputs.setdefault(call, len(inputs))
    for call in inputs:
        for one in call.declared:
            declared.setdefault(one, len(declared))
    return {
        "declared": [
            [[list(aspect), list(words)] for aspect, words in each.words.items()]
            for each in declared
        ],
        "inputs": [
            {
                "shapes": call.shapes,
                "signature": call.signature,
                "words": [[list(aspect), word] for aspect, word in call.words],
                "dtypes": list(call.dtypes),
                "declared": [declared[each] for each in call.declared],
            }
            for call in inputs
        ],
        "rounds": [
            {
                "number": each.number,
                "failed": each.failed,
                "examples": [_example(example, inputs, check) for example in each.examples],
            }
            for each in rounds
        ],
    }


def rounds_from_json(
    plain: Mapping[str, Any], like: ResultBuilder, check: Check
) -> list[RoundOutcome]:
    """The rounds of a ``RoundsPart``. Nothing of it is executed.

    Args:
      plain: from ``rounds_to_json``.
      like: a builder of the same item.
      check: that of the item.

    Raises:
      DataError: it is none.
    """
    part: RoundsPart = decode(RoundsPart, plain)
    declared = [Declared(words=dict(each)) for each in part["declared"]]
    try:
        inputs = [
            Inputs(
                each["shapes"],
                each["signature"],
                tuple(each["words"]),
                each["dtypes"],
                tuple(declared[number] for number in each["declared"]),
            )
            for each in part["inputs"]
        ]
        return [
            RoundOutcome(
                each["number"],
                [_example_from(example, inputs, like, check) for example in each["examples"]],
                each["failed"],
            )
            for each in part["rounds"]
        ]
    except IndexError:
        raise DataError("has the number of an input that is not there") from None


def _example(example: ExampleOutcome, inputs: Mapping[Inputs, int], check: Check) -> dict[str, Any]:
    """An example as plain values; those of most examples, which are empty, are left out."""
    builder = example.builder
    plain = {
        "digest": example.digest,
        "passed": example.passed,
        "examples": builder.examples,
        "errors": [builder.error, builder.baseline, builder.multiple],
        "failed": builder.failed,
        "kernel_seconds": builder.kernel_seconds,
        "withdrawn": builder.withdrawn,
        "inputs": [inputs[call] for call in builder.inputs],
        "points": [
            [dict(each.dims), each.error, each.baseline, each.failed] for each in builder.points
        ],
        "compiled": builder.compiled,
        "notes": [notes.to_json(note) for note in builder.notes],
        "unverified": list(builder.unverified),
        "goldens": dict(builder.goldens),
        "used_goldens": list(builder.used_goldens),
        "evidence": [_plain_evidence(each, check) for each in builder.evidence],
    }
    return {name: value for name, value in plain.items() if value or name in _ALWAYS}


def _plain_evidence(evidence: Any, check: Check) -> Any:
    """The evidence of an example as plain values.

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


def _evidence(plain: Any, check: Check) -> Any:
    """The evidence from ``_plain_evidence``."""
    return untagged(plain) if check.evidence is None else decode(check.evidence, plain)


#: What every example has.
_ALWAYS = ("digest", "errors")


def _example_from(
    plain: _PlainExample, inputs: Sequence[Inputs], like: ResultBuilder, check: Check
) -> ExampleOutcome:
    error, baseline, multiple = plain["errors"]
    builder = ResultBuilder(
        kernel=like.kernel,
        check=like.check,
        backend=like.backend,
        family=like.family,
        mesh=like.mesh,
        examples=plain.get("examples", 0),
        error=error,
        baseline=baseline,
        multiple=multiple,
        failed=plain.get("failed", False),
        kernel_seconds=plain.get("kernel_seconds", 0.0),
        withdrawn=plain.get("withdrawn", ""),
        inputs=[inputs[number] for number in plain.get("inputs", ())],
        points=[
            ExamplePoint(dims=dims, error=error, baseline=baseline, failed=failed)
            for dims, error, baseline, failed in plain.get("points", ())
        ],
        compiled=plain.get("compiled", []),
        notes=plain.get("notes", []),
        unverified=dict.fromkeys(plain.get("unverified", ())),
        goldens=Counter(plain.get("goldens", {})),
        used_goldens=dict.fromkeys(plain.get("used_goldens", ())),
        evidence=[_evidence(each, check) for each in plain.get("evidence", ())],
    )
    return ExampleOutcome(plain["digest"], builder, plain.get("passed", False))
