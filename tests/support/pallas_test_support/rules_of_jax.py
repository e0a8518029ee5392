"""What a rule of the simulator is compared with: JAX's own evaluation, one operation at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from pallas_sim import simulate
from pallas_sim.dtypes import is_integer
from pallas_test_support import bits_of_jax
from pallas_test_support.pinned_xla import require_pin

#: Each value rounded to its own dtype, as the simulator does.
LITERAL = {"xla_allow_excess_precision": False, "xla_backend_optimization_level": 0}


#: Primitives around kernels that JAX evaluates.
BY_JAX = {"rng_bit_generator"}


def both(function: Callable[..., Any], *args: Any) -> list[tuple[Any, Any]]:
    """The results of the simulator, and those of JAX, leaf by leaf; no operation fell back."""
    return _paired(_simulated(function, *args), _for_xla(function)(*args))


def assert_same_bits(function: Callable[..., Any], *args: Any) -> None:
    """The simulator gives the bits of JAX; NaNs need not have the same payload.

    XLA is asked where ``bits_of_jax`` does not know what it gives, or it is something else.
    """
    mine, lowered = _simulated(function, *args), _for_xla(function).lower(*args)
    key = bits_of_jax.key_of(lowered.as_text(), jax.tree.leaves(args), LITERAL)
    if bits_of_jax.known(key) == digest_of(mine):
        return
    expected = lowered.compile()(*args)
    for actual, wanted in _paired(mine, expected):
        different = bits(actual) != bits(wanted)
        if wanted.dtype.kind not in "biu":
            with np.errstate(all="ignore"):
                different &= ~((actual != actual) & (wanted != wanted))
        assert not different.any(), (
            f"{different.sum()} of {different.size} elements of {wanted.dtype} differ: "
            f"{actual[different][:5]} instead of {wanted[different][:5]}"
        )
    bits_of_jax.add(key, digest_of(expected))


def _simulated(function: Callable[..., Any], *args: Any) -> Any:
    simulated = simulate(function, *args)
    assert set(simulated.fallbacks) <= BY_JAX, simulated.fallbacks
    return simulated.values


def _for_xla(function: Callable[..., Any]) -> Any:
    """A function for XLA, which is pinned, and rounds as the simulator does."""
    require_pin()
    return jax.jit(function, compiler_options=LITERAL)


def _paired(simulated: Any, expected: Any) -> list[tuple[Any, Any]]:
    mine, theirs = jax.tree.leaves(simulated), jax.tree.leaves(expected)
    assert jax.tree.structure(simulated) == jax.tree.structure(expected)
    found = [(np.asarray(a), np.asarray(b)) for a, b in zip(mine, theirs, strict=True)]
    for actual, wanted in found:
        assert actual.dtype == wanted.dtype, (actual.dtype, wanted.dtype)
        assert actual.shape == wanted.shape, (actual.shape, wanted.shape)
    return found


def digest_of(results: Any) -> str:
    """What is equal of results with the same bits, but for the payload of NaNs."""
    parts = [str(jax.tree.structure(results)).encode()]
    for leaf in map(np.asarray, jax.tree.leaves(results)):
        found = np.where(leaf == leaf, bits(leaf), 0) if leaf.dtype.kind not in "biu" else leaf
        nan = b"" if leaf.dtype.kind in "biu" else np.asarray(leaf != leaf).tobytes()
        parts += [f"{leaf.dtype}{leaf.shape}".encode(), np.asarray(found).tobytes(), nan]
    return bits_of_jax.digest(parts)


def assert_within_ulps(function: Callable[..., Any], *args: Any, ulps: float = 1) -> None:
    """The simulator is at most so many ulps of each element away, and has NaNs where JAX has."""
    from pallas_sim.dtypes import epsilon

    for actual, wanted in both(function, *args):
        one, two = (
            np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)
            for x in (actual, wanted)
        )
        assert (np.isnan(one) == np.isnan(two)).all()
        finite = np.isfinite(two)
        assert (one[~finite & ~np.isnan(two)] == two[~finite & ~np.isnan(two)]).all()
        tiny = float(np.finfo(np.float32).tiny)
        error = (
            np.abs(one[finite] - two[finite]) / (np.abs(two[finite]) + tiny) / epsilon(wanted.dtype)
        )
        assert error.max(initial=0) <= ulps, f"{error.max()} ulps of {wanted.dtype}"


def drawn(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Values of a dtype, the special ones among them: limits, zeros, infinities, NaN.

    None is subnormal in float32 or wider: XLA's CPU backend flushes those, the simulator does not.
    """
    dtype = np.dtype(dtype)
    random = np.random.default_rng([seed, *dtype.name.encode()])
    if dtype == np.bool_:
        return random.random(shape) < 0.5
    if dtype.kind == "c":
        part = dtype.type(0).real.dtype
        found = np.empty(shape, dtype)
        found.real, found.imag = random.normal(0, 3, (2, *shape)).astype(part)
        return found
    if is_integer(dtype):
        limits = ml_dtypes.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        found = random.integers(low, high, shape, np.int64 if low else np.uint64, endpoint=True)
        # As many small ones as large ones.
        found = np.array(found >> random.integers(0, limits.bits, shape).astype(found.dtype))
        special = [low, high, 0, 1, max(low, -1)]
        flat = found.reshape(-1)
        flat[:: max(1, flat.size // 40)] = random.choice(
            np.array(special, found.dtype), flat[:: max(1, flat.size // 40)].size
        )
        return found.astype(dtype)
    found = np.array(random.normal(0, 4, shape)).astype(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -2.5, 1.5]).astype(dtype)
    where = np.asarray(random.random(shape) < 0.3)
    found[where] = random.choice(special, int(where.sum()))
    return found


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of an array, as unsigned integers."""
    array = np.ascontiguousarray(array)
    width = {1: np.uint8, 2: np.uint16, 4: np.uint32}.get(array.dtype.itemsize, np.uint64)
    return array.view(width) if array.dtype.itemsize != 16 else _pairs(array)


def _pairs(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # One number for both halves: adding the bits of one, shifted, to those of the other.
    low, high = np.moveaxis(array.view(np.uint64).reshape(*array.shape, 2), -1, 0)
    return low ^ (high << np.uint64(1))
