"""What rounds of fuzzing brought, as data that travels between processes, and merged again."""

from __future__ import annotations

import base64
import hashlib
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas import notes
from pytest_pallas.aspects import Aspect
from pytest_pallas.checks.inputs import Inputs
from pytest_pallas.items.time_budget import EXHAUSTED
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


def rounds_to_json(rounds: Sequence[RoundOutcome]) -> dict[str, Any]:
    """Rounds as plain JSON values; equal inputs are written once."""
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
                "examples": [_example(example, inputs) for example in each.examples],
            }
            for each in rounds
        ],
    }


def rounds_from_json(plain: Mapping[str, Any], like: ResultBuilder) -> list[RoundOutcome]:
    """The rounds from ``rounds_to_json``; ``like`` is a builder of the same item."""
    declared = [
        Declared(words={Aspect(*aspect): tuple(words) for aspect, words in each})
        for each in plain["declared"]
    ]
    inputs = [
        Inputs(
            each["shapes"],
            each["signature"],
            tuple((Aspect(*aspect), word) for aspect, word in each["words"]),
            tuple(each["dtypes"]),
            tuple(declared[number] for number in each["declared"]),
        )
        for each in plain["inputs"]
    ]
    return [
        RoundOutcome(
            each["number"],
            [_example_from(example, inputs, like) for example in each["examples"]],
            each["failed"],
        )
        for each in plain["rounds"]
    ]


def _example(example: ExampleOutcome, inputs: Mapping[Inputs, int]) -> dict[str, Any]:
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
        # of checks that conclude, also of a project: any class
        "evidence": [base64.b64encode(pickle.dumps(each)).decode() for each in builder.evidence],
    }
    return {name: value for name, value in plain.items() if value or name in _ALWAYS}


#: What every example has.
_ALWAYS = ("digest", "errors")


def _example_from(
    plain: Mapping[str, Any], inputs: Sequence[Inputs], like: ResultBuilder
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
        compiled=list(plain.get("compiled", ())),
        notes=[notes.from_json(note) for note in plain.get("notes", ())],
        unverified=dict.fromkeys(plain.get("unverified", ())),
        goldens=Counter(plain.get("goldens", {})),
        used_goldens=dict.fromkeys(plain.get("used_goldens", ())),
        evidence=[pickle.loads(base64.b64decode(each)) for each in plain.get("evidence", ())],
    )
    return ExampleOutcome(plain["digest"], builder, plain.get("passed", False))
