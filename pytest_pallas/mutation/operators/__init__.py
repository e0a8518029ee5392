"""Mutation operators: the mistakes that people make in kernels, each a function of an equation."""

from __future__ import annotations

from pytest_pallas.mutation.model import Operator
from pytest_pallas.mutation.operators import (
    arithmetic,
    comparisons,
    grids,
    masks,
    randoms,
    stores,
    transfers,
)

#: All of them, in the order in which reports name them.
OPERATORS: tuple[Operator, ...] = (
    Operator(
        name="comparison",
        mistake="a comparison off by one, or the wrong way round",
        before="columns < n",
        after="columns <= n",
        operate=comparisons.comparison,
    ),
    Operator(
        name="guard",
        mistake="a guarded region always, never, or for the neighbouring index",
        before="@pl.when(k == 0)",
        after="@pl.when(k == 1)",
        operate=comparisons.guard,
    ),
    Operator(
        name="init",
        mistake="an accumulator that nobody sets to its start",
        before="acc[...] = jnp.zeros_like(acc)",
        after="",
        operate=stores.init,
    ),
    Operator(
        name="step",
        mistake="the first or the last step of a grid is left out",
        before="grid=(n,)",
        after="grid=(n - 1,)",
        call=grids.step,
    ),
    Operator(
        name="overhang",
        mistake="the partial block at an edge is left out",
        before="grid=(pl.cdiv(n, block),)",
        after="grid=(n // block,)",
        call=grids.overhang,
    ),
    Operator(
        name="index_map",
        mistake="components of an index map swapped, one further, or constant",
        before="lambda i, j: (i, j)",
        after="lambda i, j: (j, i)",
        call=grids.index_map,
    ),
    Operator(
        name="mask",
        mistake="a mask left out or inverted, or one condition enough where both must hold",
        before="jnp.where(columns < n, x, 0)",
        after="x",
        operate=masks.mask,
    ),
    Operator(
        name="arithmetic",
        mistake="another operation: - for +, + for *, min for max, max for a sum",
        before="m = jnp.maximum(m, s)",
        after="m = jnp.minimum(m, s)",
        operate=arithmetic.arithmetic,
    ),
    Operator(
        name="scale",
        mistake="a factor left out, or taken twice",
        before="s = q @ k.T * scale",
        after="s = q @ k.T",
        operate=arithmetic.scale,
    ),
    Operator(
        name="accumulation",
        mistake="sums held in bfloat16 in place of float32",
        before="preferred_element_type=jnp.float32",
        after="preferred_element_type=jnp.bfloat16",
        operate=arithmetic.accumulation,
    ),
    Operator(
        name="product",
        mistake="operands of a product swapped, or the wrong axis summed over",
        before="jnp.dot(x, y)",
        after="jnp.dot(y, x)",
        operate=arithmetic.product,
    ),
    Operator(
        name="cast",
        mistake="a cast to a narrower float before an operation, and not after it",
        before="(x - y).astype(jnp.bfloat16)",
        after="x.astype(jnp.bfloat16) - y.astype(jnp.bfloat16)",
        operate=arithmetic.cast,
    ),
    Operator(
        name="store",
        mistake="a store left out, or to the neighbouring place",
        before="out[slot] = x",
        after="out[slot + 1] = x",
        operate=stores.store,
    ),
    Operator(
        name="load",
        mistake="a load from the neighbouring place, such as the other buffer of a pair",
        before="x = buffers[slot]",
        after="x = buffers[(slot + 1) % 2]",
        operate=stores.load,
    ),
    Operator(
        name="wait",
        mistake="a copy, semaphore or barrier that nobody waits for",
        before="copy.wait()",
        after="",
        operate=transfers.wait,
    ),
    Operator(
        name="start",
        mistake="a copy that nobody starts",
        before="copy.start()",
        after="",
        operate=transfers.start,
    ),
    Operator(
        name="semaphore",
        mistake="one semaphore for all copies",
        before="sems.at[slot]",
        after="sems.at[0]",
        operate=transfers.semaphore,
    ),
    Operator(
        name="signal",
        mistake="a signal left out, or given twice",
        before="pl.semaphore_signal(ready)",
        after="",
        operate=transfers.signal,
    ),
    Operator(
        name="device",
        mistake="a copy or signal to the device after the right one",
        before="device_id=right",
        after="device_id=(right + 1) % n",
        operate=transfers.device,
    ),
    Operator(
        name="barrier",
        mistake="a barrier left out",
        before="plsc.subcore_barrier()",
        after="",
        operate=transfers.barrier,
    ),
    Operator(
        name="alias",
        mistake="an output that shares an input's memory no more, or although nobody asked",
        before="input_output_aliases={0: 0}",
        after="",
        call=grids.alias,
    ),
    Operator(
        name="random",
        mistake="random bits that are used twice",
        before="pltpu.prng_seed(seed, block)",
        after="pltpu.prng_seed(seed, 0)",
        operate=randoms.randomness,
    ),
)

#: Their names.
NAMES: tuple[str, ...] = tuple(operator.name for operator in OPERATORS)

__all__ = ["NAMES", "OPERATORS"]
