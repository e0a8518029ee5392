"""A ``plgpu.kernel``, prepared: its grid, its body, and what it needs of a chip."""

from __future__ import annotations

import ast
import functools
import linecache
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of, record_access
from pallas_sim.chips import GPUS, attributes
from pallas_sim.compat.grids import CopyKey, inferred_tiles, infers_tiles
from pallas_sim.compat.jaxprs import is_reference, open_jaxpr, written_inputs
from pallas_sim.compat.source import home_of
from pallas_sim.cores import (
    BlockMesh,
    Traffic,
    at_entry,
    block_mesh,
    equations,
    launched,
    warp_axis,
)
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import Program, prepare, run
from pallas_sim.findings import Finding
from pallas_sim.generators import raw_value, value_of
from pallas_sim.gpu.barriers import settle
from pallas_sim.gpu.launch_order import (
    Footprints,
    begin_early,
    begin_next,
    beginning_when_idle,
    end,
    hold_back,
    may_begin,
)
from pallas_sim.gpu.scopes import (
    ScopedRef,
    publish_semaphores,
    registers_at_launch,
    semaphores_in,
    smem_bytes,
    smem_findings,
)
from pallas_sim.gpu.tensor_memory import (
    allocated_columns,
    makes_paired_memory,
    tensor_memory_excess,
)
from pallas_sim.gpu.threads import Cluster, GpuLaunch, GpuThread, ThreadBlock, leave
from pallas_sim.gpu.windows import reaches_devices
from pallas_sim.machine import GridPosition, Machine, Thread
from pallas_sim.memory import Ref
from pallas_sim.order.disorder import report_disorder
from pallas_sim.recording import Acquired, Recording, Synchronized
from pallas_sim.registry import Equation, Evaluate
from pallas_sim.tracing import AbsentChip, present


def body_of(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """The name of the body of a ``plgpu.kernel``, and those of its positional parameters.

    JAX wraps the body in a function of ``*refs``, which runs it in a scope; the scope says where
    its function is defined. ("", ()) if that is not known.
    """
    name, file, line = home_of(jaxpr)
    if not line:
        return name, ()
    return name, _parameters(file).get(line, ())


@functools.cache
def _parameters(file: str) -> Mapping[int, tuple[str, ...]]:
    """The positional parameters of each function of a file, by its first line and that of def."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names = tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args))
            decorators = getattr(node, "decorator_list", [])
            for line in (min([node.lineno, *(each.lineno for each in decorators)]), node.lineno):
                found.setdefault(line, names)
    return found


#: What orders blocks of different clusters, or devices.
_ORDERING = frozenset(
    {
        *("semaphore_signal", "semaphore_wait", "semaphore_read", "semaphore_signal_parallel"),
        *("semaphore_signal_multicast", "multimem_store", "multimem_load_reduce"),
    }
)


@dataclass(frozen=True)
class GpuKernel:
    """A Mosaic GPU kernel, prepared.

    Attributes:
      name: of its body.
      mesh: its grid.
      program: its body.
      names: of the parameters of the body.
      written: the parameters that it writes.
      aliases: for an output, the input whose memory it is.
      outputs: shapes and dtypes.
      semaphores: that it makes.
      paired: whether pairs of blocks share tensor memory.
      smem: bytes of shared memory that a block takes, as they are kept here.
      tmem: columns of tensor memory that a block takes, by the name of each reference.
      ordered: whether something orders clusters, so that they run at the same time.
      dynamic: whether clusters take over the work of others.
      remote: whether it reaches other devices.
      registers: that a thread has at least when it begins.
      early: whether it may begin before the kernel ahead of it has ended.
      params: compiler parameters.
      equation: JAX's.
      line: ``file:line`` of the call.
    """

    name: str
    mesh: BlockMesh
    program: Program
    names: tuple[str, ...]
    written: frozenset[int]
    aliases: Mapping[int, int]
    outputs: tuple[Any, ...]
    semaphores: tuple[ScopedRef, ...]
    paired: bool
    smem: int
    tmem: Sequence[tuple[str, int]]
    ordered: bool
    dynamic: bool
    remote: bool
    registers: int
    early: bool
    params: Any
    equation: Any
    line: str


def kernel_inputs(eqn: Equation) -> Sequence[Any]:
    """Abstract values of the parameters of the body."""
    inner, _ = open_jaxpr(eqn.params["jaxprs"][0])
    return [var.aval for var in inner.invars]


def kernel_of(eqn: Equation) -> GpuKernel:
    """The kernel of a ``mpmd_map``, prepared."""
    mesh = block_mesh(eqn.params["meshes"])
    assert mesh is not None
    (jaxpr,) = eqn.params["jaxprs"]
    inner, _ = open_jaxpr(jaxpr)
    inside = list(equations(jaxpr))
    names = {each.primitive.name for each in inside}
    remote = any(map(reaches_devices, inside))
    count = len(eqn.ins)
    aliases = {at: number for number, at in dict(eqn.params["input_output_aliases"]).items()}
    name, parameters = _body(jaxpr)
    own = [f"operand {number}" for number in range(count)]
    own += [f"output {number}" for number in range(len(inner.invars) - count)]
    return GpuKernel(
        name=name or eqn.params["name"] or "kernel",
        mesh=mesh,
        program=prepare(jaxpr),
        names=(*parameters[: len(own)], *own[len(parameters) :]),
        written=written_inputs(inner),
        aliases=aliases,
        outputs=tuple(eqn.params["out_avals"]),
        paired=any(map(makes_paired_memory, inside)),
        semaphores=tuple(semaphores_in(jaxpr)),
        smem=smem_bytes(jaxpr),
        tmem=allocated_columns(jaxpr),
        ordered=remote or not names.isdisjoint(_ORDERING),
        dynamic="try_cluster_cancel" in names,
        remote=remote,
        registers=registers_at_launch(jaxpr),
        # JAX launches a kernel so if it waits for the one ahead (``PdlEffect``).
        early="griddepcontrol_wait" in names,
        params=eqn.params["compiler_params"],
        equation=eqn.origin or eqn,
        line=eqn.line,
    )


def _body(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """Name and parameters of the user's body, which JAX wraps."""
    for each in equations(jaxpr):
        if each.primitive.name == "run_scoped":
            return body_of(open_jaxpr(each.params["jaxpr"])[0])
    return body_of(open_jaxpr(jaxpr)[0])


def tiles_of_copies(
    kernel: GpuKernel, eqn: Equation, thread: Thread
) -> Mapping[CopyKey, tuple[int, ...]]:
    """The tiles that JAX chooses for the shared memory of each copy of a kernel.

    JAX lowers the kernel for that, as it does for the chip. A note says if it cannot.

    Args:
      kernel: whose copies.
      eqn: its ``mpmd_map``.
      thread: the device that runs it.
    """
    if not infers_tiles(kernel.params):
        return {}
    target = thread.machine.target
    chip = AbsentChip(GPUS[target].device_kind, "gpu", attributes(target))
    try:
        with warnings.catch_warnings(), present(chip):
            warnings.simplefilter("ignore")
            return inferred_tiles(eqn.params, eqn.ins, thread.sizes)
    except Exception as error:  # whatever its lowering raises
        thread.machine.note(
            f"{kernel.name} is not lowered ({type(error).__name__}), so it is not known how JAX "
            "tiles its shared memory, and whether it drops the index of a copy that starts outside"
        )
        return {}


# Runs of a ``plgpu.kernel``: its clusters, their blocks and warpgroups, and warps of these.


type Tiles = Mapping[CopyKey, tuple[int, ...]]


def bind(eqn: Equation) -> Evaluate:
    """How a ``mpmd_map`` over a grid of blocks is evaluated."""
    kernel = kernel_of(eqn)
    in_memory = [is_reference(aval) for aval in kernel_inputs(eqn)]
    excesses: dict[str, tuple[Finding, ...]] = {}
    tiles: dict[Any, Tiles] = {}

    def tiles_for(thread: Thread) -> Tiles:
        """Lower the kernel once for each chip and mesh, and only where somebody asks."""
        key = thread.machine.target, tuple(thread.sizes.items())
        if key not in tiles:
            tiles[key] = tiles_of_copies(kernel, eqn, thread)
        return tiles[key]

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if thread.machine.platform != "gpu":
            raise SimulationError(
                f"{kernel.name} is a kernel for GPUs, and the target is {thread.machine.target}: "
                "choose a GPU, such as h100"
            )
        target = thread.machine.target
        if target not in excesses:
            body, mesh = eqn.params["jaxprs"][0], eqn.params["meshes"][0]
            at = (kernel.params, target, kernel.name, kernel.line)
            excesses[target] = tuple(smem_findings(body, mesh, *at))
        for finding in excesses[target]:
            thread.machine.report(finding)
        outputs = _execute(kernel, thread, operands, in_memory, lambda: tiles_for(thread))
        if thread.machine.outputs is not None:
            thread.machine.outputs(kernel.equation, outputs)
        return outputs

    return evaluate


def _execute(
    kernel: GpuKernel,
    thread: Thread,
    operands: Sequence[Any],
    in_memory: Sequence[bool],
    tiles: Callable[[], Tiles],
) -> list[Any]:
    machine, count = thread.machine, len(operands)
    refs: list[Any] = []
    values: list[tuple[Any, Array, str, bool]] = []
    for number, (value, wrapped) in enumerate(zip(operands, in_memory, strict=False)):
        written = number in kernel.written or number in kernel.aliases.values()
        name = kernel.names[number]
        if isinstance(value, Ref):
            refs.append(value)
            values.append((value.data, value.data, name, written))
        elif wrapped:
            memory = raw_value(value)
            refs.append(Ref(np.array(memory) if written else memory, name, "gmem"))
            values.append((memory, refs[-1].data, name, written))
        else:
            refs.append(value)
    outputs: list[Ref] = []
    for number, aval in enumerate(kernel.outputs):
        if number in kernel.aliases:
            outputs.append(refs[kernel.aliases[number]])
            continue
        name = kernel.names[count + number]
        memory = memory_of(machine, tuple(aval.shape), aval.dtype, name, "output")
        outputs.append(Ref(memory, name, "gmem"))
    given = [*refs, *outputs]
    skips = getattr(kernel.params, "skip_device_barrier", False)
    traffic = Traffic(kernel.ordered, kernel.remote, None, kernel.remote and not skips)
    with thread.inside(kernel.name), launched(thread, kernel.equation, traffic, several=True):
        for number, ref in enumerate(given):
            if isinstance(ref, Ref) and thread.recorded:
                thread.publish(ref, "operand", number, shared=True)
        _check_tensor_memory(kernel, machine)
        launch = GpuLaunch(thread, kernel.mesh, registers=kernel.registers, tiles=tiles)
        launch.lanes_apart = getattr(kernel.params, "unsafe_no_auto_barriers", False)
        if kernel.early:
            launch.start = begin_early(thread, values)
        sizes = [size for _, size in (*kernel.mesh.grid, *kernel.mesh.cluster)]
        publish_semaphores(launch, kernel.semaphores, list(np.ndindex(*sizes)))
        at_entry(thread, traffic)
        footprints = _footprints(kernel, launch, given)
        if kernel.ordered or kernel.dynamic:
            _all_at_once(kernel, launch, given, footprints)
        else:
            _one_by_one(kernel, launch, given, footprints)
        end(thread, footprints.ahead(kernel.name), launch.start)
        for ref in outputs:
            if ref.data.dtype != object:
                record_access(thread, ref.data, "pass on", ref.name, kernel.line)
    return [value_of(ref.data, aval) for ref, aval in zip(outputs, kernel.outputs, strict=True)]


def _check_tensor_memory(kernel: GpuKernel, machine: Machine) -> None:
    """Report what the chip has not enough of."""
    finding = tensor_memory_excess(kernel.tmem, machine.target, kernel.name, kernel.line)
    if finding is not None:
        machine.report(finding)


def _points(launch: GpuLaunch) -> list[tuple[int, ...]]:
    """The grid points of the clusters, in the order in which they are begun."""
    sizes = [size for _, size in launch.mesh.grid]
    points = list(np.ndindex(*sizes))
    machine = launch.thread.machine
    if machine.seed and len(points) > 1:
        points = [points[at] for at in machine.random.permutation(len(points))]
    return points


def _footprints(kernel: GpuKernel, launch: GpuLaunch, given: Sequence[Any]) -> Footprints:
    """Notes what the clusters do to global memory."""
    concurrent = kernel.ordered or kernel.dynamic
    footprints = Footprints(launch.thread.machine.seed, concurrent=concurrent)
    for number, ref in enumerate(given):
        if not isinstance(ref, Ref) or ref.data.dtype == object:
            continue
        if number >= len(given) - len(kernel.outputs) or number in kernel.written:
            footprints.watch(ref.data)
        else:
            footprints.watch_reads(ref.data)
    return footprints


def _one_by_one(
    kernel: GpuKernel, launch: GpuLaunch, given: Sequence[Any], footprints: Footprints
) -> None:
    machine, recording = launch.thread.machine, Recording()
    for number, point in enumerate(_points(launch)):
        footprints.cluster = number
        if launch.start is not None:
            launch.start.record(recording)
        cluster = _cluster(kernel, launch, point, footprints, recording)
        try:
            _run(kernel, [cluster], given)
        finally:
            report_disorder(machine, recording)


def _all_at_once(
    kernel: GpuKernel, launch: GpuLaunch, given: Sequence[Any], footprints: Footprints
) -> None:
    clusters = [_cluster(kernel, launch, point, footprints, None) for point in _points(launch)]
    if kernel.dynamic:
        hold_back(launch, clusters)
    threads = _threads(clusters)
    numbers = (launch.thread.number, *(each.number for each in threads))
    device, start = launch.thread, launch.start
    events = device.recording.events
    events.append(Synchronized(numbers))
    if start is not None:
        start.record(device.recording)
    with beginning_when_idle(launch):
        _run(kernel, clusters, given)
    events.append(Synchronized(numbers))
    if start is not None:
        events.append(Acquired(device.number, start.token))


def _threads(clusters: Sequence[Cluster]) -> list[GpuThread]:
    blocks = [block for cluster in clusters for block in cluster.blocks]
    return [thread for block in blocks for thread in block.warpgroups]


def _run(kernel: GpuKernel, clusters: Sequence[Cluster], given: Sequence[Any]) -> None:
    """Run clusters at the same time."""
    threads = _threads(clusters)

    def work(thread: Thread) -> None:
        assert isinstance(thread, GpuThread)
        if not may_begin(thread):
            return
        with thread.span("body", kernel.name):
            run(kernel.program, thread, given)
        leave(thread)
        if not thread.block.running:
            settle(thread.block, thread)
        if not any(block.running for block in thread.block.cluster.blocks):
            begin_next(thread.kernel_launch)

    if len(threads) == 1:
        work(threads[0])
        return
    task: Any = work
    threads[0].machine.scheduler.run(threads, task)


def _cluster(
    kernel: GpuKernel,
    launch: GpuLaunch,
    point: tuple[int, ...],
    footprints: Footprints,
    recording: Recording | None,
) -> Cluster:
    """A cluster with its blocks and their warpgroups, none of which has begun."""
    mesh, cluster = launch.mesh, Cluster(launch, point, together=kernel.paired)
    for place in np.ndindex(*(size for _, size in mesh.cluster)):
        block = ThreadBlock(cluster, place, np.full(kernel.smem, 0xFF, np.uint8))
        cluster.blocks.append(block)
        for number in range(mesh.warpgroups):
            thread = _thread(launch, block, number)
            thread.access_monitor, thread.own_recording, thread.recorded = (
                footprints,
                recording,
                True,
            )
            block.warpgroups.append(thread)
        block.running = mesh.warpgroups
    return cluster


def _thread(launch: GpuLaunch, block: ThreadBlock, number: int) -> GpuThread:
    device, mesh = launch.thread, launch.mesh
    axes = [*mesh.grid, *mesh.cluster, *([mesh.threads] if mesh.threads else [])]
    point = (*block.point, *([number] if mesh.threads else []))
    where = f"block ({', '.join(map(str, block.point))})" if block.point else "block 0"
    who = f"{where}, warpgroup {number}" if mesh.warpgroups > 1 else where
    names = [name for name, _ in axes]
    thread = GpuThread(
        device.machine,
        block=block,
        warpgroup=number,
        owner=replace(device.owner, thread=who),
        grids=[
            *device.grids,
            GridPosition(point, tuple(size for _, size in axes), len(block.point)),
        ],
        kernels=list(device.kernels),
        axes={**device.axes, **dict(zip(names, point, strict=True))},
        sizes=device.sizes,
        others={**device.others, **dict(axes)},
        launch=device.launch,
        collective=device.collective,
    )
    return thread


def bind_warps(eqn: Equation) -> Evaluate:
    """How a ``mpmd_map`` over the warps of a warpgroup is evaluated.

    All warps wait for each other at its begin and at its end, as JAX's lowering has it.
    """
    axis = warp_axis(eqn.params["meshes"])
    assert axis is not None
    name, count = axis
    program = prepare(eqn.params["jaxprs"][0])

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if not isinstance(thread, GpuThread) or len(thread.lanes) == 1:
            raise SimulationError("a WarpMesh can only divide a warpgroup")
        warps = [_warp(thread, name, number, count) for number in range(count)]
        numbers = (thread.number, *(warp.number for warp in warps))
        thread.recording.events.append(Synchronized(numbers))
        thread.machine.scheduler.run(warps, lambda warp: run(program, warp, operands))
        thread.recording.events.append(Synchronized(numbers))
        for warp in warps:
            _join(thread, warp)
        return ()

    return evaluate


def _warp(thread: GpuThread, axis: Any, number: int, count: int) -> GpuThread:
    return GpuThread(
        thread.machine,
        block=thread.block,
        warpgroup=thread.warpgroup,
        lanes=(number,),
        top=thread.top,
        around=thread.around,
        owner=replace(thread.owner, thread=f"{thread.owner.thread}, warp {number}"),
        grids=list(thread.grids),
        kernels=list(thread.kernels),
        axes={**thread.axes, axis: number},
        sizes=thread.sizes,
        others={**thread.others, axis: count},
        launch=thread.launch,
        collective=thread.collective,
        recorded=True,
        access_monitor=thread.access_monitor,
        own_recording=thread.own_recording,
    )


def _join(thread: GpuThread, warp: GpuThread) -> None:
    """What a warp has under way is the warpgroup's from here on."""
    for kept, given in (
        (thread.stores, warp.stores),
        (thread.loads, warp.loads),
        (thread.products, warp.products),
    ):
        kept.open += given.open
        kept.closed += given.closed
    for kind, operations in warp.chained.items():
        thread.chained.setdefault(kind, []).extend(operations)
