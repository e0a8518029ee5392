"""The effect of rounding on the outputs of a reference, measured with random roundings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_pallas.analysis.products import ProductSums
from pytest_pallas.analysis.roundings import SPREAD, Rounding, rounded
from pytest_pallas.numerics import ROUNDING, Noise, epsilon, is_complex, is_float, wide
from pytest_pallas.numerics.precision import ProductPrecision
from pytest_pallas.oracle.references import Evaluation, Leaves

#: Number of evaluations with random roundings.
DRAWS = 16


def noise_of(
    oracle: Evaluation,
    baseline: Leaves,
    dtypes: Collection[str] = (),
    products: ProductPrecision | None = None,
) -> Mapping[str, Noise]:
    """The effect of rounding on each output of a reference; see ``analysis.roundings``.

    It leaves out float64 outputs, whose rounding the oracle has itself. Empty for a reference that
    JAX cannot trace.

    Args:
      oracle: the reference on float64.
      baseline: its outputs in the kernel's dtypes.
      dtypes: narrower floats in which it computes, although its inputs are float64.
      products: the precision of products without an explicit one; None for float32.
    """
    if oracle.jaxpr is None:
        return {}
    single = epsilon(np.float32)
    finest = {
        path: epsilon(array.dtype)
        for path, array in baseline
        if (is_float(array.dtype) or is_complex(array.dtype)) and epsilon(array.dtype) >= single
    }
    if not finest:
        return {}
    try:
        drawn = {
            eps: _draws(oracle, eps, dtypes, products) for eps in {0.0, *finest.values()} - {single}
        }
    except Exception:  # a rule may not support these values
        return {}
    exact = {path: wide(array) for path, array in oracle.leaves}
    places = {path: place for place, (path, _) in enumerate(oracle.leaves)}
    return {
        path: Noise(
            wide=drawn[0.0][places[path]] - exact[path],
            narrow=drawn[eps if eps > single else 0.0][places[path]] - exact[path],
        )
        for path, eps in finest.items()
    }


def _draws(
    oracle: Evaluation,
    narrow: float,
    dtypes: Collection[str],
    products: ProductPrecision | None,
) -> Sequence[np.ndarray[Any, Any]]:
    """Each output ``DRAWS`` times, with random roundings of float32 and of epsilon ``narrow``."""
    generator = np.random.Generator(np.random.SFC64(0))

    def error(shape: Sequence[int]) -> np.ndarray[Any, Any]:
        return generator.uniform(-SPREAD, SPREAD, shape)

    single = ROUNDING * epsilon(np.float32)
    rounding = Rounding(ROUNDING * narrow, single, error, dtypes, products)
    draws = rounded(oracle.jaxpr, oracle.arrays, rounding, DRAWS)
    return [np.stack([wide(leaf) for leaf in leaves]) for leaves in zip(*draws, strict=True)]


def errors_of_sums(oracle: Evaluation, sums: ProductSums) -> Mapping[str, np.ndarray[Any, Any]]:
    """What adding products as tensor cores do changes in each output of a reference.

    Each is float64[DRAWS, *shape]: the terms of the sums come in another order in each draw.
    Nothing else is rounded. Empty for a reference that JAX cannot trace.

    Args:
      oracle: the reference on float64.
      sums: how the kernel's products are added.
    """
    if oracle.jaxpr is None:
        return {}
    generator = np.random.Generator(np.random.SFC64(0))
    rounding = Rounding(0.0, 0.0, np.zeros, sums=sums, order=generator.permutation)
    try:
        draws = rounded(oracle.jaxpr, oracle.arrays, rounding, DRAWS)
    except Exception:  # a rule may not support these values
        return {}
    found = zip(oracle.leaves, zip(*draws, strict=True), strict=True)
    with np.errstate(all="ignore"):
        return {
            path: np.stack([wide(leaf) for leaf in leaves]) - wide(array)
            for (path, array), leaves in found
            if is_float(array.dtype) or is_complex(array.dtype)
        }
