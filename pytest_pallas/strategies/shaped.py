"""``shaped``: one call of a kernel by the shapes of its arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.arguments import Arguments
from pytest_pallas.strategies.dtypes import as_dtype
from pytest_pallas.strategies.sizes.constraints import holds
from pytest_pallas.strategies.sizes.shapes import concrete, parse

_NONE: Mapping[str, Any] = MappingProxyType({})


def shaped(
    shapes: str,
    *,
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike],
    dims: Mapping[str, int] = _NONE,
    options: Mapping[str, Any] = _NONE,
    tuning: Mapping[str, Any] = _NONE,
) -> Arguments:
    """A call with a ``jax.ShapeDtypeStruct`` for each array: enough for a compiler.

    Example::

        shaped("m k, k n", dtype="bfloat16", dims={"m": 1024, "k": 1024, "n": 512})

    Args:
      shapes: the shapes of the arrays, as for ``arrays``.
      dtype: the dtype of all arrays, or a list with one for each.
      dims: the size of every named dim; sizes that only constraints name may be left out.
      options: keyword arguments that change the answer.
      tuning: keyword arguments that must not change it.

    Raises:
      ShapeLanguageError: ``shapes`` cannot be understood.
      SpecError: a size is missing or breaks a constraint, or there are more or fewer dtypes than
        arrays.
    """
    import jax

    spec = parse(shapes)
    missing = [name for name in spec.names if name not in dims]
    if missing:
        raise SpecError(f"shaped({shapes!r}): no size for {', '.join(missing)}; give it in dims=")
    for constraint in spec.constraints:
        if all(name in dims for name in constraint.names) and not holds(constraint, dims):
            raise SpecError(f"shaped({shapes!r}): {dict(dims)} breaks {constraint.text!r}")
    dtypes = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * len(spec.arrays)
    if len(dtypes) != len(spec.arrays):
        raise SpecError(
            f"shaped({shapes!r}): {len(dtypes)} dtypes for {len(spec.arrays)} arrays; give one "
            "for each, or one for all"
        )
    args = tuple(
        jax.ShapeDtypeStruct(shape, as_dtype(each))
        for shape, each in zip(concrete(spec, dims), dtypes, strict=True)
    )
    return Arguments(args, dict(options), dict(tuning), recipe={**dims, "values": "none"})
