"""What the kernels that compute in registers refuse, and what they promise."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses

from pytest_pallas import KernelError
from reference_kernels.sparsecore import (
    abs_packed,
    add_packed,
    compact,
    expand,
    histogram,
    pick,
    running_max,
    scalar_cumsum,
    top_k,
    vector_map,
)

ON_SUBCORES = pytest.mark.pallas(backends=["tpu-sim"])
SMALL = {"cores": 1, "subcores": 2}
KEEP = np.zeros((3, 4), bool)


@pytest.mark.parametrize(("kernel", "size"), [(vector_map, "block"), (scalar_cumsum, "chunk")])
class TestVectors:
    def test_operand(self, kernel: Any, size: str) -> None:
        refuses(lambda: kernel(f32(3, 4)), "x must have the shape (n,)", "(3, 4)")
        refuses(lambda: kernel(f32(0)), "x must not be empty")
        half = jnp.zeros(3, jnp.bfloat16)
        refuses(lambda: kernel(half), "x must be float32 or int32", "bfloat16")

    def test_size(self, kernel: Any, size: str) -> None:
        refuses(lambda: kernel(f32(3), **{size: 0}), f"{size} must be a positive integer")


def test_method() -> None:
    other: Any = "unrolled"
    refuses(lambda: vector_map(f32(3), method=other), "method must be one of loop", "unrolled")


class TestRows:
    @pytest.mark.parametrize("kernel", [running_max, lambda x, **sizes: top_k(x, 1, **sizes)])
    def test_operand(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(3)), "x must have the shape (rows, n)", "(3,)")
        refuses(lambda: kernel(f32(3, 4).astype(np.int16)), "x must be float32 or int32", "int16")
        refuses(lambda: kernel(f32(3, 4), block=0), "block must be a positive integer")

    def test_more_than_a_row_has(self) -> None:
        refuses(lambda: top_k(f32(3, 4), 5), "k must not be above n, 4, but it is 5")

    @ON_SUBCORES
    def test_more_than_a_register_has(self, pallas_run: Any) -> None:
        with pytest.raises(KernelError, match="k must not be above the lanes of a register, 8"):
            pallas_run(top_k, f32(3, 40), 9)

    @ON_SUBCORES
    def test_equal_elements_are_each_taken_once(self, pallas_run: Any) -> None:
        x = np.array([[1, 2, 2, 2, 0, 2, 1, 1, 2, 2, 1]], np.int32)
        values, places = pallas_run(top_k, x, 8, **SMALL)
        np.testing.assert_array_equal(values[0], [2, 2, 2, 2, 2, 2, 1, 1])
        np.testing.assert_array_equal(x[0, places[0]], values[0])
        assert len(set(places[0].tolist())) == 8

    @ON_SUBCORES
    def test_the_least_numbers_count(self, pallas_run: Any) -> None:
        x = np.full((1, 9), -np.inf, np.float32)
        values, places = pallas_run(top_k, x, 8, **SMALL)
        np.testing.assert_array_equal(values, x[:, :8])
        assert places.min() >= 0


class TestPick:
    def test_operands(self) -> None:
        refuses(lambda: pick(i32(3), i32(3)), "weights must have the shape (rows, n)")
        refuses(lambda: pick(i32(3, 4), i32(4)), "draws must have the same rows as weights, 3")
        refuses(lambda: pick(f32(3, 4), i32(3)), "weights must be int32", "float32")
        refuses(lambda: pick(i32(3, 4), f32(3)), "draws must be int32", "float32")
        refuses(lambda: pick(i32(3, 4), i32(3), block=0), "block must be a positive integer")

    @ON_SUBCORES
    def test_every_draw_of_a_row_finds_each_place_as_often_as_its_weight(
        self, pallas_run: Any
    ) -> None:
        row = np.array([0, 3, 0, 1, 0, 0, 0, 0, 2, 0], np.int32)
        weights = np.tile(row, (row.sum(), 1))
        out = pallas_run(pick, weights, np.arange(row.sum(), dtype=np.int32), **SMALL)
        np.testing.assert_array_equal(np.bincount(out, minlength=row.size), row)


class TestCompact:
    @pytest.mark.parametrize("kernel", [compact, expand])
    def test_operands(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(3), KEEP), "x must have the shape (rows, n)")
        refuses(lambda: kernel(f32(3, 5), KEEP), "keep must have the shape of x, (3, 5)", "(3, 4)")
        refuses(lambda: kernel(f32(3, 4), i32(3, 4)), "keep must be bool", "int32")
        refuses(lambda: kernel(f32(3, 4), KEEP, block=0), "block must be a positive integer")

    def test_onto(self) -> None:
        refuses(lambda: compact(f32(3, 4), KEEP, f32(4, 3)), "onto must have the shape of x")
        refuses(lambda: compact(f32(3, 4), KEEP, i32(3, 4)), "onto must have the dtype of x")

    @ON_SUBCORES
    def test_expand_undoes_it(self, pallas_run: Any) -> None:
        rng = np.random.default_rng(0)
        x, keep = rng.normal(size=(3, 21)).astype(np.float32), rng.random((3, 21)) < 0.5
        front, counts = pallas_run(compact, x, keep, **SMALL)
        np.testing.assert_array_equal(counts, keep.sum(axis=1))
        back = pallas_run(expand, np.asarray(front), keep, **SMALL)
        np.testing.assert_array_equal(back, np.where(keep, x, 0))


class TestHistogram:
    def test_operands(self) -> None:
        refuses(lambda: histogram(i32(3, 4), 5), "x must have the shape (n,)")
        refuses(lambda: histogram(f32(3), 5), "x must be int32", "float32")
        refuses(lambda: histogram(i32(3), 0), "bins must be a positive integer")
        refuses(lambda: histogram(i32(3), 5, block=0), "block must be a positive integer")


class TestPacked:
    def test_operands(self) -> None:
        half = jnp.zeros(3, jnp.bfloat16)
        refuses(lambda: abs_packed(f32(3)), "x must be bfloat16", "float32")
        refuses(lambda: add_packed(half, f32(3)), "y must be bfloat16", "float32")
        refuses(lambda: add_packed(half, half[:2]), "y must have the same n as x, 3", "is 2")
        refuses(lambda: add_packed(half, half, block=0), "block must be a positive integer")
        refuses(lambda: abs_packed(half[:, None]), "x must have the shape (n,)")

    @ON_SUBCORES
    @pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="no plsc.bitcast on a CPU before")
    def test_signs_of_what_is_no_number(self, pallas_run: Any) -> None:
        x = jnp.array([-jnp.inf, -0.0, -jnp.nan, 3], jnp.bfloat16)
        out = np.asarray(pallas_run(abs_packed, x, **SMALL))
        assert not np.signbit(out.astype(np.float32)).any()
        np.testing.assert_array_equal(out.astype(np.float32), [np.inf, 0, np.nan, 3])
