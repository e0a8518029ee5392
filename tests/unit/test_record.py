"""Records survive JSON."""

import dataclasses
import json
import math

from pytest_pallas.record import Note, Record, from_json, to_json

RECORD = Record(
    test="a.py::b",
    kernel="matmul",
    check="forward",
    backend="interpret",
    outcome="failed",
    mesh={"x": 4},
    error=math.inf,
    baseline=0.5,
    multiple=math.nan,
    notes=(Note("run on interpret", "run"), Note("of a check of ours")),
    signatures=("ce4354d2b3574bae",),
    explanation={"summary": "race", "details": ["a", "b"], "facts": [{"name": "n", "text": "t"}]},
)


def test_round_trip_through_json():
    plain = json.loads(json.dumps(to_json(RECORD), allow_nan=False))
    back = from_json(plain)
    assert math.isnan(back.multiple)
    assert dataclasses.replace(back, multiple=1.0) == dataclasses.replace(RECORD, multiple=1.0)


def test_a_note_of_a_kind_that_is_not_known_has_none():
    plain = {**to_json(RECORD), "notes": [{"kind": "new", "text": "t"}]}
    assert from_json(plain).notes == (Note("t"),)
