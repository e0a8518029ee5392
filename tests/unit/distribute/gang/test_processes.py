"""What processes agree on, with threads of this process that share a store."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from pytest_pallas import GangError, PeerError
from pytest_pallas.backends import processes
from pytest_pallas.backends.processes import agree, begin_scope, end_scope, gang
from pytest_pallas.compat.distributed import DistributedProgram, distributed_program


class Store:
    """The part of JAX's client that is used."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._lock = threading.Lock()

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        assert allow_overwrite
        with self._lock:
            self.values[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        with self._lock:
            return [pair for pair in self.values.items() if pair[0].startswith(f"{folder}/")]

    def key_value_delete(self, key: str) -> None:
        with self._lock:
            self.values.pop(key)


@pytest.fixture
def together(monkeypatch):
    """Run functions, each as a process of a program of as many."""
    store, own = Store(), threading.local()
    # The session that runs this test asks as well, in the main thread.
    plain = processes._Position()
    monkeypatch.setattr(processes, "distributed_program", lambda: getattr(own, "program", None))
    monkeypatch.setattr(processes, "_position", lambda: getattr(own, "position", plain))

    def run(*functions: Callable[[], object]) -> list[object]:
        def one(number: int) -> object:
            own.program = DistributedProgram(number, len(functions), store)
            own.position = processes._Position()
            begin_scope("tests/a.py::test[b]")
            try:
                return functions[number]()
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(functions)) as pool:
            return list(pool.map(one, range(len(functions))))

    run.store = store
    return run


def test_a_process_on_its_own_is_no_gang():
    assert distributed_program() is None
    assert gang() is None
    assert [statement.value for statement in agree("run", value=3, timeout=0)] == [3]
    end_scope("nothing happens")


def test_jax_has_the_client_of_the_program():
    """The private names of ``compat/distributed.py``; the tests in tests/plugin/gang use them."""
    state = importlib.import_module("jax._src.distributed").global_state
    assert state.client is None
    assert {"process_id", "num_processes"} <= vars(type(state)).keys()
    client = importlib.import_module("jax._src.lib")._jax.DistributedRuntimeClient
    for name in ("key_value_set", "key_value_dir_get", "key_value_delete"):
        assert hasattr(client, name)
    assert jax.process_count() == 1


def test_all_get_the_statements_of_all_in_order(together):
    results = together(*(lambda n=n: agree("x", value=n, timeout=5) for n in range(3)))
    for statements in results:
        assert [(statement.process, statement.value) for statement in statements] == [
            (0, 0),
            (1, 1),
            (2, 2),
        ]


def test_a_problem_of_one_is_an_error_of_the_others(together):
    right, wrong = together(
        lambda: agree("run", timeout=5),
        lambda: agree("run", problem="ValueError: no", kernel_raised=True, timeout=5),
    )
    assert isinstance(right, PeerError)
    assert (right.processes, right.kernel_raised, right.gone) == ((1,), True, False)
    assert (right.shared, right.step) == (True, "run")
    assert str(right).startswith("process 1 failed, so this process stops here, too. Process 1 (")
    assert str(right).endswith("): ValueError: no")
    assert [statement.problem for statement in wrong] == ["", "ValueError: no"]


def test_a_process_that_is_further_has_gone(together):
    first, _ = together(
        lambda: agree("run", timeout=5), lambda: agree("judge", problem="wrong", timeout=5)
    )
    assert isinstance(first, PeerError)
    assert (first.gone, first.shared, first.step) == (True, False, "judge")


@pytest.mark.parametrize("other", [("judge", "f"), ("run", "g")])
def test_different_steps_or_subjects_are_an_error_of_all(together, other):
    step, subject = other
    results = together(
        lambda: agree("run", subject="f", timeout=5),
        lambda: agree(step, subject=subject, timeout=5),
    )
    for error in results:
        assert isinstance(error, GangError)
        assert f"process 0: run of f; process 1: {step} of {subject}. " in str(error)


def test_a_process_that_does_not_come_is_named(together):
    waiting, _, _ = together(lambda: agree("run", subject="f(x)", timeout=0.2), str, str)
    assert isinstance(waiting, GangError)
    assert str(waiting).startswith(
        "processes 1, 2 did not come to the step `run` of f(x) within 0.2 s"
    )


def test_a_test_that_failed_elsewhere_ends_the_wait_at_once(together):
    started = time.monotonic()
    waiting, _ = together(
        lambda: agree("run", timeout=30), lambda: end_scope("ValueError: before the collective")
    )
    assert time.monotonic() - started < 10
    assert isinstance(waiting, PeerError)
    assert waiting.gone
    assert "ValueError: before the collective" in str(waiting)


def test_a_test_that_ended_well_elsewhere_ends_the_wait_too(together):
    waiting, _ = together(lambda: agree("run", timeout=30), end_scope)
    assert isinstance(waiting, GangError)
    assert "process 1: end of the test" in str(waiting)


def test_the_first_end_counts(together):
    def fail_and_end():
        end_scope("ValueError: no")
        end_scope()

    waiting, _ = together(lambda: agree("run", timeout=30), fail_and_end)
    assert isinstance(waiting, PeerError)


def test_the_next_test_begins_anew_after_differences(together):
    def several(count: int):
        for _ in range(count):
            with contextlib.suppress(GangError):
                agree("run", timeout=0.05)
        begin_scope("next")
        return agree("run", timeout=5)

    first, second = together(lambda: several(1), lambda: several(3))
    assert len(first) == len(second) == 2


def test_statements_that_all_have_read_are_deleted(together):
    def many():
        for number in range(50):
            agree("x", value=number, timeout=5)

    together(many, many)
    assert len(together.store.values) <= 4
