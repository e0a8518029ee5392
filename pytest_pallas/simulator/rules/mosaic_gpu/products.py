"""Rules: products of matrices on the tensor cores of Ampere (``mma``) and Hopper (``wgmma``).

``wgmma`` runs beside its warpgroup: it reads its operands in shared memory, and adds to its
registers, at any time until it is waited for (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"). Those of one warpgroup happen in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.accumulation import accumulation_of
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.accumulation import Product
from pytest_pallas.simulator.concurrency.recording import Asynchronous, Side
from pytest_pallas.simulator.gpu.operands import product_parts
from pytest_pallas.simulator.gpu.operations import (
    EngineOperation,
    reading_then_writing,
    start,
    wait_groups,
)
from pytest_pallas.simulator.gpu.tensor_cores.products import tensor_product
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.memory.accesses import record_access
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, part_of
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.transforms import RefPart

Array = np.ndarray[Any, Any]


@rule("mma", threaded=True)
def _mma(eqn: Equation) -> Evaluate:
    dtypes = [np.dtype(eqn.ins[position].dtype) for position in (1, 2, 0)]
    depth = eqn.ins[1].shape[1]

    def evaluate(thread: Thread, acc: Any, a: Any, b: Any) -> Any:
        known = thread.machine.accumulations
        adding = accumulation_of(known, "mma", dtypes[0].name, dtypes[1].name)
        return tensor_product(*dtypes, depth, accumulation=adding)(a, b, acc)

    return evaluate


@gpu_rule("wgmma_ref")
def _wgmma(eqn: Equation) -> Evaluate:
    places, line = product_parts(eqn.params), eqn.line
    dtype = np.dtype(eqn.ins[0].dtype)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if GPUS[thread.machine.target].capability != 9:
            raise SimulationError(
                f"wgmma is an instruction of Hopper, and {thread.machine.target} does not have it"
            )
        acc, a, b = (_operand(thread, place, operands, line) for place in places)
        into: Ref = operands[places[0].position]
        machine = thread.machine
        dtypes = np.dtype(a[1].dtype), np.dtype(b[1].dtype), dtype
        # What a chip does with operands in registers was not measured.
        known = machine.accumulations if a[2] and b[2] else {}
        adding = accumulation_of(known, "wgmma", dtypes[0].name, dtypes[1].name)
        multiply = tensor_product(*dtypes, a[1].shape[1], accumulation=adding)
        sides = [
            Side(part, False, name, proxied=True) for name, part, in_memory in (a, b) if in_memory
        ]
        sides.append(Side(acc[1], True, into.name))
        record = Asynchronous("the wgmma", sides, chain=("wgmma", thread.number))
        _start_product(thread, record, a[1], b[1], acc[1], multiply, line)
        return ()

    return evaluate


def _operand(
    thread: GpuThread, place: RefPart, operands: Sequence[Any], line: str
) -> tuple[str, Array, bool]:
    """Name and elements of an operand, and whether it is in memory."""
    if isinstance(operands[place.position], Ref):
        ref, part = part_of(thread, place, operands, "wgmma of", line)
        return ref.name, part, True
    return "", np.asarray(operands[place.position]), False


def _start_product(
    thread: GpuThread,
    record: Asynchronous,
    a: Array,
    b: Array,
    acc: Array,
    multiply: Product,
    line: str,
) -> None:
    def add(values: tuple[Array, Array]) -> None:
        acc[...] = multiply(*values, acc)

    operation = EngineOperation(record, thread.block)
    thread.products.open.append(operation)
    thread.products.commit()
    steps = reading_then_writing(lambda: (a.copy(), b.copy()), add)
    start(thread, operation, steps=steps, line=line)


@gpu_rule("wgmma_wait")
def _wgmma_wait(eqn: Equation) -> Evaluate:
    left = eqn.params["n"]

    def evaluate(thread: GpuThread) -> Any:
        wait_groups(thread, thread.products, left)
        return ()

    return evaluate


#: JAX 0.11 has another name for it.
_DEREF = ("wgmma_accumulator_deref", "wgmma_accumulator_deref_p")


@gpu_rule(*_DEREF)
def _accumulator(eqn: Equation) -> Evaluate:
    left, line = eqn.params.get("wait_n", 0), eqn.line

    def evaluate(thread: GpuThread, ref: Ref) -> Any:
        if left is not None:
            wait_groups(thread, thread.products, left)
        record_access(thread, ref.data, "read", ref.name, line)
        return ref.data.copy()

    return evaluate


@gpu_rule("wgmma_accumulator_store", "wgmma_accumulator_store_p")
def _set_accumulator(eqn: Equation) -> Evaluate:
    line = eqn.line

    def evaluate(thread: GpuThread, ref: Ref, value: Any) -> Any:
        record_access(thread, ref.data, "write", ref.name, line)
        ref.data[...] = value
        return (
            () if eqn.origin is None or eqn.origin.primitive.multiple_results else ref.data.copy()
        )

    return evaluate
