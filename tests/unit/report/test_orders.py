"""In how many orders calls ran, from records: one line, notes of what is open, JSON."""

from __future__ import annotations

import pytest

from pytest_pallas.decoding import DataError
from pytest_pallas.record import Orders, Record, from_json, orders_of, to_json
from pytest_pallas.report import orders
from pytest_pallas.report.html import page

PROVED = Orders(proved=3, runs=5, classes=4, reasons=("a look at sem (k.py:9)",))
OPEN = Orders(proved=1, open=1, runs=21, classes=12, tried=11, left=30, most=20)


def record(check, found, *, kernel="inbox", test="a.py::t", **fields):
    return Record(
        test=test, kernel=kernel, check=check, backend="tpu-sim", outcome="passed", orders=found,
        **fields,
    )  # fmt: skip


def lines(*records, every=False):
    kernels = orders.ordered(records)
    return [orders.summary(kernels), *orders.notes(kernels, every=every)]


def test_checks_that_share_their_calls_count_them_once():
    assert lines(*(record(check, PROVED) for check in ("races", "dma", "schedule"))) == [
        "orders: 3 calls of 1 kernel: 3 proved, in 5 runs"
    ]


def test_calls_of_several_tests_are_added():
    wrong = Orders(wrong=1, runs=2, classes=2)
    found = [record("schedule", PROVED), record("schedule", wrong, test="a.py::other")]
    assert lines(*found) == ["orders: 4 calls of 1 kernel: 3 proved, 1 wrong, in 7 runs"]


def test_what_is_open_says_how_to_go_on():
    found = [record("races", OPEN, mesh={"x": 4}), record("races", PROVED, kernel="ring")]
    assert lines(*found) == [
        "orders: 5 calls of 2 kernels: 4 proved, 1 open, in 26 runs",
        "open: inbox on tpu-sim-x4: 11 of at least 41 classes of orders were run; "
        "--pallas-schedules=200 goes on",
    ]
    assert lines(*found, every=True)[-1] == "orders of ring on tpu-sim: a look at sem (k.py:9)"


def test_a_search_that_was_stopped_says_why():
    stopped = Orders(open=1, runs=2, classes=2, tried=2, most=20, stopped=("a callback decides",))
    assert lines(record("races", stopped))[1] == "open: inbox on tpu-sim: a callback decides"


def test_few_of_many_kernels_are_named():
    found = [record("races", OPEN, kernel=f"k{number}") for number in range(7)]
    assert lines(*found)[-1] == "open: 2 more kernels (-v lists them)"
    assert len(lines(*found, every=True)) == 8


@pytest.mark.parametrize(("unconfirmed", "text"), [(1, "1 of them unconfirmed"), (2, "(unconfirm")])
def test_what_no_run_showed_is_unconfirmed(unconfirmed, text):
    wrong = Orders(wrong=2, unconfirmed=unconfirmed, runs=9, classes=3)
    assert text in lines(record("races", wrong))[0]


def test_sums():
    whole = orders_of([None, PROVED, OPEN])
    assert whole == Orders(
        proved=4, open=1, runs=26, classes=16, tried=11, left=30, most=20,
        reasons=PROVED.reasons,
    )  # fmt: skip
    assert orders_of([None]) is None


def test_records_keep_them():
    found = record("races", OPEN, witness="1-v6e-3fa29c1d-12.1")
    assert from_json(to_json(found)) == found
    with pytest.raises(DataError, match=r"orders\.proved must be"):
        from_json({**to_json(found), "orders": {"proved": -1}})


def test_the_page_has_them():
    text = "".join(page([record("races", OPEN)], environment={}, options={}))
    assert "Orders of 2 calls: 1 proved, 1 open, in 21 runs; open: 11 of at least 41" in text
