"""Products with the arithmetic of a chip: the bits of an H200, and what is published of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import chip_record
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from chip_record import dot, wgmma
from jax.experimental import pallas as pl

from pallas_sim import simulate
from pallas_sim.chips import ACCUMULATIONS, GPUS, TARGETS, Accumulation, Target
from pallas_sim.errors import OptionError
from pallas_sim.gpu.tensor_cores import rounded_to_tf32, tensor_product
from pallas_sim.machine import Machine
from pallas_sim.products import fused_product

#: What an H200 computed (JAX 0.11.2, driver 580); ``scripts/chip_record.py`` says what is in it.
RECORD = chip_record.load(Path(__file__).with_name("h200.npz"))

#: More kinds of products, 8 or 16 columns each: subnormal operands, Triton's sums of float16.
PARTS = chip_record.load(Path(__file__).with_name("h200_parts.npz"))

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_E5M2 = np.dtype(ml_dtypes.float8_e5m2)
_HOPPER = ACCUMULATIONS[9]
_KNOWN = list(dict.fromkeys([*_HOPPER.values(), *ACCUMULATIONS[8].values()]))


#: Results of numpy in float32 that lie on the other side of a tie than the chip's.
_ROUNDED_THE_OTHER_WAY = {"bfloat16.exp": 1, "bfloat16.logistic": 1, "float16.exp2": 3}


@pytest.fixture(scope="module")
def record() -> Mapping[str, np.ndarray[Any, Any]]:
    """The arrays of the record."""
    return RECORD.arrays


def bits(array: Any) -> Any:
    """Of float32."""
    return np.asarray(array, np.float32).view(np.uint32)


@pytest.mark.parametrize("name", [*filter(chip_record.is_claimed, RECORD.calls)])
def test_every_bit_of_the_record(name: str) -> None:
    """4,096 sums each, by the kernel that the chip ran; ``"chip"`` is the default."""
    assert chip_record.different(RECORD, name) == 0


@pytest.mark.parametrize("name", PARTS.calls)
def test_every_bit_of_the_parts(name: str) -> None:
    """256 to 1,024 sums each."""
    assert chip_record.different(PARTS, name) == 0


@pytest.mark.parametrize("rows", [16, 64])
def test_sums_of_float16_are_those_of_wgmma_where_its_tiles_fit(rows: int) -> None:
    """Triton takes ``mma`` for fewer than 64 rows, of which no record has sums of float16."""
    kernel, (x, y) = chip_record.call_of(PARTS.arrays, "tdot_f16.float16.wide")
    x = x[:rows]
    by_chip = simulate(kernel, x, y, target="h200").values
    usual = simulate(kernel, x, y, target="h200", arithmetic="float32").values
    assert (by_chip == usual).all() == (rows == 16)


@pytest.mark.parametrize(
    "name", [name for name in RECORD.calls if not chip_record.is_claimed(name)]
)
def test_functions_of_16_bits(name: str) -> None:
    """Of every finite operand."""
    known = _ROUNDED_THE_OTHER_WAY.get(name.partition(".")[2], 0)
    assert chip_record.different(RECORD, name) == known


def test_the_record_is_whole() -> None:
    """63 products of 64 x 64, two conversions and 22 functions of every finite 16-bit float."""
    products = [name for name in RECORD.calls if name.startswith(("wgmma", "tdot"))]
    assert (len(products), len(RECORD.calls)) == (63, 87)
    assert Path(__file__).with_name("h200.npz").stat().st_size < 4_000_000


@pytest.mark.parametrize("name", ["wgmma.bfloat16.normal", "tdot.float16.None"])
def test_one_bit_more_or_less_is_seen(name: str, record: Any) -> None:
    """So is half the step: the record decides each number of the model."""
    dtype = jnp.dtype(name.split(".")[1])
    x, y = (record[f"{name}.{side}"].view(dtype) for side in "xy")
    y = y.T if name.startswith("wgmma") else y
    for changed in (Accumulation(16, 24), Accumulation(16, 26), Accumulation(8, 25)):
        product = tensor_product(dtype, dtype, np.float32, x.shape[1], accumulation=changed)
        assert (bits(product(x, y, None)) != bits(record[f"{name}.o"])).sum() > 10


def test_a_product_used_twice_begins_at_zero() -> None:
    """Triton moves an addition into the accumulator only where nothing else reads the product."""

    def body(x: Any, y: Any, z: Any, total: Any, product: Any) -> None:
        product[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)
        alone = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)
        total[...] = z[...] + alone + alone

    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    x, y, z = (RECORD.arrays[f"tdot_added.bfloat16.wide.{side}"] for side in "xyz")
    x, y = x.view(jnp.bfloat16), y.view(jnp.bfloat16)
    kernel = pl.pallas_call(body, out_shape=(shape, shape))
    total, product = simulate(kernel, x, y, z, target="h200").values
    assert (bits(total) == bits(z + product + product)).all()


def by_definition(a: Any, b: Any, c: Any, adding: Accumulation, least: int) -> Any:
    """The model in fractions, one product after the other."""

    def exponent(number: float, smallest: int) -> int:
        return max(int(np.frexp(number)[1]) - 1, smallest)

    def cut(number: Fraction, unit: Fraction) -> Fraction:
        whole = abs(number) // unit * unit
        return whole if number > 0 else -whole

    result = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, j in np.ndindex(*result.shape):
        total = Fraction(float(c[i, j]))
        whole = a.shape[1] // 32 * 32 if adding.order else 0
        terms = [first + k for first in range(0, whole, 32) for k in adding.order]
        terms += range(whole, a.shape[1])
        for start in range(0, a.shape[1], adding.step):
            group = terms[start : start + adding.step]
            pairs = [(float(x), float(y)) for x, y in zip(a[i, group], b[group, j], strict=True)]
            pairs = [(x, y) for x, y in pairs if x and y]
            known = [exponent(x, least) + exponent(y, least) for x, y in pairs]
            known += [exponent(float(total), -126)] if total else []
            if not known:
                continue
            unit = Fraction(2) ** (max(known) - adding.fraction_bits)
            total = cut(total, unit) + sum(cut(Fraction(x) * Fraction(y), unit) for x, y in pairs)
            if total:
                place = exponent(float(total), -126) - adding.sum_bits
                total = cut(total, Fraction(2) ** place)
        result[i, j] = float(total)
    return result


@pytest.mark.parametrize("adding", _KNOWN)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_the_definition(adding: Accumulation, dtype: str) -> None:
    """With an accumulator, subnormal operands, zeros, and a depth that no step divides."""
    rng = np.random.default_rng(3)
    wide = 60 if dtype == "bfloat16" else 6
    scales = np.exp2(rng.integers(-wide, wide // 2, (2, 40))).astype(np.float32)
    a = (rng.normal(size=(3, 40)) * scales[0]).astype(dtype)
    b = (rng.normal(size=(40, 5)) * scales[1][:, None]).astype(dtype)
    a[0, ::3], b[5], b[:, 2], a[2] = 0, 0, 0, 0
    c = rng.normal(size=(3, 5)).astype(np.float32)
    least = int(ml_dtypes.finfo(dtype).minexp)
    product = tensor_product(a.dtype, b.dtype, np.float32, 40, accumulation=adding)
    for before in (c, np.zeros_like(c)):
        assert (
            bits(product(a, b, before)) == bits(by_definition(a, b, before, adding, least))
        ).all()


@pytest.mark.parametrize("adding", _KNOWN)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("largest", [2, 16, 192])
@pytest.mark.parametrize("before", [0.0, 1.0, 2.0**-10, 2.0**23])
def test_the_definition_for_integers(
    adding: Accumulation, dtype: str, largest: int, before: float
) -> None:
    """Nothing is cut off of small ones, so they are added at once; of large ones something is."""
    rng = np.random.default_rng(largest)
    a, b = (
        rng.integers(-largest, largest + 1, shape).astype(np.float32).astype(dtype)
        for shape in ((2, 70), (70, 3))
    )
    c = (rng.integers(-9, 10, (2, 3)) * before).astype(np.float32)
    least = int(ml_dtypes.finfo(dtype).minexp)
    product = tensor_product(a.dtype, b.dtype, np.float32, 70, accumulation=adding)
    assert (bits(product(a, b, c)) == bits(by_definition(a, b, c, adding, least))).all()


def test_float8_keeps_13_bits_of_the_largest_term() -> None:
    """Terms are cut off toward zero; the accumulator and each group of 32 count."""
    a, b = np.zeros((1, 64), _E4M3), np.ones((64, 1), _E4M3)
    short = tensor_product(
        _E4M3, _E4M3, np.float32, 64, accumulation=_HOPPER["wgmma", "float8_e4m3fn"]
    )
    a[0, 0], a[0, 1:9] = 256, 2**-6  # the last place of 256 is 2**-5
    assert short(a, b, None).tolist() == [[256]]
    assert short(-a, b, None).tolist() == [[-256]]
    a[0, 1:9] = 2**-5
    assert short(a, b, None).tolist() == [[256 + 8 * 2**-5]]
    a[0, :] = 0
    a[0, 32:40] = 2**-6
    assert short(a, b, np.array([[256]], np.float32)).tolist() == [[256]]
    assert short(a, b, None).tolist() == [[8 * 2**-6]]


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_operands_follow_float32(special: float) -> None:
    """In their rows and columns only: the others have the bits of the chip."""
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=shape).astype("bfloat16") for shape in ((4, 64), (64, 6)))
    adding = _HOPPER["wgmma", "bfloat16"]
    chip = tensor_product(a.dtype, b.dtype, np.float32, 64, accumulation=adding)
    plain = tensor_product(a.dtype, b.dtype, np.float32, 64)
    before = chip(a, b, None)
    odd = a.copy()
    odd[1, 3] = special
    found = chip(odd, b, None)
    np.testing.assert_array_equal(found[1], plain(odd, b, None)[1])
    assert not np.isfinite(found[1]).any()
    rest = [0, 2, 3]
    assert (bits(found[rest]) == bits(before[rest])).all()
    c = np.zeros((4, 6), np.float32)
    c[2, 5] = special
    found = chip(a, b, c)
    assert not np.isfinite(found[2, 5])
    found[2, 5] = before[2, 5]
    assert (bits(found) == bits(before)).all()


def test_overflow_and_subnormal_results_follow_float32() -> None:
    """They are outside of what was compared."""
    adding = _HOPPER["wgmma", "bfloat16"]
    product = tensor_product("bfloat16", "bfloat16", np.float32, 2, accumulation=adding)
    a = np.array([[2.0**100, 2.0**100], [2.0**-70, 0]]).astype("bfloat16")
    b = np.array([[2.0**100, 2.0**-70], [1, 1]]).astype("bfloat16")
    assert product(a, b, None).tolist() == [[np.inf, 2.0**100], [2.0**30, 2.0**-140]]


def test_no_products() -> None:
    """A sum of nothing is the accumulator."""
    adding = _HOPPER["wgmma", "bfloat16"]
    product = tensor_product("bfloat16", "bfloat16", np.float32, 0, accumulation=adding)
    a, b = np.zeros((2, 0), "bfloat16"), np.zeros((0, 3), "bfloat16")
    assert product(a, b, None).tolist() == [[0] * 3] * 2
    assert product(a, b, np.ones((2, 3), np.float32)).tolist() == [[1] * 3] * 2


def test_only_products_of_zeros() -> None:
    """Where one operand has numbers, the other has zeros; the accumulator is truncated."""
    a, b = np.tile(np.array([1, 0]), (2, 32)), np.tile(np.array([[0], [1]]), (32, 3))
    adding = _HOPPER["wgmma", "float8_e5m2"]
    product = tensor_product(_E5M2, _E5M2, np.float32, 64, accumulation=adding)
    c = np.full((2, 3), -1 - 2**-12 - 2**-14, np.float32)
    assert (product(a.astype(_E5M2), b.astype(_E5M2), c) == -1 - 2**-12).all()
    assert (product(a.astype(_E5M2), b.astype(_E5M2), None) == 0).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 3000), (3000, 1), (130, 257)])
def test_any_size(rows: int, columns: int) -> None:
    """Parts of rows give what each row gives alone."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=(rows, 48)).astype("bfloat16")
    b = rng.normal(size=(48, columns)).astype("bfloat16")
    adding = _HOPPER["wgmma", "bfloat16"]
    product = tensor_product("bfloat16", "bfloat16", np.float32, 48, accumulation=adding)
    found = product(a, b, None)
    for row in {0, rows // 2, rows - 1}:
        assert (bits(found[row]) == bits(product(a[row : row + 1], b, None)[0])).all()


def test_sums_of_32_float8_products_on_blackwell_do_not_overflow() -> None:
    """They have 34 bits."""
    a, b = np.full((1, 32), 480, _E5M2), np.full((32, 1), 57344, _E5M2)
    a = np.full((1, 32), 57344, _E5M2)
    adding = ACCUMULATIONS[10]["tcgen05_mma", "float8_e5m2"]
    product = tensor_product(_E5M2, _E5M2, np.float32, 32, accumulation=adding)
    assert product(a, b, None).tolist() == [[32 * 57344.0**2]]


def test_tf32_of_triton_is_rounded() -> None:
    """Half away from zero, to 10 bits."""
    x = np.array([1 + 2**-11, -(1 + 2**-11), 1 + 2**-11 - 2**-23, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(rounded_to_tf32(x), [1 + 2**-10, -1 - 2**-10, 1, np.inf, np.nan])


@pytest.mark.parametrize(("extra", "ulps"), [(2.0**-60, 2), (-(2.0**-60), 1), (0.0, 2)])
def test_fused_multiply_adds_are_rounded_once(extra: float, ulps: int) -> None:
    """1.5 * (1 + 2**-23) is a tie of float32; what decides it has no place in float64."""
    a = np.array([[2.0**-30, 1.5]], np.float32)
    b = np.array([[extra * 2.0**30], [1 + 2.0**-23]], np.float32)
    assert fused_product(a, b)[0, 0] == np.float32(1.5 + ulps * 2.0**-23)


def _nearest(exact: Fraction) -> np.float32:
    """The float32 nearest to a fraction; of two, the even one."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf)]
    numbers = [guess, *around]
    distance = {number: abs(Fraction(float(number)) - exact) for number in numbers}
    least = min(distance.values())
    best = [number for number in numbers if distance[number] == least]
    return min(best, key=lambda number: int(np.float32(number).view(np.uint32)) & 1)


def test_fused_multiply_adds_of_random_numbers() -> None:
    """With few bits, so that ties are common."""
    rng = np.random.default_rng(6)
    a = (rng.integers(-(2**12), 2**12, (4, 9)) * 2.0 ** rng.integers(-20, 20, (4, 9))).astype("f4")
    b = (rng.integers(-(2**12), 2**12, (9, 4)) * 2.0 ** rng.integers(-20, 20, (9, 4))).astype("f4")
    found = fused_product(a, b)
    for i, j in np.ndindex(4, 4):
        total = Fraction(0)
        for x, y in zip(a[i], b[:, j], strict=True):
            total = Fraction(float(_nearest(total + Fraction(float(x)) * Fraction(float(y)))))
        assert found[i, j] == np.float32(float(total))


@pytest.mark.parametrize(
    ("precision", "kept"),
    [
        (None, "tf32"),
        ("default", "tf32"),
        ("high", "tf32"),
        ("highest", "float32"),
        ((jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT), "tf32"),
        (jax.lax.DotAlgorithmPreset.TF32_TF32_F32, "tf32"),
        (jax.lax.DotAlgorithmPreset.F32_F32_F32, "float32"),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32, "bfloat16"),
        (jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3, "not known"),
    ],
)
def test_what_triton_keeps_of_float32(precision: Any, kept: str) -> None:
    """As JAX's lowering asks for it."""
    x = np.full((16, 16), 0, np.float32)
    np.fill_diagonal(x, 1 + 2**-9 + 2**-20)
    found = simulate(dot(precision), x, np.eye(16, dtype=np.float32), target="h100").values[0, 0]
    wanted = {"tf32": 1 + 2**-9, "float32": x[0, 0], "bfloat16": 1, "not known": x[0, 0]}
    assert found == np.float32(wanted[kept])


def test_jax_default_matmul_precision_counts() -> None:
    """It is a parameter of the traced product."""
    x = np.eye(16, dtype=np.float32) * np.float32(1 + 2**-20)
    with jax.default_matmul_precision("highest"):
        found = simulate(dot(), x, np.eye(16, dtype=np.float32), target="h100").values
    assert found[0, 0] == x[0, 0]


def test_products_outside_of_kernels_are_those_of_float32() -> None:
    """XLA computes them."""
    x = np.eye(16, dtype=np.float32) * np.float32(1 + 2**-20)
    found = simulate(jnp.dot, x, np.eye(16, dtype=np.float32), target="h100").values
    assert found[0, 0] == x[0, 0]


def test_accumulators_of_16_bits_follow_the_rule_of_float32() -> None:
    """They are outside of the record."""
    x, y = np.ones((16, 32), np.float16), np.ones((32, 16), np.float16)
    for arithmetic in ("chip", "float32"):
        found = simulate(dot(None, jnp.float16), x, y, target="h100", arithmetic=arithmetic).values
        assert (found == 32).all()


def test_the_accumulator_goes_on_from_product_to_product(record: Any) -> None:
    """Two products into one accumulator are one of twice the depth."""
    x = record["wgmma.float8_e4m3fn.normal.x"].view(_E4M3)
    y = record["wgmma.float8_e4m3fn.normal.y"].view(_E4M3)
    found = simulate(lambda a, b: wgmma(a, b, times=2), x, y, target="h100").values
    adding = _HOPPER["wgmma", "float8_e4m3fn"]
    product = tensor_product(_E4M3, _E4M3, np.float32, 256, accumulation=adding)
    twice = product(np.concatenate([x, x], 1), np.concatenate([y.T, y.T]), None)
    assert (bits(found) == bits(twice)).all()


def test_the_setting() -> None:
    """Of a simulated H100 ``"chip"`` is the default, of an A100 ``"float32"``."""
    a, b = np.zeros((64, 128), _E4M3), np.ones((64, 128), _E4M3)
    a[:, 0], a[:, 1:9] = 256, 2**-6
    for arithmetic, wanted in (("", 256), ("chip", 256), ("float32", 256 + 8 * 2**-6)):
        assert (simulate(wgmma, a, b, target="h100", arithmetic=arithmetic).values == wanted).all()
    assert Machine(target="h200").accumulations
    for target in ("a100", "b200"):
        assert not Machine(target=target).accumulations
        assert Machine(target=target, arithmetic="chip").accumulations
    assert not Machine(target="v6e").accumulations


def test_published_arithmetic_of_an_a100() -> None:
    """24 bits below the largest exponent, of 8 products at a time."""
    a, b = np.zeros((16, 16), "bfloat16"), np.zeros((16, 16), "bfloat16")
    a[0, :9] = b[:9, 0] = 1
    a[0, 1:9] = 2.0**-25
    for target, wanted in (("a100", 1), ("h100", 1 + 8 * 2.0**-25), ("b200", 1 + 8 * 2.0**-25)):
        found = simulate(dot(), a, b, target=target, arithmetic="chip").values[0, 0]
        assert found == wanted


def test_a_chip_whose_arithmetic_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, with those that are."""
    new = dataclasses.replace(GPUS["b200"], capability=15)
    monkeypatch.setitem(GPUS, "new", new)
    monkeypatch.setitem(TARGETS, "new", Target("new", "gpu", new.device_kind))
    with pytest.raises(OptionError, match=r"how new adds products is not known.*a100.*b200.*v6e"):
        simulate(jnp.sin, np.ones(3, np.float32), target="new", arithmetic="chip")


def test_an_arithmetic_that_there_is_not() -> None:
    """One error, with those that there are."""
    with pytest.raises(OptionError, match="unknown arithmetic 'exact'; valid: chip, float32"):
        simulate(jnp.sin, np.ones(3, np.float32), target="h100", arithmetic="exact")
