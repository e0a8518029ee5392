"""Equations that only call what is inside of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.compat.jaxprs import (
    FOREIGN_PRIMITIVES,
    KERNEL_PRIMITIVES,
    kernel_name,
    open_jaxpr,
    semaphore_kind,
    sub_jaxprs,
    without_dead_code,
    written_inputs,
)
from pallas_sim.compat.source import source_line


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


#: Primitives whose effect is not complete when they return; a kernel with one of them can race.
ASYNCHRONOUS = frozenset(
    {
        "dma_start",
        "semaphore_signal",
        "semaphore_wait",
        "emit_pipeline",
        "copy_gmem_to_smem",
        "copy_smem_to_gmem",
        "barrier_arrive",
        "barrier_wait",
        "wgmma",
    }
)


@dataclass(frozen=True)
class KernelCall:
    """One Pallas kernel inside a jaxpr, or one of another language that JAX calls.

    Attributes:
      name: the kernel's name, as given by ``name=`` or the body function.
      source: ``file:line`` of the call in the user's code, or "" where JAX does not know it.
      interpreted: True if its ``interpret`` parameter makes it an interpreter run.
      primitives: the names of all primitives in its body.
      path: primitives around it, outermost first, such as ``("jit", "shard_map")``.
      eqn: the equation itself, for the other modules of this package.
    """

    name: str
    source: str
    interpreted: bool
    primitives: frozenset[str]
    path: tuple[str, ...]
    eqn: Any = field(repr=False, compare=False)

    @property
    def asynchronous(self) -> bool:
        """Whether the kernel uses DMAs, semaphores, barriers or asynchronous copies."""
        return bool(self.primitives & ASYNCHRONOUS)


def kernel_calls(jaxpr: Any) -> list[KernelCall]:
    """All kernels in a (closed) jaxpr, in order, also nested in jit, vmap or shard_map."""
    return list(_walk(getattr(jaxpr, "jaxpr", jaxpr), ()))


def live_kernel_calls(jaxpr: Any) -> list[KernelCall]:
    """As ``kernel_calls``, without dead code: the kernels that are left in an executable."""
    return kernel_calls(without_dead_code(jaxpr))


def _walk(jaxpr: Any, path: tuple[str, ...]) -> Iterator[KernelCall]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in KERNEL_PRIMITIVES | FOREIGN_PRIMITIVES:
            yield kernel_call(eqn, path)
        else:
            for inner in sub_jaxprs(eqn):
                yield from _walk(inner, (*path, eqn.primitive.name))


def kernel_call(eqn: Any, path: tuple[str, ...]) -> KernelCall:
    """The kernel that an equation runs, inside the primitives of ``path``."""
    bodies = list(sub_jaxprs(eqn))
    return KernelCall(
        name=kernel_name(eqn),
        source=source_line(eqn) or "",
        interpreted=bool(eqn.params.get("interpret")),
        primitives=frozenset(name for body in bodies for name in _primitives(body)),
        path=path,
        eqn=eqn,
    )


def _primitives(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in sub_jaxprs(eqn):
            yield from _primitives(inner)


def mutated_operands(call: KernelCall) -> tuple[int, ...]:
    """Positions of a ``pallas_call``'s array operands whose refs its body writes in place.

    Operands that are aliased to an output are left out: their refs may be written. Empty for
    other primitives, whose operands are refs that the caller made.
    """
    if call.eqn.primitive.name != "pallas_call":
        return ()
    mapping = call.eqn.params["grid_mapping"]
    aliased = {int(pair[0]) for pair in call.eqn.params.get("input_output_aliases", ())}
    operands = range(mapping.num_index_operands + mapping.num_inputs)
    body, _ = open_jaxpr(call.eqn.params["jaxpr"])
    written = written_inputs(body)
    # A semaphore is there to be changed.
    arrays = [i for i in operands if semaphore_kind(body.invars[i].aval.dtype) is None]
    return tuple(i for i in arrays if i in written and i not in aliased)
