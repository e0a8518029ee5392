"""Launches: the meshes of cores that a kernel runs on, how they enter it, and how they leave it."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pytest_pallas.compat.jaxprs import open_jaxpr, sub_jaxprs
from pytest_pallas.sim_errors import MissingRuleError
from pytest_pallas.simulator.concurrency.meeting import meet
from pytest_pallas.simulator.concurrency.recording import Synchronized
from pytest_pallas.simulator.concurrency.transfer_operands import names_a_device
from pytest_pallas.simulator.thread import Thread


@dataclass(frozen=True, slots=True)
class CoreMesh:
    """A mesh of cores that a body of a kernel runs on.

    Attributes:
      kind: ``"tc"``, ``"sc_scalar_subcore"`` or ``"sc_vector_subcore"``.
      shape: sizes of its axes, by name.
    """

    kind: str
    shape: Mapping[str, int]

    @property
    def size(self) -> int:
        """How many cores it has."""
        return math.prod(self.shape.values())

    @property
    def points(self) -> Sequence[Mapping[str, int]]:
        """The index of each core along each axis."""
        sizes = [range(size) for size in self.shape.values()]
        return [dict(zip(self.shape, point, strict=True)) for point in itertools.product(*sizes)]


def kind_of_cores(mesh: Any) -> str | None:
    """The kind of cores of a mesh of JAX, or None if they are none of a TPU."""
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas import tpu_sc as plsc

    kinds: Mapping[type, str] = {
        pltpu.TensorCoreMesh: "tc",
        plsc.ScalarSubcoreMesh: "sc_scalar_subcore",
        plsc.VectorSubcoreMesh: "sc_vector_subcore",
    }
    return kinds.get(type(mesh))


def core_meshes(meshes: Sequence[Any]) -> list[CoreMesh]:
    """The meshes of an ``mpmd_map``.

    Raises:
      MissingRuleError: one of them is of a kind that the simulator does not know.
    """
    found: list[CoreMesh] = []
    for mesh in meshes:
        kind = kind_of_cores(mesh)
        if kind is None:
            raise MissingRuleError(f"the simulator does not simulate a {type(mesh).__name__}")
        found.append(CoreMesh(kind, dict(mesh.shape)))
    return found


#: What a kernel does besides loads and stores.
_ASYNCHRONOUS = frozenset(
    {
        *("dma_start", "dma_wait", "semaphore_signal", "semaphore_wait", "semaphore_read"),
        *("get_barrier_semaphore", "all_gather", "psum", "barrier"),
    }
)

#: Name of the axis of cores that JAX divides a parallel grid dimension over.
MEGACORE = "(core)"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a kernel does besides loads and stores.

    Attributes:
      asynchronous: whether it starts copies or uses semaphores.
      remote: whether it names another device.
      collective: its ``collective_id``, or None.
      barrier: whether its devices wait for each other at the entry.
      lasting: whether its semaphores outlive it.
    """

    asynchronous: bool
    remote: bool
    collective: Any
    barrier: bool
    lasting: bool = False


def traffic_of(jaxprs: Iterable[Any], params: Any, *, lasting: bool = False) -> Traffic:
    """What the programs of a kernel do.

    Args:
      jaxprs: of the kernel.
      params: its compiler parameters.
      lasting: whether its semaphores outlive it.
    """
    asynchronous = remote = False
    for eqn in equations(*jaxprs):
        asynchronous |= eqn.primitive.name in _ASYNCHRONOUS
        remote |= names_a_device(eqn)
    collective = getattr(params, "collective_id", None)
    skips = getattr(params, "skip_device_barrier", False)
    barrier = remote and collective is None and not skips
    return Traffic(asynchronous, remote, collective, barrier, lasting)


#: An equation with the jaxprs inside of it.
_Nested = tuple[Any, tuple[Any, ...]]

#: Kept as long as the jaxpr: several walks of a kernel follow each other.
_NESTED: weakref.WeakKeyDictionary[Any, tuple[_Nested, ...]] = weakref.WeakKeyDictionary()


def _nested(jaxpr: Any) -> tuple[_Nested, ...]:
    inner = open_jaxpr(jaxpr)[0]
    found = _NESTED.get(inner)
    if found is None:
        found = _NESTED[inner] = tuple((eqn, tuple(sub_jaxprs(eqn))) for eqn in inner.eqns)
    return found


def equations(*jaxprs: Any) -> Iterator[Any]:
    """The equations of jaxprs, those within others after these."""
    for jaxpr in jaxprs:
        for eqn, inner in _nested(jaxpr):
            yield eqn
            if inner:
                yield from equations(*inner)


def most_at_a_time(
    jaxpr: Any, taken_by: Callable[[Any], Sequence[tuple[str, int]]]
) -> list[tuple[str, int]]:
    """What equations take at a time, where the sum of that is largest: names and amounts.

    Args:
      jaxpr: whose equations follow each other. What one takes it has while those inside run.
      taken_by: gives what an equation takes: names and amounts.
    """
    best: list[tuple[str, int]] = []
    for eqn, jaxprs in _nested(jaxpr):
        inside = max((most_at_a_time(each, taken_by) for each in jaxprs), key=_sum, default=[])
        best = max(best, [*taken_by(eqn), *inside], key=_sum)
    return best


def _sum(taken: Sequence[tuple[str, int]]) -> int:
    return sum(amount for _, amount in taken)


@contextmanager
def launched(
    thread: Thread, kernel: Any, traffic: Traffic, *, several: bool = False
) -> Generator[None]:
    """Be inside of a kernel.

    Args:
      thread: the device, or the core, that enters.
      kernel: which; the same on every device.
      traffic: what it does.
      several: whether it runs on several cores.
    """
    before = (thread.launch, thread.recorded, thread.collective)
    machine, device = thread.machine, thread.device
    concurrent = traffic.asynchronous or several or thread.recorded
    if concurrent:
        name = id(kernel)
        thread.launch = (name, device.launches[name])
        device.launches[name] += 1
        thread.recorded = True
        thread.collective = traffic.collective
    try:
        yield
    finally:
        if concurrent and not traffic.lasting:
            _leave(thread)
        thread.launch, thread.recorded, thread.collective = before
    alone = len(machine.owners) == 1 and not machine.copies and not machine.lasting
    if concurrent and not thread.recorded and alone:
        machine.find_disorder()


def _leave(thread: Thread) -> None:
    device, launch = thread.device, thread.launch
    device.left.add(launch)
    for key in [key for key in device.memory if key.launch == launch]:
        del device.memory[key]
    device.freed.clear()


def at_entry(thread: Thread, traffic: Traffic) -> None:
    """Wait for the other devices, where a chip does at the entry of such a kernel.

    The cores of a device enter together.
    """
    cores = thread.cores.get(MEGACORE, 1)
    if cores > 1:
        me, place = thread.axes[MEGACORE], ("cores", thread.owner.device, thread.launch)
        meet(thread, place, me, range(cores), None, "the entry of the kernel", kind="core")
    count = math.prod(thread.sizes.values())
    if traffic.barrier and count > 1 and all(index == 0 for _, index in thread.core):
        me, place = thread.owner.device, ("entry", thread.launch)
        meet(thread, place, me, range(count), None, "the entry of the kernel")


def run_divided(
    thread: Thread, divisions: Sequence[Any], work: Callable[[Thread, Any], None]
) -> None:
    """Run the parts of a kernel, each on a core of its own where there are several."""
    if len(divisions) == 1:
        work(thread, divisions[0])
        return
    cores = [
        thread.child(
            replace(thread.owner, core=number),
            cores={MEGACORE: len(divisions)},
            axes={**thread.axes, MEGACORE: number},
        )
        for number in range(len(divisions))
    ]
    run_concurrently(thread, cores, lambda core: work(core, divisions[core.axes[MEGACORE]]))


def run_concurrently(
    thread: Thread, threads: Sequence[Thread], work: Callable[[Thread], Any]
) -> list[Any]:
    """Run threads at the same time, and go on when all have ended."""
    machine = thread.machine
    numbers = tuple(dict.fromkeys((thread.number, *(each.number for each in threads))))
    machine.recording.events.append(Synchronized(numbers))
    results = machine.scheduler.run(threads, work)
    machine.recording.events.append(Synchronized(numbers))
    return results
