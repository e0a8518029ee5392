"""The elements of drawn arrays: value classes, and ``elements`` for single values of any dtype.

A value class makes whole arrays from a seed, and is declared by ``@value_class``; ``generate``
makes an array of one. ``elements`` draws element by element, also of the narrow dtypes, which
Hypothesis lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_pallas.draw.dtypes import as_dtype, is_float
from pytest_pallas.errors import SpecError


def elements(
    dtype: npt.DTypeLike,
    *,
    min_value: float | None = None,
    max_value: float | None = None,
    allow_nan: bool = False,
    allow_infinity: bool = False,
    allow_subnormal: bool = True,
) -> SearchStrategy[Any]:
    """Return a strategy for one value of ``dtype``, one of numpy's or ml_dtypes' dtypes.

    Example::

        from hypothesis.extra import numpy as hnp

        hnp.arrays(np.dtype(ml_dtypes.bfloat16), (3, 4), elements=elements("bfloat16"))

    Half of the draws are boundaries: zeros of both signs, one, the largest and smallest values, the
    least normal and subnormal ones, the neighbours of one. Every bit pattern of up to 16 bits can
    be drawn. It shrinks to 0, and then towards 1 and values with few significant bits.

    It draws element by element, which suits small arrays; ``arrays`` draws large ones.

    Args:
      dtype: a supported dtype.
      min_value: the smallest value, as any comparable number.
      max_value: the largest value.
      allow_nan: whether to draw NaN, where the dtype has it.
      allow_infinity: whether to draw infinities, where the dtype has them.
      allow_subnormal: whether to draw subnormal values.

    Draws numpy scalars of the dtype.

    Raises:
      SpecError: ``dtype`` is not supported, has no value between the bounds, or is complex and has
        bounds.
    """
    of_dtype = as_dtype(dtype)
    if of_dtype.kind == "c":
        if min_value is not None or max_value is not None:
            raise SpecError("elements: complex numbers have no order, so no min_value or max_value")
        part = elements(
            "float32" if of_dtype.itemsize == 8 else "float64",
            allow_nan=allow_nan,
            allow_infinity=allow_infinity,
            allow_subnormal=allow_subnormal,
        )
        return st.builds(lambda real, imag: of_dtype.type(complex(real, imag)), part, part)
    held = range_of(of_dtype)
    low = held.low if min_value is None else max(min_value, held.low)
    high = held.high if max_value is None else min(max_value, held.high)

    def allowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not is_float(of_dtype):
            return values[(values >= low) & (values <= high)]
        numbers = _as_float64(values)
        kept = (numbers >= low) & (numbers <= high) & np.isfinite(numbers)
        kept |= allow_nan & np.isnan(numbers)
        kept |= allow_infinity & np.isinf(numbers) & (max_value is None) & (numbers > 0)
        kept |= allow_infinity & np.isinf(numbers) & (min_value is None) & (numbers < 0)
        least = float(ml_dtypes.finfo(of_dtype).smallest_normal)
        if not allow_subnormal:
            kept &= (numbers == 0) | (np.abs(numbers) >= least) | ~np.isfinite(numbers)
        return values[kept]

    edges = allowed(_boundaries(of_dtype))
    if of_dtype.itemsize <= 2 and (is_float(of_dtype) or of_dtype.kind == "b"):
        groups = [group for group in map(allowed, _every(of_dtype)) if group.size]
        if not groups:
            raise _nothing(of_dtype, min_value, max_value)
        most = max(group.size for group in groups)
        rest = st.tuples(st.sampled_from(groups), st.integers(0, most - 1)).map(
            lambda pair: pair[0][pair[1] % pair[0].size]
        )
    elif is_float(of_dtype):
        # Hypothesis needs bounds that the width holds exactly.
        low, high = (_inward(bound, of_dtype, away) for bound, away in ((low, 1), (high, -1)))
        if not low <= high:
            raise _nothing(of_dtype, min_value, max_value)
        rest = st.floats(
            low,
            high,
            width=8 * of_dtype.itemsize,  # pyright: ignore[reportArgumentType]
            allow_subnormal=allow_subnormal and None,
        ).map(of_dtype.type)
    else:
        lowest, highest = math.ceil(low), math.floor(high)
        if lowest > highest:
            raise _nothing(of_dtype, min_value, max_value)
        rest = st.integers(lowest, highest).map(of_dtype.type)
    return rest if not edges.size else rest | st.sampled_from(edges.tolist()).map(of_dtype.type)


def _nothing(dtype: np.dtype[Any], low: object, high: object) -> SpecError:
    return SpecError(
        f"elements: {dtype.name} has no value between min_value={low} and max_value={high}; "
        "widen them"
    )


def _inward(bound: float, dtype: np.dtype[Any], away: int) -> float:
    """Return ``bound`` as a value of ``dtype``, not beyond it."""
    rounded = dtype.type(bound)
    if (rounded < bound) if away > 0 else (rounded > bound):
        rounded = np.nextafter(rounded, dtype.type(away * np.inf))
    return float(rounded)


def _as_float64(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float64)


@lru_cache(maxsize=32)
def _boundaries(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the boundary values of ``dtype``, and two short ones to shrink to."""
    held = range_of(dtype)
    if not is_float(dtype):
        return np.array(
            sorted({held.low, 0, held.unit, min(2, held.high), held.high, held.high - 1}, key=abs),
            object,
        )
    info = ml_dtypes.finfo(dtype)
    # Large values and fractions are adjacent, because shrinking goes step by step.
    edges = [1.0, 2.0, info.max, 0.5, 1 + float(info.eps), 1 - float(info.epsneg)]
    edges += [info.smallest_normal, info.smallest_subnormal, np.inf, np.nan]
    signed = [0.0, -0.0, *map(float, edges), *(-float(value) for value in edges)]
    made = np.array(signed, np.float64).astype(dtype)
    # Values that the dtype lacks were rounded: keep one of each.
    _, first = np.unique(made.view(f"V{dtype.itemsize}"), return_index=True)
    return made[np.sort(first)]


@lru_cache(maxsize=32)
def _every(dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Return every value of a dtype of at most 16 bits, by order of magnitude; the simplest first.

    Zeros come first and non-finite values last. Between them the order is by distance from 1, and
    for one magnitude by the number of significant bits.
    """
    if dtype.kind == "b":
        return (np.array([False, True]),)
    bits = int(ml_dtypes.finfo(dtype).bits)
    patterns = np.arange(2**bits, dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
    values = patterns.view(dtype)
    numbers = _as_float64(values)
    finite = np.where(np.isfinite(numbers), numbers, 0)
    fraction, exponent = np.frexp(np.abs(finite))
    significant = np.zeros(fraction.shape, int)  # bits after the first one
    for bit in range(1, 12):
        significant[(fraction * 2.0**bit) % 1 != 0] = bit
    distance = np.where(exponent > 0, 2 * exponent - 1, 2 - 2 * exponent)
    group = np.where(finite == 0, 0, distance)
    group[~np.isfinite(numbers)] = np.iinfo(group.dtype).max
    order = np.lexsort((np.abs(finite), np.signbit(finite), significant, group))
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return tuple(np.split(values[order], starts))


# Value classes: what the elements of drawn arrays look like, each declared by ``@value_class``.
#
# Hypothesis draws only the class and a seed. The elements come from numpy's Philox generator
# (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), keyed with the seed and the
# number of the array, so that a megabyte takes milliseconds, and a seed reproduces it.


Array = npt.NDArray[Any]

# From -4 to 4, more often positive than negative, so that a lost sign or mask shows in a sum.
_INTEGERS = np.array([-4, -3, -2, -1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 1], np.float32)

# Of five bits: 2**14 squares of such numbers add up exactly in float32. With inexact sums the same
# rounding error would come at every step, and a sequential sum be far worse than a pairwise one.
_LARGEST_ROW = 31

# Of "full": float32 holds sums of 16 such numbers.
_MOST_BITS = 20

#: The largest value of "peaks": float32 holds its exponential.
_PEAK = 80

#: The row of "peaks" that is 0, of five in the first array and of eight in others.
_BLANK = 4

#: Added to the number of an array, for the imaginary parts of its elements.
_IMAGINARY = 2**32

# Integer dtypes: the spread of "normal", the bound of "uniform", and the exponent of "wide".
# Sums of a few hundred such values, or of products of the first, stay within int32.
_SPREAD, _BOUND, _EXPONENT = 8, 1000, 16


@dataclass(frozen=True)
class DtypeRange:
    """The range of a dtype.

    Attributes:
      low: the lowest finite value.
      high: the highest finite value.
      exact: all integers from 0 to this are exact (0 is not in float8_e8m0fnu, which starts at
        2**-127).
      unit: 1, or -1 if only that fits.
    """

    low: float
    high: float
    exact: int
    unit: int


@lru_cache(maxsize=64)
def range_of(dtype: np.dtype[Any]) -> DtypeRange:
    """Return the range of ``dtype``; bool holds 0 and 1."""
    if dtype.kind == "b":
        return DtypeRange(0, 1, 1, 1)
    if not is_float(dtype):
        low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
        return DtypeRange(low, high, high, 1 if high >= 1 else -1)
    info = ml_dtypes.finfo(dtype)
    exact = min(2 ** (int(info.nmant) + 1), int(float(info.max)))
    return DtypeRange(float(info.min), float(info.max), exact, 1)


@dataclass(frozen=True)
class ValueRequest:
    """The input of a value class.

    Attributes:
      rng: the random generator: the same numbers for the same seed, on every machine.
      shape: the shape of the array.
      dtype: its dtype; see ``generate`` for values that it cannot hold.
      index: its number among the arrays of the draw.
    """

    rng: np.random.Generator
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    index: int = 0

    @property
    def wide(self) -> Any:
        """The dtype to compute in."""
        return np.float64 if self.dtype.name == "float64" else np.float32


@dataclass(frozen=True)
class ValueClass:
    """A class of values.

    Attributes:
      name: as in ``values=`` of strategies.
      make: returns an array of the requested shape, or one that broadcasts to it.
      keeps: whether it returns values of the requested dtype, which stay unchanged.
    """

    name: str
    make: Callable[[ValueRequest], Array]
    keeps: bool = False


#: The classes that are drawn where none are named.
USUAL = ("integers", "normal", "ties", "peaks")

#: The value classes from the simplest on, as they are declared; shrinking goes towards the first.
CLASSES: dict[str, ValueClass] = {}


def value_class(
    name: str, *, keeps: bool = False
) -> Callable[[Callable[[ValueRequest], Array]], Callable[[ValueRequest], Array]]:
    """Declare that a function makes the arrays of a class of values.

    A user-defined class is available once its module is imported. It shrinks to the others.

    Example::

        @pst.value_class("ramp")
        def ramp(request):
            return np.arange(np.prod(request.shape, dtype=int)).reshape(request.shape)

        pst.arrays("m n", values=("integers", "ramp"))

    Args:
      name: as in ``values=`` of strategies.
      keeps: whether the function returns values of the requested dtype, which stay unchanged;
        others are rounded and clipped to the range of the dtype.

    Raises:
      SpecError: another function makes a class of this name.
    """

    def declare(make: Callable[[ValueRequest], Array]) -> Callable[[ValueRequest], Array]:
        known = CLASSES.get(name)
        if known is not None and _origin(known.make) != _origin(make):
            raise SpecError(f"there are two value classes with the name {name!r}; rename one")
        CLASSES[name] = ValueClass(name, make, keeps)
        return make

    return declare


def _origin(function: Callable[..., Any]) -> tuple[Any, ...]:
    # a reload or another test session declares the classes of a module again
    code = getattr(function, "__code__", None)
    return (function,) if code is None else (code.co_filename, function.__qualname__)


@value_class("integers")
def _integers(request: ValueRequest) -> Array:
    """-4 to 4, not all zero, more often positive than negative.

    Sums and products of them are exact in floating point, in any order.
    """
    chosen = request.rng.integers(0, len(_INTEGERS), request.shape, np.uint8)
    made = np.asarray(_INTEGERS[chosen])
    if range_of(request.dtype).low > 0:
        return np.maximum(np.abs(made), 1)  # its smallest number would make sums inexact
    if made.size and not np.any(np.clip(made, *_bounds(request.dtype))):
        made.flat[0] = range_of(request.dtype).unit
    return made


@value_class("rows")
def _rows(request: ValueRequest) -> Array:
    """Each row (the last axis) is a constant from 1 to 31, another one than its neighbours have.

    Sums of up to 2**14 of them, or of products of two, are exact in float32.
    """
    # The period is a prime, so that no block of rows equals the next one either.
    period = _prime_up_to(min(range_of(request.dtype).exact, _LARGEST_ROW))
    count = int(np.prod(request.shape[:-1] or request.shape))
    number = np.arange(count) + request.rng.integers(period)
    constants = 1 + number % period if period > 1 else number % 3 == 0
    column = np.asarray(constants, np.float32) * range_of(request.dtype).unit
    shape = (*request.shape[:-1], 1) if len(request.shape) > 1 else request.shape
    return np.broadcast_to(column.reshape(shape), request.shape)


@value_class("onehot")
def _onehot(request: ValueRequest) -> Array:
    """Each row has a single one, and zeros."""
    made = np.zeros(request.shape, np.float32)
    if made.ndim == 0:
        made[...] = range_of(request.dtype).unit
    elif made.size:
        where = request.rng.integers(0, request.shape[-1], (*request.shape[:-1], 1))
        np.put_along_axis(made, where, range_of(request.dtype).unit, axis=-1)
    return made


@value_class("full")
def _full(request: ValueRequest) -> Array:
    """Integers of as many bits as the dtype holds exactly, and 20 at most, of both signs.

    These are 128 to 255 in bfloat16. Their sums have more bits, so that it shows if one is rounded
    on the way; of up to 16 of them they are exact in float32.
    """
    # Exact is 2**8 in bfloat16 and 2**7 - 1 in int8.
    bits = min((range_of(request.dtype).exact + 1).bit_length() - 1, _MOST_BITS)
    if bits < 2:
        return _integers(request)
    sign = 1 - 2 * request.rng.integers(0, 2, request.shape, np.int8)
    return request.rng.integers(2 ** (bits - 1), 2**bits, request.shape) * sign


@value_class("uniform")
def _uniform(request: ValueRequest) -> Array:
    """Between -1 and 1; integers between -1000 and 1000."""
    made = request.rng.random(request.shape, request.wide) * 2 - 1
    if is_float(request.dtype) or request.dtype.kind == "b":
        return made
    low, high = max(range_of(request.dtype).low, -_BOUND), min(range_of(request.dtype).high, _BOUND)
    return request.rng.integers(int(low), int(high), request.shape, endpoint=True)


@value_class("normal")
def _normal(request: ValueRequest) -> Array:
    """The unit normal distribution; integers with a deviation of 8."""
    made = request.rng.standard_normal(request.shape, request.wide)
    if is_float(request.dtype) or request.dtype.kind == "b":
        return made
    return made * min(_SPREAD, max(1, range_of(request.dtype).high / 3))


@value_class("ties")
def _ties(request: ValueRequest) -> Array:
    """Each row has integers from -4 to -1, and its largest one several times, far apart.

    A padding of 0 is larger than all of them, and its exponential, too. All but the first array are
    of "integers": where all factors have one sign, differences of sums of products are inexact.
    """
    if range_of(request.dtype).high <= 1 or request.index % _IMAGINARY:
        return _integers(request)
    made = -request.rng.integers(2, 5, request.shape, np.int8).astype(np.float32)
    if made.ndim and made.size:
        size = request.shape[-1]
        first = request.rng.integers(0, size, (*request.shape[:-1], 1))
        for where in (first, (first + -(-size // 2)) % size):
            np.put_along_axis(made, where, -1, axis=-1)
    return made


@value_class("peaks")
def _peaks(request: ValueRequest) -> Array:
    """Rows of small values beside rows of large ones, up to 80, as logits may have, and zeros.

    Of five rows of the first array, one is small, one is large, one is large and negative, one is
    normal but for a single 80, and one is 0, as the token of a padded batch: its norm is 0, and so
    is the scale that it is quantized by. In one draw of four, all rows of the second half are 0, as
    whole blocks of padding. In other arrays one row of eight is four times as large, and one is 0.
    """
    made = np.asarray(_normal(request))
    if not made.ndim or not made.size or request.dtype.kind == "b":
        return made
    most = min(_PEAK, math.isqrt(int(range_of(request.dtype).high)) / 8)
    if not is_float(request.dtype):
        most = min(_PEAK, range_of(request.dtype).high / 2)
        made = made / max(1.0, float(np.abs(made).max()) / 4)
    count = math.prod(request.shape[:-1])
    rows = made.reshape(count, request.shape[-1])
    number = (np.arange(count) + request.rng.integers(40))[:, None]
    if request.index % _IMAGINARY:
        rows = np.where(number % 8, rows, 4 * rows)
        return np.where(number % 8 == _BLANK, 0, rows).reshape(request.shape)
    large = np.clip(rows * most * 0.4, -most, most)
    peak = np.arange(rows.shape[1]) == request.rng.integers(0, rows.shape[1], (count, 1))
    kinds = [number % 5 == kind for kind in range(_BLANK)]
    small = rows / 16 if is_float(request.dtype) else rows / 4
    chosen = np.select(kinds, [np.where(peak, most, rows), large, -np.abs(large), small], 0)
    if not request.rng.integers(4):
        chosen[-(-count // 2) :] = 0
    return chosen.reshape(request.shape)


@value_class("wide")
def _wide(request: ValueRequest) -> Array:
    """Random signs, magnitudes of any order between 2**-8 and 2**8.

    Integers are between 2**0 and 2**16.
    """
    least, most = -8, 8
    if not is_float(request.dtype):
        least, most = 0, max(1, min(_EXPONENT, int(range_of(request.dtype).high).bit_length()))
    # ldexp is exact, so that this is the same on every machine; exp2 is not.
    sign = 1 - 2 * request.rng.integers(0, 2, request.shape, np.int8)
    fraction = (1 + request.rng.random(request.shape, request.wide)) * sign
    return np.ldexp(fraction, request.rng.integers(least, most, request.shape, np.int32))


@value_class("cancelling")
def _cancelling(request: ValueRequest) -> Array:
    """Pairs of 64 times a normal value and its negative, at both ends of a row.

    Each is plus one of ``"integers"``, so that sums are small and their terms large.
    """
    made = np.asarray(_normal(request))
    if not made.ndim or not made.size:
        return made
    large = np.rint(64 * made) if is_float(request.dtype) else made
    # Partners are far apart, so that a partial sum is large whatever the order of the sum.
    half = made.shape[-1] // 2
    pairs = np.zeros_like(made)
    pairs[..., :half] = large[..., :half]
    pairs[..., made.shape[-1] - half :] = -large[..., :half]
    rest = _integers(request)
    if not is_float(request.dtype):
        bound = max(0, range_of(request.dtype).high - 4)
        pairs = np.clip(pairs, -bound, bound)
    return pairs + rest


@value_class("tiny")
def _tiny(request: ValueRequest) -> Array:
    """Zeros of both signs, 1 and -1, the least normal values, the least and largest subnormal ones.

    Hardware may flush those to zero, and XLA does, so a kernel that is compared with it may not
    promise more.
    """
    least = np.array([0.0, -0.0, 1.0, -1.0], np.float64)
    if is_float(request.dtype):
        info = ml_dtypes.finfo(request.dtype)
        small = [float(info.smallest_subnormal), float(info.smallest_normal)]
        small.append(small[1] - small[0])  # the largest subnormal
        least = np.array([*least, *small, *(-value for value in small)], np.float64)
    chosen = request.rng.integers(0, len(least), request.shape, np.uint8)
    return least.astype(request.wide)[chosen]


@value_class("special", keeps=True)
def _special(request: ValueRequest) -> Array:
    """Normal values, one in eight replaced by NaN, infinities, -0, and the extremes of the dtype.

    Those are the largest and the smallest values. Each as far as the dtype has it.
    """
    made = np.asarray(_cast(np.asarray(_normal(request)), request.dtype))
    if made.size:
        specials = _specials(request.dtype)
        chosen = request.rng.random(request.shape) < 1 / 8
        chosen.flat[request.rng.integers(made.size)] = True
        made[chosen] = specials[request.rng.integers(0, len(specials), int(np.sum(chosen)))]
    return made


def generate(
    values: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, seed: int, index: int = 0
) -> Array:
    """Return an array of the class ``values``, the same for the same arguments.

    Values are converted to the dtype: integers are rounded, unsigned integers and float8_e8m0fnu
    get absolute values, narrow dtypes are clipped to their finite range, and a bool or uint1 is
    whether the value is positive. Both parts of complex
    numbers are of the class.

    Args:
      values: the name of the class.
      shape: the shape of the array.
      dtype: a supported dtype (see ``strategies.dtypes``).
      seed: below 2**64.
      index: the number of the array among those that share the seed.
    """
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        made = np.empty(shape, dtype)
        made.real = generate(values, shape, part, seed=seed, index=index)
        made.imag = generate(values, shape, part, seed=seed, index=index + _IMAGINARY)
        return made
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64)))
    chosen = CLASSES[values]
    # Without dims numpy's functions return scalars, hence asarray.
    made = np.asarray(chosen.make(ValueRequest(rng, shape, dtype, index)))
    if made.shape != shape:
        made = np.array(np.broadcast_to(made, shape))
    return made if chosen.keeps else np.asarray(_cast(made, dtype))


def check_classes(values: object, argument: str = "values") -> tuple[str, ...]:
    """Return the value classes named by ``values``, a name or several, from the simplest on.

    Raises:
      SpecError: there are none, or one of them does not exist.
    """
    names: Any = (values,) if isinstance(values, str) else values
    if not isinstance(names, Collection):
        raise SpecError(f"{argument} must be names of value classes, not {values!r}")
    for name in names:
        if name not in CLASSES:
            raise SpecError(
                f"{argument}: there is no value class {name!r}; valid: {', '.join(CLASSES)}"
            )
    if not names:
        raise SpecError(f"{argument} is empty; give at least one of {', '.join(CLASSES)}")
    return tuple(name for name in CLASSES if name in names)


def _bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    # No class makes larger values, and float32 holds these two exactly.
    return max(range_of(dtype).low, -(2.0**20)), min(range_of(dtype).high, 2.0**20)


def _cast(made: Array, dtype: np.dtype[Any]) -> Array:
    if (range_of(dtype).low, range_of(dtype).high) == (0, 1):
        return (made > 0).astype(dtype)
    if range_of(dtype).low >= 0:
        made = np.abs(made)
    if not is_float(dtype):
        made = np.rint(made)
    return np.clip(made, *_bounds(dtype)).astype(dtype)


def _specials(dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return np.array([False, True])
    if not is_float(dtype):
        return np.array([range_of(dtype).low, 0, range_of(dtype).high], object).astype(dtype)
    info = ml_dtypes.finfo(dtype)
    finite = [info.max, info.min, info.smallest_normal, info.smallest_subnormal]
    other = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32).astype(dtype)
    return np.concatenate([other, np.array(finite, dtype)])


def _prime_up_to(number: int) -> int:
    """Return the largest prime up to ``number``, or 1."""
    while number > 1 and any(number % divisor == 0 for divisor in range(2, number)):
        number -= 1
    return max(number, 1)
