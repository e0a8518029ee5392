"""Which tolerance holds, and who gave it: mark > call or spec > hook > default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends import Backend, label, parse
from pytest_pallas.session import Session

if TYPE_CHECKING:
    from pytest_pallas.numerics import Tolerance


def tolerance_for(
    session: Session,
    marks: Sequence[pytest.Mark],
    given: Tolerance | Mapping[str, Tolerance] | None,
    *,
    kernel: str,
    check: str,
    backend: Backend,
    dtypes: Sequence[str],
) -> tuple[Tolerance, str]:
    """The tolerance for one call, and where it is given, in words; "" for the default.

    Args:
      session: has the hook and the backends.
      marks: the ``pallas_tolerance`` marks of the test, closest first.
      given: the tolerance of the call or the spec, or a mapping whose keys are a dtype, a backend,
        or both (``"bfloat16"``, ``"gpu"``, ``"gpu bfloat16"``); the most specific wins.
      kernel: name of the kernel.
      check: name of the check.
      backend: where it runs.
      dtypes: names of the dtypes of its array arguments.

    Raises:
      OptionError: a mark has a wrong argument.
    """
    from pytest_pallas.numerics import Tolerance

    names = (backend.name, label(backend))
    for mark in marks:
        limits = dict(mark.kwargs)
        only_backend, only_dtype = limits.pop("backend", None), limits.pop("dtype", None)
        _known(session, only_backend, only_dtype)
        if only_backend not in (None, *names) or only_dtype not in (None, *dtypes):
            continue
        try:
            return Tolerance(**limits), "@pytest.mark.pallas_tolerance"
        except TypeError as error:
            raise OptionError(
                f"mark pallas_tolerance: {error}; it takes backend, dtype, factor, floor, rtol, "
                "atol, ulp and fraction"
            ) from None
    chosen = _most_specific(given, names, dtypes) if isinstance(given, Mapping) else given
    if chosen is not None:
        return chosen, "tolerance= of the spec or call"
    chosen = session.harness.tolerance(kernel=kernel, check=check, backend=backend, dtypes=dtypes)
    if chosen is not None:
        return chosen, "the hook pytest_pallas_tolerance"
    return Tolerance(), ""


def _known(session: Session, backend: str | None, dtype: str | None) -> None:
    """Reject unknown names in a mark, which would never match."""
    import jax

    if backend is not None:
        parse(backend, session.families)
    try:
        jax.numpy.dtype(dtype)
    except TypeError:
        raise OptionError(f"mark pallas_tolerance: unknown dtype {dtype!r}") from None


def _most_specific(
    given: Mapping[str, Tolerance], names: Sequence[str], dtypes: Sequence[str]
) -> Tolerance | None:
    keys: list[str] = [f"{name} {dtype}" for name in reversed(names) for dtype in dtypes]
    keys += [*reversed(names), *dtypes]
    return next((given[key] for key in keys if key in given), None)


def dtypes_of(args: Any) -> list[str]:
    """Names of the dtypes of the arrays in a pytree, without repetition."""
    import jax

    leaves = jax.tree.leaves(args)
    return list(dict.fromkeys(str(leaf.dtype) for leaf in leaves if hasattr(leaf, "dtype")))
