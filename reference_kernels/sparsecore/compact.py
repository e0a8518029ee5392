"""Stream compaction and its inverse: the kept elements of each row, moved to its front and back.

``compact``: ``o[r, :c] = x[r][keep[r]]`` and zeros behind, with the count ``c`` of each row; with
``onto``, the kept elements are added to the front of ``onto[r]`` instead.
``expand``: ``o[r][keep[r]] = x[r, :c]`` and zeros elsewhere.

Shapes: ``x``, ``keep``, ``onto`` and ``o`` are ``(rows, n)``, the counts ``(rows,)`` int32. Dtypes:
float32 or int32, ``keep`` bool. Filtered candidates, tokens of one expert, rows without padding.

A store can compress: ``plsc.store_compressed`` puts the lanes where a mask is true next to each
other. How many there were says ``plsc.all_reduce_population_count``, and the next register is
stored that much further on. So an element costs one load and one store, and no index is computed.
``plsc.addupdate_compressed`` adds instead, and ``plsc.load_expanded`` is the inverse: it loads
consecutive elements into the lanes where the mask is true.

Addresses move by single elements, so the last register of a row may begin behind its last element:
rows in memory have a register more than the row.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels._tpu import LANES
from reference_kernels.sparsecore import _subcores


def _compact_rows(x_ref: Any, keep_ref: Any, *refs: Any, lanes: int) -> None:
    *onto, o_ref, count_ref = refs

    @pl.loop(0, x_ref.shape[0])
    def _row(r: Any) -> None:
        @pl.loop(0, x_ref.shape[1] + lanes, step=lanes)
        def _start(j: Any) -> None:
            here = pl.ds(j, lanes)
            o_ref[r, here] = onto[0][r, here] if onto else jnp.zeros((lanes,), o_ref.dtype)

        store = plsc.addupdate_compressed if onto else plsc.store_compressed

        def register(i: Any, count: Any) -> Any:
            here = _subcores.part(i, lanes)
            mask = keep_ref[r, here] != 0
            store(o_ref.at[r, pl.ds(count[0], lanes)], x_ref[r, here], mask=mask)
            return count + plsc.all_reduce_population_count(mask)

        none = jnp.zeros((lanes,), jnp.int32)
        count_ref[r] = jax.lax.fori_loop(0, x_ref.shape[1] // lanes, register, none)


def _expand_rows(x_ref: Any, keep_ref: Any, o_ref: Any, *, lanes: int) -> None:
    @pl.loop(0, o_ref.shape[0])
    def _row(r: Any) -> None:
        def register(i: Any, count: Any) -> Any:
            here = _subcores.part(i, lanes)
            mask = keep_ref[r, here] != 0
            values = plsc.load_expanded(x_ref.at[r, pl.ds(count[0], lanes)], mask=mask)
            o_ref[r, here] = jnp.where(mask, values, 0)  # the other lanes hold anything
            return count + plsc.all_reduce_population_count(mask)

        none = jnp.zeros((lanes,), jnp.int32)
        jax.lax.fori_loop(0, o_ref.shape[1] // lanes, register, none)


def compact(
    x: jax.Array,
    keep: jax.Array,
    onto: jax.Array | None = None,
    *,
    block: int = 4,
    cores: int | None = None,
    subcores: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The kept elements of each row, in order, at its front; and how many there are.

    Args:
      x: ``(rows, n)``, float32 or int32. It is padded to whole blocks of rows and whole registers.
      keep: ``(rows, n)`` bool.
      onto: ``(rows, n)``, of the dtype of ``x``: what the kept elements are added to; by default
        zeros.
      block: rows of a block; two blocks of each operand must fit in the memory of a subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(rows, n)``, of the dtype of ``x``, and counts ``(rows,)`` int32.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype or is empty, or a size is not a
        positive integer.
    """
    rows, n = _checked(x, keep)
    operands = [x, keep]
    if onto is not None:
        _same_shape("onto", onto, x)
        _require.same_dtype(x=x, onto=onto)
        operands.append(onto)
    _require.positive(block=block)
    lanes = _subcores.lanes()
    block = min(block, rows)
    x, keep, *others = (_rows(each, block, lanes) for each in operands)
    width, longer = x.shape[1], _longer(x.shape[1], lanes)
    others = [_subcores.padded(each, 1, longer) for each in others]
    body = functools.partial(_compact_rows, lanes=lanes)

    def kernel(*refs: Any) -> None:
        widths = [width, width, *[longer for _ in others], longer, lanes]
        _subcores.by_blocks(body, refs, [(block, each) for each in widths], outputs=2)

    out, counts = pl.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((x.shape[0], longer), x.dtype),
            jax.ShapeDtypeStruct((x.shape[0], lanes), jnp.int32),
        ),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.REGISTERS,
    )(x, keep, *others)
    return out[:rows, :n], counts[:rows, 0]


def expand(
    x: jax.Array,
    keep: jax.Array,
    *,
    block: int = 4,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """The elements at the front of each row, moved to where ``keep`` is true; zeros elsewhere.

    Arguments, and what is raised, as for ``compact``. Returns ``(rows, n)``, of the dtype of ``x``.
    """
    rows, n = _checked(x, keep)
    _require.positive(block=block)
    lanes = _subcores.lanes()
    block = min(block, rows)
    x, keep = _rows(x, block, lanes), _rows(keep, block, lanes)
    width, longer = x.shape[1], _longer(x.shape[1], lanes)
    body = functools.partial(_expand_rows, lanes=lanes)

    def kernel(*refs: Any) -> None:
        blocks = [(block, each) for each in (longer, width, width)]
        _subcores.by_blocks(body, refs, blocks)

    out = pl.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.REGISTERS,
    )(_subcores.padded(x, 1, longer), keep)
    return out[:rows, :n]


def _checked(x: Any, keep: Any) -> tuple[int, int]:
    rows, n = _require.axes("x", x, "rows n")
    _subcores.require_32_bits("x", x)
    _same_shape("keep", keep, x)
    if keep.dtype != jnp.bool:
        raise ValueError(f"keep must be bool, but its dtype is {keep.dtype}")
    return rows, n


def _same_shape(name: str, operand: Any, x: Any) -> None:
    if operand.shape != x.shape:
        raise ValueError(f"{name} must have the shape of x, {x.shape}, but its is {operand.shape}")


def _rows(x: jax.Array, block: int, lanes: int) -> jax.Array:
    """Whole blocks of rows and whole registers; lanes hold 32 bits, so bool becomes int32."""
    return _subcores.padded(x.astype(jnp.int32) if x.dtype == jnp.bool else x, block, lanes)


def _longer(width: int, lanes: int) -> int:
    """Rows with a register more, in whole tiles: with others, compiling for v6e may not end."""
    return pl.align_to(width + lanes, LANES)


def reference(
    x: jax.Array, keep: jax.Array, onto: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The kept elements sorted to the front, stably."""
    order = jnp.argsort(~keep, axis=1, stable=True)
    kept = jnp.take_along_axis(jnp.where(keep, x, 0), order, axis=1)
    counts = jnp.sum(keep, axis=1, dtype=jnp.int32)
    return kept if onto is None else kept + onto, counts


def reference_expand(x: jax.Array, keep: jax.Array) -> jax.Array:
    """Each kept place takes the element of its rank."""
    rank = jnp.cumsum(keep, axis=1) - 1
    return jnp.where(keep, jnp.take_along_axis(x, rank, axis=1), 0)
