"""Reductions over rows and columns on a GPU: what they refuse, and what becomes of them."""

from __future__ import annotations

import functools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses

from pallas_sim import simulate
from reference_kernels import _gpu
from reference_kernels.mosaic_gpu import ragged_row_sum, reduce_columns, reduce_rows
from reference_kernels.mosaic_gpu.reduce_columns import Meeting, Operation, reference

NEW = pytest.mark.skipif(not _gpu.has("sum"), reason="plgpu.sum came with JAX 0.12")


def test_what_columns_refuse() -> None:
    wrong: Any = "mean"
    refuses(lambda: reduce_columns(i32(3)), "x must have the shape (m, n)")
    refuses(lambda: reduce_columns(i32(0, 3)), "x must not be empty")
    refuses(lambda: reduce_columns(i32(2, 3), op=wrong), "op must be one of", "'mean'")
    refuses(
        lambda: reduce_columns(f32(2, 3), op="max"),
        "x must be int32 or uint32 for 'max', but its dtype is float32",
    )
    refuses(lambda: reduce_columns(i32(2, 3), by=wrong), "by must be one of", "'mean'")
    refuses(lambda: reduce_columns(i32(2, 3), block_rows=0), "block_rows must be a positive")


@pytest.mark.parametrize("op", get_args(Operation))
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
@pytest.mark.parametrize("by", get_args(Meeting))
def test_columns_of_numbers_with_all_bits(op: Operation, dtype: str, by: Meeting) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, (37, 130), "uint32").astype(dtype)
    for seed in range(3):
        found = simulate(reduce_columns, x, target="h100", seed=seed, op=op, by=by, block_rows=8)
        np.testing.assert_array_equal(found.values, reference(jnp.asarray(x), op=op))
        assert found.findings == ()


def test_columns_are_reduced_in_memory(pallas_compile: Any) -> None:
    x = jax.ShapeDtypeStruct((64, 512), jnp.int32)
    reduce = functools.partial(reduce_columns, op="xor", by="atomic")
    report = pallas_compile(reduce, x, target="h100")
    assert report.spill_store_bytes == 0
    assert report.shared_bytes == 0  # no scratch to meet in


@NEW
def test_what_rows_refuse() -> None:
    wrong: Any = "mean"
    refuses(lambda: reduce_rows(np.float32(1)), "x must have the shape (..., n)", "scalar")
    refuses(lambda: reduce_rows(i32(2, 3)), "x must be float32, bfloat16 or float16", "int32")
    refuses(lambda: reduce_rows(f32(2, 3), op=wrong), "op must be one of", "'mean'")
    refuses(lambda: reduce_rows(f32(2, 3), accumulators=0), "accumulators must be a positive")
    refuses(lambda: reduce_rows(f32(2, 3), block_rows=-1), "block_rows must be a positive", "-1")


@NEW
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_padding_of_rows_changes_nothing(pallas_compile: Any, op: Any) -> None:
    x = jax.ShapeDtypeStruct((2, 3, 200), jnp.float32)
    reduce = functools.partial(reduce_rows, op=op)
    assert jax.eval_shape(reduce, x).shape == (2, 3)
    assert pallas_compile(reduce, x, target="a100").spill_store_bytes == 0


def test_reductions_need_a_new_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    monkeypatch.delattr(plgpu, "prod", raising=False)
    with pytest.raises(NotImplementedError, match=r"reduce_rows needs .*plgpu.prod.*new in JAX"):
        reduce_rows(f32(2, 3))


class TestRaggedSums:
    def test_misuse(self) -> None:
        refuses(lambda: ragged_row_sum(f32(3), i32(3)), "x must have the shape (m, n)")
        refuses(lambda: ragged_row_sum(f32(3, 4), i32(2)), "lengths must have the same m as x, 3")
        refuses(lambda: ragged_row_sum(i32(3, 4), i32(3)), "x must be float32 or bfloat16")
        refuses(lambda: ragged_row_sum(f32(3, 4), f32(3)), "lengths must be int32")

    def test_lengths_out_of_range_are_as_the_nearest(self) -> None:
        x, lengths = np.ones((4, 5), np.float32), np.array([-3, 0, 5, 9], np.int32)
        for seed in range(3):
            found = simulate(ragged_row_sum, x, lengths, target="b200", seed=seed)
            np.testing.assert_array_equal(found.values, [0, 0, 5, 5])
            assert found.findings == ()

    def test_each_row_is_summed_whoever_takes_it_over(self) -> None:
        x = np.random.default_rng(0).integers(-9, 9, (23, 600)).astype(np.float32)
        lengths = np.arange(23, dtype=np.int32) * 26
        want = [row[:length].sum() for row, length in zip(x, lengths, strict=True)]
        for seed in range(5):
            found = simulate(ragged_row_sum, x, lengths, target="b200", seed=seed)
            np.testing.assert_array_equal(found.values, want)
