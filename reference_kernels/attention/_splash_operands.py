"""Which blocks of which arrays a visit of splash attention gets, forward and backward.

Forward and for ``dq`` a row of visits is one block of queries, and scores have a row for a query.
For ``dk`` and ``dv`` it is one block of keys, for all heads that share them, and the scores are
transposed. Index maps look up in the list of visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels._tpu import LANES
from reference_kernels.attention._splash_block import Inputs, Problem, Saved, Visits
from reference_kernels.attention._splash_mask import MASK_SHIFT, Plan, plan


@dataclass(frozen=True)
class Layout:
    """Where the blocks of a visit lie.

    Attributes:
      problem: what is computed.
      by_keys: whether a row of visits is a block of keys.
    """

    problem: Problem
    by_keys: bool = False

    def plan(self) -> Plan:
        """The visits."""
        problem = self.problem
        lengths, blocks = (problem.q_len, problem.kv_len), (problem.block_q, problem.block_kv)
        if self.by_keys:
            return plan(problem.mask, lengths, blocks, by_keys=True, members=problem.group)
        return plan(problem.mask, lengths, blocks)

    def visits(self, schedule: Plan) -> Visits:
        """The lists of a plan, for the kernel."""
        member = schedule.member if self.by_keys else None
        return Visits(schedule.row, schedule.column, schedule.flags, member)

    def q_block(self, h: Any, t: Any, visits: Visits) -> tuple[Any, Any]:
        """Head and number of the block of queries of visit ``t``."""
        if visits.member is not None:
            return h * self.problem.group + visits.member[t], visits.column[t]
        return h, visits.row[t]

    def kv_block(self, h: Any, t: Any, visits: Visits) -> tuple[Any, Any]:
        """Head and number of the block of keys of visit ``t``."""
        group = self.problem.group
        if self.by_keys:
            return h, visits.row[t]
        return jax.lax.div(h, group) if group > 1 else h, visits.column[t]

    def queries(self, columns: int) -> pl.BlockSpec:
        """A block of an array with a row for each query, ``(h, q_len, columns)``."""
        return pl.BlockSpec(
            (pl.Squeezed(), self.problem.block_q, columns),
            lambda h, t, visits: (*self.q_block(h, t, visits), 0),
        )

    def query_row(self) -> pl.BlockSpec:
        """A block of an array with a number for each query, ``(h, 1, q_len)``."""

        def index(h: Any, t: Any, visits: Visits) -> tuple[Any, Any, Any]:
            head, block = self.q_block(h, t, visits)
            return head, 0, block

        return pl.BlockSpec((pl.Squeezed(), 1, self.problem.block_q), index)

    def keys(self, columns: int) -> pl.BlockSpec:
        """A block of an array with a row for each key, ``(h / g, kv_len, columns)``."""
        return pl.BlockSpec(
            (pl.Squeezed(), self.problem.block_kv, columns),
            lambda h, t, visits: (*self.kv_block(h, t, visits), 0),
        )

    def inputs(
        self,
        schedule: Plan,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        q_segments: jax.Array | None,
        kv_segments: jax.Array | None,
        saved: Saved | None = None,
    ) -> tuple[Inputs, Inputs]:
        """The specs of the operands of a kernel, and the operands.

        Args:
          schedule: the visits.
          q: ``(h, q_len, d)``.
          k: ``(h / g, kv_len, d)``.
          v: ``(h / g, kv_len, d_v)``.
          q_segments: ``(q_len,)``, or None.
          kv_segments: ``(kv_len,)``, or None.
          saved: for the backward kernels, ``do (h, q_len, d_v)``, ``lse`` and ``di (h, 1, q_len)``.
        """
        q_ids = kv_ids = q_ids_spec = kv_ids_spec = None
        if q_segments is not None and kv_segments is not None:
            of_queries, of_keys = self._segments_of_rows, self._segments_of_columns
            if self.by_keys:
                of_queries, of_keys = of_keys, of_queries
            q_ids_spec, q_ids = of_queries(q_segments, self.problem.block_q)
            kv_ids_spec, kv_ids = of_keys(kv_segments, self.problem.block_kv)
        saved_specs = None
        if saved is not None:
            saved_specs = Saved(self.queries(v.shape[2]), self.query_row(), self.query_row())
        specs = Inputs(
            q=self.queries(q.shape[2]),
            k=self.keys(k.shape[2]),
            v=self.keys(v.shape[2]),
            saved=saved_specs,
            q_ids=q_ids_spec,
            kv_ids=kv_ids_spec,
            mask=None if schedule.blocks is None else self._mask_block(),
        )
        return specs, Inputs(q, k, v, saved, q_ids, kv_ids, schedule.blocks)

    def _segments_of_rows(self, ids: jax.Array, block: int) -> tuple[pl.BlockSpec, jax.Array]:
        """Segments along the rows of the scores, in all lanes."""
        spec = pl.BlockSpec((block, LANES), lambda h, t, visits: (visits.row[t], 0))
        return spec, jnp.broadcast_to(ids[:, None], (*ids.shape, LANES))

    def _segments_of_columns(self, ids: jax.Array, block: int) -> tuple[pl.BlockSpec, jax.Array]:
        """Segments along the columns: whole blocks, as none must be wider than the array."""
        spec = pl.BlockSpec((1, block), lambda h, t, visits: (0, visits.column[t]))
        return spec, jnp.pad(ids, (0, -len(ids) % block))[None]

    def _mask_block(self) -> pl.BlockSpec:
        """The block of a mask that is an array, laid out as the scores."""
        shape = (self.problem.block_q, self.problem.block_kv)
        return pl.BlockSpec(
            (pl.Squeezed(), *(shape[::-1] if self.by_keys else shape)),
            lambda h, t, visits: (visits.flags[t] >> MASK_SHIFT, 0, 0),
        )
