"""Slots in use."""

import pytest

from pytest_pallas.compile.machine_code import read_utilization

TABLE = """\
== CAPACTIY:
MATMUL, MATPUSH, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    2     2     2     4     2     1     3     3     2     2     2
== UTILIZATION:
2 0 0 0 0 0 3 1 0 0 0
0 1 0 4 0 1 0 0 2 2 1
2 2 1 0 0 0 0 0 0 0 1
0 0 0 0 0 0 1 0 0 0 2
"""


def table(text=TABLE):
    use = read_utilization(text)
    assert use is not None
    return use


def test_shares_are_of_capacity():
    assert table().shares(range(4)) == pytest.approx(
        {
            "mxu": (2 + 1 + 2) / 8,  # one that multiplies and takes in weights counts once
            "xlu": 1 / 8,
            "valu": 4 / 16,
            "eup": 1 / 4,
            "load": 4 / 12,
            "store": 2 / 8,
            "scalar": 4 / 8,
        }
    )


def test_shares_of_some_bundles():
    assert table().shares(range(2, 4))["mxu"] == pytest.approx(2 / 4)


def test_units_that_a_table_does_not_have_are_left_out():
    text = "== CAPACTIY:\nVALU, SALU\n 4 2\n== UTILIZATION:\n2 1\n"
    assert table(text).shares(range(1)) == {"valu": 0.5, "scalar": 0.5}
    assert table(text).total("VSTORE:SPILL") is None


def test_totals():
    assert table().total("VSTORE:SPILL") == 2
    assert table().total("VLOAD:FILL") == 1


def test_loads_stores_and_counting_are_no_computing():
    computing = table().computing()
    assert computing & {0, 1, 2}
    assert 3 not in computing


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        TABLE[:60],
        TABLE.replace("2 0 0 0 0 0 3", "2 0 0"),
        TABLE.replace("2     2     2     4", "a"),
    ],
    ids=["empty", "foreign", "no-table", "short-row", "no-number"],
)
def test_a_damaged_table_is_none(text):
    assert read_utilization(text) is None


def test_the_single_column_of_older_libtpu():
    table = read_utilization(
        "== CAPACTIY:\n"
        "MXU, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU\n"
        "    2     2     4     2     1     3     3     2     2     2\n"
        "== UTILIZATION:\n"
        "1 0 0 0 0 3 0 0 0 0\n"
        "0 0 0 0 0 3 0 0 0 0\n"
    )
    assert table is not None
    assert table.shares(range(2))["mxu"] == 0.25
    assert 0 in table.computing()
    assert 1 not in table.computing()
