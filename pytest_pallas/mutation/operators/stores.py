"""Loads and stores: left out, or in the slot beside the right one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_sim.compat.jaxprs import is_literal
from pytest_pallas.mutation.declaring import operator
from pytest_pallas.mutation.model import Change, EquationSite, Replacement
from pytest_pallas.mutation.operands import indexed, reindexed
from pytest_pallas.mutation.rewriting import equations_of, literal


@operator(
    "init",
    mistake="an accumulator that is not initialized",
    before="acc[...] = jnp.zeros_like(acc)",
    after="",
)
def init(at: EquationSite) -> Iterator[Change]:
    """An accumulator that starts as whatever memory holds."""
    if at.name == "swap" and _is_store(at) and _is_init(at):
        yield Change("dropped", lambda: Replacement([], [None] * len(at.eqn.outvars)))


@operator(
    "store",
    mistake="a store left out, or to the neighbouring place",
    before="out[slot] = x",
    after="out[slot + 1] = x",
)
def store(at: EquationSite) -> Iterator[Change]:
    """A store left out, or to the neighbouring place."""
    if at.name not in ("swap", "addupdate") or not _is_store(at):
        return
    if not _is_init(at):
        yield Change("dropped", lambda: Replacement([], [None] * len(at.eqn.outvars)))
    yield from _neighbours(at)


@operator(
    "load",
    mistake="a load from the neighbouring place, such as the other buffer of a pair",
    before="x = buffers[slot]",
    after="x = buffers[(slot + 1) % 2]",
)
def load(at: EquationSite) -> Iterator[Change]:
    """A load from the neighbouring place, such as the other buffer of a pair."""
    if at.name == "get" and at.used():
        yield from _neighbours(at)


def _is_store(at: EquationSite) -> bool:
    """Whether nothing uses what was there before."""
    return not at.eqn.outvars or not at.used()


def _is_init(at: EquationSite) -> bool:
    """Whether it stores a constant in what the kernel also reads."""
    return at.kernel.root(at.eqn.invars[0]) in at.kernel.read and at.scope.is_constant(
        at.eqn.invars[1]
    )


def _neighbours(at: EquationSite) -> Iterator[Change]:
    found = indexed(at.eqn)
    if found is None:
        return
    _, _, pairs = found
    for axis, (index, size) in enumerate(pairs):
        if hasattr(index, "start"):
            room = _room(index, size)
            if room:
                yield Change(
                    "a slice from one further",
                    lambda axis=axis, index=index, room=room: _moved(
                        at,
                        axis,
                        index.start,
                        lambda i, room=room: jnp.where(i < room, i + 1, i - 1),
                    ),
                    part=f"axis {axis}",
                )
        elif _is_scalar(index) and isinstance(size, int) and size > 1:
            yield Change(
                "the next slot",
                lambda axis=axis, index=index, size=size: _moved(
                    at, axis, index, lambda i: (i + 1) % size
                ),
                part=f"axis {axis}",
            )


def _room(index: Any, size: Any) -> int:
    """How far a slice could be moved."""
    if not isinstance(size, int) or not isinstance(index.size, int):
        return 0
    return max(0, size - ((index.size - 1) * index.stride + 1))


def _is_scalar(index: Any) -> bool:
    if isinstance(index, int):
        return True
    aval = getattr(index, "aval", None)
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.integer)


def _moved(at: EquationSite, axis: int, index: Any, function: Any) -> Replacement:
    """The equation with a function of an index in place of it."""
    if isinstance(index, int) or is_literal(index):
        with jax.ensure_compile_time_eval():
            value = int(function(jnp.int32(getattr(index, "val", index))))
        eqns = []
        new = value if isinstance(index, int) else literal(value, index.aval)
    else:
        eqns, [new] = equations_of(lambda i: (function(i).astype(i.dtype),), [index], at.eqn)
    eqn = reindexed(at.eqn, axis, new)
    return Replacement([*eqns, eqn], list(eqn.outvars))
