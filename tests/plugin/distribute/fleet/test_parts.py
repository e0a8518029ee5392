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
