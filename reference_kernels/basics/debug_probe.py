"""Looking into a kernel while it runs: a copy, ``o = x``, with prints, checks, delays and traces.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32 or bfloat16.

``debug_probe`` prints the largest magnitude of each block, and checks it against a limit if checks
are on (``with pl.enable_debug_checks(True)``). ``timing_probe`` waits before each block and gives
its largest magnitude to the profiler, which shows it with the trace of the kernel.

What becomes of each:

- ``pl.debug_print``: interpreters print to the standard output. On a TPU it wants scalars of 32
  bits, or one array, and goes to the log of the host (``--xla_tpu_enable_log_recorder`` in
  ``LIBTPU_INIT_ARGS``).
- ``pl.debug_check``: on a TPU the chip halts if it fails, provided checks were on when the kernel
  was compiled. Interpreters ignore it, on or off.
- ``pl.delay``: nanoseconds on a TPU, to provoke races between chips; the TPU interpreter does
  nothing, the portable one does not know it.
- ``pltpu.trace_value``: the same.

``cost_estimate`` tells XLA what the call costs, as it cannot look inside, so that it can place
other work beside it. ``pl.estimate_cost`` counts it from a function in ``jnp``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu


def _largest(x: jax.Array, rows: Any) -> jax.Array:
    """The largest magnitude of the first ``rows`` rows; below them the block is unspecified."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) < rows
    return jnp.max(jnp.where(inside, jnp.abs(x.astype(jnp.float32)), 0))


def _debug_kernel(x_ref: Any, o_ref: Any, *, m: int, limit: float) -> None:
    i = pl.program_id(0)
    x = x_ref[...]
    largest = _largest(x, m - i * x.shape[0])
    pl.debug_print("block {}: largest magnitude {}", i, largest)
    pl.debug_check(largest <= limit, f"a magnitude above {limit}")
    o_ref[...] = x


def _timing_kernel(x_ref: Any, o_ref: Any, *, m: int, nanoseconds: int) -> None:
    x = x_ref[...]
    pl.delay(nanoseconds)
    pltpu.trace_value("largest magnitude", _largest(x, m - pl.program_id(0) * x.shape[0]))
    o_ref[...] = x


def debug_probe(x: jax.Array, *, limit: float = 1e4, block_rows: int = 256) -> jax.Array:
    """``x``, printing the largest magnitude of each block and checking it against ``limit``.

    Args:
      x: ``(m, n)``, float32 or bfloat16.
      limit: the largest magnitude that passes the check.
      block_rows: rows of a block; a multiple of 8 (bfloat16: 16) for a TPU, or all of them.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or has another dtype, or ``block_rows`` is not a
        positive integer.
    """
    return _call(functools.partial(_debug_kernel, limit=limit), x, block_rows)


def timing_probe(x: jax.Array, *, nanoseconds: int = 1000, block_rows: int = 256) -> jax.Array:
    """``x``, waiting before each block and tracing its largest magnitude.

    Args:
      x: ``(m, n)``, float32 or bfloat16.
      nanoseconds: how long to wait.
      block_rows: as for ``debug_probe``.

    Raises:
      ValueError: as for ``debug_probe``, or ``nanoseconds`` is not a positive integer.
    """
    _require.positive(nanoseconds=nanoseconds)
    return _call(functools.partial(_timing_kernel, nanoseconds=nanoseconds), x, block_rows)


def _call(kernel: Any, x: jax.Array, block_rows: int) -> jax.Array:
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x must be of float32 or bfloat16, but its dtype is {x.dtype}")
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(kernel, m=m),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block),),
        in_specs=[spec],
        out_specs=spec,
        cost_estimate=pl.estimate_cost(_work, x),
    )(x)


def _work(x: jax.Array) -> jax.Array:
    """What the kernels do to an array, for the estimate."""
    return jnp.maximum(x, -x)


def reference(x: jax.Array, **_: Any) -> jax.Array:
    """``x``."""
    return x
