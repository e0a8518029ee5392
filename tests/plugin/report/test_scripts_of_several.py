"""The scripts of checks that run a kernel several times tell wrong kernels from mended ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_python import run_bare

#: Kernels that are wrong, each for one check, unless the environment says that they are mended.
#: Those of metamorphic checks share the mistake with their references.
KERNELS = """
import dataclasses
import os
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from kernels import add, reference
from pytest_pallas import Linear, Permuted, Relation

MENDED = "MENDED" in os.environ
BY = pst.arguments(INPUTS, tuning={"block": 8})
FIXED = pst.arrays("8 128, 8 128", dtype="float32")

@jax.jit
def over_edge(x, y):
    def body(x_ref, o_ref):
        place = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        counted = x_ref[...] > 0
        if MENDED:
            counted &= place < 128
        o_ref[...] = jnp.sum(counted, axis=1, keepdims=True, dtype=jnp.int32)

    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct((8, 1), jnp.int32), grid=(1,),
        in_specs=[pl.BlockSpec((8, 256), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((8, 1), lambda i: (0, 0)),
    )(x)

def positives(x, y):
    return jnp.sum(x > 0, axis=1, keepdims=True, dtype=jnp.int32)

def raises_for_nan(x, y):
    def refuse(x):
        if not MENDED and np.isnan(x).any():
            raise ValueError("no NaN, please")
        return x

    x = jax.pure_callback(refuse, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return add(jnp.where(jnp.arange(128) < 100, x, 0), y)

def of_hundred(x, y):
    return jnp.where(jnp.arange(128) < 100, x, 0) + y

def behind(x, y):
    return np.broadcast_to(np.arange(128) >= 100, x.shape), None

def biased(x, y):
    return add(x, y) + (0 if MENDED else 0.25)

def biased_reference(x, y):
    return x + y + (0 if MENDED else 0.25)

def farther(x, y):
    return add(x, y) if MENDED else add(0 * x, jnp.sign(x) * jnp.maximum(abs(x), abs(y)))

def farther_reference(x, y):
    return x + y if MENDED else jnp.sign(x) * jnp.maximum(abs(x), abs(y))

def by_place(x, y):
    return add(x, y + (0 if MENDED else jnp.arange(8.0)[:, None]))

def by_place_reference(x, y):
    return x + y + (0 if MENDED else jnp.arange(8.0)[:, None])

def capped(x, y):
    return add(x, y) if MENDED else jnp.minimum(add(x, y), 1)

def capped_reference(x, y):
    return x + y if MENDED else jnp.minimum(x + y, 1)

def shifted(arguments, rng):
    by = float(rng.integers(1, 4))
    x, y = arguments.args
    recipe = {**arguments.recipe, "by": by}
    return dataclasses.replace(arguments, args=(x + np.float32(by), y), recipe=recipe)

def moved(outputs, changed):
    return outputs + changed.recipe["by"]

def on_tpu(x, y):
    return add(x, y if MENDED else y + 1)

def twin(x, y, *, block):
    return x + y + (0 if MENDED else block)

def no_twin(x, y):
    if not MENDED:
        raise ValueError("not today")
    return x + y
"""

#: Specs, each with its check, and what its script must write.
SPECS = {
    'name="over_edge", kernel=over_edge, reference=positives, inputs=FIXED': (
        "padding",
        "with the largest finite number in memory that nobody has written",
    ),
    'name="refuses", kernel=raises_for_nan, reference=of_hundred, inputs=FIXED, ignored=behind': (
        "padding",
        "the kernel raised",
    ),
    'name="biased", kernel=biased, reference=biased_reference, '
    "relations=[Linear((0, 1), exact=False)]": ("linearity", "elements are wrong; the test allow"),
    'name="farther", kernel=farther, reference=farther_reference, relations=[Linear((0, 1))]': (
        "linearity",
        "claimed: the sum of the answers",
    ),
    'name="by_place", kernel=by_place, reference=by_place_reference, '
    "relations=[Permuted({0: 0, 1: 0}, output=0, exact=True)]": (
        "permutation",
        "permuted along axis 0",
    ),
    'name="capped", kernel=capped, reference=capped_reference, '
    'relations=[Relation("shift", shifted, moved)]': ("relation", "what the relation expects"),
    'name="twins", kernel=lambda x, y, *, block: add(x, y), inputs=BY, '
    'implementations={"twin": twin}': ("cross", "output of twin"),
    'name="raises", kernel=add, implementations={"none": no_twin}': ("cross", "not today"),
}

ON_AN_INTERPRETER = ("refuses", "biased", "by_place", "capped", "twins")

QUICK = ("--pallas-suite=specs", "--pallas-max-examples=2")


def write(project, *specs):
    project.specs(*specs)
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{KERNELS}\nSPEC_0", 1))


def scripts_of(records) -> list[Path]:
    assert {record["outcome"] for record in records} == {"failed"}
    return [Path(record["script"]) for record in records]


def show(scripts, packages, words, *, own=False):
    """The scripts show their failure with these words each, and that it is gone once mended."""
    for ended, expected in zip(run_bare(scripts, packages, own=own), words, strict=True):
        assert ended.status == 1, ended.output
        assert expected in ended.output
    for ended in run_bare(scripts, packages, {"MENDED": "1"}, own=own):
        assert ended.status == 0, ended.output
        assert ended.output.endswith("no failure\n")


@pytest.mark.parametrize("backend", ["tpu-sim", "interpret"])
def test_scripts_tell_wrong_kernels_from_mended_ones(project, tmp_path_factory, backend):
    shown = SPECS
    if backend == "interpret":  # the question is asked in the same words: one of each check
        shown = {k: v for k, v in SPECS.items() if k.split('"')[1] in ON_AN_INTERPRETER}
    write(project, *(f'{spec}, checks=("{check}",)' for spec, (check, _) in shown.items()))
    scripts = scripts_of(project.records(*QUICK, f"--pallas-backend={backend}"))
    assert [path.name for path in scripts] == [
        f"{spec.split('"')[1]}-{check}-{backend}.py" for spec, (check, _) in shown.items()
    ]
    assert all(" this script asks forward" not in path.read_text() for path in scripts)
    words = [words for _, words in shown.values()]
    show(scripts, tmp_path_factory.mktemp("packages"), words, own=backend == "tpu-sim")


def test_a_script_runs_two_interpreters(project, tmp_path_factory):
    write(project, 'name="twice", kernel={"gpu": add, "tpu": on_tpu}, checks=("cross",)')
    records = project.records(*QUICK, "--pallas-backend=interpret,tpu-interpret")
    [script] = scripts_of([record for record in records if record["outcome"] != "skipped"])
    assert script.name == "twice-cross-tpu-interpret.py"
    show([script], tmp_path_factory.mktemp("packages"), ["output of interpret"])


def test_a_script_runs_the_simulator_and_an_interpreter(project, tmp_path_factory):
    write(project, 'name="twice", kernel=on_tpu, checks=("cross",)')
    records = project.records(*QUICK, "--pallas-backend=tpu-sim,interpret")
    [script] = scripts_of(records)
    assert script.name == "twice-cross-interpret.py"
    assert "pytest_pallas.simulator" in script.read_text()
    show([script], tmp_path_factory.mktemp("packages"), ["output of tpu-sim"], own=True)
