"""Rules: functions that run on every device of a mesh, and what XLA does between devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pallas_sim.cores import meet, run_concurrently
from pallas_sim.dtypes import Array, convert, is_float
from pallas_sim.errors import MissingRuleError, SimulationError
from pallas_sim.evaluation import prepare, run
from pallas_sim.findings import Owner
from pallas_sim.machine import Thread
from pallas_sim.memory import Ref
from pallas_sim.registry import Equation, Evaluate, rule

#: A collective: takes the values of the group in order and the own position among them.
Collective = Callable[[Sequence[Any], int], Any]


def _names(axes: Any) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def _size(thread: Thread, name: str) -> int:
    size = thread.sizes.get(name) or thread.cores.get(name) or thread.others.get(name)
    if size is None:
        raise _missing(name)
    return size


def _missing(name: str) -> MissingRuleError:
    return MissingRuleError(f"the simulator does not simulate the mesh axis {name!r} here")


@rule("axis_index", threaded=True)
def _axis_index(eqn: Equation) -> Evaluate:
    names = _names(eqn.params["axis_name"])

    def evaluate(thread: Thread) -> Any:
        index = 0
        for name in names:
            if name not in thread.axes:
                raise _missing(name)
            scale = _size(thread, name) if len(names) > 1 else 1
            index = index * scale + thread.axes[name]
        return np.int32(index)

    return evaluate


def exchange(
    eqn: Equation, thread: Thread, names: tuple[str, ...], groups: Any, value: Any
) -> tuple[list[Any], int]:
    """Return the values of all devices of the thread's group, in order, and its own position.

    Args:
      eqn: the collective.
      thread: the device.
      names: the mesh axes along which the group goes.
      groups: ``axis_index_groups``, or None for all.
      value: what it gives to the others.
    """
    sizes = [_size(thread, name) for name in names]
    mine = int(np.ravel_multi_index([thread.axes[name] for name in names], sizes))
    members = list(range(int(np.prod(sizes))))
    if groups is not None:
        members = next(list(group) for group in groups if mine in group)
    others = tuple((axis, at) for axis, at in thread.axes.items() if axis not in names)
    site = (id(eqn), others, tuple(members))
    what = f"{eqn.name}{' at ' + eqn.line if eqn.line else ''}"
    brought = meet(thread, site, mine, members, value, what)
    return [brought[member] for member in members], members.index(mine)


def _reduced(function: Any, values: Sequence[Array]) -> Array:
    """Return all values as one, in the order of the devices, rounded to their dtype once."""
    dtype = values[0].dtype
    wide = _wide(dtype)
    widened = (convert(value, wide) for value in values)
    total = functools.reduce(lambda a, b: function(a, b).astype(wide, copy=False), widened)
    return convert(np.asarray(total), dtype)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values are added."""
    return np.dtype(np.float32) if is_float(dtype) and dtype.itemsize < 4 else dtype


def _along(function: Any, value: Array, axes: tuple[int, ...]) -> Array:
    """Return an array with some of its own axes reduced, rounded to its dtype once."""
    if not axes:
        return value
    value = np.asarray(value)
    total = function.reduce(convert(value, _wide(value.dtype)), axis=axes)
    return convert(np.asarray(total).astype(_wide(value.dtype), copy=False), value.dtype)


@rule(*("psum", "psum2", "psum_invariant", "pmax", "pmin", "unreduced_psum"), threaded=True)
def _reduction(eqn: Equation) -> Evaluate:
    axes = _names(eqn.params.get("axes", eqn.params.get("axis_name")))
    # An axis of ``vmap`` has become one of the array.
    numbers = tuple(axis for axis in axes if isinstance(axis, int))
    names = tuple(axis for axis in axes if not isinstance(axis, int))
    groups = eqn.params.get("axis_index_groups")
    function = {"pmax": np.maximum, "pmin": np.minimum}.get(eqn.name, np.add)

    def evaluate(thread: Thread, *values: Any) -> Any:
        own = [_along(function, value, numbers) for value in values]
        brought, _ = exchange(eqn, thread, names, groups, own)
        return [_reduced(function, column) for column in zip(*brought, strict=True)]

    return (
        evaluate
        if eqn.origin is None or eqn.origin.primitive.multiple_results
        else (lambda thread, value: evaluate(thread, value)[0])
    )


def _one(eqn: Equation, collective: Collective) -> Evaluate:
    """Evaluate a collective of one array."""
    names, groups = _names(eqn.params["axis_name"]), eqn.params.get("axis_index_groups")

    def evaluate(thread: Thread, value: Any) -> Any:
        brought, mine = exchange(eqn, thread, names, groups, np.asarray(value))
        return np.ascontiguousarray(collective(brought, mine))

    return evaluate


@rule("ppermute", threaded=True)
def _ppermute(eqn: Equation) -> Evaluate:
    source = {to: from_ for from_, to in eqn.params["perm"]}

    def permuted(values: Sequence[Any], mine: int) -> Any:
        return values[source[mine]] if mine in source else np.zeros_like(values[mine])

    return _one(eqn, permuted)


@rule("pbroadcast", threaded=True)
def _pbroadcast(eqn: Equation) -> Evaluate:
    if "source" not in eqn.params:  # of varying types: the same value, nothing is sent
        return lambda thread, *values: list(values)
    return _one(eqn, lambda values, _: values[eqn.params["source"]])


@rule("all_gather", "all_gather_invariant", "all_gather_reduced", threaded=True)
def _all_gather(eqn: Equation) -> Evaluate:
    axis, join = eqn.params["all_gather_dimension"], np.stack
    if eqn.params["tiled"]:
        join = np.concatenate
    return _one(eqn, lambda values, _: join(values, axis=axis))


@rule("reduce_scatter", "psum_scatter", "unreduced_reduce_scatter", threaded=True)
def _reduce_scatter(eqn: Equation) -> Evaluate:
    axis, tiled = eqn.params["scatter_dimension"], eqn.params["tiled"]

    def scattered(values: Sequence[Any], mine: int) -> Any:
        total = _reduced(np.add, values)
        if not tiled:
            return np.take(total, mine, axis)
        return np.split(total, len(values), axis)[mine]

    return _one(eqn, scattered)


@rule("all_to_all", threaded=True)
def _all_to_all(eqn: Equation) -> Evaluate:
    split, concat = eqn.params["split_axis"], eqn.params["concat_axis"]
    tiled = eqn.params.get("tiled", False)

    def exchanged(values: Sequence[Any], mine: int) -> Any:
        parts = [np.split(value, len(values), split)[mine] for value in values]
        if tiled:
            return np.concatenate(parts, concat)
        return np.stack([np.squeeze(part, split) for part in parts], concat)

    return _one(eqn, exchanged)


@rule("ragged_all_to_all", threaded=True)
def _ragged_all_to_all(eqn: Equation) -> Evaluate:
    """Each device sends runs of rows to every other, whose places in its output it names."""
    names, groups = _names(eqn.params["axis_name"]), eqn.params.get("axis_index_groups")

    def evaluate(thread: Thread, *operands: Any) -> Any:
        brought, mine = exchange(eqn, thread, names, groups, operands)
        _, output, *_, received = operands
        result = np.array(output)
        runs = len(received) // len(brought)
        for sender, (rows, _, starts, sizes, places, _) in enumerate(brought):
            for number in range(runs):
                ours, theirs = sender * runs + number, mine * runs + number
                size, expected = int(sizes[theirs]), int(received[ours])
                if size != expected:
                    raise SimulationError(
                        f"send_sizes[{theirs}] of device {sender} of the group is {size}, and "
                        f"recv_sizes[{ours}] of device {mine}, which gets these rows, is {expected}"
                    )
                start, target = int(starts[theirs]), int(places[theirs])
                _require_rows("operand", start, size, len(rows), sender)
                _require_rows("output", target, size, len(result), mine)
                result[target : target + size] = rows[start : start + size]
        return result

    return evaluate


def _require_rows(array: str, start: int, size: int, count: int, device: int) -> None:
    if start < 0 or size < 0 or start + size > count:
        raise SimulationError(
            f"rows {start} to {start + size - 1} are beyond the {array} of device {device} of the "
            f"group, which has {count}"
        )


#: A part of an array: one slice for each axis.
Part = tuple[slice, ...]


@rule("shard_map", threaded=True)
def _shard_map(eqn: Equation) -> Evaluate:
    program = prepare(eqn.params["jaxpr"])
    sizes = dict(eqn.params["mesh"].shape)
    in_specs, out_specs = eqn.params["in_specs"], eqn.params["out_specs"]
    shapes = [tuple(aval.shape) for aval in eqn.ins]

    def part(thread: Thread, args: Sequence[Any]) -> list[Any]:
        """Return what the function gives on one device, for its parts of the arrays.

        A reference is memory of each device, like an array: it has what they leave in their parts.
        """
        places = [
            part_of(spec, shape, thread.axes, sizes)
            for spec, shape in zip(in_specs, shapes, strict=True)
        ]
        parts = [
            Ref(np.array(array.data[at]), array.name, array.space)
            if isinstance(array, Ref)
            else array[at]
            for array, at in zip(args, places, strict=True)
        ]
        results = run(program, thread, parts)
        for array, own, at in zip(args, parts, places, strict=True):
            if isinstance(array, Ref):
                array.data[at] = own.data
        return results

    def join(parts: Iterable[tuple[Mapping[str, int], Sequence[Any]]]) -> list[Any]:
        """Return the whole results, of those of the devices at some places."""
        results = [np.empty(aval.shape, aval.dtype) for aval in eqn.outs]
        for indices, values in parts:
            for whole, spec, value in zip(results, out_specs, values, strict=True):
                whole[part_of(spec, whole.shape, indices, sizes)] = value
        return results

    def inside(thread: Thread, args: Sequence[Any]) -> list[Any]:
        """Evaluate on one device of a mesh if the enclosing function divides only some axes.

        Each device evaluates that function, also where they all have the same arrays.
        """
        axes = [axis for axis in sizes if axis in eqn.params["newly_manual_axes"]]
        brought, _ = exchange(eqn, thread, tuple(axes), None, part(thread, args))
        points = np.ndindex(*(sizes[axis] for axis in axes))
        return join(
            ({**thread.axes, **dict(zip(axes, point, strict=True))}, values)
            for point, values in zip(points, brought, strict=True)
        )

    def evaluate(thread: Thread, *args: Any) -> Any:
        if thread.sizes:
            return inside(thread, args)
        points = list(np.ndindex(*sizes.values()))
        thread.machine.require_devices(len(points))
        places = [dict(zip(sizes, point, strict=True)) for point in points]
        devices = [
            thread.child(Owner(device=number), sizes=sizes, axes={**thread.axes, **indices})
            for number, indices in enumerate(places)
        ]
        values = run_concurrently(thread, devices, lambda device: part(device, args))
        return join(zip(places, values, strict=True))

    return evaluate


def part_of(
    spec: Any, shape: Sequence[int], indices: Mapping[str, int], sizes: Mapping[str, int]
) -> Part:
    """Return the part of an array that a device of a mesh has.

    Args:
      spec: a ``PartitionSpec``: for each axis of the array the mesh axes that it is split over.
      shape: of the whole array.
      indices: index of the device along each mesh axis.
      sizes: of the mesh axes.
    """
    part: list[slice] = []
    for axis, size in enumerate(shape):
        entry = spec[axis] if axis < len(spec) else None
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        count = math.prod(sizes[name] for name in names)
        number = 0
        for name in names:
            number = number * sizes[name] + indices[name]
        part.append(slice(number * (size // count), (number + 1) * (size // count)))
    return tuple(part)
