"""Rewrite jaxprs: other equations, other jaxprs inside of equations, other kernels.

``export`` replaces kernels by opaque calls, references get rounded products, mutants
get mistakes. Everything here returns the same object where nothing changes, so that JAX's caches,
which go by identity, still hit. Importing this module does not import jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    equations_inside,
    is_literal,
    open_jaxpr,
)


def literal(value: Any, aval: Any) -> Any:
    """Return a scalar constant of an aval's dtype."""
    import numpy as np
    from jax.extend import core

    return core.Literal(np.asarray(value, aval.dtype), aval)


def variable(aval: Any) -> Any:
    """Return a new variable."""
    from jax.extend import core

    return core.Var(aval)


def with_equations(jaxpr: Any, eqns: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """Return an open jaxpr with other equations and results."""
    return jaxpr.replace(eqns=list(eqns), outvars=list(outvars))


def with_jaxprs(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """Return an equation with every open jaxpr inside replaced by ``change`` of it.

    The index maps of a ``pallas_call`` are left alone.
    """
    params = {name: _changed(value, change) for name, value in eqn.params.items()}
    if all(params[name] is value for name, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=params)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    inner = getattr(value, "jaxpr", None)
    if hasattr(value, "eqns") and (inner is None or inner is value):
        return change(value)
    if hasattr(inner, "eqns") and hasattr(value, "consts"):  # JAX 0.11.2 has closed ones besides
        new = change(inner)
        return value if new is inner else value.replace(jaxpr=new)
    if isinstance(value, (tuple, list)):
        parts: list[Any] = [_changed(part, change) for part in value]  # pyright: ignore[reportUnknownVariableType]
        if all(new is old for new, old in zip(parts, value, strict=True)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return value  # pyright: ignore[reportUnknownVariableType]
        return type(value)(parts)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def renamed(eqn: Any, names: Mapping[Any, Any]) -> Any:
    """Return an equation with other operands in place of some."""
    if not any(not is_literal(atom) and atom in names for atom in eqn.invars):
        return eqn
    return eqn.replace(
        invars=[atom if is_literal(atom) else names.get(atom, atom) for atom in eqn.invars],
        effects={_of_other(effect, names) for effect in eqn.effects},
    )


def _of_other(effect: Any, names: Mapping[Any, Any]) -> Any:
    """Return the effect of an equation with other operands: in JAX 0.12 it names the variable."""
    var = getattr(effect, "input", None)
    return effect.replace(names[var]) if var is not None and var in names else effect


def equations_of(
    function: Callable[..., Any], atoms: Sequence[Any], like: Any
) -> tuple[list[Any], list[Any]]:
    """Trace a function on operands of a jaxpr; return the equations and the results.

    Args:
      function: of arrays with the shapes and dtypes of ``atoms``, and of references where these
        are; it returns a sequence of arrays.
      atoms: its operands.
      like: the equation whose place in the source they take.
    """
    from jax.core import ShapedArray
    from jax.extend import core, linear_util
    from jax.interpreters import partial_eval

    # As jax.make_jaxpr, without the jit around it, which takes most of the time.
    avals = [
        atom.aval
        if hasattr(atom.aval, "inner_aval")
        else ShapedArray(atom.aval.shape, atom.aval.dtype)
        for atom in atoms
    ]
    named = core.DebugInfo("equations_of", "equations_of", None, None)
    wrapped = linear_util.wrap_init(lambda *arrays: list(function(*arrays)), debug_info=named)
    traced, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    names: dict[Any, Any] = dict(zip(traced.invars, atoms, strict=True))
    for var, const in zip(traced.constvars, consts, strict=True):
        names[var] = literal(const, var.aval)  # of scalars only; nothing here makes others
    eqns = [
        renamed(eqn, names).replace(source_info=like.source_info, ctx=like.ctx)
        for eqn in traced.eqns
    ]
    return eqns, [atom if is_literal(atom) else names.get(atom, atom) for atom in traced.outvars]


def closed_with(closed: Any, jaxpr: Any) -> Any:
    """Return a jaxpr with another open one inside; ``jaxpr`` where it is open itself."""
    return jaxpr if open_jaxpr(closed)[0] is closed else closed.replace(jaxpr=jaxpr)


type ChangeKernel = Callable[[Any, Mapping[str, int]], Any]


def with_kernels(jaxpr: Any, change: ChangeKernel, axes: Mapping[str, int] | None = None) -> Any:
    """Replace the kernels of an open jaxpr, also in ``jit``, ``vmap``, ``shard_map`` and loops.

    Args:
      jaxpr: open; ``jaxpr`` itself is returned where no kernel changes.
      change: gives an equation for each equation that calls a kernel, and for the sizes of the mesh
        axes around it.
      axes: the sizes of the mesh axes around the jaxpr.
    """
    axes = axes or {}

    def changed(eqn: Any) -> Any:
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            return change(eqn, axes)
        if not _holds_kernels(eqn):
            return eqn
        mesh = getattr(eqn.params.get("mesh"), "shape", None) or {}
        return with_jaxprs(eqn, lambda inner: with_kernels(inner, change, {**axes, **mesh}))

    eqns = [changed(eqn) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return with_equations(jaxpr, eqns, jaxpr.outvars)


def _holds_kernels(eqn: Any) -> bool:
    inside = equations_inside(eqn)
    return any(one.primitive.name in KERNEL_PRIMITIVES for one in (eqn, *inside))
