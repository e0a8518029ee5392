"""Specs on compiling backends: typical calls first, then drawn ones; meshes; checks."""

from __future__ import annotations

import json

import pytest
from pallas_test_support.failure_scripts import repeat

SPEC = """
    import jax
    from chips import *
    from pytest_pallas import ExpectedFailure, KernelSpec, strategies as pst

    SPEC = KernelSpec(
        name="double", kernel=double, reference=twice, differentiable=(), vmappable=True,
        inputs=pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256]}),
        typical=(pst.shaped("m n", dtype="float32", dims={"m": 256, "n": 512}),),
    )
"""


def test_typical_calls_are_compiled_and_shown(compiling):
    compiling.write(specs=SPEC)
    found = compiling.records("--pallas-suite=specs", "--pallas-backend=tpu-compile:v5e")
    by_check = {record["check"]: record for record in found}
    assert set(by_check) == {"forward", "vmap"}  # nothing else has a program of its own
    reports = by_check["forward"]["compiled"]
    typical = [report for report in reports if report.get("typical")]
    assert [report["signature"] for report in typical] == ["float32[256,512]"]
    assert {report["signature"] for report in reports} > {"float32[256,512]"}
    assert "float32[2,256,512]" in {r["signature"] for r in by_check["vmap"]["compiled"]}


@pytest.mark.parametrize("named", ["option", "mark", "spec", "fixture", ""])
def test_vmap_is_compiled_where_it_is_named(compiling, named):
    """Without a name it is not applicable to an operand in HBM: Mosaic refuses its batch."""
    compiling.write(
        specs=f"""
        from chips import *
        from pytest_pallas import KernelSpec, strategies as pst

        def in_hbm(x):
            def body(x_ref, o_ref):
                pltpu.sync_copy(x_ref, o_ref)

            spec = pl.BlockSpec(memory_space=pl.ANY)
            return pl.pallas_call(body, in_specs=[spec], out_shape=x)(x)

        from jax.experimental.pallas import tpu as pltpu
        SPEC = KernelSpec(
            name="copied", kernel=in_hbm, reference=lambda x: x, backends=("tpu-compile",),
            checks={("forward", "vmap") if named == "spec" else None},
            inputs=pst.arrays("m n", dtype="float32", dims={{"m": 8, "n": 128}}),
        )
        """,
        test_named=f"""
        import pytest
        from pytest_pallas import suite
        from specs import SPEC

        pytestmark = pytest.mark.pallas(checks={["vmap"] if named == "mark" else ["all"]})
        test_specs = suite(SPEC)

        def test_fixture(pallas_check):
            if {named == "fixture"}:
                pallas_check(SPEC, checks="vmap")
        """,
    )
    options = ["--pallas-checks=forward,vmap"] if named == "option" else []
    if named == "option":
        (compiling.path / "test_named.py").unlink()
        options.append("--pallas-suite=specs")
    found = compiling.records("--pallas-backend=tpu-compile:v5e", *options)
    assert ("vmap" in {record["check"] for record in found}) == bool(named)


def test_the_smallest_refused_call_is_found_and_can_be_replayed(compiling):
    compiling.write(
        specs="""
        from chips import *
        from pytest_pallas import KernelSpec, strategies as pst

        def kernel(x):
            columns = 48 if x.shape[1] > 128 else x.shape[1]
            return in_blocks(x, 8, columns)

        SPEC = KernelSpec(
            name="narrow", kernel=kernel, reference=twice, vmappable=False,
            inputs=pst.arrays("m n", dtype="float32", dims={"m": [8, 16, 24, 32],
                                                            "n": [128, 480, 960, 1440]}),
        )
        """
    )
    arguments = ("--pallas-suite=specs", "--pallas-backend=tpu-compile:v6e")
    result = compiling.run(*arguments, "--pallas-results=results.json")
    records = json.loads((compiling.path / "results.json").read_text())["records"]
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*inputs*float32[[]8, 480[]]", "*--pallas-replay=*"])
    words = next(
        word
        for line in result.outlines
        for word in line.split()
        if word.startswith("--pallas-replay=")
    )
    again = compiling.run(*arguments, words, "specs.py::narrow-forward[tpu-compile:v6e]")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*inputs*float32[[]8, 480[]]"])
    repeat(records, {})


def test_an_expected_refusal_is_strict(compiling):
    compiling.write(
        specs="""
        from chips import *
        from pytest_pallas import ExpectedFailure, KernelSpec, strategies as pst

        INPUTS = pst.arrays("m n", dtype="float32", dims={"m": [8], "n": [480, 960]})
        REFUSED = {"tpu-compile": ExpectedFailure(reason="48 lanes", jax="0.12.0.1")}

        def narrow(x):
            return in_blocks(x, 8, 48)

        A = KernelSpec(name="narrow", kernel=narrow, reference=twice, vmappable=False,
                       inputs=INPUTS, xfail=REFUSED)
        B = KernelSpec(name="fine", kernel=double, reference=twice, vmappable=False,
                       inputs=INPUTS, xfail=REFUSED)
        """
    )
    result = compiling.run("--pallas-suite=specs", "--pallas-backend=tpu-compile:v6e")
    result.assert_outcomes(xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["narrow*xfail"])


def test_a_mesh_is_compiled_for_as_many_chips(compiling):
    compiling.write(
        specs="""
        import dataclasses
        from reference_kernels.collectives.right_permute_spec import SPEC as PERMUTE

        MESHES = ({"x": 1}, {"x": 4}, {"x": 2, "y": 4})
        SPEC = dataclasses.replace(PERMUTE, name="permute", file=__file__, meshes=MESHES)
        """
    )
    found = compiling.records(
        "--pallas-suite=specs", "--pallas-backend=tpu-compile:v5e", "--pallas-max-examples=2"
    )
    assert [(record["mesh"], record["outcome"]) for record in found] == [
        ({"x": 1}, "passed"),
        ({"x": 4}, "passed"),
        ({"x": 2, "y": 4}, "passed"),
    ]
