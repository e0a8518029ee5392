"""Kernels that no chip runs, because JAX or Mosaic refuses them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from pallas_sim import simulate
from pallas_sim.errors import SimulationError

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def kernel(compute: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    return lambda x: pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))(x)


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda x: jnp.cumsum(x, axis=0), "cumsum"),
        (lambda x: jnp.sort(x, axis=0), "sort"),
        (lambda x: lax.fori_loop(0, 2, lambda _, y: lax.rev(y, (0,)), x), "rev"),
        (jax.checkpoint(lambda x: x + 1), "remat2"),
        (lambda x: jnp.real(lax.complex(x, x)), "complex64"),
    ],
    ids=["cumsum", "sort", "in a loop", "checkpoint", "complex"],
)
def test_an_operation_without_a_lowering(compute: Any, name: str) -> None:
    with pytest.raises(SimulationError, match=name) as refused:
        simulate(kernel(compute), X, target="v6e")
    assert "test_refusals.py" in str(refused.value)


def test_the_line_of_the_kernel_that_calls_a_function_of_jax() -> None:
    """JAX traces such a function once, for the line that calls it first."""
    simulate(lambda x: jnp.cumsum(x, axis=1), X)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        o_ref[...] = jnp.cumsum(x_ref[...], axis=1)

    with pytest.raises(SimulationError) as refused:
        simulate(lambda x: pl.pallas_call(body, out_shape=x)(x), X, target="v6e")
    assert refused.value.line.endswith(f":{body.__code__.co_firstlineno + 2}")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: lax.platform_dependent(x, tpu=lambda x: x, default=lambda x: jnp.cumsum(x, 0)),
        lambda x: lax.cond(False, lambda x: jnp.cumsum(x, 0), lambda x: x, x),
        lambda x: x + jnp.where(x > 1, jnp.sum(x, axis=0), 0),
    ],
    ids=["for another platform", "not taken", "all lowered"],
)
def test_what_is_lowered(compute: Any) -> None:
    assert not simulate(kernel(compute), X, target="v6e").findings


def test_a_portable_kernel_may_be_for_a_gpu_unless_a_tpu_is_named() -> None:
    def body(x_ref: Any, o_ref: Any, *_: Any) -> None:
        o_ref[...] = jnp.cumsum(x_ref[...], axis=0)

    assert not simulate(lambda x: pl.pallas_call(body, out_shape=x)(x), X).findings
    scratch = [pltpu.VMEM((8, 128), jnp.float32)]  # which only a TPU has
    with pytest.raises(SimulationError, match="does not lower cumsum"):
        simulate(lambda x: pl.pallas_call(body, out_shape=x, scratch_shapes=scratch)(x), X)


@pytest.mark.parametrize("space", [pl.ANY, pltpu.VMEM])
def test_complex_arrays(space: Any) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    spec = pl.BlockSpec(memory_space=space)
    with pytest.raises(SimulationError, match=r"complex64 \[8, 128\]: a kernel on a TPU has no"):
        simulate(
            lambda x: pl.pallas_call(body, out_shape=x, in_specs=[spec], out_specs=spec)(x),
            X.astype(np.complex64),
        )


def test_an_operation_that_only_other_cores_have() -> None:
    def body(x_ref: Any, o_ref: Any, rows: Any) -> None:
        pltpu.sync_copy(x_ref, rows)
        rows[0, pl.ds(0, 16)] = pltpu.load(rows.at[0, pl.ds(0, 16)], mask=jnp.arange(16) > 3)
        pltpu.sync_copy(rows, o_ref)

    def call(x: Any) -> Any:
        mesh = plsc.VectorSubcoreMesh(
            core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
        )
        rows = pltpu.VMEM(x.shape, x.dtype)
        return pl.kernel(body, out_type=x, mesh=mesh, scratch_types=[rows])(x)

    with pytest.raises(SimulationError, match="does not lower masked_load for a vector subcore"):
        simulate(call, X, target="v5p")


@pytest.mark.parametrize(
    ("dtype", "compute", "message"),
    [
        ("float16", lambda x: x, "no TPU computes with float16"),
        ("float32", lambda x: x.astype(jnp.float16), "no TPU computes with float16"),
        ("int8", lambda x: x + x, "computes add of int8: convert to 32 bits"),
        ("uint8", lambda x: x * x, "computes mul of uint8"),
        ("int4", lambda x: x - (x << 1), "computes sub of int4"),
        ("float8_e4m3fn", lambda x: jnp.exp(x), "computes exp of float8_e4m3fn"),
        ("float8_e5m2", lambda x: x < x, "computes lt of float8_e5m2"),
        ("bfloat16", lambda x: x % 3, "computes rem of bfloat16"),
        ("uint32", lambda x: jnp.sum(x, axis=0), "computes reduce_sum of uint32"),
        ("int16", lambda x: jnp.max(x, axis=0), "computes reduce_max of int16"),
        ("int32", lambda x: jnp.argmax(x, axis=0), "computes argmax of int32"),
        ("bfloat16", lambda x: jnp.dot(x, x.T), "a product with sums of bfloat16"),
        ("int32", lambda x: jnp.dot(x, x.T), "computes dot_general of int32"),
        ("bfloat16", lambda x: x[0, 0] * x, "an element of bfloat16 as a scalar"),
        ("float32", lambda x: x[::2], "a slice of a value with a stride"),
        ("float32", lambda x: lax.scan(lambda s, row: (s + row, None), x[0], x)[0], "a scan over"),
        ("uint32", lambda x: jnp.maximum(x, 3), "computes max of uint32"),
        ("int16", lambda x: jnp.clip(x, 1, 3), "computes (max|clamp) of int16"),
        ("bool", lambda x: lax.max(x, ~x), "computes max of bool"),
        ("int16", lambda x: x // 2, "computes (div|sign) of int16"),
        ("int8", lambda x: abs(x), "computes abs of int8"),
        ("int8", lambda x: jnp.sum(x, axis=0, dtype=jnp.int8), "computes reduce_sum of int8"),
        ("int32", lambda x: lax.reduce_and(x, (0,)), "computes reduce_and of int32"),
        ("bfloat16", lambda x: jnp.arctan2(x, x), "computes atan2 of bfloat16"),
        ("bfloat16", lambda x: x * lax.reduce_sum(x, (0, 1)), "reduce_sum to a scalar of bfloat16"),
        ("float32", lambda x: x * lax.pow(x[0, 0], x[0, 1]), "computes pow of scalars"),
        ("float32", lambda x: lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST), "one accuracy"),
        ("float32", lambda x: lax.dot(x, x.T, precision=("default", "highest")), "the same for"),
        ("float32", lambda x: jnp.take(x, jnp.zeros(8, jnp.int32), axis=0), "an index that is an"),
        (
            "bfloat16",
            lambda x: jnp.take_along_axis(x, jnp.zeros(x.shape, jnp.int32), axis=0),
            "a gather of bfloat16 by int32",
        ),
        ("float8_e5m2", lambda x: x.astype(jnp.float8_e4m3fn), "no TPU converts float8_e5m2 to"),
        ("float32", lambda x: jnp.concatenate([x, x[:0]]), r"makes float32\[0, 128\]: an array"),
        ("float32", lambda x: jnp.where(x > 1, x < 5, False), "a choice between arrays of bools"),
        (
            "float32",
            lambda x: lax.fori_loop(0, 3, lambda i, m: m & (x > i.astype(x.dtype)), x > 1),
            "a loop that carries an array of bools",
        ),
    ],
)
def test_dtypes_that_no_tensor_core_computes_with(dtype: str, compute: Any, message: str) -> None:
    """``tpu-compile`` refuses each of them, for every TPU."""
    x = np.ones((8, 128), dtype)
    out = jax.eval_shape(compute, x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    with pytest.raises(SimulationError, match=message):
        simulate(lambda x: pl.pallas_call(body, out_shape=out)(x), x, target="v6e")


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [
        ("int8", lambda x: x.astype(jnp.int32) + 1),
        ("int8", lambda x: (x << 1) & x),
        ("float8_e5m2", lambda x: jnp.concatenate([x, x])),
        ("bfloat16", lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.float32)),
        ("int8", lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.int32)),
        ("uint32", lambda x: jnp.maximum(x, x) + x),
        ("float32", lambda x: lax.fori_loop(0, 3, lambda i, y: y + x, x)),
        ("bool", lambda x: jnp.where(x, 1, 2)),
        # What MLIR removes before libtpu sees it.
        ("uint8", lambda x: jnp.maximum(x, 0)),
        ("int8", lambda x: lax.div(x, x)),
        ("float32", lambda x: jnp.where(jnp.where(x > 1, True, False), x, 0)),
        ("float32", lambda x: lax.fori_loop(0, 3, lambda i, m: (m[0], m[1] + 1), (x > 1, x))[1]),
        (
            "float32",
            lambda x: lax.fori_loop(0, 3, lambda i, m: (m[0] & (i < 2), m[1]), (True, x))[1],
        ),
        ("float32", lambda x: jnp.take_along_axis(x, jnp.zeros(x.shape, jnp.int32), axis=1)),
    ],
)
def test_dtypes_that_a_tensor_core_computes_with(dtype: str, compute: Any) -> None:
    x = np.ones((8, 128), dtype)
    out = jax.eval_shape(compute, x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    found = simulate(lambda x: pl.pallas_call(body, out_shape=out)(x), x, target="v6e")
    np.testing.assert_array_equal(found.values, compute(jnp.asarray(x)))


@pytest.mark.parametrize(
    ("space", "access", "message"),
    [
        (pl.ANY, lambda ref: ref[...], "a load from memory space any: a TensorCore accesses VMEM"),
        (pltpu.HBM, lambda ref: ref[...], "a load from memory space hbm"),
        (pltpu.SMEM, lambda ref: ref[...], r"a load from SMEM of float32\[8, 128\]"),
        (pltpu.SMEM, lambda ref: ref[0], r"a load from SMEM of float32\[128\]"),
        (pltpu.VMEM, lambda ref: ref[jnp.arange(8)], "a load from a reference at an array of"),
        (pltpu.VMEM, lambda ref: ref[:, pl.ds(0, 64, stride=2)], "a stride along the last axis"),
    ],
)
def test_loads_that_no_tensor_core_makes(space: Any, access: Any, message: str) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.full(o_ref.shape, jnp.sum(access(x_ref)))

    with pytest.raises(SimulationError, match=message):
        simulate(copying(body, space), X, target="v6e")


def copying(body: Any, space: Any = pltpu.VMEM, out: Any = pltpu.VMEM, dtype: Any = None) -> Any:
    """Return a call with an input and an output in these memory spaces."""
    ins, outs = pl.BlockSpec(memory_space=space), pl.BlockSpec(memory_space=out)

    def call(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)
        return pl.pallas_call(body, out_shape=shape, in_specs=[ins], out_specs=outs)(x)

    return call


def store_a_scalar(x_ref: Any, o_ref: Any) -> None:
    o_ref[0, 0] = 1.0


def store_an_array(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.ones(o_ref.shape, o_ref.dtype)


def store_some(x_ref: Any, o_ref: Any) -> None:
    pltpu.store(o_ref, x_ref[...], mask=jnp.ones(x_ref.shape, bool))


@pytest.mark.parametrize(
    ("space", "body", "dtype", "message"),
    [
        (pltpu.VMEM, store_a_scalar, "float32", "a scalar is stored to VMEM"),
        (pltpu.SMEM, store_an_array, "float32", r"a store to SMEM of float32\[8, 128\]"),
        (pl.ANY, store_an_array, "float32", "a store to memory space any"),
        (pltpu.VMEM, store_some, "bfloat16", "a masked store of bfloat16"),
    ],
)
def test_stores_that_no_tensor_core_makes(space: Any, body: Any, dtype: str, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate(copying(body, out=space), X.astype(dtype), target="v6e")


def test_accesses_that_a_tensor_core_makes() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        store_some(x_ref, o_ref)
        o_ref[0:1] = x_ref[0:1] + x_ref[0, 0]
        o_ref[pl.ds(0, 4, stride=2)] = x_ref[pl.ds(1, 4, stride=2)]

    assert not simulate(copying(body), X, target="v6e").findings

    def scalars(x_ref: Any, o_ref: Any) -> None:
        o_ref[0, 0] = (x_ref[0, 0].astype(jnp.float32) + 1).astype(x_ref.dtype)

    call = copying(scalars, pltpu.SMEM, pltpu.SMEM)
    assert not simulate(call, X.astype(jnp.bfloat16), target="v6e").findings

    def narrow(x_ref: Any, o_ref: Any) -> None:
        o_ref[0, 0] = x_ref[0, 0] + x_ref[0, 1]

    with pytest.raises(SimulationError, match="computes add of scalars of bfloat16"):
        simulate(copying(narrow, pltpu.SMEM, pltpu.SMEM), X.astype(jnp.bfloat16), target="v6e")


@pytest.mark.parametrize(
    ("dtype", "other", "message"),
    [
        ("float32", "int32", "a copy from float32 to int32: a copy does not convert"),
        ("int8", "bool", "a copy from int8 to bool"),
        ("int32", "uint32", ""),
        ("uint8", "int8", ""),
    ],
)
def test_copies_between_dtypes(dtype: str, other: str, message: str) -> None:
    call = copying(lambda x_ref, o_ref: pltpu.sync_copy(x_ref, o_ref), pl.ANY, pl.ANY, other)
    if not message:
        assert not simulate(call, X.astype(dtype), target="v6e").findings
        return
    with pytest.raises(SimulationError, match=message):
        simulate(call, X.astype(dtype), target="v6e")


def test_a_copy_at_an_array_of_indices() -> None:
    call = copying(lambda x_ref, o_ref: pltpu.sync_copy(x_ref.at[jnp.arange(8)], o_ref), pl.ANY)
    with pytest.raises(SimulationError, match="only the subcores of a SparseCore have it"):
        simulate(call, X, target="v6e")


def rows(**options: Any) -> pl.BlockSpec:
    return pl.BlockSpec((8, 128), lambda i: (i, 0), **options)


@pytest.mark.parametrize(
    ("spec", "semantics", "message"),
    [
        (rows(pipeline_mode=pl.Buffered(3)), None, "x_ref: pallas_call has 1 or 2 buffers, not 3"),
        (rows(pipeline_mode=pl.Buffered(2, use_lookahead=True)), None, "only emit_pipeline looks"),
        (rows(memory_space=pl.ANY), None, "in memory space any there is one block"),
        (
            pl.BlockSpec((pl.Element(8), 128), lambda i: (8 * i, 0)),
            None,
            "either all axes are pl.Element or none",
        ),
        (rows(), ("parallel", "parallel"), "has 2 entries, and the grid has 1"),
        (rows(pipeline_mode=pl.Buffered(1)), ("parallel",), ""),
        (pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (8 * i, 0)), None, ""),
    ],
)
def test_blocks_that_jax_does_not_lower(spec: Any, semantics: Any, message: str) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    def call(x: Any) -> Any:
        params = pltpu.CompilerParams(dimension_semantics=semantics)
        kernel = pl.pallas_call(
            body, out_shape=x, grid=(4,), in_specs=[spec], out_specs=rows(), compiler_params=params
        )
        return kernel(x)

    x = np.ones((32, 128), np.float32)
    if not message:
        assert not simulate(call, x).findings
        return
    with pytest.raises(SimulationError, match=message):
        simulate(call, x)


def test_an_array_without_axes_in_vmem() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    with pytest.raises(SimulationError, match="a block in VMEM has axes; use memory_space"):
        simulate(copying(body), np.float32(3))
    assert simulate(copying(body, pltpu.SMEM, pltpu.SMEM), np.float32(3)).values == 3


@pytest.mark.parametrize(
    ("space", "access", "message"),
    [
        ("smem", lambda ref: ref[pl.ds(0, 8)], "a load from SMEM of int32"),
        ("vmem", lambda ref: ref[0], "a load from VMEM of int32"),
        ("hbm", lambda ref: ref[pl.ds(0, 8)], "a load from memory space hbm"),
        ("vmem", lambda ref: ref[pl.ds(0, 8, stride=2)], "a load from VMEM with a stride"),
        ("vmem", lambda ref: ref[pl.ds(0, 8)], ""),
    ],
)
def test_loads_of_a_subcore(space: str, access: Any, message: str) -> None:
    def body(x_ref: Any, o_ref: Any, numbers: Any, words: Any) -> None:
        ref = {"hbm": x_ref, "vmem": numbers, "smem": words}[space]
        if space == "vmem":
            pltpu.sync_copy(x_ref, numbers)
        numbers[pl.ds(0, 8)] = jnp.broadcast_to(access(ref), (8,))
        pltpu.sync_copy(numbers, o_ref)

    def call(x: Any) -> Any:
        mesh = plsc.VectorSubcoreMesh(
            core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
        )
        scratch = [pltpu.VMEM(x.shape, x.dtype), pltpu.SMEM(x.shape, x.dtype)]
        return pl.kernel(body, out_type=x, mesh=mesh, scratch_types=scratch)(x)

    x = np.arange(32, dtype=np.int32)
    if not message:
        assert not simulate(call, x, target="v6e").findings
        return
    with pytest.raises(SimulationError, match=message):
        simulate(call, x, target="v6e")


@pytest.mark.parametrize(("dtype", "refused"), [("int16", True), ("int32", False)])
def test_vectors_of_a_subcore(dtype: str, refused: bool) -> None:
    """Without its layout passes, libtpu does not divide arrays into vectors."""

    def body(x_ref: Any, o_ref: Any, numbers: Any) -> None:
        pltpu.sync_copy(x_ref, numbers)
        numbers[pl.ds(0, 8)] = numbers[pl.ds(8, 8)]
        pltpu.sync_copy(numbers, o_ref)

    def call(x: Any) -> Any:
        mesh = plsc.VectorSubcoreMesh(
            core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
        )
        params = pltpu.CompilerParams(needs_layout_passes=False)
        scratch = [pltpu.VMEM(x.shape, x.dtype)]
        kernel = pl.kernel(
            body, out_type=x, mesh=mesh, scratch_types=scratch, compiler_params=params
        )
        return kernel(x)

    x = np.arange(32, dtype=dtype)
    if not refused:
        assert not simulate(call, x, target="v6e").findings
        return
    with pytest.raises(SimulationError, match=r"a vector has \[16\] or \[2, 8\]"):
        simulate(call, x, target="v6e")


def test_float16_that_is_only_copied() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    spec, x = pl.BlockSpec(memory_space=pl.ANY), np.ones((8, 128), np.float16)
    call = pl.pallas_call(body, out_shape=x, in_specs=[spec], out_specs=spec)
    np.testing.assert_array_equal(simulate(call, x).values, x)


@pytest.mark.parametrize(
    ("warp", "message"),
    [(False, "does not lower cumsum for a warpgroup"), (True, "does not lower cumsum for a warp,")],
)
def test_an_operation_that_mosaic_gpu_does_not_lower(warp: bool, message: str) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        def add() -> None:
            o_ref[...] = jnp.cumsum(x_ref[...])

        if not warp:
            add()
            return

        @plgpu.warp_map
        def _by_warp(number: Any) -> None:
            pl.when(number == 0)(add)

    out = jax.ShapeDtypeStruct((128,), jnp.float32)
    with pytest.raises(SimulationError, match=message):
        simulate(plgpu.kernel(body, out_type=out), X[0])


def test_scratch_of_a_kernel_on_a_mesh_of_blocks() -> None:
    def body(x_ref: Any, o_ref: Any, scratch: Any) -> None:
        scratch[...] = x_ref[...]
        o_ref[...] = scratch[...]

    def call(x: Any) -> Any:
        mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        scratch = plgpu.SMEM(x.shape, x.dtype)
        return pl.kernel(body, out_type=out, mesh=mesh, scratch_types=[scratch])(x)

    with pytest.raises(SimulationError, match=r"call plgpu\.kernel, which takes them"):
        simulate(call, X[0])


LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)


@pytest.mark.parametrize(
    ("dtype", "compute", "message"),
    [
        ("int8", lambda ref: ref[...] + ref[...], "Mosaic GPU computes no add of int8"),
        ("float8_e5m2", lambda ref: jnp.exp(ref[...]), "computes no exp of float8_e5m2"),
        ("uint4", lambda ref: ref[...] << 1, "computes no shift_left of uint4"),
        ("float32", lambda ref: ref[...] % 3, "computes no rem of float32"),
        ("float32", lambda ref: ref[...][::2], "a slice of a value with strides"),
        ("float32", lambda ref: ref[...][128:], r"makes float32\[0\]"),
        ("float32", lambda ref: ref[jnp.arange(128)], "at an array of indices"),
        ("float32", lambda ref: ref[pl.ds(0, 64, stride=2)], "a load from a reference with a stri"),
        ("int32", lambda ref: ref[...].astype(jnp.float8_e5m2), "does not convert int32 to float8"),
        ("float32", lambda ref: lax.erf(ref[...]), "infers no layout for erf"),
        ("bool", lambda ref: lax.max(ref[...], ~ref[...]), "computes no max of bools"),
        ("int8", lambda ref: (ref[...] & 1) == 1, ""),
        ("float8_e5m2", lambda ref: ref[...].astype(jnp.float32), ""),
        ("int32", lambda ref: ref[...] % 3, ""),
        ("float8_e5m2", lambda ref: abs(ref[...]), ""),
        ("int8", lambda ref: jnp.maximum(*[ref[...]] * 2), ""),
    ],
)
def test_what_registers_of_mosaic_gpu_do_not_do(dtype: str, compute: Any, message: str) -> None:
    """JAX refuses each of them when it lowers the kernel."""
    results: list[Any] = []

    def shape_of(x_ref: Any, o_ref: Any) -> None:
        results.append(compute(x_ref))

    x = np.ones(128, dtype)
    jax.eval_shape(pl.pallas_call(shape_of, out_shape=jax.ShapeDtypeStruct((1,), jnp.int32)), x)
    out = jax.ShapeDtypeStruct(results[0].shape, results[0].dtype)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref)

    call = plgpu.kernel(body, out_type=out)
    if not message:
        assert not simulate(call, x).findings
        return
    with pytest.raises(SimulationError, match=message):
        simulate(call, x)


def test_layouts_that_are_not_inferred() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = lax.erf(x_ref[...])

    out = jax.ShapeDtypeStruct((128,), jnp.float32)
    assert not simulate(plgpu.kernel(body, out_type=out, compiler_params=LANE), X[0]).findings


@pytest.mark.parametrize(
    ("dtype", "compute", "message"),
    [
        ("float8_e5m2", lambda x: x + x, "Triton does not compute add of float8_e5m2"),
        ("float8_e4m3fn", lambda x: jnp.where(x < x, 1, 0), "compute lt of float8_e4m3fn"),
        ("float8_e5m2", lambda x: x.astype(jnp.float8_e4m3fn), "does not convert float8_e5m2 to"),
        ("float8_e5m2", lambda x: (x.astype(jnp.float32) + 1).astype(x.dtype), ""),
        ("bfloat16", lambda x: x + x, ""),
    ],
)
def test_float8_in_triton(dtype: str, compute: Any, message: str) -> None:
    x = np.ones(128, dtype)
    out = jax.eval_shape(compute, x)

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = compute(x_ref[...])

    call = pl.pallas_call(body, out_shape=out)
    if not message:
        assert not simulate(call, x, target="h100").findings
        return
    with pytest.raises(SimulationError, match=message):
        simulate(call, x, target="h100")
