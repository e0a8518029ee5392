"""Mutants are sampled fairly, tried once, and marked."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from pallas_sim.compat.source import Spot
from pallas_sim.errors import KernelError, OptionError
from pytest_pallas import CrashError, EquivalentMutant
from pytest_pallas.decoding import decode, jsonable
from pytest_pallas.mutate import Mutant
from pytest_pallas.mutate.runner import (
    ELSEWHERE,
    Earlier,
    Journal,
    KilledBy,
    MutantRun,
    died_of_a_mutant,
    merge_verdicts,
    read_earlier,
    sampled,
    score,
    stale,
    try_mutants,
    unknown,
    with_marks,
)
from pytest_pallas.record import MutantVerdict


def mutant(operator, line, change="changed"):
    place = Spot(__file__, line, 0, line, 10, "kernel")
    return Mutant(operator=operator, change=change, kernel="kernel", home=__file__, places=(place,))


LINES = Path(__file__).read_text().splitlines()
MANY = [mutant("store", line) for line in range(1, 21)] + [mutant("mask", 3), mutant("wait", 4)]


def _never(_):
    raise AssertionError("tried")


def _run_mutants(mutants, attempt, *, name="spec", killed=None, **more):
    verdicts = try_mutants(
        mutants, attempt, name=name, killed={} if killed is None else killed, **more
    )
    return [with_marks(verdict, more.get("equivalents", ())) for verdict in verdicts]


def test_a_sample_has_every_operator_and_keeps_the_order():
    chosen = sampled(MANY, 4, seed=0)
    assert [each.operator for each in chosen] == ["store", "store", "mask", "wait"]
    assert chosen == sampled(MANY, 4, seed=0)
    assert {tuple(sampled(MANY, 4, seed=s)) for s in range(8)} != {tuple(chosen)}


def test_no_limit_is_all():
    assert sampled(MANY, 0, seed=0) == MANY


@pytest.mark.parametrize(
    ("tried", "status"),
    [
        (MutantRun(KilledBy("forward", "MismatchError"), 2), "killed"),
        (MutantRun(None, 8), "survived"),
        (MutantRun(None, 0, "no such operand"), "untried"),
    ],
)
def test_what_becomes_of_a_mutant(tried, status):
    [verdict] = _run_mutants(MANY[:1], lambda _: tried, journal=Journal())
    assert verdict.status == status
    assert verdict.examples == tried.examples


def test_what_is_tried_and_the_same_program_is_equivalent():
    def attempt(_):
        return MutantRun(None, 1, same="the same")

    [verdict] = _run_mutants(MANY[:1], attempt, journal=Journal(), same=_never)
    assert (verdict.status, verdict.reason) == ("equivalent", "the same")


def test_the_same_program_is_equivalent_although_nobody_has_time_to_try_it():
    until = time.monotonic()
    [verdict] = _run_mutants(
        MANY[:1], _never, journal=Journal(), same=lambda _: "the same", until=until
    )
    assert (verdict.status, verdict.reason) == ("equivalent", "the same")


def test_a_mutant_is_caught_before_anybody_compares_programs():
    def attempt(_):
        return MutantRun(KilledBy("forward on tpu-sim", "MismatchError"), 1)

    [verdict] = _run_mutants(MANY[:1], attempt, journal=Journal(), same=_never)
    assert verdict.status == "killed"


def test_nothing_is_tried_when_time_is_over():
    [verdict] = _run_mutants(MANY[:1], _never, journal=Journal(), until=time.monotonic())
    assert (verdict.status, verdict.reason) == ("untried", "time was over")


def test_what_a_journal_knows_is_not_tried_again(tmp_path):
    path = tmp_path / "journal"
    tried = MutantRun(KilledBy("forward", "MismatchError"), 1)
    first = _run_mutants(MANY[:1], lambda _: tried, journal=Journal(path))
    assert _run_mutants(MANY[:1], _never, journal=Journal(path)) == first


def test_a_process_that_died_of_a_mutant_has_caught_it(tmp_path):
    path = tmp_path / "journal"
    Journal(path).begin(unknown(MANY[0]))
    assert died_of_a_mutant(path, CrashError("died"))
    [verdict] = _run_mutants(MANY[:1], _never, journal=Journal(path))
    assert (verdict.status, verdict.how) == ("killed", "CrashError")


@pytest.mark.parametrize("begun", [False, True])
def test_other_errors_are_no_mutants(tmp_path, begun):
    path = tmp_path / "journal"
    if begun:
        Journal(path).begin(unknown(MANY[0]))
    error = KernelError("it cannot be collected") if begun else CrashError("died at the start")
    assert not died_of_a_mutant(path, error)


@pytest.mark.parametrize("until", [None, 0.0])
def test_a_mutant_that_another_spec_caught_is_not_tried_again(until):
    """It takes no time, so that none is needed."""
    killed = {}
    found = MutantRun(KilledBy("forward", "MismatchError"), 1)

    def tried(mutants, attempt, **more):
        return _run_mutants(mutants, attempt, journal=Journal(), killed=killed, **more)[0]

    assert tried(MANY[:1], lambda _: found, name="first").by == "forward"
    assert tried(MANY[:1], _never, name="second", until=until).by == "first"
    survived = MutantRun(None, 8)
    assert tried(MANY[1:2], lambda _: survived, name="second").status == "survived"
    assert tried(MANY[1:2], lambda _: found, name="third").by == "forward"
    assert tried(MANY[1:2], lambda _: found, name="third").by == "forward"  # its own, asked again


def _results(folder, verdicts):
    path = folder / "results.json"
    plain = [jsonable(verdict) for verdict in verdicts]
    record = {"kernel": "k", "check": "mutants", "backend": "tpu-sim", "outcome": "passed"}
    records = [{**record, "test": "other"}, {**record, "test": "k", "mutants": plain}]
    whole = {"schema": 2, "environment": {}, "options": {}, "records": records}
    path.write_text(json.dumps(whole))
    return path


def test_what_an_earlier_run_knows_is_known_until_its_line_is_another(tmp_path):
    results = iter([MutantRun(KilledBy("forward", "MismatchError"), 1)] * 2 + [MutantRun(None, 8)])
    first, second, third = _run_mutants(MANY[:3], lambda _: next(results), journal=Journal())
    fourth, fifth, sixth = (
        dataclasses.replace(unknown(each), status="equivalent", marked=marked)
        for each, marked in zip(MANY[3:6], (True, True, False), strict=True)
    )
    second, fifth = (dataclasses.replace(each, source="x = 1") for each in (second, fifth))
    known = read_earlier(_results(tmp_path, [first, second, third, fourth, fifth, sixth]))
    assert known == Earlier({first.key: "an earlier run"}, frozenset({fourth.key}))


def test_a_marked_survivor_is_tried_again_when_its_mark_is_gone():
    here = mutant("mask", 1)
    mark = EquivalentMutant(operator="mask", source=here.source[:8], reason="why")
    known = {unknown(here).key}
    [verdict] = _run_mutants([here], _never, journal=Journal(), equivalents=(mark,), marked=known)
    assert (verdict.status, verdict.reason) == ("equivalent", "why")
    [verdict] = _run_mutants([here], lambda _: MutantRun(None, 8), journal=Journal(), marked=known)
    assert (verdict.status, verdict.examples) == ("survived", 8)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"records": [{"mutants": [{"key": "?"}]}]}'])
def test_other_files_are_no_results(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(OptionError, match="is not a file of --pallas-results"):
        read_earlier(path)


def test_mutants_of_another_kind(tmp_path):
    path = _results(tmp_path, [])
    path.write_text(path.read_text().replace('"mutants": []', '"mutants": [{"key": "?"}]'))
    with pytest.raises(
        OptionError, match=r"not a file of --pallas-results: records\[\d+\].mutants\[0\] lacks"
    ):
        read_earlier(path)


def test_a_mark_is_about_operator_line_and_change():
    survived = MutantRun(None, 8)
    here = mutant("mask", 1)
    mark = EquivalentMutant(operator="mask", source=here.source[:8], reason="why")
    other = EquivalentMutant(operator="mask", source=here.source[:8], change="else", reason="?")
    [verdict] = _run_mutants(
        [here], lambda _: survived, journal=Journal(), equivalents=(other, mark)
    )
    assert (verdict.status, verdict.reason, verdict.marked) == ("equivalent", "why", True)
    assert stale((mark,), [verdict], whole=True) == []
    assert "no mutant has this operator" in stale((other,), [verdict], whole=True)[0].text
    assert stale((other,), [verdict], whole=False) == []


def test_a_mark_may_name_the_line_that_calls():
    inner = mutant("mask", 3).places[0]
    both = [
        dataclasses.replace(mutant("mask", 3), places=(mutant("mask", line).places[0], inner))
        for line in (1, 5)
    ]
    assert [each.callers for each in both] == [(LINES[0],), (LINES[4],)]
    mark = EquivalentMutant(operator="mask", source="", caller=LINES[4][:6], reason="why")
    verdicts = _run_mutants(
        both, lambda _: MutantRun(None, 8), journal=Journal(), equivalents=(mark,)
    )
    assert [each.status for each in verdicts] == ["survived", "equivalent"]
    assert decode(MutantVerdict, json.loads(json.dumps(jsonable(verdicts[1])))) == verdicts[1]


def test_a_mark_of_a_mutant_that_was_caught_is_stale():
    here = mutant("mask", 1)
    mark = EquivalentMutant(operator="mask", source=here.source[:8], reason="why")
    killed = MutantRun(KilledBy("forward", "MismatchError", "interpret"), 1)
    [verdict] = _run_mutants([here], lambda _: killed, journal=Journal(), equivalents=(mark,))
    assert verdict.status == "killed"
    [note] = stale((mark,), [verdict], whole=True)
    assert "forward on interpret killed the mutant" in note.text
    assert note.kind == "mutants"


def test_the_score_is_of_mutants_that_were_caught_or_survived():
    results = iter(
        [MutantRun(KilledBy("a", "b"), 1), MutantRun(None, 1), MutantRun(None, 0, "impossible")]
    )
    verdicts = _run_mutants(MANY[:3], lambda _: next(results), journal=Journal())
    assert score(verdicts) == 50.0
    assert score(verdicts[2:]) is None
    assert decode(list[MutantVerdict], jsonable(verdicts)) == verdicts


def test_kills_of_earlier_specs_count_after_all():
    """As if the mutants had met them before."""
    results = {
        0: MutantRun(KilledBy("forward", "MismatchError", "tpu-sim"), 1),
        1: MutantRun(None, 5),
        2: MutantRun(None, 1, same="the same program"),
        3: MutantRun(None, 1, "cannot be made"),
        4: MutantRun(KilledBy("forward", "MismatchError", "tpu-sim"), 2),
    }
    mutants = MANY[:5]

    def attempt(each):
        return results[mutants.index(each)]

    def same(each):
        return attempt(each).same

    before = {unknown(each).key: "other" for each in mutants[:4]}
    whole = _run_mutants(mutants, attempt, journal=Journal(), killed=dict(before), same=same)
    alone = _run_mutants(mutants, attempt, journal=Journal(), same=same)
    killed = dict(before)
    assert merge_verdicts([*alone, *alone[2:]], name="spec", killed=killed) == [
        dataclasses.replace(verdict, seconds=found.seconds)
        for verdict, found in zip(whole, [*whole[:4], alone[4]], strict=True)
    ]
    assert [verdict.how for verdict in whole] == [
        ELSEWHERE,
        ELSEWHERE,
        "",
        ELSEWHERE,
        "MismatchError",
    ]
    assert killed == {**before, whole[4].key: "spec"}


def test_kills_are_known_to_others_after_a_process_died(tmp_path):
    path = tmp_path / "journal"
    tried = MutantRun(KilledBy("forward", "MismatchError"), 1)
    _run_mutants(MANY[:1], lambda _: tried, journal=Journal(path))
    killed: dict[str, str] = {}
    _run_mutants(MANY[:1], _never, journal=Journal(path), killed=killed)
    assert killed == {unknown(MANY[0]).key: "spec"}
