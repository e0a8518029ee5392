"""Products of the simulator against those of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas_test_support.rules_of_jax import assert_same_bits, both

from pallas_sim import simulate
from pallas_sim.products import multiplier

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, most: int = 3) -> Any:
    """Small integers: their products and sums are exact in every order."""
    return rng.integers(-most, most + 1, shape).astype(jnp.dtype(dtype))


def full(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Integers of the whole range of a dtype."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    info = jnp.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    return rng.integers(low, high, shape, np.int64, endpoint=True).astype(jnp.dtype(dtype))


def assert_close(function: Any, *args: Any, places: float = 4) -> None:
    """Each product is a few ulps of the sum of absolute values away from JAX's."""
    wide = [abs(np.asarray(each)).astype(np.float64) for each in args]
    with jax.enable_x64():
        size = np.asarray(jax.jit(function)(*wide))
    for actual, wanted in both(function, *args):
        error = abs(actual.astype(np.complex128) - wanted.astype(np.complex128))
        bound = places * float(jnp.finfo(wanted.dtype).eps) * size
        assert (error <= bound).all(), (error / (size + 1e-300)).max()


LAYOUTS = {
    "matrices": ((5, 7), (7, 3), (((1,), (0,)), ((), ()))),
    "second transposed": ((5, 7), (3, 7), (((1,), (1,)), ((), ()))),
    "first transposed": ((7, 5), (7, 3), (((0,), (0,)), ((), ()))),
    "both transposed": ((7, 5), (3, 7), (((0,), (1,)), ((), ()))),
    "vectors": ((7,), (7,), (((0,), (0,)), ((), ()))),
    "matrix and vector": ((5, 7), (7,), (((1,), (0,)), ((), ()))),
    "vector and matrix": ((7,), (4, 7), (((0,), (1,)), ((), ()))),
    "outer": ((3, 2), (4,), (((), ()), ((), ()))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "empty depth": ((3, 0), (0, 2), (((1,), (0,)), ((), ()))),
    "no rows": ((0, 3), (3, 2), (((1,), (0,)), ((), ()))),
    "batch": ((2, 5, 7), (2, 7, 3), (((2,), (1,)), ((0,), (0,)))),
    "batch, transposed": ((2, 5, 7), (2, 3, 7), (((2,), (2,)), ((0,), (0,)))),
    "batch, both transposed": ((2, 7, 5), (2, 3, 7), (((1,), (2,)), ((0,), (0,)))),
    "batch inside": ((5, 2, 7), (7, 3, 2), (((2,), (0,)), ((1,), (2,)))),
    "batch last": ((5, 7, 2), (7, 3, 2), (((1,), (0,)), ((2,), (2,)))),
    "two batches, crossed": ((2, 3, 4, 5), (3, 5, 2), (((3,), (1,)), ((0, 1), (2, 0)))),
    "batch only": ((4, 3), (4, 3), (((), ()), ((0, 1), (0, 1)))),
    "elements of a batch": ((4, 3), (4, 3), (((1,), (1,)), ((0,), (0,)))),
    "two depths": ((2, 3, 4), (3, 4, 5), (((1, 2), (0, 1)), ((), ()))),
    "two depths, crossed": ((2, 3, 4), (4, 5, 3), (((2, 1), (0, 2)), ((), ()))),
    "two depths, apart": ((3, 2, 4), (5, 4, 3), (((0, 2), (2, 1)), ((), ()))),
    "rows of two": ((2, 3, 7), (7, 4, 5), (((2,), (0,)), ((), ()))),
    "depth between": ((2, 7, 3), (4, 7, 5), (((1,), (1,)), ((), ()))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dot_general_contracts_any_dimensions(layout: str, rng: np.random.Generator) -> None:
    """Contracted, batch and free dimensions may be anywhere, in any order."""
    lhs, rhs, dims = LAYOUTS[layout]
    pairs = [
        (whole(rng, lhs, dtype), whole(rng, rhs, dtype))
        for dtype in ("float32", "int32", "bfloat16")
    ]
    assert_same_bits(lambda pairs: [lax.dot_general(a, b, dims) for a, b in pairs], pairs)


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(1)


def dot(preferred: str | None) -> Any:
    """A product of two matrices with a dtype of its result."""
    dims = (((1,), (0,)), ((), ()))
    return lambda a, b: lax.dot_general(a, b, dims, preferred_element_type=preferred)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_multiplied_in_float32_and_rounded_once(
    dtype: str, rng: np.random.Generator
) -> None:
    """Sums that bfloat16 and float16 cannot hold are right until the end."""
    results = (None, "float32", "bfloat16", "float16", "float64")
    a, b = whole(rng, (6, 200), dtype, 2), whole(rng, (200, 5), dtype, 2)
    with jax.enable_x64():
        assert_same_bits(lambda a, b: [dot(each)(a, b) for each in results], a, b)


@pytest.mark.parametrize(
    ("lhs", "rhs", "preferred"),
    [
        *(("float32", "bfloat16", None), ("float32", "bfloat16", "bfloat16")),
        *(("float16", "bfloat16", None), ("float16", "bfloat16", "float32")),
        *(("float8_e4m3fn", "float8_e5m2", "float32"), ("float8_e4m3fn", "bfloat16", None)),
        *(("int8", "bfloat16", None), ("int8", "float32", None), ("int16", "bfloat16", "float32")),
        *(("int8", "int8", "float32"), ("int32", "int32", "float32"), ("int4", "bfloat16", None)),
        *(("float32", "float32", "int32"), ("bool", "float32", None), ("int8", "int8", "float16")),
        *(("float32", "complex64", None), ("complex64", "complex64", None)),
    ],
)
def test_operands_of_two_dtypes(
    lhs: str, rhs: str, preferred: str | None, rng: np.random.Generator
) -> None:
    """Neither is rounded to the dtype of the other or of the result first."""
    a, b = whole(rng, (6, 40), lhs, 1 if lhs == "bool" else 5), whole(rng, (40, 5), rhs, 5)
    if rhs == "complex64":
        b = b + whole(rng, b.shape, rhs) * np.complex64(1j)
    if lhs == "complex64":
        a = a - whole(rng, a.shape, lhs) * np.complex64(1j)
    assert_same_bits(dot(preferred), a, b)


def test_an_operand_is_not_rounded_to_the_dtype_of_the_result() -> None:
    """257 is no bfloat16, and 257 times 257 is not 256 times 256."""
    value = np.array([[257.0, 1.0]], np.float32)
    assert_same_bits(dot("bfloat16"), value, value.T.copy())
    assert both(dot("bfloat16"), value, value.T.copy())[0][0] == 66048


@pytest.mark.parametrize(
    ("lhs", "rhs", "preferred"),
    [
        *(("int8", "int8", "int32"), ("int8", "int8", None), ("uint8", "uint8", "int32")),
        *(("int8", "uint8", "int32"), ("int4", "int4", None), ("int4", "int8", "int32")),
        *(("int16", "int16", "int32"), ("int16", "int16", None), ("int32", "int32", None)),
        *(("uint32", "uint32", None), ("int8", "int32", "int32"), ("int32", "uint32", None)),
        *(("bool", "bool", None), ("bool", "bool", "int32"), ("uint16", "uint16", "uint32")),
        *(("int16", "int32", "int32"), ("uint8", "int16", "int32")),
    ],
)
def test_integers_are_exact_and_wrap(
    lhs: str, rhs: str, preferred: str | None, rng: np.random.Generator
) -> None:
    """Whatever the sums are, up to the extremes of the dtypes."""
    pairs: list[Any] = []
    for depth in (1, 3, 64, 1024, 1025, 2048):
        a, b = full(rng, (4, depth), lhs), full(rng, (depth, 3), rhs)
        if lhs != "bool":
            a[0], b[:, 0] = jnp.iinfo(lhs).min, jnp.iinfo(rhs).min
            a[1], b[:, 1] = jnp.iinfo(lhs).max, jnp.iinfo(rhs).max
        pairs.append((a, b))
    assert_same_bits(lambda pairs: [dot(preferred)(a, b) for a, b in pairs], pairs)


@pytest.mark.parametrize("out", ["int2", "int4", "uint4"])
def test_integers_of_few_bits_wrap(out: str, rng: np.random.Generator) -> None:
    """A product of int2 or int4 that JAX evaluates nowhere is right, too."""
    dtype = jnp.dtype(out)
    a, b = full(rng, (5, 9), out), full(rng, (9, 6), out)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    bits = jnp.iinfo(dtype).bits
    low = int(jnp.iinfo(dtype).min)
    wrapped = (exact - low) % 2**bits + low
    found = multiplier(dtype, dtype, dtype, 9)(a, b)
    assert found.dtype == dtype
    assert (found.astype(np.int64) == wrapped).all()
    assert (multiplier(dtype, dtype, np.int32, 9)(a, b) == exact).all()


def test_int64_and_float64(rng: np.random.Generator) -> None:
    """They are multiplied in themselves."""
    with jax.enable_x64():
        a, b = full(rng, (3, 5), "int64"), full(rng, (5, 2), "int64")
        assert_same_bits(dot(None), a, b)
        assert_same_bits(dot("int64"), full(rng, (3, 5), "int32"), full(rng, (5, 2), "int32"))
        a, b = rng.normal(size=(3, 50)), rng.normal(size=(50, 2))
        assert_close(dot(None), a, b)
        assert_close(dot(None), a + 1j * a[::-1], b - 2j)
        assert_close(
            dot("float64"), *(rng.normal(size=s).astype(np.float32) for s in ((3, 50), (50, 2)))
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_products_of_any_numbers(dtype: str, rng: np.random.Generator) -> None:
    """Only the order of the sums differs."""
    for depth in (1, 17, 300):
        a, b = (rng.normal(size=s).astype(jnp.dtype(dtype)) for s in ((9, depth), (depth, 8)))
        assert_close(dot(None), a, b)


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_special_values(depth: int, dtype: str) -> None:
    """Infinity, NaN and signed zeros."""
    a = np.ones((5, depth), np.float32)
    a[:, 0] = [0.0, -0.0, np.inf, -np.inf, np.nan]
    b = np.full((depth, 4), -0.0, np.float32)
    b[0] = [1.0, -1.0, 0.0, np.inf]
    assert_same_bits(dot(None), *(each.astype(jnp.dtype(dtype)) for each in (a, b)))


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_operands_that_are_views(axes: tuple[int, ...], rng: np.random.Generator) -> None:
    """Transposed and broadcast operands are multiplied right, and not changed."""
    shape = [(2, 5, 4)[axis] for axis in axes]
    a = np.transpose(whole(rng, tuple(shape), "float32"), np.argsort(axes))
    b = np.broadcast_to(whole(rng, (4, 1), "float32"), (2, 4, 3))
    kept = a.copy(), b.copy()
    multiply = multiplier(np.float32, np.float32, np.float32, 4, batched=True)
    assert (multiply(a, b) == np.einsum("bij,bjk->bik", a, b)).all()
    assert (a == kept[0]).all()
    assert (b == kept[1]).all()


def test_precision_is_not_simulated(rng: np.random.Generator) -> None:
    """Whatever precision a program names, products of float32 are those of float32."""
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((9, 30), (30, 8)))
    dims = (((1,), (0,)), ((), ()))
    for precision in (lax.Precision.DEFAULT, lax.Precision.HIGHEST):
        assert_close(lambda a, b, p=precision: lax.dot_general(a, b, dims, precision=p), a, b)
    preset = lax.DotAlgorithmPreset.BF16_BF16_F32
    simulated = jax.make_jaxpr(lambda a, b: lax.dot_general(a, b, dims, precision=preset))(a, b)
    from pallas_sim.simulation import Machine, evaluate

    found = evaluate(simulated, Machine(), [a, b])[0]
    assert abs(found - a.astype(np.float64) @ b).max() < 1e-5


SIZES = ([3, 0, 4], [7, 0, 0], [1, 2, 3], [0, 0, 0], [2, 5, 3])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_ragged_dot(dtype: str, rng: np.random.Generator) -> None:
    """Each group of rows with its own matrix; rows after the last group give zeros."""
    a, b = whole(rng, (7, 5), dtype), whole(rng, (3, 5, 4), dtype)
    preferred = "int32" if dtype == "int8" else None

    def products(a: Any, b: Any, sizes: Any) -> Any:
        return [lax.ragged_dot(a, b, s, preferred_element_type=preferred) for s in sizes]

    assert_same_bits(products, a, b, [np.array(each, np.int32) for each in SIZES])


RAGGED = {
    "batch, rows": ((2, 7, 5), (3, 2, 5, 4), ((2,), (2,)), ((0,), (1,)), 1, [0], (2,)),
    "rows, group inside": ((7, 5), (5, 3, 4), ((1,), (0,)), ((), ()), 0, [1], ()),
    "second rows": ((2, 7, 5), (3, 5, 4), ((2,), (1,)), ((), ()), 1, [0], (2,)),
    "crossed batches": (
        (2, 3, 7, 5),
        (3, 3, 2, 5, 4),
        ((3,), (3,)),
        ((1, 0), (1, 2)),
        2,
        [0],
        (3, 2),
    ),
    "contracted": ((6, 7), (7, 4), ((1,), (0,)), ((), ()), 1, [], ()),
    "contracted, first": ((7, 6), (7, 4), ((0,), (0,)), ((), ()), 0, [], ()),
    "contracted, batch": ((2, 6, 7), (2, 7, 4), ((2,), (1,)), ((0,), (0,)), 2, [], (2,)),
    "contracted, crossed": (
        (2, 3, 4, 5, 6),
        (3, 4, 2, 6, 2),
        ((4,), (3,)),
        ((1, 2, 0), (0, 1, 2)),
        4,
        [],
        (3, 4, 2),
    ),
    "contracted, outer": ((6, 2, 7), (7, 4, 2), ((1, 2), (2, 0)), ((), ()), 2, [], (2,)),
    "of batches": ((7, 3, 5), (7, 5, 2), ((2,), (1,)), ((0,), (0,)), 0, [], ()),
}


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("case", RAGGED)
def test_ragged_dot_general(case: str, each: bool, rng: np.random.Generator) -> None:
    """All three modes, with sizes for all and for each index of outer dimensions."""
    lhs, rhs, contract, batch, ragged, group, outer = RAGGED[case]
    numbers = lax.RaggedDotDimensionNumbers((contract, batch), [ragged], group)
    if each:
        sizes = rng.integers(0, 3, (*outer, 3)).astype(np.int32)
    else:
        sizes = np.array([2, 1, 3], np.int32)
    assert_same_bits(
        lambda a, b, s: lax.ragged_dot_general(a, b, s, numbers),
        whole(rng, lhs, "float32"),
        whole(rng, rhs, "float32"),
        sizes,
    )


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_row_and_a_column_have_the_same_product_wherever_they_are(dtype, batch):
    generator = np.random.default_rng(0)
    for m, k, n in [(1, 5, 127), (17, 127, 129), (16, 64, 24), (33, 300, 12)]:
        a = generator.normal(size=(*batch, m, k)).astype(dtype)
        b = generator.normal(size=(*batch, k, n)).astype(dtype)
        rows, columns = generator.permutation(m), generator.permutation(n)

        def product(a, b):
            return simulate(lambda a, b: jnp.matmul(a, b), a, b).values

        plain = product(a, b)
        np.testing.assert_array_equal(product(a[..., rows, :], b), plain[..., rows, :])
        np.testing.assert_array_equal(product(a, b[..., columns]), plain[..., columns])
