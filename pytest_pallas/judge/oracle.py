"""Expected values: the reference in float64 (oracle) and in the kernel's dtypes (baseline)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim.dtypes import epsilon, is_float, is_inexact, wide
from pallas_sim.errors import SimulationError
from pytest_pallas.backends.ending import LEAST, MULTIPLE, ending
from pytest_pallas.backends.execution import digest, to_numpy
from pytest_pallas.backends.tracing import identity
from pytest_pallas.budget import FLOAT_BYTES, LastUsed
from pytest_pallas.errors import KernelReferenceError
from pytest_pallas.judge.judgement import Expected
from pytest_pallas.judge.precision import precisions
from pytest_pallas.judge.references import (
    Evaluation,
    Leaves,
    evaluate_again,
    evaluate_reference,
    least_magnitude,
    name_of,
)
from pytest_pallas.judge.roundings import SPREAD, ProductSums, Rounding, rounded
from pytest_pallas.judge.tolerance import ROUNDING, Noise, Precision, ProductPrecision

#: Relative size of the perturbation that measures sensitivity. Large, so that a step (a floor, a
#: comparison) does not look like a steep slope; small against the curvature of a kernel.
PERTURBATION = 2.0**-6

#: Number of measurements: one perturbation may by chance not change an output.
PERTURBATIONS = 4


#: The message for a reference that does not end.
_LATE = (
    f"still not evaluated after {{:g}} s; the limit is {MULTIPLE:g} times --pallas-timeout and a "
    f"few seconds, and {LEAST:g} s at least"
)


#: Limits on the expected values that are kept: on the number of calls, and on their bytes.
_CALLS, _CALL_BYTES = 128, 1 << 28


@dataclass
class ExpectedCache:
    """Cache of the expected values of the last calls, because checks and backends share examples.

    Attributes:
      seconds: the time limit of a reference.
      kept: the values.
    """

    seconds: float = LEAST
    kept: LastUsed[Expected] = field(default_factory=lambda: LastUsed(_CALLS, _CALL_BYTES))

    def get(
        self,
        reference: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        nan_ok: bool = False,
        products: ProductPrecision | None = None,
    ) -> Expected:
        """Evaluate ``expected`` for these arguments, once."""
        key = identity(reference), digest((args, dict(options))), nan_ok, products
        values = self.kept.get(key)
        if values is None:
            with ending(self.seconds, _LATE):
                values = expected(reference, args, options, nan_ok=nan_ok, products=products)
            leaves = [leaf for leaf in jax.tree.leaves(args) if _is_array(leaf)]
            leaves += [array for _, array in values.oracle]
            self.kept.add(key, values, FLOAT_BYTES * sum(map(np.size, leaves)))
        return values


def expected(
    reference: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    nan_ok: bool = False,
    products: ProductPrecision | None = None,
) -> Expected:
    """Evaluate a reference as oracle and as baseline.

    Args:
      reference: the function in jnp or numpy.
      args: pytrees of arrays.
      options: keyword arguments, passed unchanged.
      nan_ok: whether the oracle may be NaN where all inputs are finite.
      products: the precision of the products of float32 in the baseline; see
        ``references.with_precision``.

    Raises:
      KernelReferenceError: the reference raised, returned no arrays, or is NaN for finite inputs.
    """
    arrays = [to_numpy(leaf) for leaf in jax.tree.leaves(args) if _is_array(leaf)]
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        own = evaluate_reference(reference, args, options, "in the kernel's dtypes", products)
    with _in_float64():
        widened = jax.tree.map(_widened, args)
        double = evaluate_reference(reference, widened, options, "as the float64 oracle")
    oracle, baseline = double.leaves, own.leaves
    if not nan_ok and all(
        np.isfinite(wide(array)).all() for array in arrays if is_inexact(array.dtype)
    ):
        for path, array in oracle:
            count = int(np.isnan(array).sum()) if is_float(array.dtype) else 0
            if count:
                raise KernelReferenceError(
                    f"the oracle is NaN in {count} of {array.size} elements of "
                    f"{path or 'the output'}, although every input is finite, so the kernel cannot "
                    f"be compared with it. Define these elements in {name_of(reference)} (such as "
                    "0 for a fully masked row), or set nan_ok=True if NaN is the right output."
                )
    depth = max((dim for array in arrays for dim in array.shape), default=1)
    precision = _precision(double, own)

    @functools.cache
    def noise() -> Mapping[str, Noise]:
        dtypes = {narrow.dtype for narrow in precision.values()}
        return noise_of(double, baseline, dtypes, products)

    @functools.cache
    def sensitivity() -> Mapping[str, float]:
        with _in_float64():
            return _sensitivity(reference, widened, options, double)

    return Expected(
        oracle,
        baseline,
        max(depth, 1),
        lambda path: sensitivity().get(path, 0.0),
        lambda path: noise().get(path),
        precision,
        tuple(dict.fromkeys((*own.fallbacks, *double.fallbacks))),
        functools.cache(lambda: least_magnitude(double)),
        products,
        functools.cache(functools.partial(errors_of_sums, double)),
    )


def evaluate_in_float64(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> Leaves:
    """Evaluate a reference as the oracle does.

    Raises:
      KernelReferenceError: the reference raised, or returned no arrays.
    """
    with _in_float64():
        widened = jax.tree.map(_widened, args)
        return evaluate_reference(reference, widened, options, "in float64").leaves


def _precision(oracle: Evaluation, baseline: Evaluation) -> Mapping[str, Precision]:
    """By path, the outputs that are computed in less than float64; see ``judge.precision``."""
    if oracle.jaxpr is None or baseline.jaxpr is None:
        return {}
    outputs = zip(oracle.leaves, precisions(oracle.jaxpr, baseline.jaxpr), strict=True)
    return {path: precision for (path, _), precision in outputs if precision is not None}


@contextlib.contextmanager
def _in_float64() -> Generator[None]:
    """On the host, in float64."""
    with (
        jax.default_device(jax.local_devices(backend="cpu")[0]),
        jax.enable_x64(True),
        jax.default_matmul_precision("default"),  # a product has only what the reference asks for
    ):
        yield


def _sensitivity(
    reference: Callable[..., Any], args: Any, options: Mapping[str, Any], oracle: Evaluation
) -> Mapping[str, float]:
    """Measure the change of each output with the inputs: RMS, per relative change.

    Every float is changed by plus or minus ``PERTURBATION``, ``PERTURBATIONS`` times, with signs
    from a fixed seed. For a sum this is the size of its terms, even if the sum nearly cancels: the
    scale of the error of another order of summation. Empty if the reference raises for other
    inputs.
    """
    generator = np.random.Generator(np.random.Philox(0))

    def moved(leaf: Any) -> Any:
        if not _is_array(leaf) or not _is_inexact(leaf):
            return leaf
        signs = generator.integers(0, 2, np.shape(leaf)) * 2 - 1
        return leaf * (1 + PERTURBATION * signs)

    def near() -> Sequence[np.ndarray[Any, Any]]:
        if oracle.jaxpr is not None:
            return evaluate_again(oracle, [moved(array) for array in oracle.arrays])
        changed = jax.tree.map(moved, args)
        evaluation = evaluate_reference(reference, changed, options, "near its inputs")
        return [array for _, array in evaluation.leaves]

    squares = {path: 0.0 for path, array in oracle.leaves if is_float(array.dtype) and array.size}
    for _ in range(PERTURBATIONS if squares else 0):
        try:
            perturbed = near()
        except (KernelReferenceError, SimulationError):
            return {}
        for (path, before), after in zip(oracle.leaves, perturbed, strict=True):
            if path in squares:
                with np.errstate(all="ignore"):
                    change = (wide(after) - wide(before)) / PERTURBATION
                squares[path] += float(np.square(change[np.isfinite(change)]).sum() / change.size)
    return {path: float(np.sqrt(total / PERTURBATIONS)) for path, total in squares.items()}


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def _widened(leaf: Any) -> Any:
    """Floats as float64, complex as complex128; everything else unchanged."""
    if not _is_array(leaf) or _is_key(leaf):
        return leaf
    array = np.asarray(leaf)
    return wide(array) if _is_inexact(array) else array


def _is_key(array: Any) -> bool:
    """Return whether it holds typed PRNG keys, as ``jax.random.key`` makes them."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _is_inexact(array: Any) -> bool:
    return not _is_key(array) and is_inexact(array.dtype)


# The effect of rounding on the outputs of a reference, measured with random roundings.

#: Number of evaluations with random roundings.
DRAWS = 16


def noise_of(
    oracle: Evaluation,
    baseline: Leaves,
    dtypes: Collection[str] = (),
    products: ProductPrecision | None = None,
) -> Mapping[str, Noise]:
    """Measure the effect of rounding on each output of a reference; see ``judge.roundings``.

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
        if is_inexact(array.dtype) and epsilon(array.dtype) >= single
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
    positions = {path: position for position, (path, _) in enumerate(oracle.leaves)}
    return {
        path: Noise(
            wide=drawn[0.0][positions[path]] - exact[path],
            narrow=drawn[eps if eps > single else 0.0][positions[path]] - exact[path],
        )
        for path, eps in finest.items()
    }


def _draws(
    oracle: Evaluation,
    narrow: float,
    dtypes: Collection[str],
    products: ProductPrecision | None,
) -> Sequence[np.ndarray[Any, Any]]:
    """Evaluate each output ``DRAWS`` times, with random roundings of float32 and of ``narrow``."""
    generator = np.random.Generator(np.random.SFC64(0))

    def error(shape: Sequence[int]) -> np.ndarray[Any, Any]:
        return generator.uniform(-SPREAD, SPREAD, shape)

    single = ROUNDING * epsilon(np.float32)
    rounding = Rounding(ROUNDING * narrow, single, error, dtypes, products)
    draws = rounded(oracle.jaxpr, oracle.arrays, rounding, DRAWS)
    return [np.stack([wide(leaf) for leaf in leaves]) for leaves in zip(*draws, strict=True)]


def errors_of_sums(oracle: Evaluation, sums: ProductSums) -> Mapping[str, np.ndarray[Any, Any]]:
    """Measure how each output changes if products are added as tensor cores add them.

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
    outputs = zip(oracle.leaves, zip(*draws, strict=True), strict=True)
    with np.errstate(all="ignore"):
        return {
            path: np.stack([wide(leaf) for leaf in leaves]) - wide(array)
            for (path, array), leaves in outputs
            if is_inexact(array.dtype)
        }
