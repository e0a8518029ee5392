"""The recipes of CONTRIBUTING.md, followed in a copy of the package."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = re.findall(r"```python\n# (\S+?)(?:, in (\w+))?\n(.*?)```", TEXT, flags=re.DOTALL)

SPECS = """
import jax
import pytest_pallas
from jax.core import ShapedArray
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from pytest_pallas import KernelSpec, strategies as pst

cube_p = Primitive("cube")
cube_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
INPUTS = pst.arrays("m n", dtype="float32", dims={"m": [2], "n": [1, 2]}, values="ramp")

def call(body, x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def cubed(x):
    def body(x_ref, o_ref):
        o_ref[...] = cube_p.bind(x_ref[...])
    return call(body, x)

def by_name(x):
    letters = len(jax.devices()[0].device_kind)
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * letters
    return call(body, x)

def twice(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return call(body, x)

MORE = dict(inputs=INPUTS, vmappable=False)
SPECS = [
    KernelSpec(name="cubed", kernel=cubed, reference=lambda x: x * x * x, backends=("tpu-sim",),
               **MORE),
    KernelSpec(name="by_name", kernel={"gpu": by_name}, reference=lambda x: x * 10.0, **MORE),
    KernelSpec(name="twice", kernel=twice, reference=lambda x: x * 2, backends=("plain",), **MORE),
]
"""

#: At its end: the lists are what the modules declare, and the copy is what was tested. Not before,
#: because pytest must be the first to import the plugin.
PROGRAM = """
import json, sys
import pytest

for options in json.loads(sys.argv[2]):
    if code := pytest.main(options):
        sys.exit(code)

import pytest_pallas
from pytest_pallas import checks, mutate

assert pytest_pallas.__file__.startswith(sys.argv[1]), pytest_pallas.__file__
assert checks.NAMES == tuple(each.name for each in checks.declared_checks())
assert checks.SANITIZERS == tuple(each.name for each in checks.declared_sanitizers())
assert "cube" in [each.name for each in mutate.declared_operators()]
"""

COMMON = (
    *("-p", "no:cacheprovider", "-p", "no:jaxtyping", "-W", "error"),
    *("--pallas-suite=specs", "--pallas-isolate=never", "--pallas-max-examples=2"),
)
RUNS = (
    (
        "--pallas-backend=tpu-sim,gpu-sim:h20,plain", "--pallas-checks=forward,finite",
        "--pallas-sanitize=quiet", "-v",
    ),
    (
        "--pallas-backend=tpu-sim", "--pallas-mutate=all", "--pallas-mutate-operators=cube",
        "--pallas-checks=forward", "-k", "cubed",
    ),
)  # fmt: skip


def follow(folder, path, name, text):
    """Do what a recipe says: a new module, more of a module, or a line of a list in it."""
    file = folder / path
    before = file.read_text() if file.exists() else ""
    if name:
        [listed] = [node for node in ast.parse(before).body if name in assigned(node)]
        lines = before.splitlines(keepends=True)
        lines.insert(listed.end_lineno - 1, text.rstrip().removesuffix(",") + ",\n")
        before, text = "".join(lines), ""
    file.write_text(before + text)


def assigned(node):
    """The names that a statement assigns to."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return {each.id for each in targets if isinstance(each, ast.Name)}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributed")
    for package in ("pallas_sim", "pytest_pallas"):
        shutil.copytree(ROOT / package, folder / package)
    (folder / "specs.py").write_text(SPECS)
    for path, name, text in RECIPES:
        follow(folder, path, name, text)
    runs = json.dumps([[*COMMON, *run] for run in RUNS])
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = run_python("-c", PROGRAM, folder, runs, cwd=folder, env=env, ours=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: The kinds of extensions, and the module that the recipe of each adds or adds to.
KINDS = {
    "check": "pytest_pallas/checks/finite.py",
    "sanitizer": "pytest_pallas/checks/quiet.py",
    "primitive's rule": "pallas_sim/rules/cubes.py",
    "mutation operator": "pytest_pallas/mutate/data_operators.py",
    "backend": "pytest_pallas/backends/plain.py",
    "target chip": "pallas_sim/chips.py",
    "value class": "pytest_pallas/draw/values.py",
    "report section": "pytest_pallas/report/slowest.py",
}


def test_each_kind_has_a_recipe():
    section = TEXT.partition("## One place an extension")[2].partition("\n## ")[0]
    kinds = re.findall(r"^\| (\w[\w' ]+) \| .+ \| .+ \|$", section, re.MULTILINE)[1:]
    assert kinds == list(KINDS)
    assert set(KINDS.values()) <= {path for path, _, _ in RECIPES}


@pytest.mark.parametrize(
    "line",
    [
        "cubed-forward[tpu-sim] PASSED",
        "cubed-finite[tpu-sim] PASSED",
        "cubed-quiet[tpu-sim] PASSED",
        "by_name-forward[gpu-sim:h20] PASSED",
        "twice-forward[plain] PASSED",
        "slowest: ",
        "score 100.0 %: 1 mutants, 1 killed",
    ],
)
def test_what_was_added_works(printed, line):
    assert line in printed
