"""References that compute in less than float64, although all their floats are float64.

``x.astype(jnp.float32)`` is the dtype that a kernel accumulates in, and makes the oracle no more
exact than the kernel. A rounding that is meant is part of the function: the trace in the kernel's
dtypes rounds there, too, from a wider dtype to the same one. ``precisions`` finds the other ones,
and ``widened`` gives the trace without them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.dtypes import epsilon, is_complex, is_inexact
from pallas_sim.findings import SourceLine
from pallas_sim.findings import read as line_of
from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    called_by,
    equations,
    is_literal,
    open_jaxpr,
    scan_parts,
    source_line,
)
from pytest_pallas.backends.rewriting import closed_with, literal, variable
from pytest_pallas.errors import is_own
from pytest_pallas.judge.roundings import EXACT
from pytest_pallas.judge.tolerance import Precision

#: Operations that round nothing beyond what their operands have been rounded to.
_LOSSLESS = EXACT | {"ceil", "floor", "reduce_precision", "round"}


@dataclass(frozen=True)
class _State:
    """What is known of a value.

    Attributes:
      widened: whether it depends on an input in float64. Random numbers do not.
      is_input: whether it is an input, a constant, or elements of some: in float64, it has no more
        digits than in the kernel's dtypes.
      narrowed: where it became narrower than float64; None if it did not, or nothing was lost.
      lost: whether it had more digits before.
      computed: the same of a value that was computed from such ones.
    """

    widened: bool = False
    is_input: bool = False
    narrowed: Precision | None = None
    lost: bool = False
    computed: Precision | None = None

    def joined(self, other: _State) -> _State:
        """Join what is known of a value that may be either."""
        return _State(
            widened=self.widened or other.widened,
            is_input=self.is_input and other.is_input,
            narrowed=self.narrowed or other.narrowed,
            lost=self.lost or other.lost,
            computed=self.computed or other.computed,
        )


_States = Sequence[_State]
_Meant = Callable[[Any], bool]
_Found = tuple[Precision | None, ...]
_Cache = weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, _Found]]
_KNOWN: _Cache = weakref.WeakKeyDictionary()


def precisions(oracle: Any, baseline: Any) -> Sequence[Precision | None]:
    """In which dtype each output is computed if not in float64, by the data flow of the trace.

    An output is reported where a value of float64 is rounded to a narrower float that is computed
    with afterwards. A last rounding is not, nor one of an input that has no more digits, if what is
    computed with it is float64 again.

    Args:
      oracle: what JAX traced under x64, for inputs in float64.
      baseline: what it traced in the kernel's dtypes.
    """
    cached = _KNOWN.setdefault(oracle, weakref.WeakKeyDictionary())
    outputs = cached.get(baseline)
    if outputs is None:
        jaxpr, _ = open_jaxpr(oracle)
        inputs = [_State(_digits(var.aval) is not None, is_input=True) for var in jaxpr.invars]
        states = _outputs(jaxpr, inputs, _meant_by(baseline))
        outputs = cached[baseline] = tuple(state.computed for state in states)
    return outputs


def intended(baseline: Any) -> set[str]:
    """Return the names of the dtypes that a function rounds to in the kernel's dtypes."""
    jaxpr, _ = open_jaxpr(baseline)
    return {_site(eqn)[1] for eqn in equations(jaxpr) if _narrows(eqn)}


def _meant_by(baseline: Any) -> Callable[[Any], bool]:
    """Return a function that says whether an equation rounds in the kernel's dtypes, too.

    ``baseline`` is what was traced in these dtypes; it is searched when there is a question.
    """

    @functools.cache
    def sites() -> set[tuple[str, str, str]]:
        jaxpr, _ = open_jaxpr(baseline)
        return {_site(eqn) for eqn in equations(jaxpr) if _narrows(eqn)}

    return lambda eqn: bool(sites()) and _site(eqn) in sites()


def _site(eqn: Any) -> tuple[str, str, str]:
    dtype = str(eqn.outvars[0].aval.dtype)
    return (eqn.primitive.name, dtype, source_line(eqn) or "")


def _narrows(eqn: Any) -> bool:
    """Return whether the result has fewer digits than an operand."""
    out = _digits(eqn.outvars[0].aval)
    return out is not None and any(
        digits is not None and digits < out
        for digits in (_digits(operand.aval) for operand in eqn.invars)
    )


def _digits(aval: Any) -> float | None:
    """Return the epsilon of a float or complex array; None for anything else."""
    dtype = getattr(aval, "dtype", None)
    return epsilon(dtype) if isinstance(dtype, np.dtype) and is_inexact(dtype) else None


_DOUBLE = epsilon(np.float64)


def _outputs(jaxpr: Any, inputs: _States, meant: _Meant) -> list[_State]:
    """Return what is known of the outputs of an open jaxpr."""
    states: dict[Any, _State] = {var: _State(is_input=True) for var in jaxpr.constvars}
    states.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> _State:
        return _State(is_input=True) if is_literal(atom) else states[atom]

    for eqn in jaxpr.eqns:
        results = _results(eqn, [read(atom) for atom in eqn.invars], meant)
        states.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(eqn: Any, operands: _States, meant: _Meant) -> _States:
    name, params = eqn.primitive.name, eqn.params
    called = called_by(eqn)
    if called is not None:
        return _outputs(called[0], operands, meant)
    if name == "cond":
        branches = [open_jaxpr(branch)[0] for branch in params["branches"]]
        return _joined([_outputs(branch, operands[1:], meant) for branch in branches])
    if name == "scan":
        consts, carried, _ = scan_parts(params, len(operands))
        return _loop(params["jaxpr"], operands, consts, carried, meant)
    if name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        carried = len(operands) - first - second
        return _loop(params["body_jaxpr"], operands[first:], second, carried, meant)
    return [_result(eqn, operands, _digits(var.aval), meant) for var in eqn.outvars]


def _loop(body: Any, operands: _States, consts: int, carried: int, meant: _Meant) -> _States:
    """Return what is known after any number of steps."""
    jaxpr, _ = open_jaxpr(body)
    carry = list(operands[consts : consts + carried])
    while True:
        inputs = [*operands[:consts], *carry, *operands[consts + carried :]]
        results = _outputs(jaxpr, inputs, meant)
        after = _joined([carry, results[:carried]])
        if after == carry:
            return [*carry, *results[carried:]]
        carry = after


def _result(eqn: Any, operands: _States, digits: float | None, meant: _Meant) -> _State:
    """Return what is known of a result; ``digits`` is its epsilon if it is a float."""
    name = eqn.primitive.name
    exact = name in _LOSSLESS or digits is None
    known = operands[0] if operands else _State(is_input=True)
    for operand in operands[1:]:
        known = known.joined(operand)
    if digits is None:
        return _State(known.widened, known.is_input, computed=known.computed)
    rounded = [operand for operand in operands if operand.narrowed]
    if not exact:
        narrow = digits > _DOUBLE
        narrowest = next((operand.narrowed for operand in rounded if operand.lost or narrow), None)
        known = _State(known.widened, computed=known.computed or _of_user(narrowest, eqn))
    if digits > _DOUBLE and _narrows(eqn):
        if meant(eqn):
            return _State(known.widened, computed=known.computed)
        if known.widened and known.narrowed is None:
            precision = Precision(str(eqn.outvars[0].aval.dtype), _line(eqn))
            return replace(known, narrowed=precision, lost=not known.is_input)
    return known


def _joined(several: Sequence[_States]) -> list[_State]:
    """Join what is known of the same values after several branches."""
    first, *rest = several
    joined = list(first)
    for states in rest:
        joined = [one.joined(other) for one, other in zip(joined, states, strict=True)]
    return joined


def _of_user(precision: Precision | None, eqn: Any) -> Precision | None:
    """Name a line of the reference instead of a check's, which may round, too: a cotangent."""
    if precision is None or precision.line is None or not is_own(precision.line.file):
        return precision
    return replace(precision, line=_line(eqn) or precision.line)


def _line(eqn: Any) -> SourceLine | None:
    return line_of(source_line(eqn) or "")


# The same trace in float64.


#: Operations that a wider dtype changes: they use the bits of their operands, or call other code.
_OF_BITS = KERNEL_PRIMITIVES | {
    *("bitcast_convert_type", "nextafter", "pure_callback", "io_callback", "ffi_call"),
}

_WIDENED = weakref.WeakKeyDictionary[Any, dict[frozenset[str], Any]]()


def widened(jaxpr: Any, dtypes: Collection[str]) -> Any:
    """Return a trace with float64 in place of some dtypes, complex128 in place of complex64.

    Args:
      jaxpr: what JAX traced, open or closed.
      dtypes: names of floats of 16 or 32 bits.

    Returns:
      None where that would be another function: it uses the bits of such a number.
    """
    cached = _WIDENED.setdefault(jaxpr, {})
    names = frozenset(dtypes)
    if names not in cached:
        inner, consts = open_jaxpr(jaxpr)
        wide = _Widening(names)
        try:
            changed = closed_with(jaxpr, wide.jaxpr(inner))
        except (TypeError, ValueError):
            changed = None  # a parameter holds it in a form of its own
        if changed is not None and changed is not jaxpr and hasattr(jaxpr, "consts"):
            changed = changed.replace(consts=[wide.array(const) for const in consts])
        cached[names] = changed
    return cached[names]


class _Widening:
    """The replacement of dtypes by float64."""

    def __init__(self, names: frozenset[str]) -> None:
        """Replace the dtypes of these names."""
        self._names = names | {"complex64"} if "float32" in names else names

    def jaxpr(self, jaxpr: Any) -> Any:
        """Return an open jaxpr with other dtypes.

        Raises:
          ValueError: it would be another function.
        """
        names: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            if is_literal(atom):
                return literal(atom.val, self._aval(atom.aval)) if self._has(atom.aval) else atom
            return names[atom]

        def define(var: Any) -> Any:
            names[var] = variable(self._aval(var.aval))
            return names[var]

        invars, constvars = [*map(define, jaxpr.invars)], [*map(define, jaxpr.constvars)]
        eqns: list[Any] = []
        for eqn in jaxpr.eqns:
            atoms = (*eqn.invars, *eqn.outvars)
            if eqn.primitive.name in _OF_BITS and any(self._has(atom.aval) for atom in atoms):
                raise ValueError(f"{eqn.primitive.name} depends on the bits of a number")
            operands = [*map(read, eqn.invars)]
            params = {name: self._param(value) for name, value in eqn.params.items()}
            outvars = [*map(define, eqn.outvars)]
            eqns.append(eqn.replace(invars=operands, outvars=outvars, params=params))
        outvars = [*map(read, jaxpr.outvars)]
        return jaxpr.replace(invars=invars, constvars=constvars, eqns=eqns, outvars=outvars)

    def array(self, array: Any) -> Any:
        """Return a constant in the dtype that its variable has."""
        if getattr(getattr(array, "dtype", None), "name", "") not in self._names:
            return array
        return np.asarray(array).astype(self._dtype(array.dtype))

    def _has(self, aval: Any) -> bool:
        return getattr(getattr(aval, "dtype", None), "name", "") in self._names

    def _aval(self, aval: Any) -> Any:
        return aval.update(dtype=self._dtype(aval.dtype)) if self._has(aval) else aval

    def _dtype(self, dtype: Any) -> Any:
        return np.dtype(np.complex128 if is_complex(dtype) else np.float64)

    def _param(self, value: Any) -> Any:
        inner = getattr(value, "jaxpr", None)
        if hasattr(inner, "eqns") and hasattr(value, "consts"):
            consts = [self.array(const) for const in value.consts]
            return value.replace(jaxpr=self.jaxpr(inner), consts=consts)
        if hasattr(value, "eqns"):
            return self.jaxpr(value)
        if isinstance(value, np.dtype):
            return self._dtype(value) if value.name in self._names else value  # pyright: ignore[reportUnknownMemberType]
        if type(value) in (tuple, list):
            return type(value)(map(self._param, value))
        return value
