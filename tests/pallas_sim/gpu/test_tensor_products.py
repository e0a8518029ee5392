"""Products of tensor cores, against their definitions in float64 or whole numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim.errors import SimulationError
from pallas_sim.gpu import tensor_cores as formats
from pallas_sim.gpu.tensor_cores import instruction_depth, scaled_product, tensor_product, to_tf32

FLOATS = (
    *("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)
_E4M3, _E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(7)


def whole(rng: np.random.Generator, *shape: int, dtype: Any) -> Any:
    """Small integers, of which every sum is exact in float32."""
    return rng.integers(-3, 4, shape).astype(np.float32).astype(dtype)


def exact(a: Any, b: Any, c: Any = None) -> Any:
    """The definition."""
    product = a.astype(np.float64) @ b.astype(np.float64)
    return product if c is None else product + c.astype(np.float64)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("depth", [1, 33, 128])
def test_exact_sums_in_float32(name: str, depth: int, rng: np.random.Generator) -> None:
    """With and without a matrix to add to."""
    a, b = whole(rng, 9, depth, dtype=name), whole(rng, depth, 7, dtype=name)
    c = rng.integers(-9, 9, (9, 7)).astype(np.float32)
    product = tensor_product(a.dtype, b.dtype, np.float32, depth)
    assert product(a, b, None).dtype == np.float32
    assert (product(a, b, None) == exact(a, b)).all()
    assert (product(a, b, c) == exact(a, b, c)).all()


@pytest.mark.parametrize("name", FLOATS)
def test_rounded_sums_in_float32(name: str, rng: np.random.Generator) -> None:
    """The bound of any order: ``k`` roundings of the sum of absolute values."""
    depth = 200
    a, b = (rng.normal(size=shape).astype(name) for shape in ((16, depth), (depth, 24)))
    found = tensor_product(a.dtype, b.dtype, np.float32, depth)(a, b, None)
    bound = exact(np.abs(a), np.abs(b)) * depth * 2.0**-24
    assert (np.abs(found - exact(a, b)) <= bound).all()


def test_two_float8_dtypes(rng: np.random.Generator) -> None:
    """e4m3 times e5m2."""
    a, b = whole(rng, 4, 64, dtype=_E4M3), whole(rng, 64, 8, dtype=_E5M2)
    assert (tensor_product(_E4M3, _E5M2, np.float32, 64)(a, b, None) == exact(a, b)).all()


def test_float32_is_truncated_to_tf32(rng: np.random.Generator) -> None:
    """Ten bits after the first one are read; the others change nothing, whichever they are."""
    a = np.array([[1 + 2**-10, 1 + 2**-11 + 2**-12, -(1 + 2**-11)]], np.float32)
    assert to_tf32(a).tolist() == [[1 + 2**-10, 1, -1]]
    b = np.eye(3, dtype=np.float32)
    product = tensor_product(np.float32, np.float32, np.float32, 3)
    assert product(a, b, None).tolist() == [[1 + 2**-10, 1, -1]]
    assert product(b, a.T, None).tolist() == [[1 + 2**-10], [1], [-1]]
    special = np.array([np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(to_tf32(special), special)


@pytest.mark.parametrize("names", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_sums_of_integers_wrap(names: tuple[str, str], rng: np.random.Generator) -> None:
    """int32, modulo 2**32."""
    limits = [np.iinfo(name) for name in names]
    a = rng.integers(limits[0].min, limits[0].max, (5, 96), endpoint=True).astype(names[0])
    b = rng.integers(limits[1].min, limits[1].max, (96, 6), endpoint=True).astype(names[1])
    product = tensor_product(a.dtype, b.dtype, np.int32, 96)
    assert (product(a, b, None) == a.astype(np.int64) @ b.astype(np.int64)).all()
    c = np.full((5, 6), np.iinfo(np.int32).max, np.int32)
    wanted = (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32)
    assert (product(a, b, c) == wanted).all()


def test_float64(rng: np.random.Generator) -> None:
    """Of ``mma``."""
    a, b = rng.normal(size=(8, 16)), rng.normal(size=(16, 8))
    found = tensor_product(a.dtype, b.dtype, np.float64, 16)(a, b, None)
    np.testing.assert_allclose(found, a @ b, rtol=1e-14)


def test_integers_of_4_bits(rng: np.random.Generator) -> None:
    """Of ``mma``."""
    a, b = (rng.integers(-8, 8, (64, 64)).astype(ml_dtypes.int4) for _ in range(2))
    found = tensor_product(a.dtype, b.dtype, np.int32, 64)(a, b, None)
    assert (found == a.astype(np.int32) @ b.astype(np.int32)).all()


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn"])
def test_sums_of_float16_are_rounded_after_each_instruction(name: str) -> None:
    """What is less than half of the last place of the sum is lost, each time anew."""
    step = instruction_depth(name)
    assert step == (16 if name == "float16" else 32)
    a = np.zeros((1, 4 * step), name)
    a[0, ::step] = 0.5
    b = np.ones((4 * step, 1), name)
    c = np.array([[2048]], np.float16)
    product = tensor_product(a.dtype, b.dtype, np.float16, 4 * step)
    assert product(a, b, c).dtype == np.float16
    assert product(a, b, c).tolist() == [[2048]]
    assert product(a, b, None).tolist() == [[2]]
    a[0, 0:4] = 0.5  # four in one instruction are added before they are rounded
    assert product(a, b, c).tolist() == [[2050]]


@pytest.mark.parametrize(
    ("lhs", "rhs", "out"),
    [
        ("bfloat16", "float16", "float32"),
        ("bfloat16", "bfloat16", "float16"),
        ("float32", "float32", "float16"),
        ("float64", "float64", "float32"),
        ("int8", "int8", "float32"),
        ("int16", "int16", "int32"),
        ("float8_e4m3fn", "int8", "float32"),
        ("float16", "float16", "int32"),
    ],
)
def test_what_tensor_cores_do_not_multiply(lhs: str, rhs: str, out: str) -> None:
    """An error that names the dtypes."""
    with pytest.raises(SimulationError, match=f"no product of {lhs} and {rhs} with sums of {out}"):
        tensor_product(lhs, rhs, out, 16)


@pytest.mark.parametrize(
    ("element", "scale", "block"),
    [
        (_E4M3, _E8M0, 32),
        (_E5M2, _E8M0, 32),
        (np.dtype(ml_dtypes.float6_e2m3fn), _E8M0, 32),
        (np.dtype(ml_dtypes.float6_e3m2fn), _E8M0, 32),
        (_E2M1, _E8M0, 32),
        (_E2M1, _E8M0, 16),
        (_E2M1, _E4M3, 16),
    ],
    ids=str,
)
def test_scaled_products(element: Any, scale: Any, block: int, rng: np.random.Generator) -> None:
    """Of each block: both scales times the sum of products (OCP MX 1.0, 6.2)."""
    m, n, blocks = 6, 5, 3
    a, b = (rng.normal(size=(size, blocks * block)).astype(element) for size in (m, n))
    scales = [np.exp2(rng.integers(-3, 4, (size, blocks))).astype(scale) for size in (m, n)]
    wanted = np.zeros((m, n))
    for i, j, part in np.ndindex(m, n, blocks):
        span = slice(part * block, (part + 1) * block)
        dot = np.sum(a[i, span].astype(np.float64) * b[j, span].astype(np.float64))
        wanted[i, j] += float(scales[0][i, part]) * float(scales[1][j, part]) * dot
    product = scaled_product(element, element, scale, blocks * block, blocks)
    c = rng.integers(-4, 5, (m, n)).astype(np.float32)
    assert (product(a, b.T, None, *scales) == wanted.astype(np.float32)).all()
    assert (product(a, b.T, c, *scales) == wanted.astype(np.float32) + c).all()


def test_scales_that_only_balance_each_other() -> None:
    """2**120 times 2**-120; and NaN, which e8m0 has."""
    a = np.full((1, 32), 57344, _E5M2)
    b = np.full((32, 1), 1, _E5M2)
    large, small = (np.array([[2.0**power]]).astype(_E8M0) for power in (120, -120))
    product = scaled_product(_E5M2, _E5M2, _E8M0, 32, 1)
    assert product(a, b, None, large, small).tolist() == [[57344 * 32]]
    assert np.isnan(product(a, b, None, np.array([[np.nan]]).astype(_E8M0), small)).all()


def test_scales_of_e4m3_have_no_sign() -> None:
    """Their first bit is no part of the format."""
    a, b = np.ones((1, 16), _E2M1), np.ones((16, 1), _E2M1)
    one, minus = np.array([[1.5]]).astype(_E4M3), np.array([[-1.5]]).astype(_E4M3)
    product = scaled_product(_E2M1, _E2M1, _E4M3, 16, 1)
    assert product(a, b, None, minus, one).tolist() == [[36]]


def test_scales_of_a_sparse_operand_are_for_twice_as_many() -> None:
    """A block of 64, of which 32 are stored."""
    scaled_product(_E4M3, _E4M3, _E8M0, 128, 2, sparse=True)
    with pytest.raises(SimulationError, match="blocks of 64 elements"):
        scaled_product(_E4M3, _E4M3, _E8M0, 128, 4, sparse=True)


@pytest.mark.parametrize(
    ("element", "scale", "scales"), [(_E4M3, _E4M3, 4), (_E4M3, _E8M0, 8), (_E2M1, _E4M3, 4)]
)
def test_what_is_no_format(element: Any, scale: Any, scales: int) -> None:
    """An error that names the blocks that there are."""
    with pytest.raises(SimulationError, match=f"but 128 elements have {scales} scales"):
        scaled_product(element, element, scale, 128, scales)


def test_scales_are_copied_to_their_rows(rng: np.random.Generator) -> None:
    """As JAX documents it for ``async_copy_scales_to_tmem``."""
    scales = rng.integers(0, 255, (256, 8)).astype(np.uint8)
    copied = scales.reshape(2, 4, 32, 2, 4).transpose(0, 3, 2, 1, 4).reshape(2, 2, 32, 16)
    assert (formats.scales_of_copy(copied) == scales).all()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_scales_of_a_pair_are_copied_to_their_rows(parts: int, rng: np.random.Generator) -> None:
    """As JAX documents it for ``b_scales_m64_collective_layout``."""
    n = 64 * parts
    scales = rng.integers(0, 255, (n, 8)).astype(np.uint8)
    copied = scales.reshape(2, parts, 32, 2, 4).transpose(3, 0, 2, 1, 4)
    copied = copied.reshape(1, 2, 64, parts * 4)
    copied = np.pad(copied, ((0, 0), (0, 0), (0, 0), (0, 16 - 4 * parts)))
    found = formats.paired_scales_of_copy(copied)
    halves = found.reshape(2, 128, 8)[:, : n // 2]
    assert (halves.reshape(n, 8) == scales).all()


def test_a_sparse_matrix_gets_its_zeros() -> None:
    """Two of four; of elements of 4 bits, two of four pairs."""
    values = np.arange(1, 9, dtype=np.float32).reshape(1, 8)
    places = np.array([[[0, 1], [1, 3], [0, 2], [2, 3]]])
    dense = [1, 2, 0, 0, 0, 3, 0, 4, 5, 0, 6, 0, 0, 0, 7, 8]
    assert formats.expand(values, places).tolist() == [dense]
    pairs = [1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 5, 6, 0, 0, 7, 8]
    assert formats.expand(values, places[:, [2, 1]]).tolist() == [pairs]


def test_metadata_that_means_nothing() -> None:
    """The first place is before the second one, or PTX defines nothing."""
    places = np.array([[[0, 1], [1, 1], [3, 2], [2, 3]]], ml_dtypes.uint2)
    assert formats.disordered(places).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn"])
def test_metadata_in_the_order_of_the_groups(name: str, rng: np.random.Generator) -> None:
    """What ``plgpu.format_tcgen05_sparse_metadata`` does is undone."""
    places = rng.integers(0, 4, (128, 64, 2)).astype(np.uint8)
    formatted = plgpu.format_tcgen05_sparse_metadata(jnp.asarray(places).astype(jnp.uint2), name)
    copied = formats.metadata_of_copy(np.asarray(formatted).astype(np.uint8))
    assert copied.shape == (128, 128)
    assert (formats.from_tensor_memory(copied, name) == places).all()
