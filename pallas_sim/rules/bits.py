"""Rules: what is done to the bits of elements, comparisons, choices, and conversions.

First shifts, counts, orders and formats, where an element is a word; several elements in one word
(``pack_elementwise``); then what compares elements, chooses between them, or converts them.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pallas_sim.compat.jaxprs import key_implementation
from pallas_sim.dtypes import (
    SMALL,
    Array,
    bit_width,
    bitcast_axis,
    codes_of,
    compute_dtype,
    convert,
    converter,
    from_codes,
    is_complex,
    is_float,
    is_unsigned,
    reinterpret,
    round_by_bits,
    word_dtype,
)
from pallas_sim.evaluation import fallback
from pallas_sim.generators import (
    core_generator,
    count_pairs,
    draw_bits,
    folded_key_of_core,
    key_of_core,
    threefry2x32,
)
from pallas_sim.machine import Thread
from pallas_sim.memory import KeyArray, is_key_dtype
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.elementwise import direct, elementwise, register

if TYPE_CHECKING:
    from pallas_sim.machine import Thread


# numpy shifts by the width of a word or more, or by less than 0, as JAX does: nothing of an
# unsigned word is left, and of a signed one its sign.


@rule("shift_left")
def _shift_left(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if bit_width(dtype) == 8 * dtype.itemsize:
        return np.left_shift
    mask = np.uint8((1 << bit_width(dtype)) - 1)
    return lambda x, y: from_codes(np.left_shift(codes_of(x), codes_of(y)) & mask, dtype)


@rule("shift_right_logical")
def _shift_right_logical(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if dtype.kind == "u":
        return np.right_shift
    return lambda x, y: from_codes(np.right_shift(codes_of(x), codes_of(y)), dtype)


@rule("shift_right_arithmetic")
def _shift_right_arithmetic(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if dtype.kind == "i":
        return np.right_shift
    width = bit_width(dtype)
    signed = np.dtype(f"int{8 * dtype.itemsize}")
    mask = word_dtype(dtype).type((1 << width) - 1)
    spare = np.array(8 * dtype.itemsize - width, signed)[()]

    def shift(x: Any, y: Any) -> Any:
        # The uppermost bit of the element is that of a signed word, while it is shifted.
        codes = (codes_of(x).view(signed) << spare) >> spare
        shifted = np.right_shift(codes, codes_of(y).astype(np.int64)).astype(signed)
        return from_codes(shifted.view(mask.dtype) & mask, dtype)

    return shift


@rule("population_count")
def _population_count(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    return lambda x: np.bitwise_count(codes_of(x)).astype(dtype)


@rule("clz")
def _clz(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    width = bit_width(dtype)

    def bits_needed(codes: Any) -> Any:
        return np.frexp(codes.astype(np.float64))[1]

    def count(x: Any) -> Any:
        codes = codes_of(x)
        if width < 64:
            return (width - bits_needed(codes)).astype(dtype)
        high, low = codes >> np.uint64(32), codes & np.uint64(0xFFFFFFFF)
        needed = np.where(high != 0, 32 + bits_needed(high), bits_needed(low))
        return (64 - needed).astype(dtype)

    return count


@rule("mulhi")
def _mulhi(eqn: Equation) -> Evaluate:
    """Bind the upper half of the product of two integers."""
    dtype = eqn.ins[0].dtype
    width = bit_width(dtype)
    if width < 64:
        wide = np.uint64 if is_unsigned(dtype) else np.int64
        return lambda x, y: ((x.astype(wide) * y.astype(wide)) >> wide(width)).astype(dtype)

    def of_objects(x: Any, y: Any) -> Any:
        product = np.multiply(x, y, dtype=object)
        return np.asarray(product >> 64).astype(dtype)

    return of_objects


@rule("eq_to", "lt_to", "le_to")
def _total_order(eqn: Equation) -> Evaluate:
    compare: Evaluate = getattr(operator, eqn.name.removesuffix("_to"))
    if not is_float(eqn.ins[0].dtype):
        return elementwise(eqn, compare)
    return lambda x, y: compare(ordered_bits(x), ordered_bits(y))


def ordered_bits(array: Any) -> Any:
    """Return integers in the total order of floats: -NaN, -inf, ..., -0, +0, ..., inf, NaN."""
    signed = np.dtype(f"int{8 * array.dtype.itemsize}")
    spare = 8 * array.dtype.itemsize - bit_width(array.dtype)
    codes = (codes_of(array) << codes_of(array).dtype.type(spare)).view(signed)
    return np.where(codes < 0, codes ^ signed.type(np.iinfo(signed).max), codes)


@rule("nextafter")
def _nextafter(eqn: Equation) -> Evaluate:
    dtype = eqn.ins[0].dtype
    if dtype.itemsize >= 4:
        return np.nextafter
    one = word_dtype(dtype).type(1)
    sign = word_dtype(dtype).type(1 << (bit_width(dtype) - 1))

    def nextafter(x: Any, y: Any) -> Any:
        bits = codes_of(x)
        away = np.where(bits & sign, y < x, y > x)
        stepped = np.where(away, bits + one, bits - one)
        stepped = np.where(x == 0, np.where(y < x, sign | one, one), stepped)
        stepped = np.where(x == y, codes_of(y), stepped).astype(one.dtype)
        nan = np.isnan(x) | np.isnan(y)
        return np.where(nan, np.asarray(np.nan, dtype), from_codes(stepped, dtype))

    return nextafter


@rule("reduce_precision")
def _reduce_precision(eqn: Equation) -> Evaluate:
    """Bind rounding to a format with fewer bits of exponent and mantissa, without subnormals."""
    dtype = eqn.ins[0].dtype
    info = ml_dtypes.finfo(dtype)
    exponent_bits, mantissa_bits = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    kind = word_dtype(dtype).type
    dropped = info.nmant - mantissa_bits
    bias = (1 << (info.nexp - 1)) - 1
    reach = (1 << (exponent_bits - 1)) - 1
    sign = kind(1 << (info.bits - 1))
    exponent = kind(((1 << info.nexp) - 1) << info.nmant)
    infinity = exponent

    def reduce(x: Any) -> Any:
        bits = codes_of(x)
        if dropped > 0:
            odd = (bits >> kind(dropped)) & kind(1)
            bits = bits + (kind((1 << (dropped - 1)) - 1) + odd)
            bits = bits & ~kind((1 << dropped) - 1)
        if exponent_bits < info.nexp:
            power = bits & exponent
            bits = np.where(
                power > kind((bias + reach) << info.nmant),
                (bits & sign) | infinity,
                np.where(power <= kind((bias - reach) << info.nmant), bits & sign, bits),
            )
        return np.where(np.isnan(x), x, from_codes(bits, dtype))

    return reduce


@rule("bitcast_convert_type")
def _bitcast_convert_type(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    if bit_width(eqn.ins[0].dtype) == bit_width(dtype) == 8 * dtype.itemsize:
        return lambda x: x.view(dtype)
    return lambda x: reinterpret(x, dtype)


@rule("bitcast")
def _bitcast(eqn: Equation) -> Evaluate:
    """Bind the TPU's bitcast, which keeps the rank: one axis becomes longer or shorter."""
    dtype = eqn.out.dtype
    # Before JAX 0.12 the axis is always the second minor one.
    axis = eqn.params.get("dim", eqn.ins[0].ndim - 2)

    return lambda x: bitcast_axis(x, dtype, axis)


@rule("pack_elementwise")
def _pack_elementwise(eqn: Equation) -> Evaluate:
    """Bind packing: the first operand is in the lowest bits of each word."""
    packed = np.dtype(eqn.params["packed_dtype"])
    width = bit_width(packed)
    word = eqn.out.dtype.type
    mask = word((1 << width) - 1)
    rounds = is_float(packed)

    def pack(*values: Any) -> Any:
        result = word(0)
        for number, value in enumerate(values):
            part = codes_of(convert(value, packed) if rounds else value)
            result = result | ((part.astype(word) & mask) << word(number * width))
        return result

    return pack


@rule("unpack_elementwise")
def _unpack_elementwise(eqn: Equation) -> Evaluate:
    packed, unpacked = np.dtype(eqn.params["packed_dtype"]), eqn.out.dtype
    width = bit_width(packed)
    start = eqn.params["index"] * width

    def unpack(x: Any) -> Any:
        codes = codes_of(x)
        part = (codes >> codes.dtype.type(start)) & codes.dtype.type((1 << width) - 1)
        return convert(from_codes(part.astype(word_dtype(packed)), packed), unpacked)

    return unpack


# Comparisons, logic, choices between elements, and conversions between dtypes.

_SIGNED = {size: np.dtype(f"int{8 * size}") for size in (1, 2, 4, 8)}


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(eqn: Equation) -> Evaluate:
    dtype, function = eqn.ins[0].dtype, getattr(operator, eqn.name)
    if is_key_dtype(dtype):
        return lambda x, y: _same_keys(eqn.name, x, y)
    if is_complex(dtype) and eqn.name not in ("eq", "ne"):
        raise NotImplementedError("complex numbers are compared by eq and ne only")
    return elementwise(eqn, function, direct(eqn, function))


def _same_keys(name: str, x: KeyArray, y: KeyArray) -> Any:
    axes = tuple(range(-(x.data.ndim - x.ndim), 0))
    same = (x.data == y.data).all(axis=axes)
    return same if name == "eq" else ~same


register({"and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert})


@rule("select_n")
def _select_n(eqn: Equation) -> Evaluate:
    which, *cases = eqn.ins
    if len(cases) == 1:
        return lambda which, case: case
    if is_key_dtype(eqn.out.dtype):
        return _select_keys
    if which.shape == ():
        # The case itself, and no copy of it.
        return lambda which, *cases: cases[int(which)]
    if which.dtype == np.bool_:
        return _select
    return _select_of_many


def _select(which: Any, off: Any, on: Any) -> Any:
    size = off.dtype.itemsize
    if which.size < SMALL or size > 8:
        return np.where(which, on, off)
    # By bits, which takes as long for any mask; np.where guesses which element comes next.
    word = _SIGNED[size]
    mask = np.negative(which.view(np.int8)).astype(word, copy=False)
    below = off.view(word)
    result = (on.view(word) ^ below) & mask
    result ^= below
    return result.view(off.dtype)


def _select_of_many(which: Any, *cases: Any) -> Any:
    result = cases[0]
    for number, case in enumerate(cases[1:], 1):
        result = np.where(which == number, case, result)
    return result


def _select_keys(which: Any, *cases: KeyArray) -> KeyArray:
    data = [case.data for case in cases]
    which = np.reshape(which, which.shape + (1,) * (data[0].ndim - which.ndim))
    return KeyArray(_select_of_many(which, *data), cases[0].dtype)


#: The largest numbers of the formats to which a GPU's ``cvt.satfinite`` converts.
_LARGEST = {
    np.dtype(dtype): float(ml_dtypes.finfo(dtype).max)
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}


@rule("convert_element_type", threaded=True)
def _convert_element_type(eqn: Equation) -> Evaluate:
    """Convert as JAX does; but kernels of GPUs saturate float8, where JAX has NaN or infinity.

    Mosaic GPU asks for ``cvt.satfinite`` (``fragmented_array.py``), and so does Triton: an H200
    gave 448 and 57344 for all larger numbers on both routes.
    """
    source, target = eqn.ins[0].dtype, eqn.out.dtype
    convert = converter(source, target)
    largest = _LARGEST.get(target)
    if largest is None or not is_float(source) or source == target:
        return lambda thread, array: convert(array)

    def evaluate(thread: Thread, array: Any) -> Any:
        if thread.kernels and thread.machine.platform == "gpu":
            array = np.clip(array.astype(compute_dtype(source)), -largest, largest).astype(source)
        return convert(array)

    return evaluate


#: The implementation of the keys that ``pltpu.stateful_uniform`` and its like make and ignore.
_STATEFUL = "_pallas_internal_stateful"


#: The implementation of the keys that seed the generator of a TPU core. What others do is composed
#: of other primitives by JAX.
_OF_CORE = "pallas_tpu"


@rule("random_seed", threaded=True)
def _random_seed(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    name = key_implementation(dtype)
    if name == _STATEFUL:
        return lambda thread, seeds: KeyArray(np.zeros(np.shape(seeds), np.int32), dtype)
    if name != _OF_CORE:
        return fallback(eqn)
    return lambda thread, seeds: KeyArray(key_of_core(seeds), dtype)


@rule("random_fold_in", threaded=True)
def _random_fold_in(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    if key_implementation(dtype) != _OF_CORE:
        return fallback(eqn)
    return lambda thread, keys, data: KeyArray(folded_key_of_core(keys.data, data), dtype)


@rule("random_bits", threaded=True)
def _random_bits(eqn: Equation) -> Evaluate:
    shape, out = eqn.params["shape"], eqn.out
    name = key_implementation(eqn.ins[0].dtype)
    if name == _STATEFUL:
        return lambda thread, keys: draw_bits(_generator(thread), out.shape, out.dtype)
    if name != _OF_CORE:
        return fallback(eqn)

    def seeded(thread: Thread, keys: KeyArray) -> Array:
        result = np.empty(out.shape, out.dtype)
        for index in np.ndindex(keys.shape):
            thread.generator = core_generator(*keys.data[index].ravel())
            result[index] = draw_bits(thread.generator, shape, out.dtype)
        return result

    return seeded


@rule("random_wrap")
def _random_wrap(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    return lambda data: KeyArray(np.asarray(data), dtype)


@rule("random_unwrap")
def _random_unwrap(eqn: Equation) -> Evaluate:
    return lambda keys: keys.data


@rule("threefry2x32")
def _threefry2x32(eqn: Equation) -> Evaluate:
    return threefry2x32


@rule("iota_2x32_shape")
def _iota_2x32_shape(eqn: Equation) -> Evaluate:
    counts = count_pairs(eqn.params["shape"])
    return lambda: counts


@rule("prng_seed", threaded=True)
def _prng_seed(eqn: Equation) -> Evaluate:
    def evaluate(thread: Thread, *seeds: Any) -> tuple[()]:
        arrays = [np.asarray(seed.data if isinstance(seed, KeyArray) else seed) for seed in seeds]
        thread.generator = core_generator(*(int(word) for array in arrays for word in array.flat))
        return ()

    return evaluate


@rule("prng_random_bits", threaded=True)
def _prng_random_bits(eqn: Equation) -> Evaluate:
    shape, dtype = eqn.out.shape, eqn.out.dtype
    return lambda thread: draw_bits(_generator(thread), shape, dtype)


def _generator(thread: Thread) -> np.random.Generator:
    """That of the core, which begins as if by the run's seed; on a chip it just goes on."""
    if thread.generator is None:
        thread.generator = core_generator(thread.machine.seed)
    return thread.generator


@rule("prng_split")
def _prng_split(eqn: Equation) -> Evaluate:
    return lambda keys: list(keys.data.reshape(-1))


@rule("prng_join")
def _prng_join(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    return lambda *parts: KeyArray(np.array([parts], np.uint32), dtype)


@rule("stochastic_round")
def _stochastic_round(eqn: Equation) -> Evaluate:
    return round_by_bits(eqn.out.dtype)
