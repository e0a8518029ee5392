"""``compare_trees`` and ``bitwise``: the judgement of all outputs of a kernel, and of bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import Array, is_complex, is_exact, is_float, wide
from pallas_sim.errors import Explanation
from pytest_pallas.errors import KernelReferenceError
from pytest_pallas.numerics.comparison import Comparison
from pytest_pallas.numerics.explanation import ComparedArrays, explain, state
from pytest_pallas.numerics.judgement import compare
from pytest_pallas.numerics.measure import measure
from pytest_pallas.numerics.noise import Noise
from pytest_pallas.numerics.precision import Precision
from pytest_pallas.numerics.tolerance import Tolerance


def bitwise(
    actual: npt.ArrayLike, expected: npt.ArrayLike, *, where: str = "", change: str = ""
) -> Comparison:
    """Compare two arrays bit for bit, NaN payloads and the sign of zero included.

    For determinism and immutability, where no error is small. Any shape and dtype of fixed size
    will do. ``expected_value`` and ``baseline_value`` are both those of ``expected``. With a
    ``change``, both are answers of the kernel: the actual one with that change, such as ``"with NaN
    in the padding"``, the expected one without.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return state("shape", where, f"shape {actual.shape} and not {expected.shape}", actual)
    if actual.dtype != expected.dtype:
        return state("dtype", where, f"dtype {actual.dtype} and not {expected.dtype}", actual)
    if actual.dtype.hasobject:
        return state("dtype", where, f"arrays of dtype {actual.dtype} have no bits", actual)
    mask = (_bytes(actual) != _bytes(expected)).any(axis=-1).reshape(actual.shape)
    wrong = int(np.count_nonzero(mask))
    result = Comparison(
        passed=wrong == 0,
        kind="bitwise",
        where=where,
        shape=actual.shape,
        dtype=str(actual.dtype),
        wrong=wrong,
        mask=mask if wrong else None,
    )
    if not wrong:
        return result
    if not any(test(actual.dtype) for test in (is_exact, is_float, is_complex)):
        text = f"{where or 'output'}: {wrong} elements differ in bits"
        return replace(result, explanation=Explanation(text))
    errors = _errors(actual, expected, mask)
    # Where the values are equal (-0.0 and 0.0, two NaNs) the first difference is as bad as any.
    flat = int(np.argmax(np.where(mask, errors, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(flat, mask.shape))
    sides = ComparedArrays(actual, expected, expected)
    error = float(errors[index])
    result = replace(result, error=error, multiple=error, worst_index=index, **sides.at(index))
    return explain(result, sides, change=change)


def _bytes(array: Array) -> Array:
    """The bytes of each element: uint8[elements, itemsize]."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)


def _errors(actual: Array, expected: Array, mask: Array) -> Array:
    """Absolute differences of integers, ulps of floats; infinite where the class differs."""
    if is_exact(actual.dtype):
        errors = np.zeros(mask.shape)
        difference = wide(actual[mask]).astype(object) - wide(expected[mask]).astype(object)
        errors[mask] = abs(difference).astype(np.float64)
        return errors
    measured = measure(wide(actual), wide(expected), wide(expected), actual.dtype)
    if measured.misclassed is None:
        return measured.errors
    return np.where(measured.misclassed, np.inf, measured.errors)


type Leaves = Sequence[tuple[str, npt.ArrayLike]]

_DEFAULT = Tolerance()


def compare_trees(
    actual: Leaves,
    oracle: Leaves,
    baseline: Leaves,
    *,
    tolerance: Tolerance = _DEFAULT,
    exact: bool = False,
    depth: int = 1,
    sensitivity: Mapping[str, float] = MappingProxyType({}),
    noise: Callable[[str], Noise | None] = lambda _: None,
    precision: Callable[[str], Precision | None] = lambda _: None,
    check_dtype: bool = True,
    explained: bool = True,
    present: Mapping[str, Array] = MappingProxyType({}),
) -> list[Comparison]:
    """Judge each output of a kernel; see ``compare`` for the options.

    ``sensitivity``, ``noise``, ``precision`` and ``present`` are by path.

    Each tree is given as its leaves, ``(path, array)`` with unique paths. A kernel whose outputs
    have other paths than the oracle's gives one failed comparison of the kind ``tree``. The
    result is in the order of ``oracle``.

    Raises:
      KernelReferenceError: oracle and baseline have different paths or shapes.
    """
    outputs, references, baselines = dict(actual), dict(oracle), dict(baseline)
    if references.keys() != baselines.keys():
        raise KernelReferenceError(
            f"the reference returned the outputs {_names(references)} in float64 and "
            f"{_names(baselines)} in the kernel's dtypes; they must not depend on the dtype"
        )
    missing = [path for path in references if path not in outputs]
    extra = [path for path in outputs if path not in references]
    if missing or extra:
        text = f"the kernel returned {len(outputs)} outputs, the reference {len(references)}"
        if missing:
            text += f"; missing: {_names(missing)}"
        if extra:
            text += f"; not in the reference: {_names(extra)}"
        return [state("tree", "outputs", text)]
    return [
        compare(
            np.asarray(outputs[path]),
            np.asarray(array),
            np.asarray(baselines[path]),
            tolerance=tolerance,
            exact=exact,
            depth=depth,
            sensitivity=functools.partial(_at, sensitivity, path),
            noise=functools.partial(noise, path),
            precision=precision(path),
            where=path,
            check_dtype=check_dtype,
            explained=explained,
            present=present.get(path),
        )
        for path, array in oracle
    ]


def _names(paths: Iterable[str]) -> str:
    """Paths in one line, in their order."""
    return ", ".join(paths) or "none"


def _at(sensitivity: Mapping[str, float], path: str) -> float:
    return sensitivity.get(path, 0.0)
