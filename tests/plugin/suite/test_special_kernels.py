"""Default specs of kernels that not every backend and check can run: they pass by themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

SPECS = """
from special import *
from pytest_pallas import KernelSpec, strategies as pst

ROWS = pst.arrays("m n", dtype="float32", dims={"m": [64, 128], "n": [128]})

SPEC = KernelSpec(%s, inputs=%s)
"""

KERNELS = {
    "ring": 'name="ring", kernel=ring, reference=ring_reference',
    "shift": 'name="shift", kernel=shift, reference=shift_reference, meshes=({"x": 4},)',
    "copies": 'name="copies", kernel=copies, reference=copies_reference',
    "mosaic": 'name="mosaic", kernel=mosaic, reference=mosaic_reference',
    "on_gpu": 'name="on_gpu", kernel={"gpu": mosaic}, reference=mosaic_reference',
}

#: Where the simulator of their platform runs them, and which checks do not apply with the reason.
RING = "needs vmappable=True: the kernel reaches other devices, once for each batch element"
HBM = "needs vmappable=True: JAX compiles no batch of operands in HBM or pl.ANY for a TPU"
MESH = "the kernel runs on a mesh, and vmap of shard_map is not supported"
EXPECTED = {
    "ring": ("tpu-sim", RING),
    "shift": ("tpu-sim", MESH),
    "copies": ("tpu-sim", HBM),
    "mosaic": ("gpu-sim", ""),
    "on_gpu": ("gpu-sim", ""),
}

QUICK = ("--pallas-suite=specs", "--pallas-profile=quick", "--pallas-max-examples=2")


@pytest.fixture
def special(project):
    """Write one of the specs; ``more`` are further fields."""
    shutil.copy(Path(__file__).parents[1] / "special_kernels.py", project.path / "special.py")

    def specs(name: str, more: str = "") -> None:
        inputs = "lambda mesh: ROWS" if "meshes=" in KERNELS[name] else "ROWS"
        (project.path / "specs.py").write_text(SPECS % (KERNELS[name] + more, inputs))

    return project, specs


@pytest.mark.parametrize("name", KERNELS)
def test_a_default_spec_passes(special, name):
    project, specs = special
    specs(name)
    results = project.results(*QUICK)
    backend, vmap = EXPECTED[name]
    ran = [record for record in results["records"] if not record["requirement"]]
    assert {record["outcome"] for record in ran} == {"passed"}
    assert {record["backend"] for record in ran} == {backend}
    checks = {record["check"] for record in ran}
    assert {"forward", "determinism", "jit", "races", "dma", "deadlock", "schedule"} <= checks
    assert ("vmap" in checks) == (not vmap)
    lacking = {each["check"]: each["requirement"] for each in results["not_applicable"]}
    assert lacking.get("vmap", "") == vmap


@pytest.mark.parametrize("name", KERNELS)
def test_interpreters_leave_out_what_they_cannot_run(special, name):
    project, specs = special
    specs(name)
    results = project.results(
        *QUICK, "--pallas-backend=auto,interpreters", "--pallas-checks=forward,vmap,cross"
    )
    outcomes = {record["outcome"] for record in results["records"] if not record["requirement"]}
    assert outcomes == {"passed"}
    lacking = {
        (each["backend"], each["requirement"])
        for each in results["not_applicable"]
        if each["check"] == "forward"
    }
    reaches = "needs tpu-sim or tpu-interpret: interpret cannot run the signals and copies of "
    expected = {("interpret", f"{reaches}_ring_body to other devices")}
    assert lacking == (expected if name in ("ring", "shift") else set())


def test_a_named_backend_of_another_platform_runs_nothing(special):
    project, specs = special
    specs("mosaic")
    result = project.run(
        *QUICK, "--pallas-backend=tpu-sim,tpu-interpret", "--pallas-checks=forward", "-v"
    )
    result.stdout.fnmatch_lines(
        ["  needs a GPU backend such as gpu-sim: _mosaic_body is a Mosaic GPU kernel (2): *"]
    )
    result.stdout.fnmatch_lines(["*2 not applicable in*"])


def test_a_ring_is_batched_where_the_spec_says_so(special):
    """One device may signal twice before its other neighbor did once: this barrier counts only."""
    project, specs = special
    specs("ring", ", vmappable=True")
    [record] = project.records(*QUICK, "--pallas-checks=vmap")
    assert record["outcome"] == "failed"
    assert record["findings"][0]["kind"] == "entry"


@pytest.mark.parametrize("vmappable", ["None", "True", "False"])
def test_vmappable_decides_for_operands_in_hbm(special, vmappable):
    project, specs = special
    specs("copies", f", vmappable={vmappable}")
    results = project.results(*QUICK, "--pallas-checks=vmap")
    lacking = [each["requirement"] for each in results["not_applicable"]]
    assert lacking == {
        "None": [HBM], "True": [], "False": ["the spec declares vmappable=False"]
    }[vmappable]  # fmt: skip
    assert len(results["records"]) == (vmappable == "True")


def test_a_missing_mesh_is_said_to_be_one(special):
    project, specs = special
    specs("shift")
    module = project.path / "specs.py"
    text = module.read_text().replace(', meshes=({"x": 4},)', "").replace("lambda mesh: ", "")
    module.write_text(text)
    result = project.run(*QUICK)
    result.stdout.fnmatch_lines(
        ['*the kernel needs mesh=, and the spec has no meshes: * such as meshes="x", and*']
    )


TEST = """
import numpy as np
import pytest
from special import *
from specs import SPEC

X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)

def test_it(pallas_check):
    pallas_check(%s, X, reference=%s, checks="all", %s)

def test_spec(pallas_check):
    pallas_check(SPEC)
"""


def fixture_test(project, name):
    mesh = 'mesh={"x": 4}' if name == "shift" else ""
    kernel = "mosaic" if name == "on_gpu" else name
    project.write(test_one=TEST % (kernel, f"{kernel}_reference", mesh))


@pytest.mark.parametrize("name", KERNELS)
def test_the_fixture_runs_them_too(special, name):
    project, specs = special
    specs(name)
    fixture_test(project, name)
    records = project.records("test_one.py", "--pallas-profile=quick", "--pallas-max-examples=2")
    assert {record["outcome"] for record in records} == {"passed"}
    assert {record["backend"] for record in records} == {EXPECTED[name][0]}
    by_test = {record["test"].partition("::")[2] for record in records}
    assert by_test == {"test_it[tpu-sim]", "test_spec[tpu-sim]"}


def test_the_fixture_skips_a_backend_that_cannot_run_the_kernel(special):
    project, specs = special
    specs("mosaic")
    fixture_test(project, "mosaic")
    result = project.run("test_one.py", "-k", "test_it", "--pallas-backend=tpu-sim", "-v")
    result.stdout.fnmatch_lines(
        ["  needs a GPU backend such as gpu-sim: _mosaic_body is a Mosaic GPU kernel (1): forward*"]
    )
    result.stdout.fnmatch_lines(["*1 not applicable in*"])


def test_the_fixture_says_that_a_mesh_is_missing(special):
    project, _ = special
    project.write(
        test_one="""
        import numpy as np
        from special import *

        def test_it(pallas_check):
            pallas_check(shift, np.ones((8, 128), np.float32), reference=shift_reference)
        """
    )
    result = project.run("test_one.py")
    result.stdout.fnmatch_lines(['*shift: the kernel needs mesh=: * such as mesh={"x": 4}*'])


def test_a_failure_of_a_moved_call_is_replayed_where_it_ran(special):
    project, _ = special
    project.write(
        test_one="""
        import numpy as np
        from special import *

        def test_it(pallas_check):
            pallas_check(mosaic, np.ones((64, 128), np.float32), reference=lambda x: x)
        """
    )
    [record] = project.records("test_one.py")
    assert record["backend"] == "gpu-sim"
    assert record["message"].startswith("mosaic: forward on gpu-sim is wrong")
    assert "--pallas-backend=auto" in record["replay"]
