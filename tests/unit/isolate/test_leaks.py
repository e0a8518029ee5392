"""What is left behind is told by name, with what it was, and is undone."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import types
import warnings

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh

from pytest_pallas import LeakError
from pytest_pallas.isolate.leaks import guarded, leaks, leaving_nothing, state
from pytest_pallas.options import Options
from pytest_pallas.session import Session

INTERPRETER = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
ENTERED: list[object] = []


def session():
    return Session(options=Options())


def left(act, where=None):
    with pytest.raises(LeakError) as caught, guarded(where or session(), "here"):
        act()
    return str(caught.value)


def enter(make):
    """Enter a context that nothing leaves: if it were forgotten, its end would come at once."""

    def act():
        ENTERED.append(make())
        ENTERED[-1].__enter__()

    return act


def leave_memory():
    importlib.import_module(INTERPRETER)._shared_memory = types.SimpleNamespace(
        set_failed=lambda *args, **options: None
    )


LEAVING = {
    "config": (
        lambda: jax.config.update("jax_default_matmul_precision", "highest"),
        "left jax_default_matmul_precision = 'highest' (was None)",
    ),
    "context": (enter(lambda: jax.enable_x64(True)), "left jax_enable_x64 = True (was False)"),
    "device": (
        enter(lambda: jax.default_device(jax.devices()[0])),
        "left jax_default_device = CpuDevice(id=0) (was None)",
    ),
    "interpret mode": (
        enter(lambda: pltpu.force_tpu_interpret_mode(True)),
        "left pallas_tpu_interpret_mode = True (was None)",
    ),
    "mesh": (
        enter(lambda: jax.sharding.use_abstract_mesh(AbstractMesh((2,), ("x",)))),
        "left abstract_mesh = AbstractMesh('x': 2",
    ),
    "numpy": (
        lambda: np.seterr(over="ignore"),
        "left numpy.geterr()['over'] = 'ignore' (was 'warn')",
    ),
    "variable": (
        lambda: os.environ.update(LEFT="1"),
        "left os.environ['LEFT'] = '1' (was unset)",
    ),
    "no variable": (
        lambda: os.environ.pop("HAD"),
        "left os.environ['HAD'] = unset (was '1')",
    ),
    "print options": (
        lambda: np.set_printoptions(precision=3),
        "left numpy.get_printoptions()['precision'] = 3 (was 8)",
    ),
    "warning filters": (
        lambda: warnings.filterwarnings("ignore", message="left behind"),
        "left warnings.filters = ",
    ),
    "collector": (gc.disable, "left gc.isenabled() = False (was True)"),
    "collector's limits": (lambda: gc.set_threshold(7, 7, 7), "left gc.get_threshold() = (7, 7, "),
    "recursion": (
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7),
        "left sys.getrecursionlimit() = ",
    ),
    "handler": (
        lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        "left the handler of SIGUSR2 = ",
    ),
    "handler of ^C": (
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        "left the handler of SIGINT = ",
    ),
    "folder": (lambda: os.chdir("/"), "left the working directory = '/' (was"),
    "interpreter": (leave_memory, "left memory of a kernel in the TPU interpreter"),
}


@pytest.mark.parametrize("name", sorted(LEAVING))
def test_told_and_undone(name, monkeypatch):
    monkeypatch.setenv("HAD", "1")
    act, message = LEAVING[name]
    before = state()
    assert message in left(act)
    assert not leaks(before, state())


def test_contexts_that_end_are_no_leak():
    with guarded(session(), "here"), jax.enable_x64(True):
        jax.numpy.ones(3)


def test_several_are_told_together():
    def act():
        os.environ["LEFT"] = "1"
        np.seterr(over="ignore")

    text = left(act)
    assert "os.environ['LEFT']" in text
    assert "numpy.geterr()['over']" in text


def test_another_failure_is_kept_and_state_undone():
    @guarded(session(), "here")
    def act():
        os.environ["LEFT"] = "1"
        raise KeyError

    with pytest.raises(KeyError):
        act()
    assert "LEFT" not in os.environ


def test_what_importing_a_module_sets_is_no_leak(tmp_path, monkeypatch):
    monkeypatch.setenv("SET_BY_IMPORT", "0")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sets_a_variable.py").write_text("import os\nos.environ['SET_BY_IMPORT'] = '1'\n")
    with guarded(session(), "here"):
        importlib.import_module("sets_a_variable")
    assert os.environ["SET_BY_IMPORT"] == "1"


def test_filters_that_importing_a_module_adds_are_no_leak(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "import warnings\nwarnings.filterwarnings('ignore', message='of an import')\n"
    (tmp_path / "adds_a_filter.py").write_text(text)
    with warnings.catch_warnings(), guarded(session(), "here"):
        importlib.import_module("adds_a_filter")


def test_a_leak_of_a_kernel_fails_its_first_test_only():
    here = session()

    def act():
        os.environ["LEFT"] = "1"

    with pytest.raises(LeakError), guarded(here, "forward", "kernel"):
        act()
    with guarded(here, "jit", "kernel"):
        act()
    with pytest.raises(LeakError), guarded(here, "forward", "another kernel"):
        act()
    assert "LEFT" not in os.environ


def test_what_a_trace_before_a_test_leaves_is_undone_and_not_told():
    before = state()
    with leaving_nothing(session()):
        jax.config.update("jax_default_matmul_precision", "highest")
    assert not leaks(before, state())


def test_what_cannot_be_undone_is_said(monkeypatch):
    def refuse(name, setting):
        raise RuntimeError("too late")

    here = session()
    monkeypatch.setattr("pytest_pallas.isolate.leaks.set_jax_setting", refuse)
    text = left(LEAVING["config"][0], here)
    assert "could not undo jax_default_matmul_precision" in text
    assert here.stained
    jax.config.update("jax_default_matmul_precision", None)
