"""``o[i, j] = x[i, j] w[j]`` on a GPU, and two ways to look at a kernel that does it.

Shapes: ``x`` and ``o`` are ``(m, n)``, ``w (n,)``. Dtypes: float32, bfloat16 or float16, the same
for all.

A block has 64 rows and as many columns as a warp loads at once, 16 bytes a lane. Each of the four
warps has a row in four, so all need the same elements of ``w``: its layout has one copy of the
vector in every warp (``plgpu.Replicated``). Multiplied, each element meets its own, and nothing is
exchanged.

Layouts decide which instructions a kernel becomes, and mostly the compiler infers them. To look at
it:

- ``show=True``: ``plgpu.print_layout`` prints, when the kernel is compiled, who holds what of ``x``
  and ``w``.
- ``trace_dir``: on a GPU, the kernel writes a file there that trace viewers such as Perfetto open:
  when each block was in which ``jax.named_scope``. ``plgpu.TraceScope`` says whether a warpgroup or
  each of its warps has a line of its own.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu import _rows

_WARPS, _LANES = 4, 32
_ROWS = 64  # of a block
_EVENTS = 64  # words of a warp's trace: room for eight scopes


def _layouts(dtype: Any) -> tuple[int, Any, Any]:
    """Columns of a block, the layout of its elements, and that of its part of ``w``."""
    vector = 16 // dtype.itemsize
    columns = _LANES * vector
    layout: Any = functools.partial(plgpu.Layout.TILED, lane_dims=(-2,), vector_dim=-1)
    tiles = layout(plgpu.Tiling(((_WARPS, columns), (vector,))), warp_dims=(-3,))
    copies = layout(plgpu.Tiling(((columns,), (vector,))), warp_dims=(plgpu.Replicated(_WARPS),))
    return columns, tiles, copies


def _kernel(x_gmem: Any, w_gmem: Any, o_gmem: Any, *, show: bool) -> None:
    columns, tiles, copies = _layouts(x_gmem.dtype)
    rows = pl.ds(jax.lax.axis_index("row") * _ROWS, _ROWS)
    here = pl.ds(jax.lax.axis_index("column") * columns, columns)
    with jax.named_scope("load"):
        x = plgpu.load(x_gmem.at[rows, here], layout=tiles, optimized=False)
        w = plgpu.load(w_gmem.at[here], layout=copies, optimized=False)
    if show:
        plgpu.print_layout("x: {}", x)
        plgpu.print_layout("w: {}", w)
    with jax.named_scope("store"):
        product = x * jax.lax.broadcast_in_dim(w, x.shape, (1,))
        _rows.store(o_gmem.at[rows, here], product)


def scale_columns(
    x: jax.Array, w: jax.Array, *, show: bool = False, trace_dir: str | None = None
) -> jax.Array:
    """``x * w``.

    Args:
      x: ``(m, n)``, float32, bfloat16 or float16. Rows that are not a multiple of 64, and columns
        that are not a multiple of 512 bytes, are padded, in a copy.
      w: ``(n,)``, of the dtype of ``x``.
      show: print layouts when the kernel is compiled.
      trace_dir: a folder for a trace of each call, or None; only on a GPU.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype.
    """
    m, n = _require.axes("x", x, "m n")
    (size,) = _require.axes("w", w, "n")
    _require.same_size("n", ("x", n), ("w", size))
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(f"x must be float32, bfloat16 or float16, but its dtype is {x.dtype}")
    _require.same_dtype(x=x, w=w)
    columns, *_ = _layouts(x.dtype)
    x = jnp.pad(x, ((0, -m % _ROWS), (0, -n % columns)))
    trace: dict[str, Any] = {}
    if trace_dir is not None:
        trace = {
            "profile_space": _EVENTS,
            "profile_dir": trace_dir,
            "profile_trace_scope": plgpu.TraceScope.WARP,
        }
    mesh = plgpu.Mesh(
        grid=(x.shape[0] // _ROWS, x.shape[1] // columns),
        grid_names=("row", "column"),
    )
    return pl.kernel(
        functools.partial(_kernel, show=show),
        mesh=mesh,
        name="scale_columns",
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plgpu.CompilerParams(**trace),
    )(x, jnp.pad(w, (0, -n % columns)))[:m, :n]


def reference(x: jax.Array, w: jax.Array) -> jax.Array:
    """``x * w``."""
    return x * w
