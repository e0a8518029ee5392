"""Tensor memory: what references to it share, and how many columns they take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim.chips import TARGETS, tensor_memory_excess
from pallas_sim.compat.jaxprs import union_parts
from pallas_sim.gpu.tensor_memory import (
    TensorMemory,
    allocated_columns,
    tensor_memory,
    tensor_memory_columns,
)
from pallas_sim.machine import Machine
from pallas_sim.order.accesses import overlap
from pallas_sim.tracing import tracing_for
from pallas_sim.transforms import AxisSlice, Indexed

TMEM, LAYOUTS = plgpu.TMEM, plgpu.TMEMLayout


def aval_of(ref: Any) -> Any:
    """The abstract value of the memory that a reference is allocated as."""
    aval = ref.get_ref_aval()
    return getattr(aval, "ref", aval)


def memory_of(ref: Any) -> TensorMemory:
    """Such memory, on a machine of its own."""
    return tensor_memory(Machine(target="b200"), aval_of(ref), "acc")


@pytest.mark.parametrize(
    ("ref", "columns"),
    [
        (TMEM((128, 64), jnp.float32), 64),
        (TMEM((64, 64), jnp.float32), 32),
        (TMEM((64, 64), jnp.float32, collective=True), 32),
        (TMEM((128, 64), jnp.bfloat16, packed=True), 32),
        (TMEM((128, 64), jnp.bfloat16, packed=False), 64),
        (TMEM((128, 64), jnp.float8_e4m3fn, packed=True), 16),
        (TMEM((128, 8), jnp.float8_e8m0fnu, layout=LAYOUTS.SCALES_LAYOUT), 8),
        (TMEM((128, 64), jnp.uint2, layout=LAYOUTS.SPARSE_METADATA_LAYOUT), 4),
        (TMEM((2, 128, 64), jnp.float32), 128),
    ],
)
def test_columns(ref: Any, columns: int) -> None:
    """As JAX counts them."""
    assert tensor_memory_columns(aval_of(ref)) == columns
    assert memory_of(ref).columns == columns


def test_it_begins_without_values() -> None:
    """NaN, as all memory."""
    assert np.isnan(memory_of(TMEM((128, 64), jnp.float32)).data).all()


def parts_of(union: Any) -> tuple[TensorMemory, list[Any]]:
    """The memory of a union, and each of its parts as an operation accesses it."""
    ref = memory_of(union)
    return ref, [ref.part((part,), ()) for part in union_parts(aval_of(union))]


def test_a_union_shares_columns() -> None:
    """A packed operand in the first half of the columns of an accumulator."""
    _, (sums, packed) = parts_of(
        plgpu.RefUnion(
            TMEM((128, 64), jnp.float32),
            TMEM((128, 64), jnp.bfloat16, packed=True),
        )
    )
    sums.data[...] = np.ones((128, 64), np.float32)
    packed.data[...] = np.full((128, 64), 3, jnp.bfloat16)
    assert (packed.data == 3).all()
    assert (sums.data[:, 32:] == 1).all()
    assert not (sums.data[:, :32] == 1).any()
    assert overlap(sums.region[:, :32], packed.region)
    assert not overlap(sums.region[:, 32:], packed.region)


def test_an_array_that_is_not_packed_has_a_column_for_each_element() -> None:
    """So it takes as many columns as one of 32 bits."""
    _, (sums, wide) = parts_of(
        plgpu.RefUnion(TMEM((128, 64), jnp.float32), TMEM((128, 32), jnp.bfloat16, packed=False))
    )
    assert wide.data.shape == (128, 32)
    assert overlap(sums.region[:, 31:32], wide.region)
    assert not overlap(sums.region[:, 32:], wide.region)


@pytest.mark.parametrize(
    ("ref", "columns"),
    [
        (TMEM((128, 8), jnp.float8_e8m0fnu, layout=LAYOUTS.SCALES_LAYOUT), 8),
        (TMEM((256, 8), jnp.float8_e8m0fnu, layout=LAYOUTS.SCALES_LAYOUT), 16),
        (TMEM((128, 64), jnp.uint2, layout=LAYOUTS.SPARSE_METADATA_LAYOUT), 4),
        (TMEM((64, 32), jnp.float32), 16),
    ],
)
def test_other_layouts_in_a_union(ref: Any, columns: int) -> None:
    """Their elements lie beside the columns, which they take all the same."""
    union = plgpu.RefUnion(TMEM((128, 64), jnp.float32), ref)
    memory, (sums, other) = parts_of(union)
    assert other.data.shape == tuple(ref.shape)
    value = np.ones(other.data.shape, np.float32).astype(other.data.dtype)
    sums.data[...] = np.ones((128, 64), np.float32)
    other.data[...] = value
    assert (other.data == value).all()
    assert overlap(sums.region[:, columns - 1 : columns], other.region)
    assert not overlap(sums.region[:, columns:], other.region)
    assert memory.columns == 64


def test_elements_of_four_bits_in_a_union() -> None:
    """Eight of them share a column: half of the columns are those of half of the elements."""
    ref, (sums, _) = parts_of(
        plgpu.RefUnion(TMEM((128, 64), jnp.float32), TMEM((128, 256), jnp.int4, packed=True))
    )
    _, nibbles = union_parts(
        aval_of(
            plgpu.RefUnion(TMEM((128, 64), jnp.float32), TMEM((128, 256), jnp.int4, packed=True))
        )
    )
    half = Indexed((AxisSlice(0, 128, 1), AxisSlice(128, 128, 1)), (128, 256), ())
    part = ref.part((nibbles, half), ())
    assert part.data.shape == (128, 128)
    assert not overlap(sums.region[:, :16], part.region)
    assert overlap(sums.region[:, 16:17], part.region)
    assert not overlap(sums.region[:, 32:], part.region)


def test_groups_of_a_union_follow_each_other() -> None:
    """Two references of one group share nothing, and both share with the other group."""
    _, (first, second, both) = parts_of(
        plgpu.RefUnion(
            [TMEM((128, 32), jnp.float32), TMEM((128, 32), jnp.float32)],
            TMEM((128, 64), jnp.float32),
        )
    )
    assert not overlap(first.region, second.region)
    assert overlap(both.region[:, 32:], second.region)
    both.data[...] = np.ones((128, 64), np.float32)
    second.data[...] = np.full((128, 32), 2, np.float32)
    assert (both.data[:, :32] == 1).all()
    assert (both.data[:, 32:] == 2).all()


def traced(body: Any, **scratch: Any) -> Any:
    """The jaxpr of a kernel's call."""
    kernel = plgpu.kernel(
        body, out_type=jax.ShapeDtypeStruct((128, 128), jnp.float32), scratch_types=scratch
    )
    with tracing_for(TARGETS["b200"]):
        return jax.make_jaxpr(kernel)()


def test_scopes_count_while_they_last() -> None:
    """One after the other they take the most of both, one in the other the sum."""

    def body(o_gmem: Any, acc: Any) -> None:
        def inner(first: Any) -> None:
            pl.run_scoped(lambda second: None, TMEM((128, 8), jnp.float32))

        pl.run_scoped(inner, TMEM((128, 64), jnp.float32))
        pl.run_scoped(lambda third: None, TMEM((128, 16), jnp.float32))

    found = allocated_columns(traced(body, acc=TMEM((128, 128), jnp.float32)))
    assert found == [("acc", 128), ("first", 64), ("second", 8)]


def test_a_kernel_without_tensor_memory() -> None:
    """It takes nothing."""
    assert (
        allocated_columns(traced(lambda o_gmem, smem: None, smem=plgpu.SMEM((8,), "int32"))) == []
    )


@pytest.mark.parametrize("columns", [512, 32, 1])
def test_what_fits(columns: int) -> None:
    """Up to 512 columns."""
    assert tensor_memory_excess([("acc", columns)], "b200") is None
    assert tensor_memory_excess([], "h100") is None


def test_too_many_columns() -> None:
    """The finding names what takes them."""
    excess = tensor_memory_excess([("acc", 384), ("scales", 136)], "b200")
    assert excess is not None
    finding = excess.finding("mm", "k.py:3")
    assert (finding.kind, finding.kernel, finding.line) == ("capacity", "mm", "k.py:3")
    assert "520 columns (acc 384, scales 136)" in finding.message
    assert "an SM of b200 has 512" in finding.message


def test_a_chip_without_tensor_memory() -> None:
    """Hopper has none."""
    excess = tensor_memory_excess([("acc", 32)], "h100")
    assert excess is not None
    assert "h100 has no tensor memory" in excess.message
