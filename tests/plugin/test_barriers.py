"""``pytest-pallas barriers``: specs, meshes, files and what cannot be used."""

from __future__ import annotations

import json
import textwrap

import pytest

from pytest_pallas.__main__ import main

SPECS = """
import functools
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from pytest_pallas import KernelSpec, strategies as pst

def body(x_ref, o_ref, told):
    right = jax.lax.rem(jax.lax.axis_index("x") + 1, jax.lax.axis_size("x"))
    pl.semaphore_signal(told, 1, device_id={"x": right})
    pl.semaphore_wait(told, 1)
    o_ref[...] = x_ref[...] + 1

def plus_one(x, *, mesh):
    if mesh.size == 3:
        raise ValueError("not on three devices")
    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )
    return jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)

def inputs(mesh):
    return pst.arrays("m n", dtype="float32", dims={"m": 8 * mesh.size, "n": 128})

RING = KernelSpec(name="ring", kernel=plus_one, reference=lambda x, mesh: x + 1, inputs=inputs,
                  meshes="x")

def double(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]
    return pl.pallas_call(kernel, out_shape=x)(x)

ALONE = KernelSpec(name="alone", kernel=double, reference=lambda x: 2 * x,
                   inputs=pst.arrays("m n", dtype="float32"))
"""


@pytest.fixture
def specs(tmp_path, monkeypatch):
    path = tmp_path / "barrier_specs.py"
    path.write_text(textwrap.dedent(SPECS))
    monkeypatch.chdir(tmp_path)
    return path.name


def test_a_table_of_several_meshes(specs, tmp_path, capsys):
    words = (f"{specs}:RING", "--mesh", "x=4", "--examples", "1")
    files = ("--json", "table.json", "--html", "table.html")
    assert main(["barriers", *words, *files]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ring on x=4 (v6e), 2 calls, ")
    assert "needed                    entry barrier of body, 4 times" in text
    assert "redundant                 signal at barrier_specs.py:11, wait at barrier_" in text
    assert "not on x=3: the kernel raised ValueError: not on three devices" in text
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["meshes"] == [{"x": 2}, {"x": 4}]
    assert [row["removable"] for row in table["rows"]] == [False, True]
    assert table["rows"][0]["threshold"]["statuses"] == [[2, "needed"], [4, "needed"]]
    assert table["rows"][0]["group"]["findings"][0]["kind"] == "entry"
    page = (tmp_path / "table.html").read_text()
    assert "Synchronisation of ring on x=4" in page
    assert "not on three devices" in page


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("no_module:SPEC", "there is no module 'no_module'"),
        ("no_file.py", "there is no file no_file.py"),
        ("{specs}", "has the specs RING, ALONE; write {specs}:NAME for one of them"),
        ("{specs}:OTHER", "has no KernelSpec 'OTHER'; it has RING, ALONE"),
        ("{specs}:ALONE", "alone does not synchronise"),
        ("{specs}:ALONE --mesh x=2", "alone has no meshes: leave out --mesh x=2"),
        ("{specs}:RING --mesh y=2", "ring takes meshes with the axes x, not y"),
        ("{specs}:RING --mesh 2", "--mesh 2: write the size of each axis once"),
        ("{specs}:RING --mesh x=3", "ring on x=3: the kernel raised ValueError: not on three"),
        ("{specs}:RING --target v9", "unknown target 'v9'; valid: v4"),
        ("{specs}:RING --target h100", "ring is not for h100: it claims tpu-sim"),
        ("{specs}:RING --examples 0", "--examples 0: at least one call is needed"),
        ("{specs}:RING --json no/t.json", "no/t.json cannot be written: there is no folder no"),
    ],
)
def test_what_cannot_be_used(specs, capsys, words, problem):
    assert main(["barriers", *words.format(specs=specs).split()]) == 2
    assert problem.format(specs=specs) in capsys.readouterr().err


# Reasons of the spec.

KNOWN = """
from barrier_specs import inputs, plus_one
from pytest_pallas import KernelSpec

SPEC = KernelSpec(name="known", kernel=plus_one, reference=lambda x, mesh: x + 1, inputs=inputs,
                  meshes=({"x": (2, 4)},), redundant={redundant})
"""

REDUNDANT = "barrier_specs.py:11"


def test_a_reason_in_the_table(specs, tmp_path, capsys):
    (tmp_path / "known.py").write_text(
        KNOWN.replace("{redundant}", repr({REDUNDANT: "others copy that", "told": "no"}))
    )
    assert main(["barriers", "known.py", "--mesh", "x=2", "--examples", "1"]) == 0
    assert "stays: others copy that" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("redundant", "message"),
    [
        ({REDUNDANT: "others copy that"}, ""),
        ({"told": "others copy that"}, ""),
        (
            {REDUNDANT: "others copy that", "k.py:1": "no reason"},
            "redundant= has 'k.py:1', which is about no wait, signal, barrier or fence that an",
        ),
        (
            {"body": "no reason"},
            "redundant= has 'body', and entry barrier of body is needed: without, device",
        ),
    ],
)
def test_reasons_of_the_spec(project, redundant, message):
    project.write(
        barrier_specs=textwrap.dedent(SPECS),
        known_spec=KNOWN.replace("{redundant}", repr(redundant)),
    )
    (record,) = project.records(
        "--pallas-suite=known_spec", "--pallas-backend=tpu-sim", "--pallas-max-examples=8",
        "--pallas-checks=none", "--pallas-sanitize=synchronization",
    )  # fmt: skip
    assert record["outcome"] == ("failed" if message else "passed")
    assert message in record["message"]
    notes = [note["text"] for note in record["notes"]]
    reason = "others copy that"
    assert [note.endswith(f": {reason}") for note in notes] == [reason in redundant.values()]
