"""What is read off a traced function."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_test_support import sample_kernels as kernels

from pallas_sim.chips import TARGETS
from pallas_sim.tracing import tracing_for
from pytest_pallas.grid.kernel_calls import ASYNCHRONOUS, kernel_calls, mutated_operands
from pytest_pallas.grid.model import describe_writer

X = jnp.zeros((20, 128))


def calls(function, *args):
    return kernel_calls(jax.make_jaxpr(function)(*args))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint, jax.vmap])
def test_finds_kernels_at_any_depth(transform):
    x = jnp.zeros((2, 20, 128)) if transform is jax.vmap else X
    (found,) = calls(transform(kernels.add_one), x)
    assert found.name == "body"
    assert found.source.rpartition(":")[0].endswith("sample_kernels.py")
    assert not found.interpreted


def test_finds_kernels_in_control_flow():
    def function(x):
        x = jax.lax.fori_loop(0, 3, lambda i, y: kernels.add_one(y), x)
        return jax.lax.cond(x[0, 0] > 0, kernels.add_one, kernels.copy_by_dma, x)

    found = calls(function, X)
    assert len(found) == 3
    assert [call.asynchronous for call in found].count(True) == 1


def test_a_kernel_has_the_line_of_its_call_or_else_of_its_body():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]  # here

    def copy(x):
        return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    (found,) = calls(kernels.add_one, X)
    assert found.located_name == f"body at {found.source}"
    with tracing_for(TARGETS["h100"]):
        (found,) = calls(copy, X)
    assert found.source == ""  # this can go where JAX knows the call
    file, _, line = found.located_name.removeprefix("body at ").rpartition(":")
    assert "# here" in Path(file).read_text().splitlines()[int(line) - 1]


def test_names_of_what_is_asynchronous_are_names_of_primitives():
    primitives = importlib.import_module("jax._src.pallas.mosaic_gpu.primitives")
    known = {value.name for value in vars(primitives).values() if hasattr(value, "bind")}
    assert {"wgmma_ref", "tcgen05_mma", "barrier_arrive"} < ASYNCHRONOUS & known
    assert not {name for name in ASYNCHRONOUS - known if "wgmma" in name or "smem" in name}


def test_hard_coded_interpret_is_seen():
    (found,) = calls(lambda x: kernels.add_one_by_rows(x, interpret=True), X)
    assert found.interpreted


def test_the_writer_of_an_element():
    (found,) = calls(kernels.add_one_by_rows, X)
    text = describe_writer(found, 0, (17, 5), (20, 128))
    assert text == (
        "written by program (2) of body (grid (3,)), output block (2, 0) = [16:20, 0:128]"
    )


def test_the_writers_of_a_revisited_block():
    def body(x_ref, o_ref):
        o_ref[...] += x_ref[...]

    def function(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
            grid=(2, 3),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (k, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, k: (0, 0)),
        )(x)

    (found,) = calls(function, X)
    assert "6 programs (0..1, 0..2)" in describe_writer(found, 0, (0, 0), (8, 128))


def test_a_block_that_nobody_writes():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def function(x):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        out_shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            body, out_shape=out_shape, grid=(2,), in_specs=[spec], out_specs=spec
        )(x)

    (found,) = calls(function, X)
    assert describe_writer(found, 0, (19, 0), (20, 128)).startswith(
        "no program of body (grid (2,)) writes"
    )


def test_a_write_to_an_input_ref_is_seen():
    def writes(x_ref, o_ref):
        x_ref[0, 0] = 1.0
        o_ref[...] = x_ref[...]

    def function(aliases):
        return lambda x: pl.pallas_call(
            writes,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            input_output_aliases=aliases,
        )(x)

    assert mutated_operands(*calls(function({}), X)) == (0,)
    assert mutated_operands(*calls(function({0: 0}), X)) == ()
    assert mutated_operands(*calls(kernels.add_one, X)) == ()


def test_a_guarded_write_to_an_input_ref_is_seen():
    def writes(x_ref, y_ref, o_ref):
        @pl.when(y_ref[0, 0] > 0)
        def _():
            y_ref[...] += 1.0

        o_ref[...] = x_ref[...]

    def function(x, y):
        return pl.pallas_call(writes, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    assert mutated_operands(*calls(function, X, X)) == (1,)


def test_a_kernel_of_another_language_counts():
    """jax-triton's calls are equations without a body."""
    from jax.extend.core import Primitive

    primitive = Primitive("triton_kernel_call")
    primitive.def_abstract_eval(lambda x, **_: x)
    (found,) = calls(jax.jit(lambda x: primitive.bind(x, name="add_kernel")), X)
    assert (found.name, found.interpreted, found.asynchronous) == ("add_kernel", False, False)
