"""Which parts are left to run, and how rounds from several processes become one result."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pallas_sim.coverage import Point, Reached
from pytest_pallas.checks.forward import forward
from pytest_pallas.distribute.parts import Division, endless, part, remaining, rounds_needed
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.pytest_session import Part
from pytest_pallas.record import Note, Orders
from pytest_pallas.run.result import ExamplePoint, Result
from pytest_pallas.run.rounds import (
    ExampleOutcome,
    MergedRounds,
    RoundOutcome,
    merge_rounds,
    rounds_from_json,
    rounds_to_json,
)


def builder() -> Result:
    return Result(kernel="k", check="forward", backend="tpu-sim")


def example(words: str, *, passed: bool = True, multiple: float | None = 1.0) -> ExampleOutcome:
    made = builder()
    made.begin(Arguments((np.ones((8, len(words)), np.float32),)))
    made.error, made.baseline, made.multiple = 10 * (multiple or 0), 1.0, multiple
    made.failed = not passed
    made.kernel_seconds = 0.5
    made.evidence = [words]
    made.add_note(Note(f"a note on {len(words)}", "run"))
    orders = Orders(proved=1, runs=2, classes=2, reasons=(f"a look at {len(words)}",))
    made.cover([_reached("true" if len(words) > 1 else "false")], [orders])
    return ExampleOutcome(words, made, passed)


def _reached(way: str) -> tuple[Reached, ...]:
    other = {"true": "false", "false": "true"}[way]
    point = Point("branch", "k.py:3", "body")
    need = ("program_id", 0), ">", 3
    return (Reached(point=point, counts={way: 2}, missing=(other,), needs={other: need}),)


def fuzzed(number: int, *words: str, fails: str = "") -> RoundOutcome:
    found = [example(each) for each in words]
    if fails:
        found.append(example(fails, passed=False, multiple=99.0))
    return RoundOutcome(number, found, failed=bool(fails))


ROUNDS = [
    fuzzed(0, "a", "b"),
    fuzzed(1, "b", "cc"),
    fuzzed(2, "a"),
    fuzzed(3, "dd", "a"),
    fuzzed(4),
]


def result(rounds: list[RoundOutcome]) -> dict[str, Any]:
    numbers = [each.number for each in rounds]
    plain = {"kind": "rounds", "first": min(numbers), "last": max(numbers)}
    return json.loads(json.dumps({**plain, **rounds_to_json(rounds, forward)}))


def merged(rounds: list[RoundOutcome]) -> MergedRounds:
    return merge_rounds(builder(), rounds)


@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::17])
def test_rounds_in_any_order_some_twice_are_those_of_one_process(order):
    whole = merged(ROUNDS)
    assert [whole.count, whole.failed, whole.exhausted] == [5, None, False]
    assert whole.result.evidence == ["a", "b", "cc", "dd"]
    assert (whole.result.examples, whole.result.kernel_seconds) == (4, 2.0)
    assert len(whole.result.notes) == 2
    [reached] = whole.result.coverage
    assert (reached.counts, reached.missing) == ({"true": 4, "false": 4}, ())
    reasons = ("a look at 1", "a look at 2")
    assert whole.result.orders == Orders(proved=4, runs=8, classes=8, reasons=reasons)
    twice = [ROUNDS[number] for number in (*order, *order[:2])]
    assert merged(twice).result == whole.result


def test_rounds_survive_json():
    plain = result(ROUNDS)
    assert merged(rounds_from_json(plain, builder(), forward)).result == merged(ROUNDS).result


def test_the_reasons_of_growth_survive_json():
    reasons = {(Point("branch", "k.py:3", "body"), "true"): "m is at most 40 (max_dim=)"}
    rounds = [RoundOutcome(0, [example("a")], why=reasons), fuzzed(1, "b")]
    read = rounds_from_json(result(rounds), builder(), forward)
    (one,) = merged(read).result.coverage
    assert one.why == {"true": "m is at most 40 (max_dim=)"}


def test_only_rounds_before_the_first_gap_count():
    assert merged([ROUNDS[0], ROUNDS[2], ROUNDS[3]]).count == 1
    assert merged([ROUNDS[3]]).count == 0


def test_the_first_failure_is_that_of_the_item():
    rounds = [ROUNDS[0], fuzzed(1, "cc", fails="e"), fuzzed(2, "f", fails="g")]
    found = merged(rounds)
    assert (found.count, found.failed) == (2, 1)
    assert found.result.evidence == ["a", "b", "cc", "e"]
    assert found.result.multiple == 99.0
    assert rounds_needed([result(rounds[1:]), result(rounds[:1])]) == 2


def test_three_rounds_without_a_new_example_are_the_end():
    rounds = [ROUNDS[0], fuzzed(1, "b"), fuzzed(2, "cc"), *(fuzzed(n, "a") for n in (3, 4, 5))]
    more = [*rounds, fuzzed(6, "new", fails="e")]
    found = merged(more)
    assert (found.count, found.failed, found.exhausted) == (6, None, True)
    assert rounds_needed([result(more)]) == 6
    assert rounds_needed([result(rounds[:5])]) is None


def test_the_first_round_may_bring_nothing():
    """A check that applies to no example of it may apply to one of the next."""
    assert merged([fuzzed(0), fuzzed(1), fuzzed(2), fuzzed(3, "a")]).count == 4


def test_worse_errors_and_points_are_those_of_one_builder():
    first, second, third = example("a", multiple=2.0), example("b", multiple=2.0), example("c")
    first.result.points[0].error = 1.0
    third.result.error, third.result.multiple = None, 0.0  # exact comparisons
    second.result.error = 7.0
    found = merged([RoundOutcome(0, [third, first, second, third])]).result
    assert (found.error, found.multiple) == (7.0, 2.0)
    assert found.points[1] == ExamplePoint(dims=first.result.points[0].dims, error=1.0)


def test_a_part_that_did_not_begin_ends_the_item():
    """As by a wrong mark."""
    assert not list(remaining(FOUR, [None]))


FOUR = Division(kind="rounds", size=4, total=10)
MUTANTS = Division(kind="mutants", size=16)


def numbers(division: Division, *results: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in remaining(division, results)]


def test_rounds_are_divided_into_parts_of_one_size():
    assert numbers(FOUR) == [(0, 3), (4, 7), (8, 9)]
    assert part(FOUR, 2) == Part("rounds", 8, 9)
    done = result([fuzzed(n, f"{n}") for n in range(4, 8)])
    assert numbers(FOUR, done) == [(0, 3), (8, 9)]


def test_nothing_is_left_after_a_failure():
    failed = result([fuzzed(5, fails="x")])
    assert numbers(FOUR, failed) == [(0, 3), (4, 7), (8, 9)]  # an earlier one may fail, too
    assert numbers(FOUR, failed, result([fuzzed(n, f"{n}") for n in range(5)])) == []


def test_only_the_time_ends_rounds_without_a_number():
    division = Division(kind="rounds", size=4)
    assert endless(division)
    assert not endless(FOUR)
    first = [(each.first, each.last) for each in itertools.islice(remaining(division), 3)]
    assert first == [(0, 3), (4, 7), (8, 11)]


@pytest.mark.parametrize("limit", [None, 40])
def test_the_first_part_of_the_mutants_says_how_many_there_are(limit):
    division = Division(kind="mutants", size=16, total=limit)
    assert numbers(division) == [(0, 15)]
    first = {"kind": "mutants", "first": 0, "last": 15, "total": 35}
    assert numbers(division, first) == [(16, 31), (32, 34)]
    assert numbers(division, {**first, "last": -1, "total": 0}) == []
