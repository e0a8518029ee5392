"""What goes wrong while a spec runs: a clear message that names it, and the run goes on."""

from __future__ import annotations

import pytest

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward",
         "--pallas-max-examples=2")  # fmt: skip

BAD = {
    "kernel raises": (
        "kernel=add_raises",
        [
            "bad: forward on tpu-sim: the kernel raised ValueError: no block divides 8 rows",
            "kernels.py:",
        ],
    ),
    "kernel without a kernel": (
        "kernel=reference",
        ["bad: forward on tpu-sim: reference has no Pallas kernel"],
    ),
    "reference raises": (
        "kernel=add, reference=add_raises",
        ["bad: forward on tpu-sim: the reference add_raises, evaluated", "ValueError: no block"],
    ),
    "reference of another tree": (
        "kernel=add, reference=lambda x, y: {'sum': x + y}",
        ["bad: forward on tpu-sim", "['sum']"],
    ),
    "reference of another shape": (
        "kernel=add, reference=lambda x, y: (x + y)[:4]",
        ["bad: forward on tpu-sim", "shape"],
    ),
    "reference of another dtype": (
        "kernel=add, reference=lambda x, y: (x + y).astype('int32')",
        ["bad: forward on tpu-sim", "int32", "float32"],
    ),
    "reference without arrays": (
        "kernel=add, reference=lambda x, y: 'sum'",
        ["bad: forward on tpu-sim", "must return an array"],
    ),
    "NaN in the oracle": (
        "kernel=add, reference=lambda x, y: (x + y) / 0 * 0",
        ["bad: forward on tpu-sim: the oracle is NaN in", "nan_ok=True"],
    ),
    "dtypes that do not go together": (
        'kernel=add, inputs=pst.arrays("m n, m n", dtype=("float32", "int32"), '
        'dims={"m": [8], "n": [128]}), reference=lambda x, y: x + y.T',
        ["bad: forward on tpu-sim: the reference <lambda>, evaluated", "int32"],
    ),
    "axis that does not exist": (
        'kernel=lambda x, y, mesh: add_sharded(x, y, mesh=mesh) + jax.lax.axis_index("rows"), '
        'reference=reference_on_mesh, meshes=({"x": 2},), inputs=lambda mesh: INPUTS',
        ["bad: forward on tpu-sim", "the kernel raised", "rows"],
    ),
    "mesh without devices": (
        'kernel=add_sharded, reference=reference_on_mesh, meshes=({"x": 0},), '
        "inputs=lambda mesh: INPUTS",
        ["a mesh needs axes with positive sizes", "bad"],
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_spec_fails_alone_with_its_message(project, kind):
    spec, messages = BAD[kind]
    project.specs(f'name="bad", {spec}', 'name="good", kernel=add')
    result = project.run(*SUITE, "--pallas-results=results.json")
    result.assert_outcomes(failed=1, passed=1)
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    for message in messages:
        assert message in text
    assert '"kernel": "good"' in (project.path / "results.json").read_text()


@pytest.mark.parametrize("backend", ["tpu-sim", "tpu-interpret"])
def test_zero_sized_dims(project, backend):
    """An empty array is an input like any other; what cannot be run is said to be so."""
    project.specs(
        'name="empty", kernel=add, inputs=pst.arrays("m n, m n", dtype="float32", '
        'dims={"m": [0], "n": [128]})',
        'name="good", kernel=add',
    )
    args = (*SUITE[:1], f"--pallas-backend={backend}", *SUITE[2:])
    records = {record["kernel"]: record for record in project.records(*args)}
    assert records["good"]["outcome"] == "passed"
    if backend == "tpu-sim":
        assert records["empty"]["outcome"] == "passed"
    else:
        lacking = records["empty"]["requirement"]
        assert f"needs a simulator such as tpu-sim: {backend} cannot run" in lacking


def test_one_failure_does_not_poison_the_next(project):
    """Out of bounds in the TPU interpreter leaves state behind that the next test must not see."""
    project.specs(
        'name="first", kernel=outside', 'name="second", kernel=add', 'name="third", kernel=add'
    )
    text = (project.path / "specs.py").read_text()
    text = text.replace(
        "INPUTS =",
        """
import jax
from jax.experimental import pallas as pl

def outside(x, y):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(pl.program_id(0) + 8, 8), :]

    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(1,),
        in_specs=[pl.BlockSpec(x.shape, lambda i: (0, 0))],
        out_specs=pl.BlockSpec(x.shape, lambda i: (0, 0)),
    )(x)

INPUTS =""",
    )
    (project.path / "specs.py").write_text(text)
    records = project.records(SUITE[0], "--pallas-backend=tpu-interpret", *SUITE[2:])
    assert [r["outcome"] for r in records] == ["failed", "passed", "passed"]
    assert "ut-of-bounds read" in records[0]["message"]
