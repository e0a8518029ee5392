"""Rounds of fuzzing and mutants run on several workers, and are reported like those of one."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from pytest_pallas.distribute import parts as parts
from pytest_pallas.run import fuzzing
from tests.plugin.mutate.test_specs import KERNELS, SPECS

pytestmark = pytest.mark.usefixtures("dask")

#: Variables that Dask sets where it starts workers.
OF_WORKERS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONHASHSEED")

#: Small rounds and parts, on the workers, too.
CONFTEST = """
    from pytest_pallas.distribute import parts
    from pytest_pallas.run import fuzzing

    fuzzing.ROUND = 5
    parts.ROUNDS_PER_PART = 1
    parts.MUTANTS_PER_PART = 4
"""


#: What that changes.
CHANGED = ((fuzzing, "ROUND"), (parts, "ROUNDS_PER_PART"), (parts, "MUTANTS_PER_PART"))


@pytest.fixture(autouse=True)
def _large_rounds_afterwards(monkeypatch):
    """Undo what the conftest.py does in this process."""
    for module, name in CHANGED:
        monkeypatch.setattr(module, name, getattr(module, name))


#: Wrong for few draws, so that a later round finds it.
SELDOM = """
    import os

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import pallas as pl
    from kernels import add, reference
    from pytest_pallas import KernelSpec, strategies as pst

    def _body(x_ref, y_ref, o_ref):
        off = jnp.where(jnp.sum(x_ref[...]) > 90, 1.0, 0.0)
        o_ref[...] = x_ref[...] + y_ref[...] + off

    def seldom(x, y):
        return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    def crashes(x, y):
        if x.shape[0] == 33 and x.shape[1] > 30:
            os.abort()
        return add(x, y)

    SIZES = {"m": [8, 33], "n": [16, 40]}  # few: each takes time to compile
    FEW = pst.arrays("m n, m n", dtype="float32", dims=SIZES)
    INPUTS = pst.arrays("m n, m n", dtype="float32", around=[8, 16, 32])
    ADD = KernelSpec(name="add", kernel=add, reference=reference, inputs=FEW)
    SELDOM = KernelSpec(name="seldom", kernel=seldom, reference=reference, inputs=INPUTS)
    CRASHES = KernelSpec(name="crashes", kernel=crashes, reference=reference, inputs=INPUTS)
"""


def without_times(records):
    plain = json.loads(re.sub(r"after \d+\.\d s", "after", json.dumps(records)))
    for record in plain:
        del record["seconds"], record["kernel_seconds"]
        for mutant in record["mutants"]:
            del mutant["seconds"]
    return plain


def both(project, *args):
    """The records of a run, which are those of a fleet, too."""
    runs = []
    variables = [os.environ.get(name) for name in OF_WORKERS]
    for more in ((), ("--pallas-fleet=local:2",)):
        results = project.results("--pallas-backend=tpu-sim", *args, *more)
        files = {
            path.name: path.read_bytes() for path in (project.path / "pallas-failures").glob("*")
        }
        runs.append((without_times(results["records"]), files))
        for folder in (".hypothesis", "pallas-failures"):
            shutil.rmtree(project.path / folder, ignore_errors=True)
    assert runs[0] == runs[1]
    assert [os.environ.get(name) for name in OF_WORKERS] == variables
    fleet = results["fleet"]
    assert fleet["sent"] > fleet["tasks"] == fleet["done"]  # in parts
    assert not fleet["repeated"]
    assert not fleet["lost"]
    return runs[0]


@pytest.mark.slow  # test_same.py runs all of a fleet, too
def test_rounds(project):
    project.write(conftest=CONFTEST, seldom=SELDOM)
    args = ("--pallas-suite=seldom", "--pallas-checks=forward", "--pallas-sanitize=none")
    args += ("--pallas-isolate=always", "--pallas-max-examples=3")
    records, files = both(project, *args, "--pallas-fuzz-rounds=4")
    assert [record["outcome"] for record in records] == ["passed", "failed", "failed"]
    assert records[0]["examples"] > 20
    assert records[2]["examples"] > 3  # it crashes in a later round
    assert "its process died of SIGABRT" in records[2]["message"]
    assert "seldom-forward-tpu-sim.py" in files


def test_mutants(project):
    first = SPECS % ("8", "")
    second = (SPECS % ("12, 24", "")).replace('"rows"', '"second"').partition("    SPEC = ")[2]
    project.write(conftest=CONFTEST, kernels=KERNELS, specs=f"{first}\n    SECOND = {second}")
    records, _ = both(
        project, "--pallas-suite=specs", "--pallas-mutate=all", "--pallas-max-examples=2"
    )
    verdicts = [len(record["mutants"]) for record in records]
    assert len(verdicts) == 2
    assert min(verdicts) > 8
    assert "by another" in {mutant["how"] for mutant in records[1]["mutants"]}
