"""The process that traces candidates: it is kept, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_pallas.candidates.child import visible_folders
from pytest_pallas.candidates.jail import SandboxLimits
from pytest_pallas.candidates.sandbox import Case, Sandbox, Traced, warm_sandbox
from pytest_pallas.workers.process import family_of

ADD = """
import jax
from jax.experimental import pallas as pl
def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1
def kernel(x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""

CASES = [Case(args=(((8, 128), "float32"),)), Case(args=(((16, 128), "float32"),))]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxLimits(seconds=20)) as sandbox:
        yield sandbox


def trace(sandbox: Sandbox, text: str = ADD, **options: object) -> Traced:
    return sandbox.trace({"c.py": text}, "c.py", "kernel", CASES, target="v6e", **options)  # type: ignore[arg-type]


def test_programs_of_all_calls_come_back(sandbox: Sandbox) -> None:
    traced = trace(sandbox, again=[1, 0])
    assert traced.failed is None
    assert traced.imported
    digests = {number: program.digest for number, program in traced.programs.items()}
    assert traced.again == digests
    assert digests[0] != digests[1]
    assert traced.in_force


def test_a_call_that_raises_does_not_end_the_others(sandbox: Sandbox) -> None:
    text = ADD.replace("def kernel(x):", "def kernel(x):\n    assert x.shape[0] == 16, 'sixteen'")
    traced = trace(sandbox, text)
    assert list(traced.programs) == [1]
    refused = traced.refused[0]
    assert (refused.name, refused.sentence) == ("AssertionError", "AssertionError: sixteen")
    assert refused.line == "c.py:7"


def test_what_a_candidate_computes_while_it_is_imported_ends(sandbox: Sandbox) -> None:
    """Only a process without threads may fork: JAX computes with threads."""
    trace(sandbox)
    process = sandbox.process
    assert process is not None
    assert len(os.listdir(f"/proc/{process.pid}/task")) == 1
    text = ADD + "import jax.numpy as jnp\nprint(float((jnp.ones((64, 64)) @ jnp.ones(64)).sum()))"
    assert trace(sandbox, text).output == "4096.0\n"


@pytest.mark.parametrize("name", ["jax.py", "copy.py", "c.py"])
def test_a_file_may_have_the_name_of_a_module(sandbox: Sandbox, name: str) -> None:
    traced = sandbox.trace({name: ADD}, name, "kernel", CASES, target="v6e")
    assert list(traced.programs) == [0, 1]


def test_what_it_prints_is_kept(sandbox: Sandbox) -> None:
    assert trace(sandbox, ADD + "print('hello')").output == "hello\n"


def test_it_has_no_environment(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_JUDGE", "42")
    traced = trace(sandbox, ADD + "import os\nprint('SECRET_OF_THE_JUDGE' in os.environ)")
    assert traced.output == "False\n"


def test_nothing_of_one_candidate_is_there_for_the_next(sandbox: Sandbox) -> None:
    text = (
        ADD + "import os, jax\nprint(os.path.exists('kept'), hasattr(jax, 'mark'))\njax.mark = 1\n"
    )
    first = trace(sandbox, text + "open('kept', 'w').write('x')")
    second = trace(sandbox, text)
    assert first.output == second.output == "False False\n"


@pytest.mark.parametrize("separate", [True, False])
def test_a_daemon_does_not_outlive_the_candidate(separate: bool) -> None:
    text = ADD + "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    with Sandbox(SandboxLimits(seconds=20), separate=separate) as sandbox:
        assert trace(sandbox, text).failed is None
        process = sandbox.process
        assert process is not None
        assert list(family_of(process.pid)) == [process.pid]


def test_a_sandbox_whose_process_has_died_starts_another_one() -> None:
    with Sandbox(SandboxLimits(seconds=20)) as sandbox:
        trace(sandbox)
        process = sandbox.process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert trace(sandbox).failed is None


def test_an_interrupt_leaves_no_candidate_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(SandboxLimits(seconds=20)) as sandbox:
        trace(sandbox)
        process = sandbox.process
        assert process is not None
        started = time.monotonic()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("pytest_pallas.candidates.sandbox._Watch.watch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trace(sandbox, "while True: pass")
        monkeypatch.undo()
        assert process.poll() is not None
        assert time.monotonic() - started < 10
        assert trace(sandbox).failed is None


def test_a_thread_keeps_its_sandbox() -> None:
    assert warm_sandbox() is warm_sandbox()


def test_the_folders_that_are_visible_do_not_contain_each_other() -> None:
    folders = visible_folders()
    assert "/" not in folders
    for folder in folders:
        assert not any(str(Path(folder)).startswith(f"{other}/") for other in folders)
