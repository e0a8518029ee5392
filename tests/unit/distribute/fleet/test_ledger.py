"""Which tests are sent next, and what becomes of those whose worker is lost."""

from __future__ import annotations

from pytest_pallas.distribute.fleet.ledger import TRIES, Ledger, Parts
from pytest_pallas.distribute.messages import TestResult as Result
from pytest_pallas.distribute.parts import Division
from pytest_pallas.pytest_session import Part


def ledger(divide=lambda nodeid: None, **groups):
    return Ledger(groups, "run", divide)


def finish(made, key, *nodeids):
    sent = made.take(key)
    for nodeid in nodeids:
        assert made.done(sent.group, nodeid)
    made.again(sent.group)


def test_groups_are_sent_whole_and_once():
    made = ledger(a=["a1", "a2"], b=["b1"])
    first, second = made.next(), made.next()
    assert [first[1].nodeids, second[1].nodeids] == [["a1", "a2"], ["b1"]]
    assert made.next() is None
    finish(made, first[0], "a1", "a2")
    assert (made.unfinished, made.finished) == (True, 1)
    finish(made, second[0], "b1")
    assert (made.unfinished, made.finished) == (False, 2)


def test_the_rest_of_a_group_is_sent_after_a_test_that_ended_its_process():
    made = ledger(a=["a1", "a2", "a3"])
    finish(made, made.next()[0], "a1", "a2")
    assert made.next()[1].nodeids == ["a3"]


def test_a_lost_group_is_sent_test_by_test_until_one_is_guilty():
    made = ledger(a=["a1", "a2", "a3"])
    key, sent = made.next()
    made.take(key)
    assert list(made.was_lost(sent, "first")) == []
    made.again(sent.group)
    key, sent = made.next()
    assert sent.nodeids == ["a1"]
    finish(made, key, "a1")
    for number in range(1, TRIES):
        key, sent = made.next()
        assert sent.nodeids == ["a2"]
        made.take(key)
        assert list(made.was_lost(sent, str(number))) == ["a2"] * (number == TRIES - 1)
        made.again(sent.group)
    assert sent.group.losses["a2"] == ["first", "1", "2"]
    made.done(sent.group, "a2")
    finish(made, made.next()[0], "a3")
    assert not made.unfinished
    assert made.lost == 3


def test_a_task_of_a_silent_worker_is_sent_again_and_the_first_result_counts():
    made = ledger(a=["a1"])
    silent, _ = made.next()
    made.resend(silent)
    other, sent = made.next()
    assert sent.nodeids == ["a1"]
    finish(made, other, "a1")
    late = made.take(silent)
    assert not made.done(late.group, "a1")
    assert not made.unfinished


def rounds(total):
    return lambda nodeid: Parts(nodeid, Division(kind="rounds", size=2, total=total))


def test_a_test_is_divided_where_workers_would_have_nothing_to_do():
    made = ledger(rounds(6), a=["a1"], b=["b1"])
    assert made.next(threads=1)[1].part is None  # there is another group
    keys = [made.next(threads=3) for _ in range(3)]
    assert [sent.part for _, sent in keys] == [
        Part("rounds", 0, 1), Part("rounds", 2, 3), Part("rounds", 4, 5)
    ]  # fmt: skip
    assert made.next(threads=3) is None


def result(made, key, first, *, failed=False):
    sent = made.take(key)
    part_result = {
        "kind": "rounds",
        "rounds": [
            {
                "number": first + n,
                "failed": failed,
                "examples": [{"passed": True, "digest": str(n)}],
            }
            for n in range(2)
        ],
    }
    sent.group.parts.results.append(Result(nodeid="a1"))
    sent.group.parts.part_results.append(part_result)
    made.again(sent.group)
    return sent.group.parts


def test_parts_are_complete_in_any_order():
    made = ledger(rounds(6), a=["a1"])
    keys = [made.next(threads=9)[0] for _ in range(3)]
    assert not result(made, keys[2], 4).complete
    assert not result(made, keys[0], 0).complete
    assert result(made, keys[1], 2).complete


def test_parts_after_a_failure_are_not_needed():
    made = ledger(rounds(100), a=["a1"])
    keys = [made.next(threads=9)[0] for _ in range(3)]
    assert not result(made, keys[1], 2).complete
    assert result(made, keys[0], 0, failed=True).complete


def test_each_part_has_its_own_tries():
    made = ledger(rounds(8), a=["a1"])
    for _ in range(4):
        key, sent = made.next(threads=9)
        made.take(key)
        assert list(made.was_lost(sent, "lost")) == []
        part = sent.part
        made.again(sent.group)
        sent.group.parts.sent[f"other-{part.first}"] = part, 0.0  # another worker has it
    assert len(sent.group.losses) == 4


def test_the_number_of_mutants_is_known_after_the_first_part():
    made = ledger(
        lambda nodeid: Parts(nodeid, Division(kind="mutants", size=4)), a=["a1"], b=["b1"]
    )
    key, sent = made.next(threads=1)  # mutants are divided however many groups there are
    assert sent.part == Part("mutants", 0, 3)
    assert made.next(threads=9)[1].nodeids == ["b1"]
    assert made.next(threads=9) is None
    sent = made.take(key)
    sent.group.parts.part_results.append({"kind": "mutants", "first": 0, "last": 3, "total": 7})
    made.again(sent.group)
    assert made.next(threads=9)[1].part == Part("mutants", 4, 6)


def test_the_time_ends_a_test_without_a_number_of_rounds():
    made = ledger(
        lambda nodeid: Parts(nodeid, Division(kind="rounds", size=2), budget=0.0), a=["a1"]
    )
    key, _ = made.next(threads=9)  # the first part in any case
    parts = result(made, key, 0)
    assert made.next(threads=9) is None
    assert parts.complete


def test_a_test_runs_whole_where_the_process_of_a_part_has_died():
    made = ledger(rounds(8), a=["a1"])
    key, sent = made.next(threads=9)
    made.take(key)
    made.whole(sent.group, "a1")
    made.again(sent.group)
    assert made.next(threads=9)[1].part is None
