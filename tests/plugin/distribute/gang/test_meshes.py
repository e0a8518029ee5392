"""Meshes over several processes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

CASES = "gang_cases.py"


@pytest.mark.parametrize(
    ("axes", "expected"),
    [({"x": 4}, [0, 0, 1, 1]), ({"x": 2, "y": 2}, [0, 0, 1, 1]), ({"x": 2}, [0, 1])],
)
def test_a_mesh_has_as_many_devices_of_each_process_in_their_order(two, axes, expected):
    assert two.values(CASES, "mesh_processes", axes) == [expected, expected]


def test_a_mesh_that_cannot_be_shared_evenly_is_an_error(two):
    for answer in two.call(CASES, "mesh_processes", {"x": 3}):
        assert answer.error == "TooFewDevicesError"
        assert "has 3 devices, which 2 processes cannot share evenly" in answer.message
        assert "there are 2 processes with 2, 2 cpu devices" in answer.message


def test_too_few_devices_say_how_many_each_process_needs(two):
    for answer in two.call(CASES, "mesh_processes", {"x": 8}):
        assert answer.error == "TooFewDevicesError"
        assert "needs 8 devices, 4 of every process" in answer.message
