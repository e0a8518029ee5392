"""Run a ``plgpu.kernel``: its clusters, their blocks and warpgroups, and warps of these.

``bind`` prepares a kernel once (``GpuKernel``) and returns the function that runs it. A run makes
the memory of operands and outputs, begins a cluster for each grid point, and runs the warpgroups of
a cluster as greenlets beside each other. Clusters run one after the other: ``Footprints`` then
compare their accesses, which is cheaper than the monitor of order. If a kernel orders its clusters,
or they take over each other's work, they run all at once, and the monitor compares them.
"""

from __future__ import annotations

import ast
import functools
import linecache
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of, record_access, semaphores_of
from pallas_sim.chips import TARGETS, Excess, tensor_memory_excess
from pallas_sim.compat.compilers import CopyKey, inferred_tiles, infers_tiles
from pallas_sim.compat.jaxprs import is_reference, open_jaxpr, read_inputs, written_inputs
from pallas_sim.compat.source import home_of
from pallas_sim.copies import release
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
from pallas_sim.findings import Wait
from pallas_sim.generators import raw_value, value_of
from pallas_sim.gpu.engines import LaunchEngines, end_block
from pallas_sim.gpu.launch_order import Footprints, begin_early, end_kernel
from pallas_sim.gpu.scopes import (
    ScopedRef,
    publish_semaphores,
    registers_at_launch,
    semaphores_in,
    smem_bytes,
    smem_excess_of_block,
)
from pallas_sim.gpu.tensor_memory import (
    allocated_columns,
    makes_paired_memory,
)
from pallas_sim.gpu.threads import BlockCluster, GpuLaunch, GpuThread, ThreadBlock, leave
from pallas_sim.gpu.windows import reaches_devices
from pallas_sim.liveness import note_unused
from pallas_sim.machine import GridPosition, Thread
from pallas_sim.memory import Arena, Ref
from pallas_sim.order.disorder import report_disorder
from pallas_sim.recording import Acquired, Recording, Synchronized
from pallas_sim.refusals import require_mosaic_gpu
from pallas_sim.registry import Equation, Evaluate
from pallas_sim.tracing import absent_chip, present

#: The tiles that JAX chooses for the shared memory of each copy of a kernel.
type Tiles = Mapping[CopyKey, tuple[int, ...]]

#: Primitives that order blocks of different clusters, or devices.
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
      only_written: for each output, whether it never reads it, and no input is its memory.
      aliases: for an output, the input whose memory it is.
      outputs: shapes and dtypes.
      semaphores: that it makes.
      paired: whether pairs of blocks share tensor memory.
      smem: bytes of shared memory that a block takes, as the simulator keeps them.
      tmem: columns of tensor memory that a block takes, by the name of each reference.
      ordered: whether something orders its clusters.
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
    only_written: tuple[bool, ...]
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

    @property
    def concurrent(self) -> bool:
        """Whether its clusters run at the same time."""
        return self.ordered or self.dynamic


def kernel_of(eqn: Equation) -> GpuKernel:
    """Prepare the kernel of a ``mpmd_map``."""
    mesh = block_mesh(eqn.params["meshes"])
    assert mesh is not None
    (jaxpr,) = eqn.params["jaxprs"]
    inner, _ = open_jaxpr(jaxpr)
    inside = list(equations(jaxpr))
    names = {inner_eqn.primitive.name for inner_eqn in inside}
    remote = any(map(reaches_devices, inside))
    count = len(eqn.ins)
    aliases = {at: number for number, at in dict(eqn.params["input_output_aliases"]).items()}
    name, parameters = _body_names(jaxpr)
    own = [f"operand {number}" for number in range(count)]
    own += [f"output {number}" for number in range(len(inner.invars) - count)]
    return GpuKernel(
        name=name or eqn.params["name"] or "kernel",
        mesh=mesh,
        program=prepare(jaxpr),
        names=(*parameters[: len(own)], *own[len(parameters) :]),
        written=written_inputs(inner),
        only_written=tuple(
            number not in aliases and count + number not in read_inputs(inner)
            for number in range(len(eqn.params["out_avals"]))
        ),
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
        # JAX lets a kernel begin early if it waits for the one ahead (``PdlEffect``).
        early="griddepcontrol_wait" in names,
        params=eqn.params["compiler_params"],
        equation=eqn.origin or eqn,
        line=eqn.line,
    )


def bind(eqn: Equation) -> Evaluate:
    """Return the function that evaluates a ``mpmd_map`` over a grid of blocks.

    Raises:
      SimulationError: JAX compiles no such kernel.
    """
    inner, _ = open_jaxpr(eqn.params["jaxprs"][0])
    if len(inner.invars) != len(eqn.ins) + len(eqn.params["out_avals"]):
        raise SimulationError(
            "JAX compiles no pl.kernel with scratch_types on a plgpu.Mesh: call plgpu.kernel, "
            "which takes them, or allocate with pl.run_scoped in the body"
        )
    if len(eqn.params["jaxprs"]) > 1 or eqn.params.get("external_meshes"):
        raise SimulationError("JAX compiles no kernel of several meshes for a GPU")
    kernel = kernel_of(eqn)
    in_memory = [is_reference(var.aval) for var in inner.invars]
    excesses: dict[str, Excess | None] = {}
    tiles: dict[Any, Tiles] = {}

    def tiles_for(thread: Thread) -> Tiles:
        """Lower the kernel once for each chip and mesh, when a copy needs its tiles."""
        key = thread.machine.target, tuple(thread.sizes.items())
        if key not in tiles:
            tiles[key] = _tiles_of_copies(kernel, eqn, thread)
        return tiles[key]

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if thread.machine.platform != "gpu":
            raise SimulationError(
                f"{kernel.name} is a kernel for GPUs, and the target is {thread.machine.target}: "
                "choose a GPU, such as h100"
            )
        target = thread.machine.target
        if not excesses and thread.machine.refuses:
            require_mosaic_gpu(eqn.params["jaxprs"][0], kernel.params, kernel.line)
        if target not in excesses:
            body, mesh = eqn.params["jaxprs"][0], eqn.params["meshes"][0]
            excesses[target] = smem_excess_of_block(body, mesh, kernel.params, target)
        for excess in (excesses[target], tensor_memory_excess(kernel.tmem, target)):
            if excess is not None:
                thread.machine.report(excess.finding(kernel.name, kernel.line))
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
            # Values of JAX must not change, so a kernel that writes its operand gets a copy.
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
    arguments = [*refs, *outputs]
    note_unused(machine, kernel.equation, [ref.data for ref in outputs], kernel.only_written)
    skips = getattr(kernel.params, "skip_device_barrier", False)
    traffic = Traffic(kernel.ordered, kernel.remote, None, kernel.remote and not skips)
    axes = [*kernel.mesh.grid, *kernel.mesh.cluster]
    sizes = [size for _, size in axes]
    if 0 in sizes and any(0 not in output.shape for output in kernel.outputs):
        machine.idle[kernel.name, kernel.line] = tuple(size for _, size in kernel.mesh.grid)
    with (
        thread.inside(kernel.name, kernel.equation, sizes),
        launched(thread, kernel.equation, traffic, several=True),
    ):
        for number, ref in enumerate(arguments):
            if isinstance(ref, Ref) and thread.recorded:
                thread.publish(ref, "operand", number, shared=True)
        launch = GpuLaunch(thread, kernel.mesh, registers=kernel.registers, tiles=tiles)
        launch.lanes_apart = getattr(kernel.params, "unsafe_no_auto_barriers", False)
        launch.approximates = getattr(kernel.params, "approx_math", False)
        if kernel.early:
            # Accesses of the kernels ahead to its operands take part in the order of this one.
            launch.start = begin_early(thread, values)
        publish_semaphores(launch, kernel.semaphores, list(np.ndindex(*sizes)))
        at_entry(thread, traffic)
        # Where every order is explored, accesses of clusters to global memory are steps, too.
        concurrent = kernel.concurrent or machine.choices.explores
        footprints = Footprints(machine.seed, concurrent=concurrent)
        kernel_run = _KernelRun(kernel, launch, arguments, footprints)
        kernel_run.watch_memory()
        engines = LaunchEngines(launch)
        machine.engines.append(engines)
        if concurrent:
            kernel_run.run_all_at_once()
        else:
            kernel_run.run_one_by_one()
        machine.engines.remove(engines)
        end_kernel(thread, footprints.kernel_ahead(kernel.name), launch.start)
        # Scopes reuse semaphores. One that is looked at without taking counts for the whole launch.
        semaphores = semaphores_of(launch.semaphores.values())
        release(thread, (one for one in semaphores if not one.looked), kernel.line)
        # The use of a result reads it, so that a store which nothing orders before is reported.
        for ref in outputs:
            if ref.data.dtype != object:
                record_access(thread, ref.data, "pass on", ref.name, kernel.line)
    return [value_of(ref.data, aval) for ref, aval in zip(outputs, kernel.outputs, strict=True)]


@dataclass(frozen=True)
class _KernelRun:
    """A kernel that runs.

    Attributes:
      kernel: which one.
      launch: its launch.
      arguments: of its body.
      footprints: the accesses of its clusters to global memory.
    """

    kernel: GpuKernel
    launch: GpuLaunch
    arguments: Sequence[Any]
    footprints: Footprints

    def watch_memory(self) -> None:
        """Let the footprints note the accesses to operands and outputs."""
        first_output = len(self.arguments) - len(self.kernel.outputs)
        machine = self.launch.thread.machine
        self.footprints.kept |= {id(array): kept for array, kept in machine.dropped()}
        for number, ref in enumerate(self.arguments):
            if isinstance(ref, Ref) and ref.data.dtype != object:
                written = number >= first_output or number in self.kernel.written
                watch = self.footprints.watch if written else self.footprints.watch_reads
                watch(ref.data)

    def points(self) -> list[tuple[int, ...]]:
        """Return the grid points of the clusters, in the order in which they begin."""
        grid = [size for _, size in self.kernel.mesh.grid]
        machine = self.launch.thread.machine
        machine.require_programs(grid)
        points, choices = list(np.ndindex(*grid)), machine.choices
        return [points[at] for at in choices.order(len(points))]

    def run_one_by_one(self) -> None:
        """Run one cluster after the other."""
        # The recording of a single cluster is small. It is searched for races, and then forgotten:
        # a recording of all clusters could take more memory than there is.
        machine, recording = self.launch.thread.machine, Recording()
        for number, point in enumerate(self.points()):
            self.footprints.cluster = number
            if self.launch.start is not None:
                self.launch.start.record(recording)
            cluster = self.cluster(point, recording)
            try:
                self.run([cluster])
            finally:
                report_disorder(machine, recording)
                _forget_memory([cluster])

    def run_all_at_once(self) -> None:
        """Run all clusters at the same time."""
        clusters = [self.cluster(point, None) for point in self.points()]
        if self.kernel.dynamic:
            _hold_back(self.launch, clusters)
        device, start = self.launch.thread, self.launch.start
        numbers = (device.number, *(thread.number for thread in _threads(clusters)))
        events, idle = device.recording.events, device.machine.scheduler.idle
        begin_next = functools.partial(_begin_next, self.launch)
        # The launch and its end order the device's accesses with those of all threads.
        events.append(Synchronized(numbers))
        if start is not None:
            start.record(device.recording)
        idle.append(begin_next)
        try:
            self.run(clusters)
        finally:
            idle.remove(begin_next)
            _forget_memory(clusters)
        events.append(Synchronized(numbers))
        if start is not None:
            events.append(Acquired(device.number, start.token))

    def run(self, clusters: Sequence[BlockCluster]) -> None:
        """Run clusters at the same time."""
        threads = _threads(clusters)

        def work(thread: Any) -> None:
            if not _may_begin(thread):
                return
            with thread.span("body", self.kernel.name):
                run(self.kernel.program, thread, self.arguments)
            leave(thread)
            if not thread.block.running:
                end_block(thread.block, thread)
            if not any(block.running for block in thread.block.cluster.blocks):
                _begin_next(thread.kernel_launch)

        machine = self.launch.thread.machine
        if len(threads) == 1 and not machine.choices.explores:
            work(threads[0])  # without switches between greenlets
        else:
            machine.scheduler.run(threads, work)

    def cluster(self, point: tuple[int, ...], recording: Recording | None) -> BlockCluster:
        """Make a cluster with blocks and warpgroups that have not begun."""
        mesh, cluster = (
            self.kernel.mesh,
            BlockCluster(self.launch, point, together=self.kernel.paired),
        )
        for index in np.ndindex(*(size for _, size in mesh.cluster)):
            # Memory begins as NaN in every dtype.
            block = ThreadBlock(cluster, index, Arena.of_size(self.kernel.smem, 0xFF))
            cluster.blocks.append(block)
            choices = self.launch.thread.machine.choices
            choices.name(block.arena, ("shared memory", *block.location))
            choices.name(block.doors, ("doors", *block.location))
            numbers = range(mesh.warpgroups)
            block.warpgroups += [self.warpgroup(block, number, recording) for number in numbers]
            block.running = mesh.warpgroups
        return cluster

    def warpgroup(self, block: ThreadBlock, number: int, recording: Recording | None) -> GpuThread:
        """Make a warpgroup of a block."""
        device, mesh = self.launch.thread, self.kernel.mesh
        axes = [*mesh.grid, *mesh.cluster, *([mesh.threads] if mesh.threads else [])]
        point = (*block.point, *([number] if mesh.threads else []))
        where = f"block ({', '.join(map(str, block.point))})" if block.point else "block 0"
        who = f"{where}, warpgroup {number}" if mesh.warpgroups > 1 else where
        names, sizes = [name for name, _ in axes], tuple(size for _, size in axes)
        return _child(
            device,
            block=block,
            warpgroup=number,
            owner=replace(device.owner, thread=who),
            grids=[*device.grids, GridPosition(point, sizes, len(block.point))],
            axes={**device.axes, **dict(zip(names, point, strict=True))},
            others={**device.others, **dict(axes)},
            access_monitor=self.footprints,
            own_recording=recording,
        )


def _threads(clusters: Sequence[BlockCluster]) -> list[GpuThread]:
    blocks = [block for cluster in clusters for block in cluster.blocks]
    return [thread for block in blocks for thread in block.warpgroups]


def _forget_memory(clusters: Sequence[BlockCluster]) -> None:
    """Forget the memory of blocks that have ended.

    The arrays that hold a block's barriers refer to the block. Python's garbage collector does not
    look into arrays, so nothing would ever free this cycle, and with it the whole run.
    """
    for cluster in clusters:
        for block in cluster.blocks:
            block.memory.clear()


def _child(thread: Thread, **facts: Any) -> GpuThread:
    """Make a thread of a block, which continues a device or a warpgroup."""
    return GpuThread(
        thread.machine,
        kernels=list(thread.kernels),
        sizes=thread.sizes,
        launch=thread.launch,
        collective=thread.collective,
        recorded=True,
        **facts,
    )


def bind_warps(eqn: Equation) -> Evaluate:
    """Return the function that evaluates a ``mpmd_map`` over the warps of a warpgroup.

    All warps wait for each other at its begin and at its end, as in JAX's lowering.
    """
    axis = warp_axis(eqn.params["meshes"])
    assert axis is not None
    name, count = axis
    program = prepare(eqn.params["jaxprs"][0])

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if not isinstance(thread, GpuThread) or len(thread.lanes) == 1:
            raise SimulationError("a WarpMesh can only divide a warpgroup")
        warps = [
            _child(
                thread,
                block=thread.block,
                warpgroup=thread.warpgroup,
                lanes=(number,),
                top=thread.top,
                around=thread.around,
                owner=replace(thread.owner, thread=f"{thread.owner.thread}, warp {number}"),
                grids=list(thread.grids),
                axes={**thread.axes, name: number},
                others={**thread.others, name: count},
                access_monitor=thread.access_monitor,
                own_recording=thread.own_recording,
            )
            for number in range(count)
        ]
        numbers = (thread.number, *(warp.number for warp in warps))
        thread.recording.events.append(Synchronized(numbers))
        thread.machine.scheduler.run(warps, lambda warp: run(program, warp, operands))
        thread.recording.events.append(Synchronized(numbers))
        for warp in warps:  # the warpgroup waits for what its warps have started
            thread.stores.extend(warp.stores)
            thread.loads.extend(warp.loads)
            thread.products.extend(warp.products)
        return ()

    return evaluate


# Cluster launch control: clusters take over others that have not begun.
#
# A request cancels the launch of some cluster, and answers with the cluster's position in the grid,
# or says that none is left (PTX ISA 9.0, 9.7.13.18 "clusterlaunchcontrol.try_cancel"). The answer
# goes to all blocks of the cluster that sent the request, as in JAX's lowering
# (``.multicast::cluster::all``).
#
# It is not published how many clusters a GPU begins at once, and which one a request gets. Here the
# first half begins, and a request gets the next one; with a seed it is any number, and any cluster.
# Another one begins when one ends, or when no thread can go on.


#: The note of a run with such requests.
NOTE = (
    "which clusters a GPU begins at first, and which one try_cluster_cancel takes over, is not "
    "published"
)


def _hold_back(launch: GpuLaunch, clusters: Sequence[BlockCluster]) -> None:
    """Let some clusters begin at once, and the others later or never."""
    choices, count = launch.thread.machine.choices, len(clusters)
    if choices.explores:  # each begins, or is taken over, in any order
        launch.pending.extend(clusters)
        return
    first = 1 + choices.among(count) if choices.vary else -(-count // 2)
    launch.pending.extend(clusters[first:])


def _may_begin(thread: GpuThread) -> bool:
    """Wait until the cluster of a thread begins; False if another one has taken it over."""
    cluster = thread.block.cluster
    launch, scheduler = cluster.launch, thread.machine.scheduler
    if scheduler.choices.explores:
        return _begin_by_choice(cluster)
    while cluster in launch.pending:
        task = scheduler.current
        assert task is not None
        launch.held.setdefault(id(cluster), []).append(task)
        scheduler.block(lambda: Wait(owner=thread.owner, on="the begin of its cluster"))
    return not cluster.cancelled


def _begin_by_choice(cluster: BlockCluster) -> bool:
    """Begin a cluster, unless another one has taken it over."""
    launch = cluster.launch
    if cluster in launch.pending or cluster.cancelled:
        launch.thread.machine.choices.operate("look", launch.location, 0)
    if cluster in launch.pending:
        launch.pending.remove(cluster)
    return not cluster.cancelled


def _begin_next(launch: GpuLaunch) -> bool:
    """Let the next cluster begin; False if there is none."""
    if not launch.pending:
        return False
    _release(launch, launch.pending.popleft())
    return True


def take_over(launch: GpuLaunch) -> BlockCluster | None:
    """Cancel a cluster that has not begun, and return it; None if there is none."""
    pending = launch.pending
    choices = launch.thread.machine.choices
    choices.operate("change", launch.location, 0)
    choices.matter = True
    if not pending:
        return None
    at = choices.among(len(pending))
    cluster = pending[at]
    del pending[at]
    cluster.cancelled = True
    _release(launch, cluster)
    return cluster


def _release(launch: GpuLaunch, cluster: BlockCluster) -> None:
    for task in launch.held.pop(id(cluster), ()):
        launch.thread.machine.scheduler.wake(task)


# Facts from JAX's lowering and from the source: the tiles of copies, the names of parameters.


def _tiles_of_copies(kernel: GpuKernel, eqn: Equation, thread: Thread) -> Tiles:
    """Let JAX lower a kernel, and return the tiles that it chooses for each copy.

    If JAX cannot lower it, there are none, and a note says why.

    Args:
      kernel: with the copies.
      eqn: its ``mpmd_map``.
      thread: the device that runs it.
    """
    if not infers_tiles(kernel.params):
        return {}
    chip = absent_chip(TARGETS[thread.machine.target])
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


def _body_names(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name of the user's body and of its positional parameters; ("", ()) if unknown.

    JAX wraps the body in a function of ``*refs``, which runs it in a scope. The jaxpr of the scope
    has the line of the user's function.
    """
    for eqn in equations(jaxpr):
        if eqn.primitive.name == "run_scoped":
            jaxpr = eqn.params["jaxpr"]
            break
    name, file, line = home_of(open_jaxpr(jaxpr)[0])
    return name, _parameters(file).get(line, ()) if line else ()


@functools.cache
def _parameters(file: str) -> Mapping[int, tuple[str, ...]]:
    """Return the positional parameters of a file's functions, by first line and line of def."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (OSError, SyntaxError, ValueError):
        return {}
    parameters: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names = tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args))
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            for line in (first, node.lineno):
                parameters.setdefault(line, names)
    return parameters
