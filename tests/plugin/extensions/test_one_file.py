"""One of each kind of extension, from one conftest.py, in one run."""

from __future__ import annotations

import json

import pytest
from pallas_test_support.forked_python import run_python

CONFTEST = """
import dataclasses

import numpy as np
from jax.extend.core import Primitive
from jax.core import ShapedArray

import pytest_pallas
from pytest_pallas import Family, declare_check, declare_sanitizer, strategies as pst
from pallas_sim.chips import GPUS
from pallas_sim import rule

# A target chip.
pytest_pallas.add_chip("h20", dataclasses.replace(GPUS["h100"], device_kind="H20", cores=78))

# A rule, of a primitive that nothing but the simulator can evaluate.
cube_p = Primitive("cube")
cube_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))


@rule("cube")
def cube(eqn):
    return lambda x: x * x * x


# A value class.
@pst.value_class("ramp")
def ramp(request):
    return np.arange(np.prod(request.shape, dtype=int)).reshape(request.shape) % 5


# A check and a sanitizer.
def _seen(context):
    from pytest_pallas.checks.context import CheckResult, run

    outcome = run(context, context.kernel, context.arguments.args)
    return CheckResult(comparisons=[], outcome=outcome, seconds=outcome.seconds)


@declare_check("finite", asks="is all of it finite?", example_fraction=0.5)
def finite(context):
    found = _seen(context)
    assert np.isfinite(found.outcome.values).all()
    return found


@declare_sanitizer("heat", asks="does it stay cool?")
def heat(context):
    return _seen(context)


def pytest_pallas_checks(config):
    return [finite, heat]


# A backend.
def plain(target=None):
    from pytest_pallas.backends.interpreters import Interpreter

    return Interpreter("plain", "any", target)


def pytest_pallas_backends(config):
    return [Family(name="plain", make=plain, kind="interpreting")]


# A section of the report.
def pytest_pallas_report_sections(config):
    from pytest_pallas.report.section import Line, section

    @section("tested")
    def tested(results):
        yield Line(f"tested: {len(results.executed)} checks", "yellow")

    return [tested]


# A mutation operator.
def pytest_pallas_mutation_operators(config):
    from pytest_pallas.mutate import Change, Replacement, operator

    @operator("square", mistake="x in place of its cube", before="cube(x)", after="x")
    def square(at):
        if at.name == "cube":
            yield Change("left out", build=lambda: Replacement([], at.eqn.invars))

    return [square]
"""

SPECS = """
import jax
from jax.experimental import pallas as pl
from conftest import cube_p
from pytest_pallas import KernelSpec, strategies as pst

INPUTS = pst.arrays("m n", dtype="float32", max_dim=8, values="ramp")

def cubed(x):
    def body(x_ref, o_ref):
        o_ref[...] = cube_p.bind(x_ref[...])
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def by_name(x):
    letters = len(jax.devices()[0].device_kind)
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * letters
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def twice(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

SPECS = [
    KernelSpec(name="cubed", kernel=cubed, reference=lambda x: x * x * x, inputs=INPUTS,
               vmappable=False, backends=("tpu-sim",)),
    KernelSpec(name="by_name", kernel={"gpu": by_name}, reference=lambda x: x * 3.0,
               inputs=pst.arrays("m n", dtype="float32", dims={"m": [1, 4], "n": 8},
                                 values="ramp"),
               vmappable=False),
    KernelSpec(name="twice", kernel=twice, reference=lambda x: x * 2, inputs=INPUTS,
               vmappable=False, backends=("plain",)),
]
"""

#: Chips, rules and value classes are known for as long as their process lives.
RUNS = {
    "checks": (
        "--pallas-backend=tpu-sim,gpu-sim:h20,plain", "--pallas-checks=forward,finite,heat",
        "--pallas-sanitize=heat", "--pallas-max-examples=2", "--pallas-html=checks.html",
    ),
    "mutants": (
        "--pallas-backend=tpu-sim", "--pallas-mutate=all", "--pallas-mutate-operators=square",
        "--pallas-checks=forward", "-k", "cubed",
    ),
}  # fmt: skip


#: Imports JAX once.
ALL_RUNS = """
import json, sys
import pytest

for name, options in json.loads(sys.argv[1]).items():
    print("run", name)
    if pytest.main([*options, f"--pallas-results={name}.json"]) != 0:
        sys.exit(f"{name} failed")
"""

COMMON = (
    *("-p", "no:jaxtyping", "-p", "no:cacheprovider", "-W", "error"),
    *("--pallas-suite=specs", "--pallas-isolate=never"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What was printed and recorded, by run, and the HTML page of one."""
    folder = tmp_path_factory.mktemp("extended")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "specs.py").write_text(SPECS)
    options = json.dumps({name: (*COMMON, *each) for name, each in RUNS.items()})
    done = run_python("-c", ALL_RUNS, options, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = done.stdout.split("run ")[1:]
    results = [json.loads((folder / f"{name}.json").read_text())["records"] for name in RUNS]
    page = (folder / "checks.html").read_text()
    return {**dict(zip(RUNS, zip(texts, results, strict=True), strict=True)), "page": page}


@pytest.fixture(scope="module")
def outcomes(runs):
    return {(r["kernel"], r["check"], r["backend"]): r["outcome"] for r in runs["checks"][1]}


def test_a_rule_a_check_and_a_sanitizer(outcomes):
    for check in ("forward", "finite", "heat"):
        assert outcomes["cubed", check, "tpu-sim"] == "passed"


def test_a_chip_is_one_entry_in_one_file(outcomes):
    """The reference says how many multiprocessors the kernel must have found."""
    assert outcomes["by_name", "forward", "gpu-sim:h20"] == "passed"


def test_a_backend_is_one_module_and_one_row(outcomes):
    assert outcomes["twice", "forward", "plain"] == "passed"


def test_a_value_class(runs):
    ran = [record for record in runs["checks"][1] if record["outcome"] == "passed"]
    assert ran
    assert all("ramp" in str(record["inputs"]) for record in ran)


def test_a_report_section_is_one_module(runs):
    text, records = runs["checks"]
    assert f"tested: {len(records)} checks" in text
    assert f"<pre>tested: {len(records)} checks</pre>" in runs["page"]
    assert '<a href="#project-1">Tested</a>' in runs["page"]


def test_a_mutation_operator_is_one_module(runs):
    text, records = runs["mutants"]
    assert "score 100.0 %: 1 mutants, 1 killed" in text
    assert [m["operator"] for r in records for m in r["mutants"]] == ["square"]
