"""Rules: atomic operations, and stores to the memory of other blocks and of all devices at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import convert
from pytest_pallas.simulator.concurrency.recording import Asynchronous, Side
from pytest_pallas.simulator.gpu.barriers import arrive, barrier_at
from pytest_pallas.simulator.gpu.barriers import complete as tell
from pytest_pallas.simulator.gpu.operands import (
    atomic_parts,
    multimem_parts,
    reduction_name,
    remote_store_parts,
)
from pytest_pallas.simulator.gpu.operations import EngineOperation, start
from pytest_pallas.simulator.gpu.peers import at_device, devices_along
from pytest_pallas.simulator.gpu.reductions import reducer
from pytest_pallas.simulator.gpu.threads import GpuThread, block_of
from pytest_pallas.simulator.memory.accesses import (
    read_window,
    record_window,
)
from pytest_pallas.simulator.memory.windows import write
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, located, part_of
from pytest_pallas.transforms import AtBlock, Operand

Array = np.ndarray[Any, Any]


@gpu_rule("mgpu_atomic_store")
def _atomic(eqn: Equation) -> Evaluate:
    place, value_at, name = atomic_parts(eqn.params, len(eqn.ins))
    line, reduce = eqn.line, reducer(name, eqn.ins[value_at].dtype)
    window = place.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref, part = part_of(thread, place, operands, "atomic access to", line)
        record_window(thread, ref, part, window, operands, "add", line)
        write(ref.data, window, operands, lambda old: reduce(old, operands[value_at]))
        return ()

    return evaluate


@gpu_rule("multimem_store")
def _multimem_store(eqn: Equation) -> Evaluate:
    place, axes = multimem_parts(eqn.params, stores=True)
    line = eqn.line
    window = place.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for device in devices_along(thread, axes):
            ref = at_device(thread, device, operands[place.position], line)
            part = read_window(thread, ref, window, operands, "store to", line)
            record_window(thread, ref, part, window, operands, "write", line, home=device)
            write(ref.data, window, operands, lambda _: operands[0])
        return ()

    return evaluate


#: PTX ISA, "multimem.ld_reduce, multimem.st, multimem.red": it leaves the order open.
_ORDER = "in which order multimem_load_reduce adds floats of several devices is not published"


@gpu_rule("multimem_load_reduce")
def _multimem_load(eqn: Equation) -> Evaluate:
    """The elements of all devices, reduced in the order of the devices.

    The switch accumulates 16-bit floats in float32 (PTX ISA, "multimem.ld_reduce", ``.acc::f32``).
    """
    place, axes = multimem_parts(eqn.params, stores=False)
    line, dtype = eqn.line, np.dtype(eqn.out.dtype)
    wide = np.dtype(np.float32) if dtype.itemsize < 4 and dtype.kind not in "iu" else dtype
    reduce = reducer(reduction_name(eqn.params), wide)
    window = place.window

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if dtype.kind not in "iu":
            thread.machine.note(_ORDER)
        total: Array | None = None
        for device in devices_along(thread, axes):
            ref = at_device(thread, device, operands[place.position], line)
            part = read_window(thread, ref, window, operands, "load from", line)
            record_window(thread, ref, part, window, operands, "read", line, home=device)
            value = convert(np.array(part), wide)
            total = value if total is None else reduce(total, value)
        return convert(total, dtype)

    return evaluate


@gpu_rule("async_store_smem")
def _async_store(eqn: Equation) -> Evaluate:
    """``st.async`` and ``red.async``: the thread arrives at the other block's barrier at once."""
    parts, line = remote_store_parts(eqn.params), eqn.line
    dtype = np.dtype(eqn.ins[0].dtype)
    reduce = None if parts.reduction is None else reducer(parts.reduction, dtype)
    named = AtBlock(((parts.axes, Operand(parts.index)),))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        block = block_of(thread, named, operands)
        ref = thread.of_block(operands[parts.target.position], block)
        target = located(thread, ref, parts.target, operands, "store to", line)
        barriers = thread.of_block(operands[parts.barrier.position], block)
        found = located(thread, barriers, parts.barrier, operands, "use of", line)
        barrier, value = barrier_at(found), np.array(operands[0])
        side = Side(target, True, ref.name, adds=reduce is not None, home=thread.owner.device)
        # The block that has the memory waits for it.
        operation = EngineOperation(Asynchronous("the asynchronous store", [side]), block)

        def write_it() -> None:
            target[...] = value if reduce is None else reduce(target, value)
            tell(operation, barrier, target.nbytes, thread.machine)

        arrive(thread, barrier, line, expects=target.nbytes)
        start(thread, operation, steps=[write_it], line=line, barriers=[barrier], reads=1)
        return ()

    return evaluate
