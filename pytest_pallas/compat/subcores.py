"""Private names of JAX: operations of SparseCores, for the TPU interpreter.

The interpreter has none of the primitives of ``jax.experimental.pallas.tpu_sc``. Each is here in
plain JAX, as its documentation says; JAX's own tests of SparseCores on hardware settle what that
leaves open: ``scan_count`` begins at 1, ``cumsum`` takes nothing of masked elements, ``cummax`` and
``cummin`` give the element itself before the first one that counts.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.compat.equations import Rule, Staged, read
from pytest_pallas.compat.gathering import is_gathering, start_copies
from pytest_pallas.compat.sparse_core import sparse_core

_PRIMITIVES = "jax._src.pallas.mosaic.sc_primitives"

#: Between reading and writing back a counter, nobody else may do so.
_atomic = threading.Lock()


def subcore_rule(eqn: Any) -> Rule | None:
    """The rule for an equation that only a SparseCore has, or None."""
    rule = _rules().get(eqn.primitive)
    if rule is start_copies and not is_gathering(eqn):
        return None
    return rule


@functools.cache
def _rules() -> Mapping[Any, Rule]:
    module: Any = importlib.import_module(_PRIMITIVES)
    dma = importlib.import_module("jax._src.pallas.mosaic.primitives").dma_start_p
    named: dict[str, Rule] = {
        "load_p": _load_expanded,
        "swap_p": _store,
        "gather_p": _gather,
        "scatter_p": _scatter,
        "barrier_p": _barrier,
        "parallel_loop_p": _parallel_loop,
        "fetch_and_add_p": _fetch_and_add,
        "scan_count_p": _on_values(scan_count),
        "masked_cumsum_p": _on_values(cumsum),
        "masked_cummax_p": _on_values(functools.partial(running, jnp.maximum)),
        "masked_cummin_p": _on_values(functools.partial(running, jnp.minimum)),
        "masked_sort_p": _on_values(sort_key_val),
        "pack_p": _on_values(pack),
        "unpack_p": _on_values(unpack),
        "all_reduce_population_count_p": _on_values(population_count),
        "all_reduce_ffs_p": _on_values(find_first_set),
    }
    found = {getattr(module, name): rule for name, rule in named.items() if hasattr(module, name)}
    return {**found, dma: start_copies}


# Registers: functions of values.


def _on_values(function: Callable[..., Any]) -> Rule:
    def rule(staged: Staged, values: Sequence[Any], token: Any) -> tuple[Any, Sequence[Any]]:
        outputs = function(*values, **staged.eqn.params)
        return token, outputs if isinstance(outputs, tuple) else (outputs,)

    return rule


def scan_count(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How often each element occurred up to itself, and whether it does not occur again."""
    place = jnp.arange(x.size)
    same = (x[:, None] == x[None, :]) & mask[:, None] & mask[None, :]
    counts = jnp.sum(same & (place[None, :] <= place[:, None]), axis=1, dtype=jnp.int32)
    again = jnp.any(same & (place[None, :] > place[:, None]), axis=1)
    return counts, mask & ~again


def cumsum(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Running sum of the elements that count."""
    return jnp.cumsum(jnp.where(mask, x, 0), dtype=x.dtype)


def running(extreme: Callable[..., jax.Array], x: jax.Array, mask: jax.Array) -> jax.Array:
    """Running extreme of the elements that count; before the first, the element itself."""

    def step(state: tuple[Any, Any], new: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        best, any_yet = state
        element, counts = new
        best = jnp.where(counts, jnp.where(any_yet, extreme(best, element), element), best)
        any_yet = any_yet | counts
        return (best, any_yet), jnp.where(any_yet, best, element)

    return jax.lax.scan(step, (x[0], jnp.asarray(False)), (x, mask))[1]


def sort_key_val(
    keys: jax.Array, values: jax.Array, *mask: jax.Array, descending: bool
) -> tuple[jax.Array, ...]:
    """Stably by the keys; pairs that do not count come last."""
    valid = mask[0] if mask else jnp.ones(keys.shape, bool)
    order = jnp.argsort(keys, stable=True, descending=descending)
    order = order[jnp.argsort(~valid[order], stable=True)]
    return keys[order], values[order], *(each[order] for each in mask)


def pack(a: jax.Array, b: jax.Array, *, format: Any, preferred_element_type: Any) -> jax.Array:
    """Two registers in one of half the bits: as columns, or interleaved."""
    both = jnp.stack([a, b], axis=1)
    dtype = preferred_element_type or (jnp.int16 if a.dtype == jnp.int32 else jnp.bfloat16)
    narrow = both.astype(dtype)
    return narrow if format.value == "compressed" else narrow.reshape(-1)


def unpack(
    ab: jax.Array, *, format: Any, preferred_element_type: Any
) -> tuple[jax.Array, jax.Array]:
    """What ``pack`` put together."""
    wide = preferred_element_type or (jnp.int32 if ab.dtype == jnp.int16 else jnp.float32)
    columns = ab.reshape(-1, 2).astype(wide)
    return columns[:, 0], columns[:, 1]


def population_count(x: jax.Array, *, reduce: int) -> jax.Array:
    """The number of true elements, in every lane."""
    return jnp.full((x.size // reduce,), jnp.sum(x, dtype=jnp.int32))


def find_first_set(x: jax.Array, *, reduce: int) -> jax.Array:
    """The index of the first true element, or how many there are, in every lane."""
    first = jnp.where(jnp.any(x), jnp.argmax(x), x.size)
    return jnp.full((x.size // reduce,), first, jnp.int32)


# References.


def _reference(staged: Staged, values: Sequence[Any]) -> tuple[Any, ...]:
    """Memory space, buffer and inner transforms of the reference that is the first input."""
    primitives = importlib.import_module("jax._src.pallas.mosaic.primitives")
    buffer, inner = primitives._get_ref_and_transforms(values[0])
    space = staged.module._forward_any_to_hbm(staged.eqn.invars[0].aval.memory_space)
    return staged.module.TPU_MEMORY_SPACE_IDXS[space], buffer, inner


def _write(staged: Staged, token: Any, place: Any, transforms: Any, value: Any) -> Any:
    """Stage a write; gives the token."""
    module, ctx = staged.module, staged.ctx
    return module.callback.io_callback(
        functools.partial(module.store, source_info=staged.eqn.source_info),
        module.TOKEN_SHAPE_DTYPE,
        token,
        ctx.device_id,
        ctx.local_core_id,
        *place,
        transforms,
        value,
    )


def _expanded(value: jax.Array, mask: jax.Array) -> jax.Array:
    """The first elements where the mask is true; unspecified elsewhere."""
    return value[jnp.cumsum(mask) - 1]


def _load_expanded(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    space, buffer, inner = _reference(staged, values)
    flat = list(values[1:])
    mask = flat.pop() if staged.eqn.params["has_mask"] else None
    transforms = (*inner, *jax.tree.unflatten(staged.eqn.params["tree"], flat))
    shape = jax.ShapeDtypeStruct(staged.eqn.outvars[0].aval.shape, staged.eqn.outvars[0].aval.dtype)
    token, value = read(staged, token, shape, (space, buffer), transforms)
    return token, [value if mask is None else _expanded(value, mask)]


def _store(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """``addupdate``, ``store_compressed`` and ``addupdate_compressed``."""
    space, buffer, inner = _reference(staged, values)
    params, x, flat = staged.eqn.params, values[1], list(values[2:])
    mask = flat.pop() if params["has_mask"] else jnp.ones(x.shape, bool)
    transforms = (*inner, *jax.tree.unflatten(params["tree"], flat))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    token, old = read(staged, token, shape, (space, buffer), transforms)
    if params.get("compress", params["has_mask"]):  # JAX 0.11.2 has no other stores with a mask
        order = jnp.argsort(~mask, stable=True)
        x, mask = x[order], mask[order]
    new = jnp.where(mask, old + x if params["add"] else x, old)
    return _write(staged, token, (space, buffer), transforms, new), [old]


def _indexed(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """Token, place, transforms, whole value, indices, and the other operands."""
    parts = jax.tree.unflatten(staged.eqn.params["tree"], values)
    buffer, transforms, indices, *rest = parts
    space, buffer, inner = _reference(staged, [buffer])
    transforms = (*inner, *transforms)
    state: Any = importlib.import_module("jax._src.state.types")
    aval = staged.eqn.invars[0].aval
    whole = state.transform_type(transforms, aval) if transforms else aval
    shape = jax.ShapeDtypeStruct(whole.shape, whole.dtype)
    token, value = read(staged, token, shape, (space, buffer), transforms)
    return token, (space, buffer), transforms, value, tuple(indices), rest


def _checked(staged: Staged, token: Any, indices: Any, mask: Any, shape: tuple[int, ...]) -> Any:
    """Stage an error for an index beyond the end; gives the token."""
    module = staged.module

    def check(token: Any, indices: Any, mask: Any) -> Any:
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True)):
            wrong = np.asarray(index)[np.asarray(mask) & ((index < 0) | (index >= size))]
            if wrong.size:
                raise IndexError(
                    f"Out-of-bounds {staged.eqn.primitive.name}: index {wrong[0]} of axis {axis}, "
                    f"which has {size} elements"
                )
        return token

    return module.callback.io_callback(
        module.fail_on_exception(check), module.TOKEN_SHAPE_DTYPE, token, indices, mask
    )


def _gather(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    token, _, _, whole, indices, (mask,) = _indexed(staged, values, token)
    mask = jnp.ones(indices[0].shape, bool) if mask is None else mask
    token = _checked(staged, token, indices, mask, whole.shape)
    return token, [whole[indices]]


def _scatter(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    token, place, transforms, whole, indices, (x, mask) = _indexed(staged, values, token)
    mask = jnp.ones(x.shape, bool) if mask is None else mask
    token = _checked(staged, token, indices, mask, whole.shape)
    beyond = jnp.where(mask, indices[0], whole.shape[0])
    target = whole.at[(beyond, *indices[1:])]
    new = (target.add if staged.eqn.params["add"] else target.set)(x, mode="drop")
    return _write(staged, token, place, transforms, new), []


def _parallel_loop(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """One round after the other: a carried value may need the one before."""
    params = staged.eqn.params
    lower, upper, step, consts, carry = jax.tree.unflatten(params["tree"], values)
    body = params["jaxpr"]
    extra = list(getattr(body, "consts", ()))
    inner = getattr(body, "jaxpr", body)

    def more(state: Any) -> Any:
        return state[0] < upper

    def once(state: Any) -> Any:
        i, token, carried = state
        token, new = staged.module._interpret_jaxpr(
            inner, *extra, *consts, i, *carried, ctx=staged.ctx, token=token
        )
        return i + step, token, list(new)

    first = jnp.asarray(lower, jnp.int32)
    _, token, carried = jax.lax.while_loop(more, once, (first, token, list(carry)))
    return token, carried


# Other subcores.


def _barrier(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """Wait for all subcores of this SparseCore."""
    del values
    module, ctx = staged.module, staged.ctx

    def wait(token: Any, device: Any, core: Any) -> Any:
        memory = module._get_shared_memory()
        team = [(int(device), each) for each in sparse_core(memory, int(core))]
        with memory.lock:
            gate = memory.__dict__.setdefault("gates", {}).setdefault(team[0], _Gate())
        _pass(gate, memory, team)
        return token

    return module.callback.io_callback(
        module.fail_on_exception(wait),
        module.TOKEN_SHAPE_DTYPE,
        token,
        ctx.device_id,
        ctx.local_core_id,
    ), []


@dataclass
class _Gate:
    """A barrier that can be waited at again: how many have come, and how often it has opened."""

    opening: threading.Condition = field(default_factory=threading.Condition)
    arrived: int = 0
    opened: int = 0


def _pass(gate: _Gate, memory: Any, team: Sequence[tuple[int, int]]) -> None:
    """Wait until the whole team is there, or until somebody has failed."""
    with gate.opening:
        before = gate.opened
        gate.arrived += 1
        if gate.arrived == len(team):
            if memory.detect_races:  # what any of them has done is before what any does next
                memory.update_clocks(team)
            gate.arrived, gate.opened = 0, before + 1
            gate.opening.notify_all()
        while gate.opened == before:
            gate.opening.wait(0.05)
            memory.check_failed()


def _fetch_and_add(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """Add to a scalar in the SMEM of another subcore; gives what it was before."""
    module, ctx = staged.module, staged.ctx
    space, buffer, _ = _reference(staged, values)
    _, value, *indices, subcore = values

    def add(token: Any, device: Any, core: Any, buffer: Any, *rest: Any) -> Any:
        *indices, value, subcore = (int(each) for each in rest)
        memory = module._get_shared_memory()
        there = sparse_core(memory, int(core))[subcore]
        name = module.TPU_MEMORY_SPACE_NAMES[int(space)]
        content = memory.mem[name, int(buffer), int(device), there].content
        with _atomic, np.errstate(all="ignore"):
            old = content[tuple(indices)].copy()
            content[tuple(indices)] = old + np.int32(value)
        return token, np.int32(old)

    token, old = module.callback.io_callback(
        module.fail_on_exception(add),
        (module.TOKEN_SHAPE_DTYPE, jax.ShapeDtypeStruct((), jnp.int32)),
        token,
        ctx.device_id,
        ctx.local_core_id,
        buffer,
        *indices,
        value,
        subcore,
    )
    return token, [old]
