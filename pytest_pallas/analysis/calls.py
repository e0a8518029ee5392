"""Equations that only call what is inside of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def called_jaxpr(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """The open jaxpr that an equation calls once with its own operands, and its constants.

    None for every other equation, loops and branches included. The primitives are those of
    ``jax.jit``, ``jax.checkpoint``, ``jax.custom_jvp`` and ``jax.custom_vjp``.
    """
    if eqn.primitive.name not in _CALLS:
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None:
            jaxpr = getattr(inner, "jaxpr", inner)
            return (jaxpr, getattr(inner, "consts", ()))
    return None


_CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    }
)
