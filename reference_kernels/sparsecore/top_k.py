"""The ``k`` largest elements of each row, by sorting registers.

``values[r], places[r] = lax.top_k(x[r], k)`` for ``k`` not above the lanes of a register.

Shapes: ``x (rows, n)``, both results ``(rows, k)``. Dtypes of ``x``: float32 or int32; places
int32. The experts of a token, for example: ``k`` is 8 at most on v5p and v6e, 16 on tpu7x.

``plsc.sort_key_val`` sorts the lanes of one register by their keys and moves a second register
along. With the ``L`` best so far in descending order, and the next ``L`` elements in ascending
order, the larger one of each pair of lanes is among the ``L`` best of all ``2 L``, and the smaller
one is not: half of a bitonic merge. So an element costs two sorts of a register for each ``L``
elements, and nothing of the row is kept. Sorted, too: lanes beyond the end of the row do not count,
which a mask says to the sort. It moves them to the end, so the sort is descending and then
reversed.

Which one of equal elements is taken is not specified, and neither is the order of NaN.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores

#: The place of a lane that holds nothing.
_NONE = -1


def _sorted(keys: Any, places: Any) -> tuple[Any, Any]:
    """Descending, with lanes that hold nothing at the end."""
    keys, places, _ = plsc.sort_key_val(keys, places, mask=places >= 0, descending=True)
    return keys, places


def _top_k_rows(x_ref: Any, values_ref: Any, places_ref: Any, *, n: int, lanes: int) -> None:
    iota = jax.lax.iota(jnp.int32, lanes)

    @pl.loop(0, x_ref.shape[0])
    def _row(r: Any) -> None:
        def merge(i: Any, best: tuple[Any, Any]) -> tuple[Any, Any]:
            keys, places = best
            there = i * lanes + iota
            there = jnp.where(there < n, there, _NONE)
            new_keys, there = _sorted(x_ref[r, _subcores.part(i, lanes)], there)
            new_keys, there = jax.lax.rev(new_keys, (0,)), jax.lax.rev(there, (0,))
            better = (there >= 0) & ((places < 0) | (new_keys > keys))
            return _sorted(jnp.where(better, new_keys, keys), jnp.where(better, there, places))

        none = jnp.zeros((lanes,), x_ref.dtype), jnp.full((lanes,), _NONE)
        keys, places = jax.lax.fori_loop(0, x_ref.shape[1] // lanes, merge, none)
        values_ref[r] = keys
        places_ref[r] = places


def top_k(
    x: jax.Array,
    k: int,
    *,
    block: int = 8,
    cores: int | None = None,
    subcores: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The ``k`` largest elements of each row, descending, and where they are.

    Args:
      x: ``(rows, n)``, float32 or int32. It is padded to whole blocks of rows and whole registers.
      k: 1 to ``n``, and not above the lanes of the chip's registers.
      block: rows of a block; two blocks must fit in the memory of a subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      Elements and places, ``(rows, k)``, of the dtype of ``x`` and int32. Of equal elements, any
      is taken, and each is once.

    Raises:
      ValueError: ``x`` has a wrong rank or dtype or is empty, or a size is not allowed.
    """
    rows, n = _require.axes("x", x, "rows n")
    _subcores.require_32_bits("x", x)
    _require.positive(k=k, block=block)
    if k > n:
        raise ValueError(f"k must not be above n, {n}, but it is {k}")
    lanes = _subcores.lanes()
    if k > lanes:
        raise ValueError(f"k must not be above the lanes of a register, {lanes}, but it is {k}")
    block = min(block, rows)
    wide = _subcores.padded(x, block, lanes)
    body = functools.partial(_top_k_rows, n=n, lanes=lanes)

    def kernel(*refs: Any) -> None:
        result = (block, lanes)
        _subcores.by_blocks(body, refs, [(block, wide.shape[1]), result, result], outputs=2)

    values, places = pl.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((wide.shape[0], lanes), x.dtype),
            jax.ShapeDtypeStruct((wide.shape[0], lanes), jnp.int32),
        ),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.REGISTERS,
    )(wide)
    return values[:rows, :k], places[:rows, :k]


def reference(x: jax.Array, *, k: int) -> tuple[jax.Array, jax.Array]:
    """``jax.lax.top_k``."""
    values, places = jax.lax.top_k(x, k)
    return values, places
