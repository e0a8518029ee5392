"""Sums of products on tensor cores that have fewer bits than float32: what a kernel may be off."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

import pytest_pallas
from pallas_sim.chips import ACCUMULATIONS, TARGETS, Accumulation
from pallas_sim.errors import OptionError
from pallas_sim.tracing import tracing_for
from pytest_pallas import MismatchError
from pytest_pallas.judge.arithmetic import ChipArithmetic, ProductSums, coarsest_sums
from pytest_pallas.judge.oracle import expected
from reference_kernels.mosaic_gpu.blackwell_matmul import blackwell_matmul
from reference_kernels.mosaic_gpu.blackwell_matmul import reference as of_blackwell
from reference_kernels.mosaic_gpu.hopper_matmul import hopper_matmul, reference

_E4M3 = ml_dtypes.float8_e4m3fn


def operands(m: int, k: int, n: int, dtype: Any = _E4M3, seed: int = 0) -> Any:
    """Random numbers, ``[m, k]`` and ``[n, k]``."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(size, k)).astype(dtype)) for size in (m, n))


def check(kernel: Any, x: Any, y: Any, **rest: Any) -> Any:
    """Compare with the reference, on a simulated H100."""
    return pytest_pallas.check(
        kernel,
        x,
        y,
        reference=reference,
        backend="gpu-sim",
        options={"transpose_rhs": True, "out_dtype": "float32"},
        tuning={"block_m": 64, "block_n": 64, "stages": 2},
        **rest,
    )


class TestFloat8OnHopper:
    """Sums that keep 13 bits, in a float32 output."""

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(("m", "k", "n"), [(1, 130, 1), (65, 400, 127), (64, 640, 8)])
    def test_a_right_kernel_passes(self, m: int, k: int, n: int, seed: int) -> None:
        check(hopper_matmul, *operands(m, k, n, seed=seed))

    def test_terms_of_one_sign_pass(self) -> None:
        """All errors have one sign, too, and add up."""
        x, y = operands(64, 640, 64)
        check(hopper_matmul, jnp.abs(x), jnp.abs(y))

    @pytest.mark.parametrize("m", [1, 64])
    def test_a_dropped_term_fails(self, m: int) -> None:
        def dropped(x: Any, y: Any, **rest: Any) -> Any:
            return hopper_matmul(x.at[:, -1].set(0), y, **rest)

        with pytest.raises(MismatchError, match="is wrong"):
            check(dropped, *operands(m, 130, m))

    def test_half_a_percent_fails(self) -> None:
        def scaled(x: Any, y: Any, **rest: Any) -> Any:
            return hopper_matmul(x, y, **rest) * np.float32(1.005)

        with pytest.raises(MismatchError, match="is wrong"):
            check(scaled, *operands(64, 130, 64))

    def test_exact_where_the_sums_fit(self) -> None:
        """Small integers, whose sums have 13 bits in any order: an error of one fails."""
        x, y = (jnp.asarray(np.full((8, 40), value).astype(_E4M3)) for value in (2, 3))
        check(hopper_matmul, x, y, exact=True)

        def off(x: Any, y: Any, **rest: Any) -> Any:
            return hopper_matmul(x, y, **rest) + np.float32(2.0**-10)

        with pytest.raises(MismatchError, match="exact"):
            check(off, x, y, exact=True)

    def test_not_exact_where_they_do_not(self) -> None:
        """640 * 15 * 15 + 1 has 18 bits."""
        x = np.full((8, 641), 15).astype(_E4M3)
        x[:, 0] = 1
        y = x.copy()
        found = check(hopper_matmul, jnp.asarray(x), jnp.asarray(y), exact=True)
        assert (found != 640 * 15 * 15 + 1).all()


def test_products_of_16_bits_are_held_to_the_bound_of_before() -> None:
    """An error of float8's size fails."""

    def scaled(x: Any, y: Any, **rest: Any) -> Any:
        return hopper_matmul(x, y, **rest) * np.float32(1 + 2.0**-14)

    x, y = operands(64, 130, 64, "bfloat16")
    check(hopper_matmul, x, y)
    with pytest.raises(MismatchError, match="is wrong"):
        check(scaled, x, y)


def test_with_sums_of_float32_nothing_is_allowed() -> None:
    """The setting decides what is computed, and what may be off."""

    def scaled(x: Any, y: Any, **rest: Any) -> Any:
        return hopper_matmul(x, y, **rest) * np.float32(1 + 2.0**-12)

    x, y = operands(64, 130, 64)
    check(scaled, x, y, arithmetic="chip")
    with pytest.raises(MismatchError, match="is wrong"):
        check(scaled, x, y, arithmetic="float32")


def test_an_arithmetic_that_there_is_not_is_refused() -> None:
    x, y = operands(8, 8, 8)
    with pytest.raises(OptionError, match="must be one of chip, float32, not 'exact'"):
        pytest_pallas.check(hopper_matmul, x, y, reference=reference, arithmetic="exact")


class TestErrorsOfSums:
    """The reference, with products added as tensor cores do."""

    def errors(self, x: Any, y: Any, adding: Accumulation) -> Any:
        found = expected(lambda x, y: x @ y.T, (x, y), {})
        return found.errors_of_chip(ChipArithmetic(ProductSums(adding, -6)))[""]

    def test_more_bits_change_less(self) -> None:
        x, y = operands(16, 256, 16, "float32")
        sizes = [
            np.abs(self.errors(x, y, Accumulation(32, bits, bits))).max() for bits in (9, 13, 17)
        ]
        assert sizes[0] > 8 * sizes[1] > 64 * sizes[2] > 0

    def test_the_bound_of_all_truncations(self) -> None:
        """Each product and sum is off by less than a unit of the largest partial sum."""
        x, y = operands(8, 256, 8)
        found = np.abs(self.errors(x, y, ACCUMULATIONS[9]["wgmma", "float8_e4m3fn"]))
        sizes = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(y, np.float64)).T
        assert (found <= (256 + 2 * 256 / 32) * 2.0**-13 * sizes).all()

    def test_each_draw_has_another_order(self) -> None:
        x, y = operands(8, 256, 8)
        found = self.errors(x, y, ACCUMULATIONS[9]["wgmma", "float8_e4m3fn"])
        assert len(found) == 16
        assert len({draw.tobytes() for draw in found}) == 16

    def test_batched_products(self) -> None:
        rng = np.random.default_rng(0)
        x, y = (jnp.asarray(rng.normal(size=(3, 8, 64)), jnp.float32) for _ in range(2))
        found = expected(lambda x, y: jnp.einsum("bik,bjk->bij", x, y), (x, y), {})
        errors = found.errors_of_chip(ChipArithmetic(ProductSums(Accumulation(32, 13, 13), -126)))[
            ""
        ]
        assert errors.shape == (16, 3, 8, 8)
        assert 0 < np.abs(errors).max() < 0.1

    def test_infinite_products_are_left_alone(self) -> None:
        x = np.full((2, 4), np.inf, np.float32)
        found = expected(lambda x: x @ x.T, (x,), {})
        errors = found.errors_of_chip(ChipArithmetic(ProductSums(Accumulation(32, 13, 13), -126)))[
            ""
        ]
        assert np.isnan(errors).all()  # inf - inf: of the class, which is judged first


def test_the_coarsest_sums_of_a_kernel() -> None:
    """By the dtypes of its products; a float32 output is none."""
    hopper = ACCUMULATIONS[9]
    for dtype, name in ((_E4M3, "float8_e4m3fn"), ("bfloat16", "bfloat16")):
        x, y = operands(64, 128, 64, dtype)
        with tracing_for(TARGETS["h100"]):
            jaxpr = jax.make_jaxpr(lambda x, y: hopper_matmul(x, y, transpose_rhs=True))(x, y)
        found = coarsest_sums(jaxpr, hopper)
        assert found is not None
        assert found.accumulation == hopper["wgmma", name]
        assert found.least == {"bfloat16": -126}.get(name, -6)
        assert coarsest_sums(jaxpr, {}) is None
    assert coarsest_sums(jax.make_jaxpr(jnp.dot)(x, y.T), hopper) is None  # XLA's


def test_a_dot_of_float32_is_tf32() -> None:
    """In a kernel for Triton."""

    def body(x: Any, y: Any, o: Any) -> None:
        o[...] = jnp.dot(x[...], y[...])

    x = np.zeros((16, 16), np.float32)
    kernel = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
    found = coarsest_sums(jax.make_jaxpr(kernel)(x, x), ACCUMULATIONS[9])
    assert found is not None
    assert found.accumulation == ACCUMULATIONS[9]["dot", "tf32"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_published_sums_of_blackwell(dtype: str) -> None:
    """``tcgen05_mma`` has a barrier among its operands."""
    x, y = operands(128, 128, 128, dtype)
    pytest_pallas.check(
        lambda x, y: blackwell_matmul(x, y.T),
        x,
        y,
        reference=lambda x, y: of_blackwell(x, y.T),
        backend="gpu-sim:b200",
        arithmetic="chip",
        exact=True,
    )
