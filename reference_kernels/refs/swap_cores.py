"""Two cores of a chip on one array: halves exchanged in place, and a sum of both cores' sums.

``swap_cores``: ``x[i], x[p - h + i] = x[p - h + i], x[i]`` for ``i < h = p // 2``
``sum_on_cores``: ``o = sum_i x[i]``

Shapes: ``x`` is ``(p, m, n)``, ``o (m, n)``. Dtypes: any for the exchange; float32 or bfloat16 for
the sum, which is float32 until it is rounded once.

``pl.kernel`` runs its body once on every core of a mesh, at the same time, and the body asks which
core it is on. All cores share HBM. VMEM and semaphores belong to a core: a scratch is one buffer on
each. Nothing orders what the cores do, but for ``core_barrier``: every core signals all others, and
waits for as many signals. Here it stands between

- the reads and the writes of an exchange, which happens in the memory of ``x``;
- the stores of the cores' sums in HBM and their use by the first core. No scratch may be in HBM, so
  they are an output that nobody looks at.

Two cores that act as one device: v4 and v5p. On a chip with one core nobody answers the barrier.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

_CORES = 2


def _mesh() -> pltpu.TensorCoreMesh:
    return pltpu.TensorCoreMesh(axis_name="core", num_cores=_CORES)


def _swap_kernel(x_ref: Any, half: Any, barrier: Any) -> None:
    size = half.shape[0]
    second = x_ref.shape[0] - size
    core = jax.lax.axis_index("core")
    pltpu.sync_copy(x_ref.at[pl.ds(core * second, size)], half)
    pltpu.core_barrier(barrier, core_axis_name="core")
    pltpu.sync_copy(half, x_ref.at[pl.ds((1 - core) * second, size)])


def swap_cores(x: jax.Array) -> jax.Array:
    """``x`` with its halves along axis 0 exchanged; if ``p`` is odd, the middle stays.

    Args:
      x: ``(p, m, n)``, of any dtype, with ``p`` at least 2. Half of it must fit in VMEM.

    Raises:
      ValueError: ``x`` has a wrong rank, is empty, or has less than two matrices.
    """
    p, m, n = _require.axes("x", x, "p m n")
    if p < _CORES:
        raise ValueError(f"x must have at least {_CORES} matrices, one a core, but it has {p}")
    state = jax.new_ref(x)
    half = pltpu.VMEM((p // _CORES, m, n), x.dtype)
    pl.kernel(_swap_kernel, mesh=_mesh(), scratch_types=[half, pltpu.SemaphoreType.REGULAR])(state)
    return jax.freeze(state)


def _sum_kernel(
    x_ref: Any, o_ref: Any, parts_ref: Any, buffer: Any, total: Any, rounded: Any, barrier: Any
) -> None:
    p = x_ref.shape[0]
    core = jax.lax.axis_index("core")
    total[...] = jnp.zeros_like(total)

    @pl.loop(0, pl.cdiv(p - core, _CORES))
    def _every_other(i: Any) -> None:
        pltpu.sync_copy(x_ref.at[core + i * _CORES], buffer)
        total[...] += buffer[...].astype(jnp.float32)

    pltpu.sync_copy(total, parts_ref.at[core])
    pltpu.core_barrier(barrier, core_axis_name="core")

    @pltpu.run_on_first_core("core")
    def _both() -> None:
        own = total[...]
        pltpu.sync_copy(parts_ref.at[1], total)
        rounded[...] = (own + total[...]).astype(rounded.dtype)
        pltpu.sync_copy(rounded, o_ref)


def sum_on_cores(x: jax.Array) -> jax.Array:
    """``sum(x, axis=0)``, every other matrix by either core.

    Args:
      x: ``(p, m, n)``, float32 or bfloat16. Three matrices must fit in VMEM.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` has a wrong rank, is empty or not floating.
    """
    _, m, n = _require.axes("x", x, "p m n")
    _require.floating("x", x)
    total, _ = pl.kernel(
        _sum_kernel,
        out_type=(
            jax.ShapeDtypeStruct((m, n), x.dtype),
            jax.ShapeDtypeStruct((_CORES, m, n), jnp.float32),
        ),
        mesh=_mesh(),
        scratch_types=[
            pltpu.VMEM((m, n), x.dtype),
            pltpu.VMEM((m, n), jnp.float32),
            pltpu.VMEM((m, n), x.dtype),
            pltpu.SemaphoreType.REGULAR,
        ],
    )(x)
    return total


def reference(x: jax.Array) -> jax.Array:
    """The exchange, by slices."""
    half = x.shape[0] // 2
    return jnp.concatenate([x[-half:], x[half:-half], x[:half]])


def reference_sum(x: jax.Array) -> jax.Array:
    """The sum, in float32 at least."""
    return jnp.sum(x, axis=0, dtype=jnp.promote_types(x.dtype, jnp.float32)).astype(x.dtype)
