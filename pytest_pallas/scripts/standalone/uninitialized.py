# ruff: noqa: T201
"""What stand-alone scripts ask of elements that must not matter; else as ``questions.py``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from pytest_pallas.backends.variations import highest, lowest
from pytest_pallas.scripts.simulated import refilled
from pytest_pallas.scripts.standalone.parts import Case, run, wide
from pytest_pallas.scripts.standalone.questions import differ


def padding(case: Case) -> bool:
    """Put other numbers where none should matter, and compare bit for bit, but for NaN's payload.

    First in memory that nobody has written, then in the ignored elements of the arguments.
    """
    options = case.options | case.tuning
    first = unified(run(case, case.kernel, case.args, options))
    failed = False
    fills = {"the largest finite number": highest, "the lowest finite number": lowest}
    for words, value_of in fills.items() if case.more["fills"] else ():
        print(f"with {words} in memory that nobody has written")
        again = unified(run(refilled(case, value_of), case.kernel, case.args, options))
        failed |= differ(first, again)
    for words, args in poisoned(case.args, case.more["masks"]):
        print(f"with {words} in the ignored elements of the arguments")
        failed |= differ(first, unified(run(case, case.kernel, args, options)))
    return failed


def unified(outputs: dict[str, Any]) -> dict[str, Any]:
    """One NaN for all of them."""

    def one_nan(array: Any) -> Any:
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            return array
        return np.where(np.isnan(wide(array)), np.array(np.nan).astype(array.dtype), array)

    return {name: one_nan(array) for name, array in outputs.items()}


def poisoned(args: Any, masks: Any) -> Any:
    """The arguments with poison where the masks are true, each with what it is."""
    for words in ("NaN", "infinities", "the largest number", "the lowest number"):
        changed = [
            arg if mask is None or not mask.any() else with_poison(arg, mask, words)
            for arg, mask in zip(args, masks, strict=True)
        ]
        if any(new is not old for new, old in zip(changed, args, strict=True)):
            yield words, tuple(changed)


def with_poison(arg: Any, mask: Any, words: str) -> Any:
    """Poison in one argument; integers of more than a byte stay legal as indices."""
    changed = np.array(arg)
    dtype, low = changed.dtype, words == "the lowest number"
    values: Any = {"NaN": [np.nan], "infinities": [np.inf, -np.inf]}.get(words)
    if values is not None and not jnp.issubdtype(dtype, jnp.inexact):
        return arg
    if values is None and dtype.kind == "b":
        values = [not low]
    elif values is None and jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize > 1:
        values = [changed.min() if low else changed.max()]
    elif values is None:
        exact = jnp.issubdtype(dtype, jnp.integer)
        info: Any = jnp.iinfo(dtype) if exact else jnp.finfo(dtype)
        values = [info.min if low else info.max]
    with np.errstate(all="ignore"):  # not every format has an infinity
        changed[mask] = np.resize(np.asarray(values), mask.sum()).astype(dtype)
    return changed
