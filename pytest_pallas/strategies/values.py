"""Value classes: what the elements of drawn arrays look like.

Hypothesis draws only the class and a seed. The elements come from numpy's Philox generator
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), keyed with the seed and the
number of the array, so that a megabyte of them costs milliseconds and a seed is all it takes to
have them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.dtypes import is_float

Array = npt.NDArray[Any]

# From -4 to 4, more often positive than negative, so that a lost sign or mask shows in a sum.
_INTEGERS = np.array([-4, -3, -2, -1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 1], np.float32)

# Of five bits: 2**14 squares of such numbers add up exactly in float32. With inexact sums the same
# rounding error would come at every step, and a sequential sum be far worse than a pairwise one.
_LARGEST_ROW = 31

# Of "full": float32 holds sums of 16 such numbers.
_MOST_BITS = 20

# Integer dtypes: the spread of "normal", the bound of "uniform", and the exponent of "wide".
# Sums of a few hundred such values, or of products of the first, stay within int32.
_SPREAD, _BOUND, _EXPONENT = 8, 1000, 16


@dataclass(frozen=True)
class Limits:
    """What a dtype can hold.

    Attributes:
      low: the lowest finite value.
      high: the highest finite value.
      exact: 0 to this are all exact (0 is not in float8_e8m0fnu, which starts at 2**-127).
      unit: 1, or -1 where only that fits.
    """

    low: float
    high: float
    exact: int
    unit: int


@lru_cache(maxsize=64)
def limits(dtype: np.dtype[Any]) -> Limits:
    """What ``dtype`` can hold; bool holds 0 and 1."""
    if dtype.kind == "b":
        return Limits(0, 1, 1, 1)
    if not is_float(dtype):
        low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
        return Limits(low, high, high, 1 if high >= 1 else -1)
    info = ml_dtypes.finfo(dtype)
    exact = min(2 ** (int(info.nmant) + 1), int(float(info.max)))
    return Limits(float(info.min), float(info.max), exact, 1)


@dataclass(frozen=True)
class _Request:
    """What a value class gets to make an array from."""

    rng: np.random.Generator
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def wide(self) -> Any:
        """The dtype to compute in."""
        return np.float64 if self.dtype.name == "float64" else np.float32


def _integers(request: _Request) -> Array:
    chosen = request.rng.integers(0, len(_INTEGERS), request.shape, np.uint8)
    made = np.asarray(_INTEGERS[chosen])
    if limits(request.dtype).low > 0:
        return np.maximum(np.abs(made), 1)  # its least number would spoil the exactness of sums
    if made.size and not np.any(np.clip(made, *_bounds(request.dtype))):
        made.flat[0] = limits(request.dtype).unit
    return made


def _rows(request: _Request) -> Array:
    # The period is a prime, so that no block of rows equals the next one either.
    period = _prime_up_to(min(limits(request.dtype).exact, _LARGEST_ROW))
    count = int(np.prod(request.shape[:-1] or request.shape))
    number = np.arange(count) + request.rng.integers(period)
    constants = 1 + number % period if period > 1 else number % 3 == 0
    column = np.asarray(constants, np.float32) * limits(request.dtype).unit
    if len(request.shape) > 1:
        column = column.reshape(*request.shape[:-1], 1)
    else:
        column = column.reshape(request.shape)
    return np.broadcast_to(column, request.shape)


def _full(request: _Request) -> Array:
    # Exact is 2**8 in bfloat16 and 2**7 - 1 in int8.
    bits = min((limits(request.dtype).exact + 1).bit_length() - 1, _MOST_BITS)
    if bits < 2:
        return _integers(request)
    sign = 1 - 2 * request.rng.integers(0, 2, request.shape, np.int8)
    return request.rng.integers(2 ** (bits - 1), 2**bits, request.shape) * sign


def _onehot(request: _Request) -> Array:
    made = np.zeros(request.shape, np.float32)
    if made.ndim == 0:
        made[...] = limits(request.dtype).unit
    elif made.size:
        where = request.rng.integers(0, request.shape[-1], (*request.shape[:-1], 1))
        np.put_along_axis(made, where, limits(request.dtype).unit, axis=-1)
    return made


def _uniform(request: _Request) -> Array:
    made = request.rng.random(request.shape, request.wide) * 2 - 1
    if is_float(request.dtype) or request.dtype.kind == "b":
        return made
    low, high = max(limits(request.dtype).low, -_BOUND), min(limits(request.dtype).high, _BOUND)
    return request.rng.integers(int(low), int(high), request.shape, endpoint=True)


def _normal(request: _Request) -> Array:
    made = request.rng.standard_normal(request.shape, request.wide)
    if is_float(request.dtype) or request.dtype.kind == "b":
        return made
    return made * min(_SPREAD, max(1, limits(request.dtype).high / 3))


def _wide(request: _Request) -> Array:
    least, most = -8, 8
    if not is_float(request.dtype):
        least, most = 0, max(1, min(_EXPONENT, int(limits(request.dtype).high).bit_length()))
    # ldexp is exact, so that this is the same on every machine; exp2 is not.
    sign = 1 - 2 * request.rng.integers(0, 2, request.shape, np.int8)
    fraction = (1 + request.rng.random(request.shape, request.wide)) * sign
    return np.ldexp(fraction, request.rng.integers(least, most, request.shape, np.int32))


def _cancelling(request: _Request) -> Array:
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
        bound = max(0, limits(request.dtype).high - 4)
        pairs = np.clip(pairs, -bound, bound)
    return pairs + rest


def _tiny(request: _Request) -> Array:
    least = np.array([0.0, -0.0, 1.0, -1.0], np.float64)
    if is_float(request.dtype):
        info = ml_dtypes.finfo(request.dtype)
        found = [float(info.smallest_subnormal), float(info.smallest_normal)]
        found.append(found[1] - found[0])  # the largest subnormal
        least = np.array([*least, *found, *(-value for value in found)], np.float64)
    chosen = request.rng.integers(0, len(least), request.shape, np.uint8)
    return least.astype(request.wide)[chosen]


#: The value classes from the simplest on; shrinking goes towards the first.
CLASSES: dict[str, Callable[[_Request], Array]] = {
    "integers": _integers,
    "rows": _rows,
    "onehot": _onehot,
    "full": _full,
    "uniform": _uniform,
    "normal": _normal,
    "wide": _wide,
    "cancelling": _cancelling,
    "tiny": _tiny,
    "special": _normal,
}


def generate(
    values: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, seed: int, index: int = 0
) -> Array:
    """An array of the class ``values``, the same for the same arguments.

    What a dtype cannot hold is changed to what it can: integers are rounded, unsigned ones and
    float8_e8m0fnu take absolute values, narrow ones are clipped to their finite range, and a
    bool or uint1 says whether the value is positive. The classes are:

    - ``"integers"``: -4 to 4, not all zero, more often positive than negative. Sums and products
      of them are exact in floating point, in any order.
    - ``"rows"``: each row (the last axis) is a constant from 1 to 31, another one than its
      neighbours have. Sums of up to 2**14 of them, or of products of two, are exact in float32.
    - ``"onehot"``: each row has a single one, and zeros.
    - ``"full"``: integers of as many bits as the dtype holds exactly, and 20 at most, of both
      signs: 128 to 255 in bfloat16. Their sums have more, so that it shows if one is rounded on the
      way; of up to 16 of them they are exact in float32.
    - ``"uniform"``: between -1 and 1; integers between -1000 and 1000.
    - ``"normal"``: the unit normal distribution; integers with a deviation of 8.
    - ``"wide"``: random signs, magnitudes of any order between 2**-8 and 2**8; integers
      between 2**0 and 2**16.
    - ``"cancelling"``: pairs of 64 times a normal value and its negative, at both ends of a row,
      each plus one of ``"integers"``, so that sums are small and their terms large.
    - ``"tiny"``: zeros of both signs, 1 and -1, the least normal values, the least and largest
      subnormal ones. Hardware may flush those to zero, and XLA does, so a kernel that is compared
      with it may not promise more.
    - ``"special"``: normal values, one in eight replaced by NaN, infinities, -0, the largest and
      the smallest values, as far as the dtype has them.

    Args:
      values: the name of the class.
      shape: the shape of the array.
      dtype: a supported dtype (see ``strategies.dtypes``).
      seed: below 2**64.
      index: the number of the array among those that share the seed.
    """
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64)))
    # Without dims numpy's functions return scalars, hence asarray.
    made = np.asarray(_cast(np.asarray(CLASSES[values](_Request(rng, shape, dtype))), dtype))
    if values == "special" and made.size:
        specials = _specials(dtype)
        chosen = rng.random(shape) < 1 / 8
        chosen.flat[rng.integers(made.size)] = True
        made[chosen] = specials[rng.integers(0, len(specials), int(np.sum(chosen)))]
    return made


def check_classes(values: object, argument: str = "values") -> tuple[str, ...]:
    """The value classes named by ``values``, a name or several, from the simplest on.

    Raises:
      SpecError: there are none, or one of them does not exist.
    """
    names: Any = (values,) if isinstance(values, str) else values
    if not isinstance(names, Collection):
        raise SpecError(f"{argument} must name classes of values, not {values!r}")
    for name in names:
        if name not in CLASSES:
            raise SpecError(
                f"{argument}: there is no value class {name!r}; there are {', '.join(CLASSES)}"
            )
    if not names:
        raise SpecError(f"{argument} is empty; give at least one of {', '.join(CLASSES)}")
    return tuple(name for name in CLASSES if name in names)


def _bounds(dtype: np.dtype[Any]) -> tuple[float, float]:
    # No class makes larger values, and float32 holds these two exactly.
    return max(limits(dtype).low, -(2.0**20)), min(limits(dtype).high, 2.0**20)


def _cast(made: Array, dtype: np.dtype[Any]) -> Array:
    if (limits(dtype).low, limits(dtype).high) == (0, 1):
        return (made > 0).astype(dtype)
    if limits(dtype).low >= 0:
        made = np.abs(made)
    if not is_float(dtype):
        made = np.rint(made)
    return np.clip(made, *_bounds(dtype)).astype(dtype)


def _specials(dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return np.array([False, True])
    if not is_float(dtype):
        return np.array([limits(dtype).low, 0, limits(dtype).high], object).astype(dtype)
    info = ml_dtypes.finfo(dtype)
    finite = [info.max, info.min, info.smallest_normal, info.smallest_subnormal]
    other = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32).astype(dtype)
    return np.concatenate([other, np.array(finite, dtype)])


def _prime_up_to(number: int) -> int:
    """The largest prime up to ``number``, or 1."""
    while number > 1 and any(number % divisor == 0 for divisor in range(2, number)):
        number -= 1
    return max(number, 1)
