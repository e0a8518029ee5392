"""``--pallas-checks``."""

from __future__ import annotations

import pytest

ALL = [
    "forward",
    "gradient",
    "vmap",
    "determinism",
    "immutability",
    "dtype",
    "jit",
    "export",
    "blocks",
    "sharding",
    "padding",
    "grid",
    "oracle-strength",
    "memory",
    "donation",
]

#: A kernel to which every check applies.
ALIASED = """
    import jax
    from jax.experimental import pallas as pl

    def _body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    def add_into(x, y, *, block=8):
        spec = pl.BlockSpec((block, 128), lambda i: (i, 0))
        return pl.pallas_call(
            _body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(pl.cdiv(x.shape[0], block),),
            in_specs=[spec, spec],
            out_specs=spec,
            input_output_aliases={0: 0},
        )(x, y)
"""


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("all", ALL),
        ("forward", ["forward"]),
        ("immutability,forward,forward", ["immutability", "forward"]),
        ("none", []),
    ],
)
def test_checks_are_selected_by_name(project, flag, names):
    project.write(aliased=ALIASED)
    project.specs(
        'name="add", kernel=__import__("aliased").add_into, differentiable=(0, 1), '
        'vmappable=True, batch_axes=(0, 0), inputs=pst.arguments(INPUTS, tuning={"block": 16})'
    )
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", f"--pallas-checks={flag}",
        "--collect-only", "-q",
    )  # fmt: skip
    found = [line for line in result.outlines if line.startswith("specs.py::")]
    assert found == [f"specs.py::add-{name}[tpu-sim]" for name in names]


def test_checks_that_do_not_apply_are_left_out(project):
    project.specs('name="add", kernel=add')
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=interpret", "--collect-only", "-q"
    )
    text = result.stdout.str()
    assert "add-forward" in text
    assert "add-gradient" not in text
    assert "add-vmap" not in text
    assert "add-blocks" not in text
    assert "add-sharding" not in text
    assert "add-dtype" in text


def test_export_is_left_out_where_kernels_are_callbacks(project):
    project.specs('name="add", kernel=add')
    words = "--pallas-suite=specs", "--pallas-checks=export"
    backends = "--pallas-backend=interpret,tpu-interpret"
    text = project.run(*words, backends, "--collect-only", "-q").stdout.str()
    assert "add-export[interpret]" in text
    assert "add-export[tpu-interpret]" not in text
    project.specs('name="add", kernel=add, checks=("export",)')
    found = project.results(*words, backends)
    assert [record["outcome"] for record in found["records"]] == ["passed"]
    [entry] = found["not_applicable"]
    assert entry["requirement"].startswith("tpu-interpret runs kernels by callbacks")


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("blocks", "its inputs draw no tuning"),
        ("sharding", "the spec names no batch_axes"),
        ("linearity", "the spec declares no Linear among its relations"),
        ("permutation", "the spec declares no Permuted among its relations"),
        ("relation", "the spec declares no Relation among its relations"),
        ("raises", "the spec lists no calls that must raise (raises)"),
        (
            "cross",
            "there is nothing to compare with: the spec has no implementations, and no selected",
        ),
    ],
)
def test_checks_that_need_more_of_a_spec(project, check, reason):
    project.specs(f'name="add", kernel=add, checks=("{check}",)')
    found = project.results("--pallas-suite=specs", "--pallas-backend=interpret")
    assert found["records"] == []
    [entry] = found["not_applicable"]
    assert entry["requirement"].startswith(reason)
    assert entry["test"] == f"specs.py::add-{check}[interpret]"


def test_a_check_that_a_spec_asks_for_and_that_does_not_apply_is_told(project):
    project.specs('name="add", kernel=add, checks=("gradient",)')
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret", "-v")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines([
        "not applicable: 1 check of 1 kernel",
        "  the spec names no differentiable arguments (1): gradient on interpret: add",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--pallas-checks=races",), "  races: not applicable (interpret does not simulate"),
        (("--pallas-checks=device",), "  device: not applicable (interpret is not a GPU"),
        (
            ("--pallas-checks=sharding,races",),
            "  sharding: not applicable (the spec names no batch_axes)",
        ),
    ],
)
def test_checks_that_cannot_be_asked_say_why(project, words, why):
    project.specs('name="add", kernel=add')
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "none of the selected checks applies to these kernels:" in result.stderr.str()
    assert why in result.stderr.str()
