"""Private names of JAX: SparseCores' copies with a list of indices, and copies that add.

The TPU interpreter takes the reference of the indices for an index, and copies where it should
add. Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.compat.equations import Staged, read

#: Between reading and writing back, nobody else may do so.
_atomic = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _End:
    """One end of a copy: memory space, buffer, transforms, and where the indices are in them.

    Rows whose index is ``ignored`` are not copied.
    """

    space: Any
    buffer: Any
    transforms: tuple[Any, ...]
    shape: tuple[int, ...]
    place: int | None = None
    indices: Any = None
    ignored: int | None = None

    def row(self, i: Any) -> tuple[Any, ...]:
        """The transforms for row ``i`` of the copy."""
        indexing: Any = importlib.import_module("jax._src.state.indexing")
        if self.place is None:
            whole = [indexing.Slice(0, size, 1) for size in self.shape[1:]]
            row = indexing.NDIndexer(
                indices=(i, *whole), shape=self.shape, int_indexer_shape=(), validate=False
            )
            return (*self.transforms, row)
        listed = self.transforms[self.place]
        one = dataclasses.replace(
            listed, indices=(self.indices[i], *listed.indices[1:]), int_indexer_shape=()
        )
        return (*self.transforms[: self.place], one, *self.transforms[self.place + 1 :])


def is_gathering(eqn: Any) -> bool:
    """Whether a copy has a list of indices, or adds to what is there."""
    if eqn.params.get("add"):
        return True
    avals = [getattr(atom, "aval", None) for atom in eqn.invars]
    source, target, *_ = jax.tree.unflatten(eqn.params["tree"], avals)
    return _listed(source) is not None or _listed(target) is not None


def _listed(ref: Any) -> int | None:
    """Which transform of a reference holds a list of indices, if one does."""
    for place, transform in enumerate(getattr(ref, "transforms", ())):
        first = (*getattr(transform, "indices", ()), None)[0]
        first = getattr(first, "values", first)
        if hasattr(first, "transforms") or getattr(first, "shape", ()):
            return place
    return None


def start_copies(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """A copy a row, each by the interpreter's own; one that adds is done at once.

    A SparseCore adds atomically. Here, too, and whoever adds to the same memory is not in a race
    with that; who writes there, is.
    """
    module, ctx, params = staged.module, staged.ctx, staged.eqn.params
    avals = [getattr(atom, "aval", None) for atom in staged.eqn.invars]
    told = jax.tree.unflatten(params["tree"], avals)
    given = jax.tree.unflatten(params["tree"], list(values))
    if given[4] is not None:
        raise NotImplementedError("a copy with indices, or one that adds, to another device")
    token, source = _end(staged, told[0], given[0], token)
    token, target = _end(staged, told[1], given[1], token)
    semaphores = [_semaphore(staged, each) for each in given[2:4]]
    act = module.fail_on_exception(dma_add) if params.get("add") else module.dma_start
    stage = functools.partial(
        module.callback.io_callback,
        functools.partial(act, source_info=staged.eqn.source_info),
        module.TOKEN_SHAPE_DTYPE,
    )

    def copy(token: Any, at_source: Any, at_target: Any) -> Any:
        return stage(
            token,
            ctx.device_id,
            ctx.local_core_id,
            source.space,
            source.buffer,
            at_source,
            target.space,
            target.buffer,
            at_target,
            *semaphores,
            None,
        )

    rows = [end.indices.shape[0] for end in (source, target) if end.place is not None]
    if not rows:
        return copy(token, source.transforms, target.transforms), []

    def row(i: Any, token: Any) -> Any:
        return copy(token, source.row(i), target.row(i))

    ignoring = [end for end in (source, target) if end.ignored is not None]
    if not ignoring:
        return jax.lax.fori_loop(0, rows[0], row, token), []
    size = _row_bytes(told)

    def skip(token: Any) -> Any:
        return module.callback.io_callback(
            module.fail_on_exception(_skip),
            module.TOKEN_SHAPE_DTYPE,
            token,
            ctx.device_id,
            ctx.local_core_id,
            size,
            *semaphores,
        )

    def row_or_none(i: Any, token: Any) -> Any:
        skipped = functools.reduce(
            jnp.logical_or, [end.indices[i] == end.ignored for end in ignoring]
        )
        return jax.lax.cond(skipped, skip, functools.partial(row, i), token)

    return jax.lax.fori_loop(0, rows[0], row_or_none, token), []


def _end(staged: Staged, told: Any, given: Any, token: Any) -> tuple[Any, _End]:
    """One end of the copy; its indices are read now, as the hardware does."""
    module = staged.module
    state: Any = importlib.import_module("jax._src.state.types")
    aval, transforms = getattr(told, "ref", told), tuple(getattr(given, "transforms", ()))
    told_transforms = getattr(told, "transforms", ())
    space = module._forward_any_to_hbm(getattr(aval, "memory_space", None))
    space = module.TPU_MEMORY_SPACE_IDXS[space or module._HBM]
    buffer = getattr(given, "ref", given)
    place = _listed(told)
    if place is None:
        shape = (state.transform_type(told_transforms, aval) if told_transforms else aval).shape
        return token, _End(space, buffer, transforms, shape)
    first_told = told_transforms[place].indices[0]
    ignored = getattr(first_told, "ignored_value", None)
    first_told = getattr(first_told, "values", first_told)
    first = transforms[place].indices[0]
    first = getattr(first, "values", first)
    if hasattr(first_told, "inner_aval") or hasattr(first_told, "transforms"):
        token, first = _indices(staged, first_told, first, token)
    return token, _End(space, buffer, transforms, (), place, jnp.asarray(first), ignored)


def _indices(staged: Staged, told: Any, given: Any, token: Any) -> Any:
    """What a reference to indices holds."""
    module = staged.module
    state: Any = importlib.import_module("jax._src.state.types")
    aval = getattr(told, "ref", told)
    transforms = getattr(told, "transforms", ())
    shape = (state.transform_type(transforms, aval) if transforms else aval).shape
    space = module.TPU_MEMORY_SPACE_IDXS[module._forward_any_to_hbm(aval.memory_space)]
    place = (space, getattr(given, "ref", given))
    inner = tuple(getattr(given, "transforms", ()))
    return read(staged, token, jax.ShapeDtypeStruct(shape, jnp.int32), place, inner)


def _row_bytes(told: Any) -> int:
    """Bytes of a row of a copy, by its end without indices."""
    state: Any = importlib.import_module("jax._src.state.types")
    for ref in told[:2]:
        if _listed(ref) is None:
            aval, transforms = getattr(ref, "ref", ref), getattr(ref, "transforms", ())
            kind = state.transform_type(transforms, aval) if transforms else aval
            return math.prod(kind.shape[1:]) * kind.dtype.itemsize
    raise NotImplementedError("a copy that ignores indices, with indices at both ends")


def _skip(token: Any, device: Any, core: Any, size: Any, *semaphores: Any) -> Any:
    """Signal the semaphores of a row that is not copied: who waits, waits for all rows."""
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.interpret_pallas_call")
    memory = module._get_shared_memory()
    place = memory.get_global_core_id(int(device), int(core))
    numbers = tuple(int(each) for each in semaphores if each is not None)
    found, clock = memory.get_semaphores_and_increment_clock(numbers, place)
    for semaphore in found:
        semaphore.signal(int(size), place, clock)
    return token


def _semaphore(staged: Staged, given: Any) -> Any:
    if given is None:
        return None
    primitives: Any = importlib.import_module("jax._src.pallas.mosaic.primitives")
    discharge: Any = importlib.import_module("jax._src.state.discharge")
    return discharge.transform_array(*primitives._get_ref_and_transforms(given))


def dma_add(
    token: Any,
    device: Any,
    core: Any,
    source_space: Any,
    source: Any,
    at_source: Any,
    target_space: Any,
    target: Any,
    at_target: Any,
    semaphore: Any,
    *_: Any,
    source_info: Any,
) -> Any:
    """Add what is at the source to what is at the target, and signal the semaphore."""
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.interpret_pallas_call")
    ranges = importlib.import_module("jax._src.pallas.mosaic.interpret.utils").to_range
    memory = module._get_shared_memory()
    core = int(core)
    _, more = module.get(
        token, device, core, source_space, source, at_source, source_info=source_info
    )
    space = module.TPU_MEMORY_SPACE_NAMES[int(target_space)]
    owner = module._local_core_id_or_zero_if_hbm(core, space)
    key = (space, int(target), int(device), owner)
    where, who = ranges(jax.tree.map(int, at_target)), (int(device), core)
    with _atomic:
        old, (shape, _), clock = memory.get_buffer_content(key, where, who)
        if old is None or old.shape != more.shape:
            raise IndexError(f"Out-of-bounds add at [{where}]: the buffer has shape {shape}")
        if memory.detect_races:  # as a read: those who add are in no race with each other
            module.races.check_read(who, clock, key, where, source_info=source_info)
        with np.errstate(all="ignore"):  # as hardware adds: without a warning where it overflows
            memory.store_buffer_content(key, where, old + more, who)
    place = memory.get_global_core_id(*who)
    (found,), clock = memory.get_semaphores_and_increment_clock((int(semaphore),), place)
    found.signal(more.nbytes, place, clock)
    return token
