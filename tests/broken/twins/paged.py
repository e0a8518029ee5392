"""Attention over pages of a cache, and over sequences packed into one array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin

_LOWEST = -1e30
_AT_ONCE = 2  # pages that a program attends to


def paged(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array,
    table: jax.Array,
    *,
    wrong: str = "",
) -> jax.Array:
    """One query ``q[b]`` for each sequence, over the first ``lengths[b]`` tokens of its pages.

    k and v are ``(pages, page, d)``, ``table`` int32 ``(b, pages_each)`` says which pages hold a
    sequence, and what it says behind the length means nothing.
    """
    (batch, d), page, pages_each = q.shape, k.shape[1], table.shape[1]
    steps = pages_each // _AT_ONCE if wrong == "half a block" else pl.cdiv(pages_each, _AT_ONCE)

    def body(lengths_ref: Any, table_ref: Any, q_ref: Any, *refs: Any) -> None:
        del table_ref  # the index maps use it
        k_refs, v_refs, (o_ref, m_ref, l_ref, acc_ref) = refs[:2], refs[2:4], refs[4:]
        step, length = pl.program_id(1), lengths_ref[pl.program_id(0)]

        @pl.when(step == 0)
        def _clear() -> None:
            m_ref[...] = jnp.full_like(m_ref, _LOWEST)
            l_ref[...] = jnp.zeros_like(l_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        for number, (k_ref, v_ref) in enumerate(zip(k_refs, v_refs, strict=True)):
            first = (step * _AT_ONCE + number) * page
            s = jnp.sum(q_ref[0] * k_ref[0], axis=1, keepdims=True) * d**-0.5
            token = first + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
            if wrong == "last page in full":
                visible = jnp.full(s.shape, first < length)
            else:
                visible = token < length
            s = jnp.where(visible, s, _LOWEST)
            m = jnp.maximum(m_ref[...], jnp.max(s, axis=0, keepdims=True))
            weights = jnp.where(visible, jnp.exp(s - m), 0)
            values = jnp.where(visible, v_ref[0], 0)
            rescale = jnp.exp(m_ref[...] - m)
            l_ref[...] = rescale * l_ref[...] + jnp.sum(weights, axis=0, keepdims=True)
            weighted = jnp.sum(weights * values, axis=0, keepdims=True)
            acc_ref[...] = rescale * acc_ref[...] + weighted
            m_ref[...] = m

        @pl.when(step == steps - 1)
        def _divide() -> None:
            total = l_ref[...]
            o_ref[0] = acc_ref[...] / jnp.where(total == 0, 1, total)

    def page_of(number: int) -> Any:
        def index(b: Any, step: Any, lengths: Any, table: Any) -> tuple[Any, int, int]:
            # Behind the end of a sequence its last page again, which is not copied twice.
            place = step * _AT_ONCE + number
            if wrong == "dead pages":
                return table[b, jnp.minimum(place, pages_each - 1)], 0, 0
            last = jnp.maximum(pl.cdiv(lengths[b], page), 1) - 1
            return jnp.where(lengths[b] > 0, table[b, jnp.minimum(place, last)], 0), 0, 0

        return pl.BlockSpec((1, page, d), index)

    rows = pl.BlockSpec((1, 1, d), lambda b, step, lengths, table: (b, 0, 0))
    both = [page_of(number) for number in range(_AT_ONCE)]
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((batch, 1, d), q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, steps),
            in_specs=[rows, *both, *both],
            out_specs=rows,
            scratch_shapes=[
                pltpu.VMEM((1, 1), jnp.float32),
                pltpu.VMEM((1, 1), jnp.float32),
                pltpu.VMEM((1, d), jnp.float32),
            ],
        ),
    )(lengths, table, q[:, None], k, k, v, v)[:, 0]


def reference(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, table: jax.Array
) -> jax.Array:
    keys, values = (x[jnp.clip(table, 0, len(x) - 1)] for x in (k, v))
    keys, values = (x.reshape(len(q), -1, x.shape[-1]) for x in (keys, values))
    s = jnp.einsum("bd,bkd->bk", q, keys, precision="highest") * q.shape[1] ** -0.5
    visible = jnp.arange(s.shape[1]) < lengths[:, None]
    top = jnp.max(jnp.where(visible, s, _LOWEST), axis=1, keepdims=True)
    weights = jnp.where(visible, jnp.exp(s - top), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    return jnp.einsum("bk,bkd->bd", weights, values, precision="highest")


def _calls(pages_each: int) -> Any:
    """Sequences of up to ``pages_each`` pages; behind their ends the table says -1."""

    def forget(arguments: pst.Arguments) -> pst.Arguments:
        q, k, v, lengths, table = arguments.args
        used = np.arange(pages_each) * k.shape[1] < np.asarray(lengths)[:, None]
        table = np.where(used, table, -1).astype(np.int32)
        return pst.Arguments(
            args=(q, k, v, lengths, table), recipe=arguments.recipe, declared=arguments.declared
        )

    drawn = pst.arguments(
        pst.arrays(
            "b d, p t d, p t d", dtype="float32", dims={"b": [1, 3], "d": [4, 8], "p": 12, "t": 8}
        ),
        then=lambda drawn: {
            "lengths": pst.lengths(drawn.recipe["b"], max_length=8 * pages_each, around=8),
            "table": pst.page_tables(drawn.recipe["b"], pages_each=pages_each, pages=12),
        },
    )
    return drawn.map(forget)


def half_a_block(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, table: jax.Array
) -> jax.Array:
    """A program takes two pages, and with three there is one program: the last page is lost."""
    return paged(q, k, v, lengths, table, wrong="half a block")


SPEC_HALF_A_BLOCK = KernelSpec(
    name="half_a_block",
    kernel=half_a_block,
    reference=reference,
    inputs=_calls(3),
    vmappable=False,
    family="paged attention",
    backends=INTERPRETERS,
)
SPEC_HALF_A_BLOCK_RIGHT = twin(SPEC_HALF_A_BLOCK, paged)


def last_page_in_full(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, table: jax.Array
) -> jax.Array:
    """The last page of a sequence is attended to in full, and holds what others left there."""
    return paged(q, k, v, lengths, table, wrong="last page in full")


SPEC_LAST_PAGE_IN_FULL = KernelSpec(
    name="last_page_in_full",
    kernel=last_page_in_full,
    reference=reference,
    inputs=_calls(2),
    vmappable=False,
    family="paged attention",
    backends=INTERPRETERS,
)
SPEC_LAST_PAGE_IN_FULL_RIGHT = twin(SPEC_LAST_PAGE_IN_FULL, paged)


def dead_pages(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, table: jax.Array
) -> jax.Array:
    """Pages behind the end of a sequence are fetched, where the table says -1."""
    return paged(q, k, v, lengths, table, wrong="dead pages")


SPEC_DEAD_PAGES = KernelSpec(
    name="dead_pages",
    kernel=dead_pages,
    reference=reference,
    inputs=_calls(2),
    vmappable=False,
    family="paged attention",
    backends=INTERPRETERS,
)


def ragged(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ends: jax.Array,
    *,
    block: int = 8,
    wrong: str = "",
) -> jax.Array:
    """Causal attention within each of the sequences that are packed into q, k and v ``(t, d)``.

    ``ends`` are ``cu_seqlens``, int32 ``(sequences + 1,)``; tokens behind the last get 0.
    """
    (t, d), sequences = q.shape, len(ends) - 1

    def sequence(ends_ref: Any, token: jax.Array) -> jax.Array:
        number = jnp.zeros_like(token)
        for each in range(1, sequences + 1):
            end = ends_ref[each]
            number += ((token > end) if wrong == "belongs before" else (token >= end)).astype(
                jnp.int32
            )
        return number

    def body(ends_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        s = jax.lax.dot_general(
            q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), precision="highest"
        ) * (d**-0.5)
        query = pl.program_id(0) * block + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        key = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        mine = sequence(ends_ref, query)
        visible = (mine == sequence(ends_ref, key)) & (key <= query) & (mine < sequences)
        s = jnp.where(visible, s, _LOWEST)
        weights = jnp.where(visible, jnp.exp(s - jnp.max(s, axis=1, keepdims=True)), 0)
        total = jnp.sum(weights, axis=1, keepdims=True)
        weights = weights / jnp.where(total == 0, 1, total)
        o_ref[...] = jnp.dot(weights, v_ref[...], precision="highest")

    rows = pl.BlockSpec((block, d), lambda i, ends: (i, 0))
    whole = pl.BlockSpec((t, d), lambda i, ends: (0, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(t, block),),
            in_specs=[rows, whole, whole],
            out_specs=rows,
        ),
    )(ends, q, k, v)


def ragged_reference(q: jax.Array, k: jax.Array, v: jax.Array, ends: jax.Array) -> jax.Array:
    token = jnp.arange(len(q))
    number = jnp.searchsorted(ends[1:], token, side="right")
    visible = (number[:, None] == number) & jnp.tri(len(q), dtype=bool)
    visible &= (number < len(ends) - 1)[:, None]
    s = jnp.dot(q, k.T, precision="highest") * q.shape[1] ** -0.5
    top = jnp.max(jnp.where(visible, s, _LOWEST), axis=1, keepdims=True)
    weights = jnp.where(visible, jnp.exp(s - top), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    return jnp.dot(weights / jnp.where(total == 0, 1, total), v, precision="highest")


def belongs_before(
    q: jax.Array, k: jax.Array, v: jax.Array, ends: jax.Array, *, block: int = 8
) -> jax.Array:
    """The first token of a sequence is taken for the last of the one before (> for >=)."""
    return ragged(q, k, v, ends, block=block, wrong="belongs before")


SPEC_BELONGS_BEFORE = KernelSpec(
    name="belongs_before",
    kernel=belongs_before,
    reference=ragged_reference,
    inputs=pst.arguments(
        pst.arrays("t d, t d, t d", dtype="float32", dims={"t": [13, 16], "d": [4, 8]}),
        then=lambda drawn: {"ends": pst.cu_seqlens(3, total=drawn.recipe["t"], around=8)},
        tuning={"block": 8},
    ),
    vmappable=False,
    family="ragged attention",
    backends=INTERPRETERS,
)
SPEC_BELONGS_BEFORE_RIGHT = twin(SPEC_BELONGS_BEFORE, ragged)
