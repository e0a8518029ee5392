"""Shards: the same everywhere, together the whole, of about equal times."""

import json
import random

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas import options as parsing
from pytest_pallas.distribute.shards import Group, assign, expected_groups, recorded_seconds
from pytest_pallas.options import Shard


def groups(count):
    chance = random.Random(count)
    return [Group(f"g{number}", chance.choice([0.1, 1.0, 7.5])) for number in range(count)]


@pytest.mark.parametrize("count", range(1, 21))
def test_every_group_is_in_one_shard_whatever_the_order(count):
    every = groups(57)
    places = assign(every, count)
    assert places.keys() == {group.name for group in every}
    assert set(places.values()) <= set(range(1, count + 1))
    assert assign(every[::-1], count) == places


def test_shards_take_about_equal_times():
    every = groups(57)
    places = assign(every, 4)
    loads = [sum(g.seconds for g in every if places[g.name] == n) for n in range(1, 5)]
    assert max(loads) - min(loads) <= 1.0


def test_tests_without_a_time_take_the_median():
    found = expected_groups(
        ["a::k-forward", "a::k-jit", "a::new"], ["a::k", "a::k", "a::new"],
        {"a::k-forward": 1.0, "a::k-jit": 3.0},
    )  # fmt: skip
    assert found == [Group("a::k", 4.0), Group("a::new", 2.0)]


def test_without_an_earlier_run_all_take_the_same():
    assert expected_groups(["a", "b"], ["a", "b"], {}) == [Group("a", 1.0), Group("b", 1.0)]


def test_a_file_that_is_no_results_file(tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        recorded_seconds(tmp_path / "no.json")
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(OptionError, match="is not a file of --pallas-results"):
        recorded_seconds(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("2/4", {}, Shard(2, 4)),
        ("", {}, None),
        ("auto", {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4"}, Shard(2, 4)),
        ("auto", {"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "3"}, Shard(1, 3)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "7"}, Shard(8, 8)),
    ],
)
def test_values(text, environment, shard, monkeypatch):
    clear(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parsing.shard(text) == shard


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("5/4", {}, "must be I/N with I from 1 to N"),
        ("0/4", {}, "must be I/N with I from 1 to N"),
        ("two", {}, "must be I/N with I from 1 to N"),
        ("auto", {}, "none is set"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETIONS is not set; write auto/N"),
    ],
)
def test_wrong_values(text, environment, message, monkeypatch):
    clear(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=message):
        parsing.shard(text)


def clear(monkeypatch):
    for name in ("CI_NODE", "CIRCLE_NODE", "BUILDKITE_PARALLEL", "JOB_COMPLETION", "SLURM_ARRAY"):
        for end in ("_INDEX", "_TOTAL", "_JOB", "_JOB_COUNT", "S", "_TASK_ID", "_TASK_COUNT"):
            monkeypatch.delenv(name + end, raising=False)
