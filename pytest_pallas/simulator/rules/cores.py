"""Rules: kernels whose bodies run on cores of their own: TensorCores, SparseCores, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_pallas.compat.avals import is_reference, owner_of_space
from pytest_pallas.compat.jaxprs import argument_names, open_jaxpr
from pytest_pallas.findings import Owner
from pytest_pallas.simulator.arithmetic.keyed import value_of, words_of
from pytest_pallas.simulator.concurrency.launches import (
    CoreMesh,
    at_entry,
    core_meshes,
    launched,
    run_concurrently,
    traffic_of,
)
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.gpu.launches.block_meshes import block_mesh, warp_axis
from pytest_pallas.simulator.memory.accesses import record_access
from pytest_pallas.simulator.memory.allocation import free, made, memory_of
from pytest_pallas.simulator.memory.references import AllocationKey, Ref
from pytest_pallas.simulator.program import prepare
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import GridPosition, Thread


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Scratch memory of a kernel.

    Attributes:
      number: among the parameters of the bodies.
      name: of the parameter.
      aval: shape, dtype and memory space.
      mesh: whose cores have it.
      axes: of the mesh along which each core has its own.
    """

    number: int
    name: str
    aval: Any
    mesh: CoreMesh
    axes: tuple[str, ...]


@rule("mpmd_map", threaded=True)
def _mpmd_map(eqn: Equation) -> Evaluate:
    of_blocks, of_warps = block_mesh(eqn.params["meshes"]), warp_axis(eqn.params["meshes"])
    if of_blocks is not None or of_warps is not None:
        from pytest_pallas.simulator.gpu.launches import mosaic

        return mosaic.bind_warps(eqn) if of_blocks is None else mosaic.bind(eqn)
    meshes = core_meshes(eqn.params["meshes"])
    jaxprs = eqn.params["jaxprs"]
    programs = [prepare(jaxpr) for jaxpr in jaxprs]
    traffic = traffic_of(jaxprs, eqn.params["compiler_params"])
    inner, _ = open_jaxpr(jaxprs[0])
    names = argument_names(inner)
    in_memory = [is_reference(var.aval) for var in inner.invars]
    aliases = {number: at for at, number in eqn.params["input_output_aliases"].items()}
    kernel = eqn.params["name"] or "kernel"
    avals = eqn.params["out_avals"]
    taken = len(eqn.ins) + len(avals)
    scratch = [
        _scratch(number, names[number], inner.invars[number].aval, meshes)
        for number in range(taken, len(inner.invars))
    ]

    def evaluate(thread: Thread, *operands: Any) -> Any:
        # Scalars are passed as they are.
        refs = [
            Ref(np.array(words_of(each)), name, "any")
            if wrapped and not isinstance(each, Ref)
            else each
            for each, name, wrapped in zip(operands, names, in_memory, strict=False)
        ]
        outputs: list[Ref] = []
        for number, (aval, name) in enumerate(zip(avals, names[len(refs) :], strict=False)):
            if number in aliases:
                outputs.append(refs[aliases[number]])
                continue
            shape, dtype = tuple(aval.shape), aval.dtype
            memory = memory_of(thread.machine, shape, dtype, name, "output")
            outputs.append(Ref(memory, name, "any"))
        shared = [*refs, *outputs]
        points = [(number, point) for number, mesh in enumerate(meshes) for point in mesh.points]
        one = len(points) == 1 and not traffic.asynchronous
        with thread.inside(kernel), launched(thread, eqn.origin or eqn, traffic, several=not one):
            for number, ref in enumerate(shared):
                if isinstance(ref, Ref) and thread.recorded:
                    thread.publish(ref, "operand", number, shared=True)
            owned = [_allocate(thread, each) for each in scratch]
            at_entry(thread, traffic)
            cores = [_core(thread, meshes, number, point) for number, point in points]
            bodies = {core.number: number for core, (number, _) in zip(cores, points, strict=True)}

            def work(core: Thread) -> None:
                core.grids.append(GridPosition((), ()))
                given = [_seen(core, each, memory) for each, memory in owned]
                timeline = core.machine.timeline
                span = None if timeline is None else timeline.body(core)
                run(programs[bodies[core.number]], core, [*shared, *given])
                if timeline is not None and span is not None:
                    timeline.end(core, span)

            if [core.number for core in cores] == [thread.number]:
                work(cores[0])
            else:
                run_concurrently(thread, cores, work)
            for _, memory in owned:
                free(thread, list(memory.values()), eqn.line)
            if thread.recorded:
                for ref in outputs:
                    if ref.data.dtype == object:
                        continue
                    record_access(thread, ref.data, "pass on", ref.name, eqn.line)
        return [value_of(ref.data, aval) for ref, aval in zip(outputs, avals, strict=True)]

    return evaluate


def _scratch(number: int, name: str, aval: Any, meshes: Sequence[CoreMesh]) -> _Scratch:
    owner = owner_of_space(aval.memory_space)
    mesh = next((mesh for mesh in meshes if mesh.kind == owner), meshes[0])
    axes = tuple(mesh.shape)
    if "vmem_shared" in str(aval.memory_space).lower():
        axes = axes[:1]  # the vector subcores of a SparseCore share it
    return _Scratch(number, name or f"scratch {number}", aval, mesh, axes)


_Owned = Mapping[tuple[tuple[str, int], ...], Ref]


def _allocate(thread: Thread, scratch: _Scratch) -> tuple[_Scratch, _Owned]:
    """The memory of every core that has it, by core."""
    owned: dict[tuple[tuple[str, int], ...], Ref] = {}
    for point in scratch.mesh.points:
        core = tuple((axis, index) for axis, index in point.items() if axis in scratch.axes)
        if core not in owned:
            owned[core] = made(thread, scratch.aval, scratch.name)
            if thread.recorded:
                key = AllocationKey(thread.launch, core, ("scratch", scratch.number))
                thread.publish_as(owned[core], key)
    return scratch, owned


def _seen(core: Thread, scratch: _Scratch, owned: _Owned) -> Ref:
    """What a core sees as scratch: its own memory, or how to name that of other cores."""
    mine = tuple((axis, core.axes[axis]) for axis in scratch.axes if axis in core.cores)
    if len(mine) == len(scratch.axes):
        return owned[mine]
    first = next(iter(owned.values()))
    return Ref(first.data, first.name, first.space, key=first.key)


def _core(
    thread: Thread, meshes: Sequence[CoreMesh], number: int, point: Mapping[str, int]
) -> Thread:
    mesh = meshes[number]
    others = {axis: size for each in meshes for axis, size in each.shape.items()}
    return thread.child(
        _owner(thread.owner, mesh, point),
        cores=dict(mesh.shape),
        others=others,
        axes={**thread.axes, **point},
        generator=None,
    )


def _owner(device: Owner, mesh: CoreMesh, point: Mapping[str, int]) -> Owner:
    indices = list(point.values())
    if mesh.kind == "tc":
        return replace(device, core=indices[0] if mesh.size > 1 else None)
    where = f"subcore {indices[1]}" if mesh.kind == "sc_vector_subcore" else "scalar subcore"
    return replace(device, thread=f"SparseCore {indices[0]}, {where}")
