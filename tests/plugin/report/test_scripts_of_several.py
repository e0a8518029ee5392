"""The scripts of checks that run a kernel several times repeat the failure."""

from __future__ import annotations

from pathlib import Path

from pallas_test_support.failure_scripts import repeat

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

#: Specs, each with its check.
SPECS = {
    'name="over_edge", kernel=over_edge, reference=positives, inputs=FIXED': "padding",
    'name="refuses", kernel=raises_for_nan, reference=of_hundred, inputs=FIXED, '
    "ignored=behind": "padding",
    'name="biased", kernel=biased, reference=biased_reference, '
    "relations=[Linear((0, 1), exact=False)]": "linearity",
    'name="farther", kernel=farther, reference=farther_reference, relations=[Linear((0, 1))]': (
        "linearity"
    ),
    'name="by_place", kernel=by_place, reference=by_place_reference, '
    "relations=[Permuted({0: 0, 1: 0}, output=0, exact=True)]": "permutation",
    'name="capped", kernel=capped, reference=capped_reference, '
    'relations=[Relation("shift", shifted, moved)]': "relation",
    'name="twins", kernel=lambda x, y, *, block: add(x, y), inputs=BY, '
    'implementations={"twin": twin}': "cross",
    'name="raises", kernel=add, implementations={"none": no_twin}': "cross",
}

QUICK = ("--pallas-suite=specs", "--pallas-max-examples=2")


def write(project, *specs):
    project.specs(*specs)
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{KERNELS}\nSPEC_0", 1))


def failures(project, *args):
    """The records of a run in which everything fails that does not skip."""
    records = [r for r in project.records(*QUICK, *args) if r["outcome"] != "skipped"]
    assert {record["outcome"] for record in records} == {"failed"}
    return records


def test_scripts_repeat_the_failure_until_it_is_mended(project):
    write(project, *(f'{spec}, checks=("{check}",)' for spec, check in SPECS.items()))
    records = failures(project, "--pallas-backend=tpu-sim")
    assert [Path(record["script"]).name for record in records] == [
        f"{spec.split('"')[1]}-{check}-tpu-sim.py" for spec, check in SPECS.items()
    ]
    repeat(records, {"MENDED": "1"})


def test_a_script_runs_two_interpreters(project):
    write(project, 'name="twice", kernel={"gpu": add, "tpu": on_tpu}, checks=("cross",)')
    [record] = failures(project, "--pallas-backend=interpret,tpu-interpret")
    assert Path(record["script"]).name == "twice-cross-tpu-interpret.py"
    repeat([record], {})


def test_a_script_runs_the_simulator_and_an_interpreter(project):
    write(project, 'name="twice", kernel=on_tpu, checks=("cross",)')
    [record] = failures(project, "--pallas-backend=tpu-sim,interpret")
    assert Path(record["script"]).name == "twice-cross-interpret.py"
    repeat([record], {})
