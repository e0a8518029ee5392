"""A worker that sends notes reports its next step, and each note restarts the time limit."""

from __future__ import annotations

import pytest


@pytest.fixture
def talk(pool, setup_for):
    def run(payload, timeout=20.0):
        setup = setup_for("talk", talks=True)
        return pool.submit(setup, payload, timeout=timeout).result(timeout=30)

    return run


def test_the_last_word_is_known(talk):
    result = talk(b"one two exit")
    assert (result.status, result.note) == ("crashed", b"two")
    assert talk(b"one").value == b"one"


def test_words_of_one_job_are_not_those_of_the_next(talk):
    talk(b"one")
    assert talk(b"exit").note == b""


def test_each_word_gives_it_time(talk):
    result = talk(b"pause " * 5, timeout=1.4)
    assert result.status == "done"
    assert result.seconds > 1.4


def test_silence_does_not(talk):
    result = talk(b"one hang", timeout=0.5)
    assert (result.status, result.note) == ("timed out", b"one")
    assert result.silence >= 0.5
