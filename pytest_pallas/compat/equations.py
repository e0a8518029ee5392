"""Private names of JAX: equations that the TPU interpreter does not know, by rules of our own.

``jax._src.pallas.mosaic.interpret`` has ``register_tpu_interpret_impl`` for that, but what is
registered there gets values only: it cannot reach a reference, nor tell which core it runs on. A
rule here gets what the interpreter's own cases get.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_MODULE = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"


@dataclass(frozen=True)
class Staged:
    """Where an equation is staged.

    Attributes:
      module: the interpreter.
      eqn: the equation.
      ctx: the interpreter's context: device, core, mesh.
    """

    module: Any
    eqn: Any
    ctx: Any


#: Gets where it is, the values of the inputs (references are numbers of buffers), and the token
#: that orders callbacks; gives the token and the outputs.
Rule = Callable[[Staged, Sequence[Any], Any], tuple[Any, Sequence[Any]]]

#: Tells which rule an equation needs in a context, if any.
Rules = Callable[[Any, Any], Rule | None]


@contextmanager
def interpreted_by(rules: Rules) -> Generator[None]:
    """Let the TPU interpreter follow rules of our own.

    A body with such equations is interpreted in pieces: the interpreter gets what stands between
    them.
    """
    module: Any = importlib.import_module(_MODULE)
    interpret = module._interpret_jaxpr

    def in_pieces(jaxpr: Any, *args: Any, ctx: Any, token: Any) -> tuple[Any, Any]:
        ours = {place: rule for place, eqn in enumerate(jaxpr.eqns) if (rule := rules(eqn, ctx))}
        if not ours:
            return interpret(jaxpr, *args, ctx=ctx, token=token)
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], args, strict=True))
        between = 0
        for place, rule in [*ours.items(), (len(jaxpr.eqns), None)]:
            piece = jaxpr.eqns[between:place]
            between = place + 1
            if piece:
                token = _piece(interpret, jaxpr, piece, values, ctx, token)
            if rule is not None:
                eqn = jaxpr.eqns[place]
                read = [_read(values, atom) for atom in eqn.invars]
                token, outputs = rule(Staged(module, eqn, ctx), read, token)
                values.update(zip(eqn.outvars, outputs, strict=True))
        return token, [_read(values, atom) for atom in jaxpr.outvars]

    module._interpret_jaxpr = in_pieces
    try:
        yield
    finally:
        module._interpret_jaxpr = interpret


def read(staged: Staged, token: Any, shape: Any, place: Any, transforms: Any) -> Any:
    """Stage a read of a reference; gives the token and the value.

    Args:
      staged: where.
      token: what orders callbacks.
      shape: shape and dtype of what is read.
      place: memory space, by its number, and buffer.
      transforms: of the reference.
    """
    module, ctx = staged.module, staged.ctx
    return module.callback.io_callback(
        functools.partial(module.get, source_info=staged.eqn.source_info),
        (module.TOKEN_SHAPE_DTYPE, shape),
        token,
        ctx.device_id,
        ctx.local_core_id,
        *place,
        transforms,
    )


def _piece(
    interpret: Callable[..., Any],
    jaxpr: Any,
    eqns: Sequence[Any],
    values: dict[Any, Any],
    ctx: Any,
    token: Any,
) -> Any:
    """Interpret consecutive equations; what they compute goes to ``values``."""
    made = [var for eqn in eqns for var in eqn.outvars if type(var).__name__ != "DropVar"]
    known = dict.fromkeys(
        atom for eqn in eqns for atom in eqn.invars if not hasattr(atom, "val") and atom in values
    )
    part = jaxpr.replace(
        constvars=[],
        invars=list(known),
        outvars=made,
        eqns=list(eqns),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    token, outputs = interpret(part, *(values[var] for var in known), ctx=ctx, token=token)
    values.update(zip(made, outputs, strict=True))
    return token


def _read(values: Mapping[Any, Any], atom: Any) -> Any:
    return atom.val if hasattr(atom, "val") else values[atom]
