"""Which tests ``--pallas-isolate=auto`` runs in a worker. Here, none is started: see ``taken``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from pytest_pallas.isolate.isolator import Isolator

WAITING = """
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from kernels import *

    def _waits(x_ref, y_ref, o_ref, semaphore):
        pl.semaphore_signal(semaphore, 1)
        pl.semaphore_wait(semaphore, 1)
        o_ref[...] = x_ref[...] + y_ref[...]

    def waits(x, y):
        return pl.pallas_call(
            _waits,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.SemaphoreType.REGULAR],
        )(x, y)
"""

SHARDED = (
    'name="sharded", kernel=add_sharded, reference=lambda x, y, mesh: x + y, '
    'meshes=({"x": 1}, {"x": 2}), inputs=lambda mesh: INPUTS'
)


@pytest.fixture
def taken(monkeypatch) -> list[str]:
    """The names of the tests that would have been run in a worker."""
    names: list[str] = []
    monkeypatch.setattr(Isolator, "apart", lambda self, item: names.append(item.name))
    return names


def suite(project, *args, checks="forward,jit", backend="tpu-interpret"):
    return project.run(
        "--pallas-suite=specs",
        f"--pallas-backend={backend}",
        "--pallas-isolate=auto",
        "--pallas-sanitize=none",
        "--pallas-max-examples=1",
        f"--pallas-checks={checks}",
        *args,
    )


def test_plain_kernels_are_not_isolated(project, taken):
    project.specs('name="add", kernel=add')
    suite(project).assert_outcomes(passed=2)
    assert not taken


def test_always_and_never(project, taken):
    project.specs('name="add", kernel=add')
    suite(project, "--pallas-isolate=always").assert_outcomes(passed=2)
    assert len(taken) == 2
    suite(project, "--pallas-isolate=never").assert_outcomes(passed=2)
    assert len(taken) == 2


def test_kernels_with_semaphores_are_found_once_and_remembered(project, taken, monkeypatch):
    from pytest_pallas.isolate import isolator

    project.write(waiting=WAITING)
    project.specs('name="waits", kernel=__import__("waiting").waits', 'name="add", kernel=add')
    looks: list[object] = []
    traced = isolator._HazardObserver.traced

    def look(self, call, jaxpr, kernels):
        looks.append([kernel.name for kernel in kernels])
        traced(self, call, jaxpr, kernels)

    monkeypatch.setattr(isolator._HazardObserver, "traced", look)
    for session in (1, 2):
        suite(project).assert_outcomes(passed=4)
        assert taken == session * ["waits-forward[tpu-interpret]", "waits-jit[tpu-interpret]"]
        assert looks.count(["_waits"]) == 1  # the other check and session knew


def test_meshes_of_several_devices(project, taken):
    project.specs(SHARDED)
    suite(project, checks="forward").assert_outcomes(passed=2)
    assert taken == ["sharded-forward[tpu-interpret-x2]"]


def test_what_failed_before(project, taken):
    project.specs('name="add_off", kernel=add_off', 'name="add", kernel=add')
    suite(project, "--pallas-isolate=never", checks="forward").assert_outcomes(failed=1, passed=1)
    suite(project, checks="forward")
    assert taken == ["add_off-forward[tpu-interpret]"]


def test_what_was_running_when_a_session_died(project, taken):
    project.specs('name="add", kernel=add')
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = project.path / ".pytest_cache" / "d" / "pallas-running"
    folder.mkdir(parents=True)
    lives = folder / f"{os.getppid()}-{platform.node()}"
    lives.write_text("specs.py::add-jit[tpu-interpret]")
    (folder / f"{ended.pid}-{platform.node()}").write_text("specs.py::add-forward[tpu-interpret]")
    for _ in range(2):
        suite(project).assert_outcomes(passed=2)
    assert taken == 2 * ["add-forward[tpu-interpret]"]
    assert list(folder.iterdir()) == [lives]  # of a session that goes on


def test_a_session_that_dies_leaves_a_trace(project):
    dies = "import os\ndef test_dies(pallas_run):\n    getattr(os, '_' 'exit')(1)\n"
    project.write(test_dies=dies)  # nothing in its code says that it may
    project.spawn("--pallas-backend=interpret", "--pallas-isolate=auto")
    [left] = (project.path / ".pytest_cache" / "d" / "pallas-running").iterdir()
    assert left.read_text() == "test_dies.py::test_dies[interpret]"


@pytest.mark.parametrize("flag", ["-s", "--capture=no", "--pdb", "--trace"])
def test_not_in_a_debugger_and_not_with_a_terminal(project, taken, flag, monkeypatch):
    monkeypatch.setattr("pdb.Pdb.set_trace", lambda *args, **options: None)
    monkeypatch.setattr("pdb.Pdb.runcall", lambda self, function, *a, **k: function(*a, **k))
    project.specs(SHARDED)
    suite(project, flag, checks="forward")
    assert not taken


def test_tests_of_ones_own(project, taken):
    project.write(
        test_own="""
        import pytest

        def test_plain(pallas_run):
            pass

        def test_devices(pallas_devices):
            pass

        def test_mesh(pallas_mesh):
            pass

        @pytest.mark.pallas_mesh(x=2)
        def test_mark(pallas_run):
            pass

        @pytest.mark.pallas(isolate="always")
        def test_asks(pallas_run):
            pass

        @pytest.mark.pallas(isolate="always")
        def test_has_nothing_to_do_with_kernels():
            pass
        """
    )
    project.run("--pallas-backend=interpret", "--pallas-isolate=auto").assert_outcomes(passed=6)
    names = [f"test_{name}[interpret]" for name in ("devices", "mesh", "mark", "asks")]
    assert taken == names


ENDLESS = """
    import jax
    import numpy as np
    from jax.experimental import pallas as pl
    from kernels import *

    def _endless(x_ref, y_ref, o_ref):
        zero = jax.lax.while_loop(lambda c: c < 1.0, lambda c: c * 0.5, x_ref[0, 0] * 0.0)
        o_ref[...] = x_ref[...] + y_ref[...] + zero

    def endless(x, y):
        return pl.pallas_call(_endless, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    def calls_back(x, y):
        return add(jax.pure_callback(np.asarray, x, x), y)
"""


class TestTheSimulator:
    """Which needs no worker, but for what it does not simulate yet, and for Python."""

    def run(self, project, *args, **more):
        return suite(project, *args, backend="auto", **more)

    def test_plain_kernels_and_what_failed_before(self, project, taken):
        project.specs('name="add_off", kernel=add_off', 'name="add", kernel=add')
        for _ in range(2):
            self.run(project, checks="forward").assert_outcomes(failed=1, passed=1)
        assert not taken

    def test_always_isolates_a_spec_without_hazards(self, project, taken):
        project.specs('name="add", kernel=add')
        self.run(project, "--pallas-isolate=always", checks="forward")
        assert taken == ["add-forward[tpu-sim]"]

    def test_a_loop_that_does_not_end(self, project, taken):
        project.write(endless=ENDLESS)
        project.specs('name="endless", kernel=__import__("endless").endless')
        result = self.run(project, "--pallas-timeout=1", checks="forward")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*still not traced and simulated after 1 s*"])
        assert not taken

    def test_callbacks_may_do_anything(self, project, taken):
        project.write(endless=ENDLESS)
        project.specs('name="back", kernel=__import__("endless").calls_back')
        self.run(project, checks="forward")
        assert taken == ["back-forward[tpu-sim]"]

    def test_what_was_running_when_a_session_died(self, project, taken):
        project.specs('name="add", kernel=add')
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        folder = project.path / ".pytest_cache" / "d" / "pallas-running"
        folder.mkdir(parents=True)
        (folder / f"{ended.pid}-{platform.node()}").write_text("specs.py::add-forward[tpu-sim]")
        self.run(project)
        assert taken == ["add-forward[tpu-sim]"]

    def test_mutants_of_a_spec_are_isolated(self, project, taken):
        project.specs('name="add", kernel=add')
        self.run(project, "--pallas-mutate=2", checks="forward")
        assert not taken
        suite(project, "--pallas-mutate=2", checks="forward")
        assert taken == ["add-mutants"]

    def test_tests_of_ones_own(self, project, taken):
        """Only those with a call that is not simulated yet are run in a worker, from its start."""
        project.write(
            waiting=WAITING,
            hidden="""
            from pallas_test_support.unknown_primitive import unknown
            from waiting import waits

            def hidden_waits(x, y):
                return unknown(waits(x, y))
            """,
            test_own="""
            import numpy as np
            import pytest
            from hypothesis import given, strategies as st
            from kernels import add
            from hidden import hidden_waits
            from waiting import waits

            X = np.ones((8, 128), np.float32)

            @pytest.mark.pallas_mesh(x=2)
            def test_simulated(pallas_run, pallas_mesh):
                pallas_run(add, X, X)
                pallas_run(waits, X, X)

            @pytest.mark.pallas_mesh(x=2)
            def test_interpreted(pallas_run):
                pallas_run(add, X, X)
                pallas_run(hidden_waits, X, X)
                raise AssertionError("it goes on in a worker")

            @pytest.mark.pallas_mesh(x=2)
            @given(n=st.integers(0, 3))
            def test_drawn(pallas_run, n):
                pallas_run(hidden_waits if n else add, X, X)

            def test_in_no_danger(pallas_run):
                pallas_run(hidden_waits, X, X)
                assert 1 + 1 == 3
            """,
        )
        project.run("--pallas-isolate=auto").assert_outcomes(passed=3, failed=1)
        assert taken == ["test_interpreted[tpu-sim]", "test_drawn[tpu-sim]"]
        taken.clear()
        project.run("--pallas-isolate=auto", "--lf").assert_outcomes(passed=1)
        assert taken == ["test_in_no_danger[tpu-sim]"]
