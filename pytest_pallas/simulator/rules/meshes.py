"""Rules: functions that run on every device of a mesh, each with its part of the arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_pallas.findings import Owner
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.launches import run_beside
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.program import prepare
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.collectives import exchange

#: A part of an array: one slice for each axis.
Part = tuple[slice, ...]


@rule("shard_map", threaded=True)
def _shard_map(eqn: Equation) -> Evaluate:
    program = prepare(eqn.params["jaxpr"])
    sizes = dict(eqn.params["mesh"].shape)
    in_specs, out_specs = eqn.params["in_specs"], eqn.params["out_specs"]
    shapes = [tuple(aval.shape) for aval in eqn.ins]

    def part(thread: Thread, args: Sequence[Any]) -> list[Any]:
        """What the function gives on one device, for its parts of the arrays."""
        parts = [
            array[part_of(spec, shape, thread.axes, sizes)]
            for array, spec, shape in zip(args, in_specs, shapes, strict=True)
        ]
        return run(program, thread, parts)

    def join(parts: Iterable[tuple[Mapping[str, int], Sequence[Any]]]) -> list[Any]:
        """The whole results, of those of the devices at some places."""
        results = [np.empty(aval.shape, aval.dtype) for aval in eqn.outs]
        for place, values in parts:
            for whole, spec, value in zip(results, out_specs, values, strict=True):
                whole[part_of(spec, whole.shape, place, sizes)] = value
        return results

    def inside(thread: Thread, args: Sequence[Any]) -> list[Any]:
        """On one device of a mesh, of which the function around divides only some axes.

        Each device evaluates that function, also where they all have the same arrays.
        """
        axes = [axis for axis in sizes if axis in eqn.params["newly_manual_axes"]]
        given, _ = exchange(eqn, thread, tuple(axes), None, part(thread, args))
        points = np.ndindex(*(sizes[axis] for axis in axes))
        return join(
            ({**thread.axes, **dict(zip(axes, point, strict=True))}, values)
            for point, values in zip(points, given, strict=True)
        )

    def evaluate(thread: Thread, *args: Any) -> Any:
        if thread.sizes:
            return inside(thread, args)
        points = list(np.ndindex(*sizes.values()))
        thread.machine.require_devices(len(points))
        places = [dict(zip(sizes, point, strict=True)) for point in points]
        devices = [
            thread.child(Owner(device=number), sizes=sizes, axes={**thread.axes, **place})
            for number, place in enumerate(places)
        ]
        values = run_beside(thread, devices, lambda device: part(device, args))
        return join(zip(places, values, strict=True))

    return evaluate


def part_of(
    spec: Any, shape: Sequence[int], place: Mapping[str, int], sizes: Mapping[str, int]
) -> Part:
    """The part of an array that a device of a mesh has.

    Args:
      spec: a ``PartitionSpec``: for each axis of the array the mesh axes that it is split over.
      shape: of the whole array.
      place: index of the device along each mesh axis.
      sizes: of the mesh axes.
    """
    part: list[slice] = []
    for axis, size in enumerate(shape):
        entry = spec[axis] if axis < len(spec) else None
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        count = math.prod(sizes[name] for name in names)
        number = 0
        for name in names:
            number = number * sizes[name] + place[name]
        part.append(slice(number * (size // count), (number + 1) * (size // count)))
    return tuple(part)
