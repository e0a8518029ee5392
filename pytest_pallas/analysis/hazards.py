"""What a traced call holds that may hang or end the process which executes or simulates it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from pallas_sim.compat.jaxprs import sub_jaxprs
from pytest_pallas.analysis.kernel_calls import kernel_calls

#: Primitives that call Python, which may do anything.
CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback"})

#: Arrays of more bytes than this may take more memory than there is.
LARGE_BYTES = 2**30

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "ne"})


@functools.lru_cache(maxsize=256)
def hazards(jaxpr: Any, *, simulated: bool = False) -> tuple[str, ...]:
    """What a closed jaxpr holds of these, in words.

    A kernel with semaphores, DMAs or barriers may wait for ever; a while loop that does not count
    may never end; a callback may do anything; an array of more than 1 GiB may not fit.

    Args:
      jaxpr: what was traced.
      simulated: whether the simulator runs it, which ends waits and loops.
    """
    found: list[str] = []
    if not simulated and any(kernel.asynchronous for kernel in kernel_calls(jaxpr)):
        found.append("semaphores, DMAs or barriers")
    equations = list(_equations(getattr(jaxpr, "jaxpr", jaxpr)))
    if not simulated and any(
        eqn.primitive.name == "while" and not _counts(eqn) for eqn in equations
    ):
        found.append("a while loop without a bound")
    if any(eqn.primitive.name in CALLBACKS for eqn in equations):
        found.append("a callback")
    avals = [var.aval for eqn in equations for var in eqn.outvars]
    avals += [var.aval for var in getattr(jaxpr, "jaxpr", jaxpr).invars]
    if any(_bytes(aval) > LARGE_BYTES for aval in avals):
        found.append("an array of more than 1 GiB")
    return tuple(found)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn):
            yield from _equations(inner)


def _bytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return 0
    return math.prod(shape) * getattr(dtype, "itemsize", 1)


def _counts(eqn: Any) -> bool:
    """Whether a ``while`` is a loop that counts to a bound, as ``fori_loop`` makes it.

    Its condition compares one carried value with another that no iteration changes, and the body
    adds a constant to the one.
    """
    condition, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    first = eqn.params["cond_nconsts"]
    carried = body.invars[eqn.params["body_nconsts"] :]
    test = _made_by(condition, condition.outvars[0])
    if test is None or test.primitive.name not in _COMPARISONS:
        return False
    changing: list[int] = []
    for operand in test.invars:
        var = _converted(condition, operand)
        if hasattr(var, "val"):
            continue
        if var not in condition.invars:
            return False
        place = condition.invars.index(var) - first
        if place >= 0 and _converted(body, body.outvars[place]) is not carried[place]:
            changing.append(place)
    return len(changing) == 1 and _steps(body, carried[changing[0]], body.outvars[changing[0]])


def _steps(body: Any, before: Any, after: Any) -> bool:
    """Whether ``after`` is ``before`` plus or minus a constant that is not 0."""
    eqn = _made_by(body, _converted(body, after))
    if eqn is None or eqn.primitive.name not in ("add", "sub"):
        return False
    first, second = (_converted(body, var) for var in eqn.invars)
    if eqn.primitive.name == "add" and second is before:
        first, second = second, first
    return first is before and hasattr(second, "val") and bool(second.val != 0)


def _converted(jaxpr: Any, var: Any) -> Any:
    """What a variable is but for its dtype."""
    eqn = _made_by(jaxpr, var)
    while eqn is not None and eqn.primitive.name == "convert_element_type":
        var = eqn.invars[0]
        eqn = _made_by(jaxpr, var)
    return var


def _made_by(jaxpr: Any, var: Any) -> Any:
    """The equation that a variable is the result of, or None."""
    return next((eqn for eqn in jaxpr.eqns if any(var is out for out in eqn.outvars)), None)
