"""A controller that ends in the middle of a test: what the parts of the test found is kept."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

from pytest_pallas.__main__ import main
from pytest_pallas.distribute.fleet import controller as runner
from tests.plugin.distribute.fleet.test_parts import CHANGED, CONFTEST, without_times
from tests.plugin.mutate.test_specs import KERNELS, SPECS

pytestmark = pytest.mark.usefixtures("dask")


@pytest.fixture(autouse=True)
def _unchanged_afterwards(monkeypatch):
    """Undo what the conftest.py does in this process."""
    for module, name in (*CHANGED, (runner, "KeptResults")):
        monkeypatch.setattr(module, name, getattr(module, name))


#: The controller is killed once some results were kept, or interrupted at a failing example.
STOPPED = """
    import os
    import signal
    from pathlib import Path

    from pytest_pallas.distribute.fleet import ledger as kept
    from pytest_pallas.distribute.parts import result_of

    class Stopped(kept.KeptResults):
        def keep(self, result):
            super().keep(result)
            found = result_of(result.reports)
            with open("log", "a") as log:
                for each in found.get("rounds", [{"number": found.get("first")}]):
                    log.write(f"{result.nodeid} {each['number']}\\n")
            if not os.path.exists("left"):
                return
            left = int(Path("left").read_text()) - 1
            Path("left").write_text(str(left))
            if not left:
                os.unlink("left")
                os.kill(os.getpid(), signal.SIGKILL)
            elif found.get("database"):
                os.unlink("left")
                raise KeyboardInterrupt

    from pytest_pallas.distribute.fleet import controller as runner

    runner.KeptResults = Stopped
"""


#: Wrong for few draws, so that a later round finds it.
SELDOM = """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from kernels import reference
    from pytest_pallas import KernelSpec, strategies as pst

    def _body(x_ref, y_ref, o_ref):
        off = jnp.where(jnp.sum(x_ref[...]) > 90, 1.0, 0.0)
        o_ref[...] = x_ref[...] + y_ref[...] + off

    def seldom(x, y):
        return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    INPUTS = pst.arrays("m n, m n", dtype="float32", around=[8, 16, 32])
    SELDOM = KernelSpec(name="seldom", kernel=seldom, reference=reference, inputs=INPUTS)
"""


class Runs:
    """A run of one process, and the same one by a fleet in two parts."""

    def __init__(self, project, *args):
        self.project = project
        self.arguments = ("--pallas-backend=tpu-sim", "--pallas-results=r.json", *args)
        project.run(*self.arguments)
        self.whole = self.results()
        for folder in (".hypothesis", "pallas-failures"):
            shutil.rmtree(project.path / folder, ignore_errors=True)
        (project.path / "r.json").unlink()

    def results(self):
        return json.loads((self.project.path / "r.json").read_text())

    def stop(self, left):
        """Run until so many results are kept, or there is a failing example."""
        (self.project.path / "left").write_text(str(left))
        return self.project.spawn(*self.arguments, "--pallas-fleet=local:1").ret

    def resume(self):
        """Take it up: the records are those of one process, and nothing ran twice."""
        arguments = (*self.arguments, "--pallas-fleet=local:1", "--pallas-resume=r.json")
        text = self.project.run(*arguments).stdout.str()
        results = self.results()
        assert without_times(results["records"]) == without_times(self.whole["records"])
        assert not any("parts" in test for test in results["tests"])
        done = (self.project.path / "log").read_text().splitlines()
        assert len(set(done)) == len(done)
        return text, results["fleet"]["sent"]


@pytest.mark.slow
def test_rounds_of_a_run_that_is_interrupted(project):
    project.write(conftest=CONFTEST + STOPPED, seldom=SELDOM)
    args = ("--pallas-suite=seldom", "--pallas-checks=forward", "--pallas-sanitize=none")
    args += ("--pallas-max-examples=3", "--pallas-fuzz-rounds=6", "-k", "seldom-forward")
    runs = Runs(project, *args)
    assert runs.stop(100) == pytest.ExitCode.INTERRUPTED
    [test] = runs.results()["tests"]
    assert test["outcome"] == "not run"
    parts = len(test["parts"])
    assert list((project.path / ".hypothesis" / "examples").rglob("*")), "it is replayed"
    text, sent = runs.resume()
    assert f"resumed: 0 of 1 tests were done, and {parts} parts of others" in text
    assert sent == 0


def test_mutants_of_a_run_that_is_killed(project):
    first = SPECS % ("8", "")
    second = (SPECS % ("12, 24", "")).replace('"rows"', '"second"').partition("    SPEC = ")[2]
    specs = f"{first}\n    SECOND = {second}"
    project.write(conftest=CONFTEST + STOPPED, kernels=KERNELS, specs=specs)
    args = ("--pallas-suite=specs", "--pallas-mutate=all", "--pallas-max-examples=1")
    runs = Runs(project, *args)
    assert runs.stop(2) == -signal.SIGKILL
    results = project.path / "r.json"
    lines = (project.path / "r.json.partial").read_text().splitlines()
    assert sum(line.startswith('{"part_of"') for line in lines) == 2
    main(["merge", str(results), "-o", str(results)])  # which keeps the parts
    runs.resume()
