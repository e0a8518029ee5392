"""What rounding alone does to the outputs of a reference: random roundings on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.analysis import roundings
from pytest_pallas.backends import Call
from pytest_pallas.backends.tracing import apply, split
from pytest_pallas.numerics import ROUNDING, Noise, epsilon, is_complex, is_float, wide

#: Path and array of each output.
Outputs = Sequence[tuple[str, np.ndarray[Any, Any]]]

#: How often the reference is evaluated with random roundings.
DRAWS = 16

#: Half the width of the uniform distribution with mean square 1.
SPREAD = math.sqrt(3)


def noise_of(call: Call, oracle: Outputs, baseline: Outputs) -> Mapping[str, Noise]:
    """What rounding alone does to each output of a reference; see ``analysis.roundings``.

    Without the outputs of float64, whose rounding the oracle has itself. Empty for a reference that
    JAX cannot trace.

    Args:
      call: of the reference, on float64.
      oracle: what it returned.
      baseline: what it returns in the kernel's dtypes.
    """
    single = epsilon(np.float32)
    exact = {path: wide(array) for path, array in oracle}
    finest = {
        path: epsilon(array.dtype)
        for path, array in baseline
        if (is_float(array.dtype) or is_complex(array.dtype)) and epsilon(array.dtype) >= single
    }
    try:
        draw = _with_roundings(call)
        drawn = {eps: draw(eps, single) for eps in {0.0, *finest.values()} - {single}}
    except Exception:  # whatever a function may do when it is traced, or its operations may refuse
        return {}
    places = {path: place for place, (path, _) in enumerate(oracle)}
    return {
        path: Noise(
            wide=drawn[0.0][places[path]] - exact[path],
            narrow=drawn[eps if eps > single else 0.0][places[path]] - exact[path],
        )
        for path, eps in finest.items()
    }


def _with_roundings(call: Call) -> Callable[[float, float], list[np.ndarray[Any, Any]]]:
    """``draw(narrow, wide)``: the outputs of a reference ``DRAWS`` times, for two epsilons."""
    static, arrays = split(call)
    closed = jax.make_jaxpr(lambda *given: jax.tree.leaves(apply(static, [*given])))(*arrays)

    def evaluate(noise: Any, narrow: Any, single: Any, *given: Any) -> Any:
        used = 0

        def error(shape: Sequence[int]) -> Any:
            nonlocal used
            first, used = used, used + math.prod(shape)
            return noise[first:used].reshape(shape)

        return roundings.rounded(closed, given, roundings.Rounding(narrow, single, error))

    # Made on the host: as operations they would take seconds to compile.
    count = _count_of_errors(closed, arrays)
    compiled = jax.jit(evaluate)

    def draw(narrow: float, single: float) -> list[np.ndarray[Any, Any]]:
        generator = np.random.Generator(np.random.Philox(0))
        sizes = (ROUNDING * narrow, ROUNDING * single)
        draws = [
            compiled(generator.uniform(-SPREAD, SPREAD, count), *sizes, *arrays)
            for _ in range(DRAWS)
        ]
        return [
            np.stack([np.asarray(leaf) for leaf in leaves]) for leaves in zip(*draws, strict=True)
        ]

    return draw


def _count_of_errors(closed: Any, arrays: Sequence[Any]) -> int:
    """How many random numbers ``roundings.rounded`` asks for."""
    count = 0

    def error(shape: Sequence[int]) -> Any:
        nonlocal count
        count += math.prod(shape)
        return jnp.zeros(shape)

    def evaluate(*given: Any) -> Any:
        return roundings.rounded(closed, given, roundings.Rounding(0.0, 0.0, error))

    jax.eval_shape(evaluate, *arrays)
    return count
