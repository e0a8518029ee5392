"""Rules: loads from references and stores to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import (
    load_window,
    record_access,
    record_window,
    report_input_write,
    stop_before_access,
)
from pallas_sim.compat.places import transforms_in, transforms_of
from pallas_sim.dtypes import Array, convert
from pallas_sim.edges import (
    Contents,
    MaskedWindow,
    UndefinedLoadError,
    contents_of,
    masked_window,
    read_inside,
    report,
    report_edge,
    undefined,
    write_inside,
)
from pallas_sim.errors import SimulationError
from pallas_sim.machine import Thread
from pallas_sim.memory import KeyArray, Outside, Ref, is_key_dtype
from pallas_sim.points import turn_site
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.transforms import RefPart, Transform, split_elsewhere
from pallas_sim.windows import read, region_of, write


@rule("load", threaded=True, home="primitives")  # ``plgpu.load``
@rule("get", threaded=True)
def _get(eqn: Equation) -> Evaluate:
    window, places = split_elsewhere(transforms_of(eqn.params["tree"], 1, len(eqn.ins) - 1))
    dtype = eqn.out.dtype
    whole = not window and not is_key_dtype(dtype)

    def load(thread: Thread, ref: Ref, *operands: Any) -> Any:
        if places:
            ref = thread.elsewhere(ref, places, (ref, *operands), eqn.line)
        _require_plain(ref)
        if ref.block is not None:
            from pallas_sim.gpu.portable_accesses import BlockAccess

            return BlockAccess(thread, ref, window, (ref, *operands), eqn.line).load()
        if whole and not thread.recorded:
            return _loaded(ref.data)
        all_operands = (ref, *operands)
        return _loaded(load_window(thread, ref, window, all_operands, eqn.line))

    def load_keys(thread: Thread, *operands: Any) -> Any:
        try:
            return KeyArray(load(thread, *operands), dtype)
        except UndefinedLoadError as undefined_keys:
            report(thread, undefined_keys.finding)
            return KeyArray(undefined_keys.values, dtype)

    return load_keys if is_key_dtype(dtype) else load


def _loaded(part: Any) -> Any:
    """Return a copy of a part of memory; without axes a scalar of numpy, which computes faster."""
    return np.array(part) if part.ndim else part[()]


@rule("store", threaded=True, home="primitives")
def _store(eqn: Equation) -> Evaluate:
    """``plgpu.store``: a ``swap`` without its result."""
    store = _swap(dataclasses.replace(eqn, used=False))

    def evaluate(thread: Thread, *operands: Any) -> Any:
        store(thread, *operands)
        return ()

    return evaluate


@rule("swap", threaded=True)
def _swap(eqn: Equation) -> Evaluate:
    part = RefPart(0, transforms_of(eqn.params["tree"], 2, len(eqn.ins) - 2))
    window, places = part.window, part.places
    used, turns = eqn.used, turn_site(eqn, part)

    def evaluate(thread: Thread, ref: Ref, value: Any, *operands: Any) -> Any:
        all_operands = (ref, value, *operands)
        if turns is not None:
            thread.machine.coverage.turn(turns, thread, all_operands)
        if places:
            ref = thread.elsewhere(ref, places, all_operands, eqn.line)
            all_operands = (ref, value, *operands)
        report_input_write(thread, ref, eqn.line)
        _require_plain(ref)
        if ref.block is not None:
            from pallas_sim.gpu.portable_accesses import BlockAccess

            access = BlockAccess(thread, ref, window, all_operands, eqn.line)
            old = access.load() if used else None
            access.store(value)
            return old
        return _change(thread, ref, window, all_operands, eqn.line, lambda _: value, used=used)

    def evaluate_keys(thread: Thread, ref: Ref, value: KeyArray, *operands: Any) -> Any:
        old = evaluate(thread, ref, value.data, *operands)
        return old if old is None else KeyArray(old, value.dtype)

    return evaluate_keys if is_key_dtype(eqn.ins[1].dtype) else evaluate


@rule("addupdate", threaded=True)
def _addupdate(eqn: Equation) -> Evaluate:
    window = transforms_of(eqn.params["tree"], 2, len(eqn.ins) - 2)

    def evaluate(thread: Thread, ref: Ref, value: Any, *operands: Any) -> Any:
        report_input_write(thread, ref, eqn.line)
        all_operands = (ref, value, *operands)
        if ref.block is not None:
            from pallas_sim.gpu.portable_accesses import BlockAccess

            # ``_addupdate_lowering_rule`` makes an atomic of it.
            shape = tuple(eqn.ins[1].shape)
            access = BlockAccess(thread, ref, window, all_operands, eqn.line, shape)
            access.update(reducer("add", ref.dtype), value, "add", used=False)
        else:
            _change(thread, ref, window, all_operands, eqn.line, adding(ref.dtype, value))
        return ()

    return evaluate


def _change(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    line: str,
    function: Callable[[Any], Any],
    *,
    used: bool = False,
) -> Any:
    """Change a window of memory, as far as it is there; return its old values if they are used."""
    stop_before_access(thread)
    try:
        part = read(ref.data, window, operands) if used else None
        region = region_of(ref.data, window, operands, part) if thread.recorded else None
        old = None if part is None else np.array(part)
        write(ref.data, window, operands, function)
    except Outside as outside:
        report_edge(thread, ref, "store to", outside, line)
    else:
        if region is not None:
            record_access(thread, region, "write", ref.name, line)
        return old
    contents = contents_of(thread)
    part = read_inside(ref.data, window, operands, contents)
    if thread.recorded:
        record_window(thread, ref, part, window, operands, "write", line)
    write_inside(ref.data, window, operands, function, contents)
    return part if used else None


def _require_plain(ref: Ref) -> None:
    """Reject what JAX's lowering rejects: tensor memory has no loads and stores like these.

    Raises:
      SimulationError: the reference is one to tensor memory.
    """
    if ref.space == "tmem":
        raise SimulationError(
            f"{ref.name or 'a reference'} is in tensor memory: load from it by "
            "plgpu.async_load_tmem, and store to it by plgpu.async_store_tmem"
        )


#: What atomic operations and reducing copies do to elements, by name.
ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def adding(dtype: Any, value: Any) -> Callable[[Any], Any]:
    """Return the function that adds as ``lax.add`` does: narrow floats in float32, rounded once."""
    add = reducer("add", dtype)
    return lambda old: add(old, value)


def reducer(name: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """Return the function of the old elements and the new ones, rounded once to their dtype.

    Args:
      name: of an atomic operation or a reducing copy: ``"add"``, ``"min"``, ``"max"``, ``"and"``,
        ``"or"`` or ``"xor"``; what it may be prefixed with (``"smin"``, ``"umax"``) says how bits
        are read, which the dtype says here.
      dtype: of the elements.

    Raises:
      SimulationError: there is no such operation.
    """
    dtype = np.dtype(dtype)
    function = ATOMICS.get(name) or ATOMICS.get(name[1:])
    if function is None:
        raise SimulationError(f"the simulator does not know the atomic operation {name!r}")
    if dtype.itemsize >= 4:
        return function
    wide = np.dtype(np.int32 if dtype.kind in "iu" else np.float32)
    return lambda old, new: convert(function(convert(old, wide), convert(new, wide)), dtype)


@rule("masked_load", threaded=True)
def _masked_load(eqn: Equation) -> Evaluate:
    ref_at, window, mask_at, other_at = _parts(eqn)
    shape, dtype = tuple(eqn.out.shape), eqn.out.dtype
    volatile = bool(eqn.params.get("is_volatile"))

    def evaluate(thread: Thread, *operands: Any) -> Any:
        ref: Ref = operands[ref_at]
        mask = None if mask_at is None else operands[mask_at]
        if ref.block is not None:
            from pallas_sim.gpu.portable_accesses import BlockAccess

            other = None if other_at is None else operands[other_at]
            access = BlockAccess(thread, ref, window, operands, eqn.line, shape, mask)
            return access.load(other, volatile=volatile)
        if mask is None:
            return np.array(load_window(thread, ref, window, operands, eqn.line))
        named = masked_window(thread, ref, window, operands, shape, mask, "load from", eqn.line)
        if thread.recorded:
            record_access(thread, named.view.at(_chosen(named)), "read", ref.name, eqn.line)
        other = thread.machine.uninitialized((), dtype, "padding")
        if other_at is not None:
            other = operands[other_at]

        def load(contents: Contents) -> Any:
            values = np.where(mask, named.view.take(named.key), other).astype(dtype, copy=False)
            beyond = np.broadcast_to(mask, shape) & ~named.chosen
            values[beyond] = contents(values[beyond].shape, dtype)
            return values

        if named.finding is not None:
            raise undefined(thread, load, named.finding)
        return np.where(mask, named.view.take(named.key), other).astype(dtype, copy=False)

    return evaluate


@rule("masked_swap", threaded=True)
def _masked_swap(eqn: Equation) -> Evaluate:
    ref_at, window, mask_at, value_at = _parts(eqn)
    used = eqn.used
    shape, dtype = tuple(eqn.out.shape), eqn.out.dtype
    assert value_at is not None

    def evaluate(thread: Thread, *operands: Any) -> Any:
        ref: Ref = operands[ref_at]
        value = operands[value_at]
        mask = None if mask_at is None else operands[mask_at]
        report_input_write(thread, ref, eqn.line)
        if ref.block is not None:
            from pallas_sim.gpu.portable_accesses import BlockAccess

            access = BlockAccess(thread, ref, window, operands, eqn.line, shape, mask)
            old = access.load() if used else None
            access.store(value)
            return old
        if mask is None:
            return _change(thread, ref, window, operands, eqn.line, lambda _: value, used=used)
        named = masked_window(thread, ref, window, operands, shape, mask, "store to", eqn.line)
        if named.finding is not None:
            report(thread, named.finding)
        nothing = thread.machine.uninitialized((), dtype, "padding")
        old = np.where(named.chosen, named.view.take(named.key), nothing) if used else None
        index = _chosen(named)
        if thread.recorded:
            record_access(thread, named.view.at(index), "write", ref.name, eqn.line)
        named.view.set(index, np.broadcast_to(value, shape)[named.chosen])
        return old

    return evaluate


def _parts(eqn: Equation) -> tuple[int, tuple[Transform, ...], int | None, int | None]:
    """Return the parts of a masked access: reference, window, mask, and other or value."""
    ref, transforms, mask, other = eqn.operands_in("args_tree")
    if eqn.name == "masked_swap":
        mask, other = other, mask
    return ref.position, transforms_in(transforms), _at(mask), _at(other)


def _at(operand: Any) -> int | None:
    return None if operand is None else operand.position


def _chosen(named: MaskedWindow) -> list[Array]:
    return [axis[named.chosen] for axis in named.key]
