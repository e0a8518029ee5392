"""Expected values: the reference in float64 (oracle) and in the kernel's dtypes (baseline)."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_sim.dtypes import epsilon, is_float, is_inexact, wide
from pallas_sim.errors import SimulationError
from pytest_pallas.backends.ending import LEAST, MULTIPLE, ending, raised_words
from pytest_pallas.backends.execution import digest, to_numpy
from pytest_pallas.backends.tracing import identity
from pytest_pallas.budget import FLOAT_BYTES, LastUsed
from pytest_pallas.errors import KernelReferenceError
from pytest_pallas.judge.arithmetic import ChipArithmetic
from pytest_pallas.judge.judgement import Expected
from pytest_pallas.judge.precision import intended, precisions, widened
from pytest_pallas.judge.references import (
    Evaluation,
    Leaves,
    evaluate_again,
    evaluate_reference,
    least_magnitude,
    name_of,
)
from pytest_pallas.judge.roundings import SPREAD, Rounding, rounded
from pytest_pallas.judge.stored import rounded_when_stored
from pytest_pallas.judge.tolerance import (
    DRAWS,
    ROUNDING,
    Noise,
    Precision,
    ProductPrecision,
    measure,
)

#: Relative size of the perturbation that measures sensitivity. Large, so that a step (a floor, a
#: comparison) does not look like a steep slope; small against the curvature of a kernel.
PERTURBATION = 2.0**-6

#: Number of measurements: one perturbation may by chance not change an output.
PERTURBATIONS = 4

_HALF = ml_dtypes.bfloat16

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
      running: whether a reference is evaluated, or was when a limit of the caller ended it.
    """

    seconds: float = LEAST
    running: bool = False
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
            self.running = True
            with ending(self.seconds, _LATE):
                values = expected(reference, args, options, nan_ok=nan_ok, products=products)
            self.running = False
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
    wide_args = jax.tree.map(_widened, args)
    oracle = _oracle(reference, wide_args, options, own)
    double, precision = oracle.evaluation, oracle.precision
    baseline = own.leaves
    if not nan_ok and all(
        np.isfinite(wide(array)).all() for array in arrays if is_inexact(array.dtype)
    ):
        for path, array in double.leaves:
            count = int(np.isnan(array).sum()) if is_float(array.dtype) else 0
            if count:
                raise KernelReferenceError(
                    f"the oracle is NaN in {count} of {array.size} elements of "
                    f"{path or 'the output'}, although every input is finite, so the kernel cannot "
                    f"be compared with it. Define these elements in {name_of(reference)} (such as "
                    "0 for a fully masked row), or set nan_ok=True if NaN is the right output."
                )
    depth = max((dim for array in arrays for dim in array.shape), default=1)

    @functools.cache
    def noise() -> Mapping[str, Noise]:
        dtypes = {narrow.dtype for narrow in precision.values()}
        if double.jaxpr is None and precision:
            return _noise_of_inputs(reference, args, options, own)
        return noise_of(double, baseline, dtypes, products)

    @functools.cache
    def sensitivity() -> Mapping[str, float]:
        with _in_float64():
            return _sensitivity(reference, wide_args, options, double)

    @functools.cache
    def effects() -> Mapping[str, bool]:
        with _in_float64():
            return _effects(reference, wide_args, options, double, baseline)

    return Expected(
        double.leaves,
        baseline,
        max(depth, 1),
        lambda path: sensitivity().get(path, 0.0),
        lambda path: noise().get(path),
        precision,
        (*_by_jax(own, double), *oracle.remarks),
        functools.cache(lambda: least_magnitude(double)),
        products,
        functools.cache(functools.partial(errors_of_chip, double)),
        effects,
    )


def evaluate_in_float64(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> Leaves:
    """Evaluate a reference as the oracle does.

    Raises:
      KernelReferenceError: the reference raised, or returned no arrays.
    """
    with _in_float64():
        wide_args = jax.tree.map(_widened, args)
        return evaluate_reference(reference, wide_args, options, "in float64").leaves


def _by_jax(*evaluations: Evaluation) -> list[str]:
    """Return sentences on the parts of a reference that JAX evaluated."""
    causes = dict.fromkeys(cause for one in evaluations for cause in one.fallbacks)
    return [f"the reference was evaluated by JAX: {cause}" for cause in causes]


@dataclass(frozen=True)
class _Oracle:
    """The evaluation of a reference in float64.

    Attributes:
      evaluation: the outputs.
      precision: by path, the outputs that are computed in less than float64 all the same.
      remarks: how it differs from calling the reference with float64.
    """

    evaluation: Evaluation
    precision: Mapping[str, Precision] = field(default_factory=dict[str, Precision])
    remarks: tuple[str, ...] = ()


def _oracle(
    reference: Callable[..., Any], args: Any, options: Mapping[str, Any], own: Evaluation
) -> _Oracle:
    """Evaluate a reference in float64, also one that rounds to float32, or refuses float64.

    Args:
      reference: the function in jnp or numpy.
      args: its arguments in float64.
      options: keyword arguments.
      own: its evaluation in the kernel's dtypes.

    Raises:
      KernelReferenceError: it does not end, or returned no arrays.
    """
    with _in_float64():
        try:
            double = evaluate_reference(reference, args, options, "as the float64 oracle")
        except KernelReferenceError as error:
            if error.timed_out:
                raise
            return _without_float64(own, args, error)
        if double.jaxpr is None or own.jaxpr is None:
            return _Oracle(double, _of_values(reference, args, options, double))
        several = precisions(double.jaxpr, own.jaxpr)
        precision = {
            path: narrow
            for (path, _), narrow in zip(double.leaves, several, strict=True)
            if narrow is not None
        }
        dtypes = {narrow.dtype for narrow in precision.values()}
        if not dtypes or dtypes & intended(own.jaxpr):
            return _Oracle(double, precision)
        exact = _in_wide(double, double.arrays, dtypes)
        if exact is None:
            return _Oracle(double, precision)
        places = ", ".join(dict.fromkeys(map(str, precision.values())))
        remark = f"the reference computes in {places}; the oracle is its trace with float64 instead"
        return _Oracle(exact, remarks=(remark,))


def _without_float64(own: Evaluation, args: Any, error: KernelReferenceError) -> _Oracle:
    """Make the oracle of a reference that raised for float64, from the kernel's dtypes."""
    cause = ": ".join(raised_words(error.__cause__ or error)).partition("\n")[0]
    inputs = [leaf for leaf in jax.tree.leaves(args) if _is_array(leaf)]
    if own.jaxpr is not None and len(inputs) == len(own.arrays):
        names = {np.dtype(leaf.dtype).name for leaf in own.arrays if _is_inexact(leaf)}
        exact = _in_wide(own, inputs, names | {"float32"})
        if exact is not None:
            remark = (
                f"the reference refuses float64 ({cause}); the oracle is its trace in the kernel's "
                "dtypes with float64 instead"
            )
            return _Oracle(exact, remarks=(remark,))
    remark = f"the reference refuses float64 ({cause}); the oracle is no more exact than the kernel"
    leaves = [(path, wide(array)) for path, array in own.leaves]
    return _Oracle(Evaluation(leaves), _in_own_dtypes(own.leaves), (remark,))


def _in_own_dtypes(leaves: Leaves) -> dict[str, Precision]:
    """By path, the dtypes of the floats that a reference returned."""
    return {path: Precision(str(a.dtype)) for path, a in leaves if is_inexact(a.dtype)}


def _in_wide(
    evaluation: Evaluation, arrays: Sequence[Any], dtypes: Collection[str]
) -> Evaluation | None:
    """Evaluate a trace with float64 in place of some dtypes; None if it cannot be."""
    jaxpr = widened(evaluation.jaxpr, dtypes)
    if jaxpr is None:
        return None
    exact = replace(evaluation, jaxpr=jaxpr, arrays=arrays)
    try:
        values = evaluate_again(exact, arrays)
    except (SimulationError, TypeError, ValueError):
        return None
    paths = (path for path, _ in evaluation.leaves)
    return replace(exact, leaves=list(zip(paths, values, strict=True)))


def _of_values(
    reference: Callable[..., Any], args: Any, options: Mapping[str, Any], oracle: Evaluation
) -> dict[str, Precision]:
    """By path, what a reference without a trace computes in float32, seen by its values.

    All outputs are numbers of float32, also for inputs that are none.
    """
    suspects = {path for path, array in oracle.leaves if _is_single(array)}
    if not suspects:
        return {}
    generator = np.random.Generator(np.random.Philox(0))

    def moved(leaf: Any) -> Any:
        if not _is_array(leaf) or not _is_inexact(leaf):
            return leaf
        return leaf * (1 + PERTURBATION * generator.random(np.shape(leaf)))

    try:
        near = evaluate_reference(reference, jax.tree.map(moved, args), options, "near its inputs")
    except KernelReferenceError:
        return {}
    single = Precision("float32")
    return {path: single for path, a in near.leaves if path in suspects and _is_single(a)}


def _is_single(array: np.ndarray[Any, Any]) -> bool:
    """Return whether all floats are numbers of float32, and some of no narrower dtype."""
    if not is_float(array.dtype):
        return False
    with np.errstate(all="ignore"):
        values = wide(array)
        single, half = (values.astype(dtype).astype(np.float64) for dtype in (np.float32, _HALF))
    return np.array_equal(single, values, equal_nan=True) and not np.array_equal(
        half, values, equal_nan=True
    )


def _noise_of_inputs(
    reference: Callable[..., Any], args: Any, options: Mapping[str, Any], own: Evaluation
) -> Mapping[str, Noise]:
    """Measure the effect of rounding on a reference without a trace, which computes in float32.

    An ulp of its inputs changes the roundings of all that it computes. Empty if the reference
    raises.
    """
    generator = np.random.Generator(np.random.Philox(0))

    def moved(leaf: Any) -> Any:
        if not _is_array(leaf) or _is_key(leaf) or leaf.dtype != np.float32:
            return leaf
        steps = generator.integers(0, 2, np.shape(leaf)) * 2 - 1
        return np.nextafter(leaf, (steps * np.inf).astype(np.float32))

    draws: dict[str, list[Any]] = {path: [] for path, a in own.leaves if is_inexact(a.dtype)}
    with jax.default_device(jax.local_devices(backend="cpu")[0]), np.errstate(all="ignore"):
        for _ in range(DRAWS):
            try:
                near = evaluate_reference(
                    reference, jax.tree.map(moved, args), options, "near its inputs"
                )
            except KernelReferenceError:
                return {}
            for (path, exact), (_, array) in zip(own.leaves, near.leaves, strict=True):
                if path in draws:
                    draws[path].append(wide(array) - wide(exact))
    return {path: Noise(np.stack(errors), np.stack(errors)) for path, errors in draws.items()}


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

    squares = {path: 0.0 for path, array in oracle.leaves if is_float(array.dtype) and array.size}
    for _ in range(PERTURBATIONS if squares else 0):
        try:
            perturbed = _again(reference, args, options, oracle, moved)
        except (KernelReferenceError, SimulationError):
            return {}
        for (path, before), after in zip(oracle.leaves, perturbed, strict=True):
            if path in squares:
                with np.errstate(all="ignore"):
                    change = (wide(after) - wide(before)) / PERTURBATION
                squares[path] += float(np.square(change[np.isfinite(change)]).sum() / change.size)
    return {path: float(np.sqrt(total / PERTURBATIONS)) for path, total in squares.items()}


def _again(
    reference: Callable[..., Any],
    args: Any,
    options: Mapping[str, Any],
    oracle: Evaluation,
    change: Callable[[Any], Any],
) -> Sequence[np.ndarray[Any, Any]]:
    """Evaluate a reference in float64 with every leaf of its arguments changed.

    Raises:
      KernelReferenceError: it raised.
      SimulationError: its trace cannot be evaluated.
    """
    if oracle.jaxpr is not None:
        return evaluate_again(oracle, [change(array) for array in oracle.arrays])
    changed = jax.tree.map(change, args)
    evaluation = evaluate_reference(reference, changed, options, "near its inputs")
    return [array for _, array in evaluation.leaves]


#: An effect of fewer ulps of the output's scale is none that the judgement would notice.
_LEAST_EFFECT = 4.0

#: Most integers of an array that may be a seed, or the sizes of something.
_SEED = 8


def _effects(
    reference: Callable[..., Any],
    args: Any,
    options: Mapping[str, Any],
    oracle: Evaluation,
    baseline: Leaves,
) -> Mapping[str, bool]:
    """By argument, whether an output changes if it is another one.

    Each float array is multiplied by random factors, then mixed with random numbers; an error or
    NaN is a change, too. Integers may be indices, lengths, seeds and hints without an effect at
    this call; only if there is no float, and more integers than a seed has, all of them together
    are changed.
    """
    generator = np.random.Generator(np.random.Philox(0))

    def scaled(leaf: Any) -> Any:
        return leaf * (1 + generator.random(np.shape(leaf)))

    def mixed(leaf: Any) -> Any:
        values = np.asarray(leaf)
        finite = values[np.isfinite(values)]
        size = float(np.sqrt(np.mean(np.square(np.abs(finite))))) if finite.size else 0.0
        return values.reshape(-1)[::-1].reshape(values.shape) + (
            (size or 1.0) * generator.standard_normal(values.shape)
        )

    def reversed_(leaf: Any) -> Any:
        values = np.asarray(leaf)
        return values.reshape(-1)[::-1].reshape(values.shape)

    def next_(leaf: Any) -> Any:
        values = np.asarray(leaf)
        return ~values if values.dtype == bool else values + values.dtype.type(1)

    def changes(chosen: Collection[int], change: Callable[[Any], Any]) -> bool:
        numbers = itertools.count()

        def other(leaf: Any) -> Any:
            return change(leaf) if _is_array(leaf) and next(numbers) in chosen else leaf

        try:
            values = _again(reference, args, options, oracle, other)
        except (KernelReferenceError, SimulationError):
            return True
        pairs = zip(oracle.leaves, values, baseline, strict=True)
        return any(_differ(before, after, of.dtype) for (_, before), after, (_, of) in pairs)

    arrays = [
        (argument_name(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(args)
        if _is_array(leaf)
    ]
    floats = {
        number: name
        for number, (name, leaf) in enumerate(arrays)
        if _is_inexact(leaf) and np.size(leaf)
    }
    if floats:
        return {
            name: any(changes({number}, change) for change in (scaled, mixed))
            for number, name in floats.items()
        }
    rest = {n for n, (_, leaf) in enumerate(arrays) if not _is_key(leaf) and np.size(leaf)}
    if not any(np.size(arrays[n][1]) > _SEED for n in rest):
        return {}
    return {"any argument": any(changes(rest, change) for change in (reversed_, next_))}


def argument_name(path: Sequence[Any]) -> str:
    """Return the name of a leaf of the positional arguments: ``argument 1['w']``."""
    first, *rest = path
    return f"argument {getattr(first, 'idx', first)}{jax.tree_util.keystr(tuple(rest))}"


def _differ(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], dtype: Any) -> bool:
    """Return whether an output of a dtype differs by more than rounding."""
    if before.shape != after.shape or not is_inexact(dtype):
        return not np.array_equal(before, after)
    if not before.size:
        return False
    measured = measure(wide(after), wide(before), wide(before), np.dtype(dtype))
    return measured.worst > _LEAST_EFFECT or measured.misclassed is not None


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
    narrow = {*finest.values()} - {single}
    try:
        drawn = {eps: _draws(oracle, eps, dtypes, products) for eps in {0.0, *narrow}}
        stored = {eps: _draws(oracle, eps, dtypes, stored=True) for eps in narrow}
    except Exception:  # a rule may not support these values
        return {}
    exact = {path: wide(array) for path, array in oracle.leaves}
    positions = {path: position for position, (path, _) in enumerate(oracle.leaves)}

    def errors(draws: Sequence[np.ndarray[Any, Any]], path: str) -> np.ndarray[Any, Any]:
        return draws[positions[path]] - exact[path]

    return {
        path: Noise(
            wide=errors(drawn[0.0], path),
            narrow=errors(drawn[eps if eps in narrow else 0.0], path),
            stored=errors(stored[eps], path) if eps in narrow else None,
        )
        for path, eps in finest.items()
    }


def _draws(
    oracle: Evaluation,
    narrow: float,
    dtypes: Collection[str],
    products: ProductPrecision | None = None,
    *,
    stored: bool = False,
) -> Sequence[np.ndarray[Any, Any]]:
    """Evaluate each output ``DRAWS`` times, with random roundings of float32 and of ``narrow``.

    Or, if ``stored``, only with those of an output that is stored in ``narrow``.
    """
    generator = np.random.Generator(np.random.SFC64(0))

    def error(shape: Sequence[int]) -> np.ndarray[Any, Any]:
        return generator.uniform(-SPREAD, SPREAD, shape)

    single = ROUNDING * epsilon(np.float32)
    rounding = Rounding(ROUNDING * narrow, single, error, dtypes, products)
    evaluate = rounded_when_stored if stored else rounded
    draws = evaluate(oracle.jaxpr, oracle.arrays, rounding, DRAWS)
    return [np.stack([wide(leaf) for leaf in leaves]) for leaves in zip(*draws, strict=True)]


def errors_of_chip(
    oracle: Evaluation, arithmetic: ChipArithmetic
) -> Mapping[str, np.ndarray[Any, Any]]:
    """Measure how each output changes if the chip's arithmetic takes the place of the exact one.

    Each is float64[DRAWS, *shape]: in each draw, the terms of sums come in another order, and
    functions have other errors. Nothing else is rounded. Empty for a reference that JAX cannot
    trace.

    Args:
      oracle: the reference on float64.
      arithmetic: how the kernel's products are added, and which functions are approximate.
    """
    if oracle.jaxpr is None:
        return {}
    generator = np.random.Generator(np.random.SFC64(0))
    rounding = Rounding(0.0, 0.0, np.zeros, chip=arithmetic, generator=generator)
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
