"""Agreements between processes whose messages arrive in an awkward order."""

import json

import pytest

from pytest_pallas.backends import processes
from pytest_pallas.backends.processes import agree, begin_scope
from pytest_pallas.compat import distributed
from pytest_pallas.compat.distributed import DistributedProgram


class Client:
    """The store of a coordination service, in this process."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite):
        self.values[key] = value

    def key_value_delete(self, key):
        self.values.pop(key, None)

    def key_value_dir_get(self, folder):
        return [(key, v) for key, v in self.values.items() if key.startswith(f"{folder}/")]


@pytest.fixture
def client(monkeypatch):
    """The store of a program of two processes, of which this is the second."""
    made = Client()
    program = DistributedProgram(1, 2, made)
    monkeypatch.setattr(processes, "distributed_program", lambda: program)
    begin_scope("test")
    return made


def statement(step, **more):
    """The statement of process 0."""
    return json.dumps({"process": 0, "host": "first", "step": step, **more})


def root():
    """The folder of the statements of this test."""
    return processes._folder("").rstrip("/")


def test_a_process_may_end_the_test_right_after_an_agreement(client, monkeypatch):
    read = distributed.read_folder

    def slow(program, folder):
        """Process 0 agrees, and ends the test, while this process looks for the first time."""
        statements = read(program, folder)
        client.values[f"{root()}/0/0"] = statement("examples")
        client.values[f"{root()}/ended/0"] = statement("end")
        return statements

    monkeypatch.setattr(distributed, "read_folder", slow)
    assert [statement.process for statement in agree("examples", timeout=5.0)] == [0, 1]


def test_a_process_that_left_is_an_error_at_once(client):
    client.values[f"{root()}/ended/0"] = statement("end", problem="it raised")
    with pytest.raises(processes.PeerError, match=r"process 0 failed.* it raised") as caught:
        agree("examples", timeout=5.0)
    assert caught.value.processes == (0,)
    assert caught.value.gone


def test_different_steps_are_an_error(client):
    client.values[f"{root()}/0/0"] = statement("run", subject="add")
    with pytest.raises(processes.GangError, match="process 0: run of add; process 1: judge of add"):
        agree("judge", subject="add", timeout=5.0)
