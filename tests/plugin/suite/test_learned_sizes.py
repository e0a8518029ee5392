"""A spec whose strategy says no sizes is drawn around the blocks of its kernel."""

from __future__ import annotations

import textwrap

NORM = """
    import jax, jax.numpy as jnp
    from jax.experimental import pallas as pl
    from pytest_pallas import KernelSpec, strategies as pst

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] / (1 + jnp.abs(x_ref[...]).max(axis=1, keepdims=True))

    def norm(x, *, rows=128):
        m, n = x.shape
        rows = min(rows, m)
        spec = pl.BlockSpec((rows, n), lambda i: (i, 0))
        grid = (COUNT,)
        return pl.pallas_call(body, grid=grid, in_specs=[spec], out_specs=spec, out_shape=x)(x)

    def reference(x):
        return x / (1 + jnp.abs(x).max(axis=1, keepdims=True))

    SPEC = KernelSpec(name="norm", kernel=norm, reference=reference, inputs=INPUTS)
"""

QUICK = ("--pallas-suite=specs", "--pallas-profile=quick", "--pallas-checks=forward")


def write(project, count, inputs='pst.arrays("m n")'):
    text = textwrap.dedent(NORM).replace("COUNT", count).replace("INPUTS", inputs)
    (project.path / "specs.py").write_text(text)


def test_a_grid_that_leaves_out_the_last_block_is_found_by_a_default_spec(project):
    write(project, "m // rows")
    [record] = project.records(*QUICK)
    assert record["outcome"] == "failed"
    assert "float32[129, 1]" in record["message"]


def test_a_right_kernel_passes_and_meets_two_blocks_and_an_edge(project):
    write(project, "pl.cdiv(m, rows)")
    [record] = project.records(*QUICK)
    assert record["outcome"] == "passed"
    [rows] = [each for each in record["inputs"]["tried"] if each["name"] == "m"]
    assert {"tile", "tile+1", "2 tiles", "2 tiles+1"} <= set(rows["words"])


def test_a_failure_is_drawn_again_by_its_blob(project):
    write(project, "m // rows")
    [record] = project.records(*QUICK)
    result = project.run(*record["replay"].split()[1:-1], *QUICK)
    assert result.ret == 1
    assert "float32[129, 1]" in result.stdout.str()


def test_a_strategy_that_computes_with_what_it_drew_draws_small_sizes(project):
    write(project, "pl.cdiv(m, rows)", 'pst.arrays("m n").map(lambda x: (x[0] * 2,))')
    [record] = project.records(*QUICK)
    assert record["outcome"] == "passed"
