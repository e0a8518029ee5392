"""The ``grid`` check of a spec."""

from __future__ import annotations

GRID = "--pallas-suite=specs", "--pallas-checks=grid"

#: ``add`` over a grid of blocks of ``rows`` rows, which leaves out what is no whole block.
KERNELS = """
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels import _add_body

def add_whole_blocks(x, y, *, rows=8, columns=128):
    spec = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    return pl.pallas_call(
        _add_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // rows, x.shape[1] // columns), in_specs=[spec, spec], out_specs=spec,
    )(x, y)

def narrow(x, y):
    return add_whole_blocks(x, y, columns=64)

def by_dma(x, y):
    def body(x_ref, y_ref, o_ref, semaphore):
        pltpu.sync_copy(x_ref, o_ref)

    spec = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[spec, spec],
        out_specs=spec, scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x, y)

@jax.custom_vjp
def backward(x, y):
    return add_whole_blocks(x, y)

backward.defvjp(
    lambda x, y: (backward(x, y), None),
    lambda _, do: (add_whole_blocks(do, do, rows=16), do),
)
"""

SOME = 'inputs=pst.arrays("m n, m n", dtype="float32", dims={"m": [8, 24], "n": [128]})'
MORE = "from grids import *\n"


def results(project, *specs, backend="interpret"):
    project.write(grids=KERNELS)
    project.specs(*(f"{spec}" for spec in specs))
    module = project.path / "specs.py"
    module.write_text(module.read_text().replace("import numpy", f"{MORE}import numpy", 1))
    return project.results(*GRID, f"--pallas-backend={backend}", "--pallas-max-examples=4")


def records(project, *specs, backend="interpret"):
    found = results(project, *specs, backend=backend)["records"]
    return {record["kernel"]: record for record in found}


def test_right_kernels_pass_and_those_without_blocks_are_left_out(project):
    found = results(
        project,
        f'name="add", kernel=add_whole_blocks, {SOME}',
        f'name="dma", kernel=by_dma, {SOME}',
        f'name="eager", kernel=backward, {SOME}',
    )
    assert {record["kernel"]: record["outcome"] for record in found["records"]} == {
        "add": "passed",
        "eager": "passed",
    }
    assert [(entry["kernel"], entry["requirement"]) for entry in found["not_applicable"]] == [
        ("dma", "no example has a pallas_call with blocks")
    ]


def test_all_errors_are_told_with_what_was_drawn(project):
    tall = SOME.replace("[8, 24]", "[20]")
    found = records(project, f'name="add", kernel=add_whole_blocks, {tall}')["add"]
    assert found["outcome"] == "failed"
    for words in (
        "add: grid on interpret: the blocks of the grid are wrong in 1 place",
        "error: never-written: _add_body at ",
        "no program writes [16:20, 0:128]",
        "inputs    float32[20, 128]",
    ):
        assert words in found["message"], words


def test_the_kernels_of_the_gradient_too(project):
    found = records(
        project,
        f'name="forward_only", kernel=backward, {SOME}',
        f'name="both", kernel=backward, differentiable=(0,), {SOME}',
    )
    assert found["forward_only"]["outcome"] == "passed"
    assert found["both"]["outcome"] == "failed"
    assert "never-written" in found["both"]["message"]


def test_tiles_count_where_the_spec_claims_a_compiler(project):
    kernel = f"kernel=narrow, {SOME}"
    specs = (
        f'name="claimed", {kernel}',
        f'name="not_claimed", {kernel}, backends=("interpret", "tpu-interpret")',
        f'name="v4", {kernel}, backends=("tpu-interpret", "tpu-compile:v4")',
    )
    found = records(project, *specs, backend="tpu-interpret")
    assert {name: record["outcome"] for name, record in found.items()} == {
        "claimed": "failed",
        "not_claimed": "passed",
        "v4": "failed",
    }
    assert "warning: tile: _add_body" in found["claimed"]["message"]
    found = records(project, *specs, backend="tpu-interpret:v5e")
    assert found["claimed"]["outcome"] == "failed"
    assert found["v4"]["outcome"] == "passed"  # of this chip it promises nothing


def test_not_asked_where_nothing_is_interpreted(project):
    project.specs('name="add", kernel=add, backends=("interpret", "tpu-compile")')
    words = "--collect-only", "-q", "--pallas-backend=interpret,tpu-compile"
    text = project.run(*GRID, *words).stdout.str()
    assert "add-grid[interpret]" in text
    assert "add-grid[tpu-compile]" not in text


def test_what_the_kernel_raises_is_its_error(project):
    found = records(project, f'name="add", kernel=add_raises, {SOME}')["add"]
    assert "the kernel raised ValueError while JAX traced it" in found["message"]


def test_in_tests_of_ones_own(project):
    project.write(
        grids=KERNELS,
        test_own="""
        import numpy as np
        from grids import add_whole_blocks
        from kernels import reference

        def test_grid(pallas_check):
            x = np.ones((20, 128), np.float32)
            pallas_check(add_whole_blocks, x, x, reference=reference, checks="grid")
        """,
    )
    result = project.run("--pallas-backend=interpret")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*add_whole_blocks: grid on interpret: the blocks*"])
