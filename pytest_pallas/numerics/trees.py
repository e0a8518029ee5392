"""``compare_trees``: the judgement of all outputs of a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pytest_pallas.errors import ReferenceError
from pytest_pallas.numerics.comparison import Comparison
from pytest_pallas.numerics.explanation import state
from pytest_pallas.numerics.judgement import compare
from pytest_pallas.numerics.noise import Noise
from pytest_pallas.numerics.tolerance import Tolerance

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
    precision: Callable[[str], object] = lambda _: "",
    check_dtype: bool = True,
    explained: bool = True,
) -> list[Comparison]:
    """Judge each output of a kernel; see ``compare`` for the options.

    ``sensitivity``, ``noise`` and ``precision`` are by path.

    Each tree is given as its leaves, ``(path, array)`` with unique paths. A kernel whose outputs
    have other paths than the oracle's gives one failed comparison of the kind ``tree``. The
    result is in the order of ``oracle``.

    Raises:
      ReferenceError: oracle and baseline have different paths or shapes.
    """
    outputs, references, baselines = dict(actual), dict(oracle), dict(baseline)
    if references.keys() != baselines.keys():
        raise ReferenceError(
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
            precision=str(precision(path) or ""),
            where=path,
            check_dtype=check_dtype,
            explained=explained,
        )
        for path, array in oracle
    ]


def _names(paths: Iterable[str]) -> str:
    """Paths in one line, in their order."""
    return ", ".join(paths) or "none"


def _at(sensitivity: Mapping[str, float], path: str) -> float:
    return sensitivity.get(path, 0.0)
