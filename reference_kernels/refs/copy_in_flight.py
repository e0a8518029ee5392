"""A copy that one kernel starts and another one awaits: ``copy, y = x, f(y)``.

Shapes: ``x`` is ``(m, n)``. Dtypes: any of 16 or 32 bits.

A DMA may outlive the kernel that started it. The first kernel starts it and returns the semaphore
that it will raise, as an output in ``pltpu.SEMAPHORE``; the second takes that semaphore and waits.
Whatever XLA runs in between overlaps with the copy.

Until the second kernel is done, the target is memory that somebody else writes. So it is an operand
of both kernels and the output of both by an alias: it stays one buffer, and nobody can read it in
between without being seen. It begins empty. ``x`` is an operand of the second kernel, too, so that
its memory is not given away while the copy reads it. Neither kernel may be dropped or moved apart
from the other for having no use: ``SIDE_EFFECTING``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

_ANY = pl.BlockSpec(memory_space=pl.ANY)
_SEMAPHORE = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
_PARAMS = pltpu.CompilerParams(has_side_effects=pltpu.SideEffectType.SIDE_EFFECTING)


def _start_kernel(x_ref: Any, _: Any, copy_ref: Any, semaphore: Any) -> None:
    pltpu.make_async_copy(x_ref, copy_ref, semaphore).start()


def _finish_kernel(x_ref: Any, _: Any, semaphore: Any, copy_ref: Any) -> None:
    pltpu.make_async_copy(x_ref, copy_ref, semaphore).wait()


def start_copy(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Start to copy ``x``; what ``finish_copy`` needs to end it."""
    copy, semaphore = pl.pallas_call(
        _start_kernel,
        out_shape=(jax.ShapeDtypeStruct(x.shape, x.dtype), pltpu.SemaphoreType.DMA(())),
        in_specs=[_ANY, _ANY],
        out_specs=(_ANY, _SEMAPHORE),
        input_output_aliases={1: 0},
        compiler_params=_PARAMS,
    )(x, pl.empty_like(x))
    return x, copy, semaphore


def finish_copy(started: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """The copy that ``start_copy`` started, once it is there."""
    x, copy, semaphore = started
    return pl.pallas_call(
        _finish_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY, _ANY, _SEMAPHORE],
        out_specs=_ANY,
        input_output_aliases={1: 0},
        compiler_params=_PARAMS,
    )(x, copy, semaphore)


def copy_in_flight(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A copy of ``x``, and ``tanh(y)``, which is computed while the copy is under way.

    Args:
      x: ``(m, n)``, of a dtype of 16 or 32 bits.
      y: ``(k,)``, float32.

    Raises:
      ValueError: an operand has a wrong rank or dtype, or is empty.
    """
    _require.axes("x", x, "m n")
    _require.axes("y", y, "k")
    if jnp.dtype(x.dtype).itemsize not in (2, 4):
        raise ValueError(f"x must have a dtype of 16 or 32 bits, but its dtype is {x.dtype}")
    _require.floating("y", y)
    started = start_copy(x)
    y = jnp.tanh(y)
    return finish_copy(started), y


def reference(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``x`` and ``tanh(y)``."""
    return x, jnp.tanh(y)
