"""How many different triples a run asked about, from records."""

from __future__ import annotations

from pytest_pallas.record import Record
from pytest_pallas.report.terminal import Distinct, count_distinct


def record(test="a.py::t", check="forward", backend="tpu-sim", signatures=(), examples=3):
    return Record(test=test, kernel="k", check=check, backend=backend, outcome="passed",
                  signatures=signatures, examples=examples)  # fmt: skip


def test_backends_count_together_and_checks_and_files_apart():
    records = [
        record(signatures=("1", "2")),
        record(signatures=("2", "3"), backend="interpret"),
        record(signatures=("2",), check="jit"),
        record(signatures=("2",), test="b.py::t"),
    ]
    assert count_distinct(records) == Distinct(triples=5, examples=12)


def test_the_line_counts_triples_and_examples():
    found = Distinct(triples=1234, examples=5678)
    assert str(found) == "distinct: 1,234 (spec, check, shape) triples in 5,678 examples"
