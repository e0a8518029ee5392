"""Rules: functions that run on every device of a mesh, each with its part of the arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_pallas.errors import MissingRuleError
from pytest_pallas.findings import Owner
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.launches import run_beside
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.program import prepare
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

#: A part of an array: one slice for each axis.
Part = tuple[slice, ...]


@rule("shard_map", threaded=True)
def _shard_map(eqn: Equation) -> Evaluate:
    program = prepare(eqn.params["jaxpr"])
    sizes = dict(eqn.params["mesh"].shape)
    in_specs, out_specs = eqn.params["in_specs"], eqn.params["out_specs"]
    shapes = [tuple(aval.shape) for aval in eqn.ins]

    def evaluate(thread: Thread, *args: Any) -> Any:
        if thread.sizes:
            raise MissingRuleError("the simulator does not simulate shard_map inside of shard_map")
        points = list(np.ndindex(*sizes.values()))
        thread.machine.require_devices(len(points))
        results = [np.empty(aval.shape, aval.dtype) for aval in eqn.outs]
        places = [dict(zip(sizes, point, strict=True)) for point in points]
        devices = [
            thread.child(Owner(device=number), sizes=sizes, axes={**thread.axes, **place})
            for number, place in enumerate(places)
        ]

        def work(device: Thread) -> None:
            place = places[device.owner.device]
            parts = [
                array[part_of(spec, shape, place, sizes)]
                for array, spec, shape in zip(args, in_specs, shapes, strict=True)
            ]
            for whole, spec, value in zip(
                results, out_specs, run(program, device, parts), strict=True
            ):
                whole[part_of(spec, whole.shape, place, sizes)] = value

        run_beside(thread, devices, work)
        return results

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
