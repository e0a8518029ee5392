"""Rules: stores to the shared memory of another block of the cluster, which tell its barrier."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.gpu.barriers import arrive, barrier_at
from pytest_pallas.simulator.gpu.barriers import complete as tell
from pytest_pallas.simulator.gpu.operands import remote_store_parts
from pytest_pallas.simulator.gpu.operations import Operation, start
from pytest_pallas.simulator.gpu.reductions import reducer
from pytest_pallas.simulator.gpu.threads import block_of
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.recording import Asynchronous, Side
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.places import gpu_thread, located
from pytest_pallas.transforms import AtBlock, Operand


@rule("async_store_smem", threaded=True)
def _async_store(eqn: Equation) -> Evaluate:
    """``st.async`` and ``red.async``: the thread arrives at the other block's barrier at once."""
    parts, line = remote_store_parts(eqn.params), eqn.line
    dtype = np.dtype(eqn.ins[0].dtype)
    reduce = None if parts.reduction is None else reducer(parts.reduction, dtype)
    named = AtBlock(((parts.axes, Operand(parts.index)),))

    def evaluate(thread: Thread, *operands: Any) -> Any:
        who = gpu_thread(thread)
        block = block_of(who, named, operands)
        ref = who.of_block(operands[parts.target.position], block)
        target = located(who, ref, parts.target, operands, "store to", line)
        barriers = who.of_block(operands[parts.barrier.position], block)
        found = located(who, barriers, parts.barrier, operands, "use of", line)
        barrier, value = barrier_at(found), np.array(operands[0])
        side = Side(target, True, ref.name, adds=reduce is not None, home=who.owner.device)
        # Whoever has the memory waits for it.
        operation = Operation(Asynchronous("the asynchronous store", [side]), block)

        def write_it() -> None:
            target[...] = value if reduce is None else reduce(target, value)
            tell(operation, barrier, target.nbytes, who.machine)

        arrive(who, barrier, line, expects=target.nbytes)
        start(who, operation, steps=[write_it], line=line, barriers=[barrier], reads=1)
        return ()

    return evaluate
