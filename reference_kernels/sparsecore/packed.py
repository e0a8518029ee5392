"""bfloat16 on lanes of 32 bits: a sum that is rounded once, and an absolute value by its bits.

``add_packed``: ``o = bfloat16(float32(x) + float32(y))``
``abs_packed``: ``o = |x|``

Shapes: ``x``, ``y`` and ``o`` are ``(n,)``. Dtype: bfloat16.

A register has lanes of 32 bits, and of a 16-bit type each lane holds two elements. To compute in
float32, ``plsc.unpack`` turns one such register into two: in the format ``INTERLEAVED``, the
elements with even places and those with odd ones. ``plsc.pack`` rounds two registers and puts them
together again. What only looks at bits needs neither: bitcast to int32, a register of two elements
a lane loses both their signs by one ``and``, half the work of doing it in float32.

The compiler's layout passes do not know these operations: ``needs_layout_passes=False``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores

#: From JAX 0.12 on; ``plsc.bitcast`` is deprecated since.
_BITCASTS_LANES = "dim" in inspect.signature(pltpu.bitcast).parameters

_FORMAT = plsc.PackFormat.INTERLEAVED

#: All bits of two bfloat16 but their signs.
_MAGNITUDES = 0x7FFF7FFF


def _add(x: Any, y: Any) -> Any:
    even, odd = plsc.unpack(x, format=_FORMAT)
    more_even, more_odd = plsc.unpack(y, format=_FORMAT)
    return plsc.pack(even + more_even, odd + more_odd, format=_FORMAT)


def _abs(x: Any) -> Any:
    return _bitcast(_bitcast(x, jnp.int32) & _MAGNITUDES, x.dtype)


def _bitcast(x: Any, dtype: Any) -> Any:
    """Two elements of 16 bits for one of 32, or the reverse."""
    if _BITCASTS_LANES:
        return pltpu.bitcast(x, dtype, dim=-1)
    return plsc.bitcast(x, dtype)


def _map_blocks(*refs: Any, function: Callable[..., Any], width: int) -> None:
    *inputs, o_ref = refs

    @plsc.parallel_loop(0, o_ref.shape[0], width)
    def _register(i: Any) -> None:
        here = pl.ds(i, width)
        o_ref[here] = function(*(ref[here] for ref in inputs))


def _map(
    function: Callable[..., Any],
    operands: list[jax.Array],
    block: int,
    cores: int | None,
    subcores: int | None,
) -> jax.Array:
    [n] = operands[0].shape
    width = 2 * _subcores.lanes()
    block = pl.align_to(min(block, n), width)
    wide = [_subcores.padded(each, block) for each in operands]
    body = functools.partial(_map_blocks, function=function, width=width)

    def kernel(*refs: Any) -> None:
        _subcores.by_blocks(body, refs, [(block,)] * len(refs))

    out = pl.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(wide[0].shape, wide[0].dtype),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.REGISTERS,
    )(*wide)
    return out[:n]


def add_packed(
    x: jax.Array,
    y: jax.Array,
    *,
    block: int = 2048,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``x + y`` in float32, rounded once.

    Args:
      x: ``(n,)`` bfloat16. It is padded to whole blocks.
      y: ``(n,)`` bfloat16.
      block: elements of a block, rounded up to whole registers; two blocks of each operand must
        fit in the memory of a subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(n,)`` bfloat16.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype or is empty, or a size is not a
        positive integer.
    """
    (n,) = _require.axes("x", x, "n")
    (other,) = _require.axes("y", y, "n")
    _require.same_size("n", ("x", n), ("y", other))
    _require_bfloat16(x=x, y=y)
    _require.positive(block=block)
    return _map(_add, [x, y], block, cores, subcores)


def abs_packed(
    x: jax.Array, *, block: int = 2048, cores: int | None = None, subcores: int | None = None
) -> jax.Array:
    """``|x|``, two elements at a time. Arguments, result and errors as for ``add_packed``."""
    _require.axes("x", x, "n")
    _require_bfloat16(x=x)
    _require.positive(block=block)
    return _map(_abs, [x], block, cores, subcores)


def _require_bfloat16(**operands: Any) -> None:
    for name, operand in operands.items():
        if operand.dtype != jnp.bfloat16:
            raise ValueError(f"{name} must be bfloat16, but its dtype is {operand.dtype}")


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """The sum in float32 at least, rounded once."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (x.astype(wide) + y.astype(wide)).astype(x.dtype)


def reference_abs(x: jax.Array) -> jax.Array:
    """``jnp.abs``."""
    return jnp.abs(x)
