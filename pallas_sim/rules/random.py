"""Rules: keys, random bits, and the generator of a TPU core."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import key_implementation
from pallas_sim.dtypes import Array, bit_width, round_by_bits
from pallas_sim.evaluation import fallback
from pallas_sim.generators import (
    IMPLEMENTATIONS,
    core_generator,
    count_pairs,
    draw_bits,
    generated,
    threefry2x32,
)
from pallas_sim.machine import Thread
from pallas_sim.memory import KeyArray
from pallas_sim.registry import Equation, Evaluate, rule

#: The implementation of the keys that ``pltpu.stateful_uniform`` and its like make and ignore.
_STATEFUL = "_pallas_internal_stateful"


@rule("random_seed", threaded=True)
def _random_seed(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    if key_implementation(eqn.out.dtype) == _STATEFUL:
        return lambda thread, seeds: KeyArray(np.zeros(np.shape(seeds), np.int32), dtype)
    return _by(eqn, eqn.out, lambda known, seeds: KeyArray(known.seed(seeds), dtype))


@rule("random_split", threaded=True)
def _random_split(eqn: Equation) -> Evaluate:
    shape, dtype = eqn.params["shape"], eqn.out.dtype
    if not hasattr(IMPLEMENTATIONS.get(key_implementation(eqn.out.dtype)), "split"):
        return fallback(eqn)
    return _by(eqn, eqn.out, lambda known, keys: KeyArray(known.split(keys.data, shape), dtype))


@rule("random_fold_in", threaded=True)
def _random_fold_in(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    return _by(
        eqn, eqn.out, lambda known, keys, data: KeyArray(known.fold_in(keys.data, data), dtype)
    )


@rule("random_bits", threaded=True)
def _random_bits(eqn: Equation) -> Evaluate:
    width, shape, out = eqn.params["bit_width"], eqn.params["shape"], eqn.out
    name = key_implementation(eqn.ins[0].dtype)
    if name == _STATEFUL:
        return lambda thread, keys: draw_bits(_generator(thread), out.shape, out.dtype)
    if name == "pallas_tpu":

        def seeded(thread: Thread, keys: KeyArray) -> Array:
            result = np.empty(out.shape, out.dtype)
            for index in np.ndindex(keys.shape):
                thread.generator = core_generator(*keys.data[index].ravel())
                result[index] = draw_bits(thread.generator, shape, out.dtype)
            return result

        return seeded
    return _by(eqn, eqn.ins[0], lambda known, keys: known.bits(keys.data, width, shape))


def _by(eqn: Equation, aval: Any, evaluate: Evaluate) -> Evaluate:
    """Evaluate by the implementation of an aval's keys, or by JAX's own if that is unknown."""
    known = IMPLEMENTATIONS.get(key_implementation(aval.dtype))
    return fallback(eqn) if known is None else lambda thread, *args: evaluate(known, *args)


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


@rule("rng_bit_generator", threaded=True)
def _rng_bit_generator(eqn: Equation) -> Evaluate:
    """XLA's generator on a CPU, which is Philox unless the program names another one."""
    out = eqn.outs[1]
    width = bit_width(out.dtype)
    algorithm = getattr(eqn.params["algorithm"], "name", "")
    if algorithm not in ("RNG_DEFAULT", "RNG_PHILOX") or out.dtype.kind != "u":
        return fallback(eqn)

    def evaluate(thread: Thread, state: Array) -> tuple[Array, Array]:
        after, bits = generated(np.ascontiguousarray(state).view(np.uint32), width, out.shape)
        return after.view(state.dtype), bits

    return evaluate


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
