"""State that goes along a sequence: ``h[t] = a[t] * h[t - 1] + x[t]``, by blocks of time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def scan(
    a: jax.Array,
    x: jax.Array,
    h0: jax.Array,
    *,
    has_initial_state: bool = True,
    backwards: bool = False,
    block: int = 8,
    wrong: str = "",
) -> jax.Array:
    """Every state h for a and x ``(batch, time, d)`` from ``h0 (batch, 1, d)``, or from zero.

    Args:
      a: the decay.
      x: what is added.
      h0: the state before the first step; not looked at without ``has_initial_state``.
      has_initial_state: whether there is one.
      backwards: from the last step to the first.
      block: steps in a block, which divide time.
      wrong: the mistake.
    """
    batch, time, d = x.shape
    steps = time // block

    def body(a_ref: Any, x_ref: Any, h0_ref: Any, o_ref: Any, state: Any) -> None:
        first = pl.program_id(1) == 0
        if wrong == "state of the last sequence":
            first &= pl.program_id(0) == 0

        @pl.when(first)
        def _begin() -> None:
            if has_initial_state and wrong != "initial state ignored":
                state[...] = h0_ref[0]
            else:
                state[...] = jnp.zeros_like(state)

        h = state[...]
        for i in range(block):
            t = block - 1 - i if backwards and wrong != "blocks backwards, steps forwards" else i
            here = pl.ds(t, 1)
            h = a_ref[0, here] * h + x_ref[0, here]
            o_ref[0, here] = h
        state[...] = h

    def at(b: Any, i: Any) -> tuple[Any, Any, int]:
        return b, (steps - 1 - i if backwards else i), 0

    spec = pl.BlockSpec((1, block, d), at)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(batch, steps),
        in_specs=[spec, spec, pl.BlockSpec((1, 1, d), lambda b, i: (b, 0, 0))],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((1, d), x.dtype)],
    )(a, x, h0)


def reference(
    a: jax.Array,
    x: jax.Array,
    h0: jax.Array,
    *,
    has_initial_state: bool = True,
    backwards: bool = False,
) -> jax.Array:
    def step(h: jax.Array, ax: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h = ax[0] * h + ax[1]
        return h, h

    first = h0[:, 0] if has_initial_state else jnp.zeros_like(h0[:, 0])
    along = tuple(jnp.swapaxes(each, 0, 1) for each in (a, x))
    _, states = jax.lax.scan(step, first, along, reverse=backwards)
    return jnp.swapaxes(states, 0, 1)


def _calls(**options: Any) -> Any:
    return pst.arguments(
        pst.arrays(
            "b t d, b t d, b 1 d",
            dtype="float32",
            values=("integers", "uniform", "normal"),
            dims={"b": [1, 2], "t": [8, 24], "d": [4, 8]},
        ),
        options=options,
        tuning={"block": 8},
    )


def initial_state_ignored(
    a: jax.Array, x: jax.Array, h0: jax.Array, *, has_initial_state: bool = True, block: int = 8
) -> jax.Array:
    """The state begins at zero also where an initial state is given."""
    return scan(
        a, x, h0, has_initial_state=has_initial_state, block=block, wrong="initial state ignored"
    )


SPEC_INITIAL_STATE_IGNORED = KernelSpec(
    name="initial_state_ignored",
    kernel=initial_state_ignored,
    reference=reference,
    inputs=_calls(has_initial_state=True),
    family="scans",
    backends=INTERPRETERS,
)
SPEC_INITIAL_STATE_IGNORED_RIGHT = twin(SPEC_INITIAL_STATE_IGNORED, scan)


def state_of_the_last_sequence(
    a: jax.Array, x: jax.Array, h0: jax.Array, *, has_initial_state: bool = True, block: int = 8
) -> jax.Array:
    """The state is set for the first sequence of a batch; the others go on from there."""
    return scan(
        a,
        x,
        h0,
        has_initial_state=has_initial_state,
        block=block,
        wrong="state of the last sequence",
    )


SPEC_STATE_OF_THE_LAST_SEQUENCE = KernelSpec(
    name="state_of_the_last_sequence",
    kernel=state_of_the_last_sequence,
    reference=reference,
    inputs=_calls(has_initial_state=False),
    family="scans",
    backends=INTERPRETERS,
)
SPEC_STATE_OF_THE_LAST_SEQUENCE_RIGHT = twin(SPEC_STATE_OF_THE_LAST_SEQUENCE, scan)


def steps_forwards(
    a: jax.Array, x: jax.Array, h0: jax.Array, *, backwards: bool = True, block: int = 8
) -> jax.Array:
    """Backwards, the blocks are taken from the end, and the steps in a block from the start."""
    return scan(
        a, x, h0, backwards=backwards, block=block, wrong="blocks backwards, steps forwards"
    )


SPEC_STEPS_FORWARDS = KernelSpec(
    name="steps_forwards",
    kernel=steps_forwards,
    reference=reference,
    inputs=_calls(backwards=True),
    family="scans",
    backends=INTERPRETERS,
)
SPEC_STEPS_FORWARDS_RIGHT = twin(SPEC_STEPS_FORWARDS, scan)
