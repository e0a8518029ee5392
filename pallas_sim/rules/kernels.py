"""Rules: kernels (``pallas_call``, ``mpmd_map``), and the grid index and sizes in their bodies.

``pipeline`` runs the grid of a ``pallas_call`` for TPUs, ``gpu.portable_grids`` for GPUs. An
``mpmd_map`` runs each body on its own mesh: of TensorCores or SparseCores, or of blocks and warps
of a GPU (``gpu.mosaic_kernels``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.accesses import free, made, memory_of, record_access
from pallas_sim.chips import TARGETS
from pallas_sim.compat.compilers import vectors_of_subcores
from pallas_sim.compat.grids import grid_facts
from pallas_sim.compat.jaxprs import (
    argument_names,
    expanded,
    is_reference,
    open_jaxpr,
    owner_of_space,
    read_inputs,
)
from pallas_sim.cores import (
    CoreMesh,
    at_entry,
    block_mesh,
    core_meshes,
    launched,
    run_on_chip,
    traffic_of,
    warp_axis,
)
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import prepare, run
from pallas_sim.findings import Finding, Owner
from pallas_sim.generators import raw_value, value_of
from pallas_sim.liveness import note_unused
from pallas_sim.machine import GridPosition, Machine, Thread
from pallas_sim.memory import AllocationKey, KeyArray, Ref, is_key_dtype
from pallas_sim.pallas_calls import PreparedKernel, capacity_findings, kernel_of, scratch_findings
from pallas_sim.pipeline import execute
from pallas_sim.refusals import require_lowering, require_real
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.tpu_refusals import require_blocks
from pallas_sim.tracing import tracing_for


@rule("pallas_call", threaded=True)
def _pallas_call(eqn: Equation) -> Evaluate:
    written_for = grid_facts(eqn.origin).written_for
    if written_for == "Mosaic GPU":
        return _mosaic_gpu(eqn)
    kernel = kernel_of(eqn)
    keys = [aval.dtype if is_key_dtype(aval.dtype) else None for aval in eqn.outs]

    # Cached by chip, because one equation may be evaluated many times.
    excesses: dict[tuple[str, bool], tuple[Finding, ...]] = {}
    lowered: set[str] = set()

    def evaluate(thread: Thread, *operands: Any) -> Any:
        arrays = [
            operand.data if isinstance(operand, KeyArray) else operand for operand in operands
        ]
        machine, on_gpu = thread.machine, thread.machine.platform == "gpu"
        _require_platform(thread, written_for, "TPUs" if on_gpu else "Triton")
        run_grid = execute
        if machine.refuses and not on_gpu and machine.target not in lowered:
            require_real(eqn.params["jaxpr"], kernel.line)
            # A portable kernel may be for a GPU only, unless a TPU was named.
            if machine.named or written_for == "TPUs":
                kind = getattr(kernel.facts.params, "kernel_type", None)
                require_blocks(kernel.facts, kernel.line)
                require_lowering(eqn.params["jaxpr"], getattr(kind, "value", "tc"), kernel.line)
                lowered.add(machine.target)
        if on_gpu:
            from pallas_sim.gpu.portable_grids import execute as run_grid
            from pallas_sim.gpu.triton import require_lowering as require_triton

            if machine.target not in lowered:
                require_triton(kernel.equation, machine.target)
                lowered.add(machine.target)
        key = (machine.target, machine.shared_bytes is None)
        if key not in excesses:
            excesses[key] = tuple(_excesses(kernel, machine))
        for finding in excesses[key]:
            machine.report(finding)
        outputs = [
            output if dtype is None else KeyArray(output, dtype)
            for output, dtype in zip(run_grid(kernel, thread, arrays), keys, strict=True)
        ]
        if machine.outputs is not None:
            machine.outputs(kernel.equation, outputs)
        return outputs

    return evaluate


def _excesses(kernel: PreparedKernel, machine: Machine) -> Iterable[Finding]:
    """Return a finding for each memory of the chip that the kernel needs more of than it has."""
    if machine.platform != "gpu":
        return capacity_findings(kernel, machine.target)
    from pallas_sim.gpu.triton import shared_memory_findings

    return shared_memory_findings(kernel, machine.target, machine.shared_bytes)


def _require_platform(thread: Thread, written_for: str, unsupported: str) -> None:
    """Reject a kernel that is written for another platform than the simulated one.

    Args:
      thread: evaluates the kernel.
      written_for: as in ``GridFacts``.
      unsupported: the value of ``written_for`` that the simulated chip cannot run.

    Raises:
      SimulationError: the kernel is written for ``unsupported``.
    """
    if written_for == unsupported:
        machine = thread.machine
        backend = "tpu-sim" if machine.platform == "gpu" else "gpu-sim"
        raise SimulationError(
            f"this kernel is written for {unsupported}, by its compiler parameters or memory "
            f"spaces, and the simulated chip is {machine.target}: use {backend}, or simulate(..., "
            "target=...)"
        )


def _mosaic_gpu(eqn: Equation) -> Evaluate:
    """Reject a ``pallas_call`` for Mosaic GPU: JAX 0.11.2 and 0.12.0.1 cannot lower it."""
    del eqn

    def evaluate(thread: Thread, *operands: Any) -> Any:
        del operands
        if thread.machine.platform != "gpu":
            _require_platform(thread, "Mosaic GPU", "Mosaic GPU")
        raise SimulationError(
            "JAX compiles no pl.pallas_call with plgpu.CompilerParams for a GPU: call plgpu.kernel"
            ", and plgpu.emit_pipeline in it for blocks"
        )

    return evaluate


@rule("program_id", threaded=True)
def _program_id(eqn: Equation) -> Evaluate:
    axis = eqn.params["axis"]
    return lambda thread: np.int32(thread.grids[-1].point[axis])


@rule("num_programs", threaded=True)
def _num_programs(eqn: Equation) -> Evaluate:
    axis = eqn.params["axis"]
    return lambda thread: np.int32(thread.grids[-1].sizes[axis])


@rule("call_hi_primitive", threaded=True)
def _hi_primitive(eqn: Equation) -> Evaluate:
    program = prepare(expanded(eqn.params, eqn.ins))
    return lambda thread, *args: run(program, thread, args)


# Kernels that run each body on its own mesh (``mpmd_map``).


@dataclass(frozen=True, slots=True)
class _Scratch:
    """A scratch parameter of the bodies of a kernel.

    Attributes:
      number: the position among the parameters.
      name: the name of the parameter.
      aval: shape, dtype and memory space.
      mesh: the mesh whose cores have this memory.
      axes: the axes of the mesh along which every index has its own memory; cores that differ
        only along other axes share it.
    """

    number: int
    name: str
    aval: Any
    mesh: CoreMesh
    axes: tuple[str, ...]


@rule("mpmd_map", threaded=True)
def _mpmd_map(eqn: Equation) -> Evaluate:
    blocks, warps = block_mesh(eqn.params["meshes"]), warp_axis(eqn.params["meshes"])
    if blocks is not None or warps is not None:
        from pallas_sim.gpu import mosaic_kernels as mosaic

        return mosaic.bind_warps(eqn) if blocks is None else mosaic.bind(eqn)
    meshes = core_meshes(eqn.params["meshes"])
    jaxprs = eqn.params["jaxprs"]
    programs = [prepare(jaxpr) for jaxpr in jaxprs]
    traffic = traffic_of(jaxprs, eqn.params["compiler_params"], meshes)
    inner, _ = open_jaxpr(jaxprs[0])
    names = argument_names(inner)
    are_refs = [is_reference(var.aval) for var in inner.invars]
    aliases = {output: operand for operand, output in eqn.params["input_output_aliases"].items()}
    kernel = eqn.params["name"] or "kernel"
    avals = eqn.params["out_avals"]
    first_scratch = len(eqn.ins) + len(avals)
    read = set().union(*(read_inputs(open_jaxpr(jaxpr)[0]) for jaxpr in jaxprs))
    only_written = [
        number not in aliases and len(eqn.ins) + number not in read for number in range(len(avals))
    ]
    scratch = [
        _scratch(number, names[number], inner.invars[number].aval, meshes)
        for number in range(first_scratch, len(inner.invars))
    ]

    # Cached, because one equation may be evaluated many times.
    @functools.cache
    def require(target: str) -> None:
        divides = getattr(eqn.params["compiler_params"], "needs_layout_passes", True)
        vectors = None if divides else vectors_of_subcores
        with nullcontext() if divides else tracing_for(TARGETS[target]):
            for mesh, jaxpr in zip(meshes, jaxprs, strict=True):
                require_real(jaxpr, eqn.line)
                require_lowering(jaxpr, mesh.kind, eqn.line, vectors)

    @functools.cache
    def excesses(target: str) -> Sequence[Finding]:
        return [
            finding
            for mesh, jaxpr in zip(meshes, jaxprs, strict=True)
            if mesh.kind == "tc"
            for finding in scratch_findings(
                [(entry.name, entry.aval) for entry in scratch if entry.mesh is mesh],
                jaxpr,
                eqn.params["compiler_params"],
                target,
                kernel,
                eqn.line,
            )
        ]

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if thread.machine.refuses:
            require(thread.machine.target)
        for finding in excesses(thread.machine.target):
            thread.machine.report(finding)
        # A body gets scalars as values, and everything else as refs.
        refs = [
            Ref(np.array(raw_value(operand)), name, "any")
            if is_ref and not isinstance(operand, Ref)
            else operand
            for operand, name, is_ref in zip(operands, names, are_refs, strict=False)
        ]
        outputs: list[Ref] = []
        for number, (aval, name) in enumerate(zip(avals, names[len(refs) :], strict=False)):
            if number in aliases:
                outputs.append(refs[aliases[number]])
                continue
            shape, dtype = tuple(aval.shape), aval.dtype
            memory = memory_of(thread.machine, shape, dtype, name, "output")
            outputs.append(Ref(memory, name, "any"))
        memory = [ref.data for ref in outputs]
        note_unused(thread.machine, eqn.origin or eqn, memory, only_written)
        shared = [*refs, *outputs]
        # Every core, as the number of its mesh, which is that of its body, and its point in it.
        points = [(number, point) for number, mesh in enumerate(meshes) for point in mesh.points]
        several = len(points) != 1 or traffic.asynchronous
        with (
            thread.inside(
                kernel, eqn.origin or eqn, [size for mesh in meshes for size in mesh.shape.values()]
            ),
            launched(thread, eqn.origin or eqn, traffic, several=several),
        ):
            for number, ref in enumerate(shared):
                if isinstance(ref, Ref) and thread.recorded:
                    thread.publish(ref, "operand", number, shared=True)
            owned = [_allocate(thread, entry) for entry in scratch]
            at_entry(thread, traffic)
            cores = [_core(thread, meshes, number, point) for number, point in points]
            bodies = {core.number: number for core, (number, _) in zip(cores, points, strict=True)}

            def work(core: Thread) -> None:
                core.grids.append(GridPosition((), ()))
                own = [_scratch_of_core(core, entry, memory) for entry, memory in owned]
                with core.span("body"):
                    run(programs[bodies[core.number]], core, [*shared, *own])

            # A single TensorCore is the thread of its device: there is nothing to schedule.
            if [core.number for core in cores] == [thread.number]:
                work(cores[0])
            else:
                run_on_chip(thread, meshes, cores, work)
            for _, memory in owned:
                free(thread, list(memory.values()), eqn.line)
            if thread.recorded:
                for ref in outputs:
                    if ref.data.dtype == object:
                        continue  # semaphores hold no data that later equations read
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
    """Allocate a scratch parameter; return it, and its memory by the indices of a core."""
    owned: dict[tuple[tuple[str, int], ...], Ref] = {}
    for point in scratch.mesh.points:
        core = tuple((axis, index) for axis, index in point.items() if axis in scratch.axes)
        if core not in owned:
            owned[core] = made(thread, scratch.aval, scratch.name)
            if thread.recorded:
                key = AllocationKey(thread.launch, core, ("scratch", scratch.number))
                thread.publish_as(owned[core], key)
    return scratch, owned


def _scratch_of_core(core: Thread, scratch: _Scratch, owned: _Owned) -> Ref:
    """Return the ref that a core gets for a scratch parameter.

    This is its own memory. A core of another mesh has none: it gets a ref with the same data and
    key as the first core's, by which it can name the memory of those cores.
    """
    mine = tuple((axis, core.axes[axis]) for axis in scratch.axes if axis in core.cores)
    if len(mine) == len(scratch.axes):
        return owned[mine]
    first = next(iter(owned.values()))
    return Ref(first.data, first.name, first.space, key=first.key)


def _core(
    thread: Thread, meshes: Sequence[CoreMesh], number: int, point: Mapping[str, int]
) -> Thread:
    mesh = meshes[number]
    all_axes = {axis: size for other in meshes for axis, size in other.shape.items()}
    return thread.child(
        _owner(thread.owner, mesh, point),
        cores=dict(mesh.shape),
        others=all_axes,
        axes={**thread.axes, **point},
        generator=None,
    )


def _owner(device: Owner, mesh: CoreMesh, point: Mapping[str, int]) -> Owner:
    indices = list(point.values())
    if mesh.kind == "tc":
        return replace(device, core=indices[0] if mesh.size > 1 else None)
    subcore = f"subcore {indices[1]}" if mesh.kind == "sc_vector_subcore" else "scalar subcore"
    return replace(device, thread=f"SparseCore {indices[0]}, {subcore}")
