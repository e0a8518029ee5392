"""Matrices between shared memory and the registers of a warp: ``ldmatrix`` and ``stmatrix``."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.sim_errors import MissingRuleError
from pytest_pallas.simulator.gpu.inline.code import InlineOperation
from pytest_pallas.simulator.gpu.inline.frame import InlineFrame, as_type, operation, signed
from pytest_pallas.simulator.gpu.inline.memory import from_bytes, to_bytes
from pytest_pallas.simulator.gpu.inline.operations.arithmetic import wide

Array = np.ndarray[Any, Any]


def _is_transposed(op: InlineOperation) -> bool:
    """Whether a thread has two elements of a column, not of a row.

    Raises:
      MissingRuleError: the matrices are others than 8 by 8 elements of 16 bits.
    """
    shape = "".join(op.attributes["shape"].split())
    if "b16" not in op.attributes["eltType"] or "m=8,n=8" not in shape:
        raise MissingRuleError(
            f"{op.name} of {op.attributes['shape']} {op.attributes['eltType']} is not simulated"
        )
    return "col" in op.attributes["layout"]


def _rows(addresses: Array, number: int) -> Array:
    """Addresses [warps, 8] of the rows of a matrix: eight threads have them."""
    return np.ascontiguousarray(addresses.reshape(-1, 32)[:, 8 * number : 8 * number + 8])


@operation("nvvm.ldmatrix")
def _load(frame: InlineFrame, op: InlineOperation, pointer: Array) -> Any:
    """PTX ISA, "ldmatrix": thread ``t`` gets elements ``2 t % 8`` and the next of row ``t / 4``."""
    transposed, found = _is_transposed(op), []
    addresses = frame.all(pointer)
    for number in range(int(op.attributes["num"])):
        rows = _rows(addresses, number)
        raw = frame.space.load(rows.reshape(-1), 16, None)
        matrix = from_bytes(raw, np.uint16, (8,)).reshape(-1, 8, 8)
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        found.append(from_bytes(to_bytes(matrix.reshape(frame.threads, 2)), np.uint32, ()))
    if len(found) == 1:
        return found[0]
    return {(number,): value for number, value in enumerate(found)}


@operation("nvvm.stmatrix")
def _store(frame: InlineFrame, op: InlineOperation, pointer: Array, *values: Array) -> tuple[()]:
    transposed, addresses = _is_transposed(op), frame.all(pointer)
    for number, value in enumerate(values):
        raw = to_bytes(frame.all(value))
        matrix = from_bytes(raw, np.uint16, (2,)).reshape(-1, 8, 8)
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        rows = _rows(addresses, number).reshape(-1)
        frame.space.store(rows, to_bytes(np.ascontiguousarray(matrix).reshape(-1, 8)), None)
    return ()


@operation(
    "gpu.thread_id",
    "gpu.block_id",
    "gpu.block_dim",
    "gpu.grid_dim",
    "gpu.cluster_block_id",
    "gpu.cluster_dim_blocks",
)
def _place(frame: InlineFrame, op: InlineOperation) -> Array:
    axis = "xyz".index(op.attributes["dimension"].rstrip(">")[-1])
    kind = op.name.partition(".")[2]
    value = frame.geometry[kind][axis]
    if kind == "thread_id" and axis == 0:
        return (np.arange(frame.threads) + frame.first).astype(np.uint64)
    return np.array([value], np.uint64)


@operation("gpu.lane_id", "nvvm.read.ptx.sreg.laneid")
def _lane(frame: InlineFrame, op: InlineOperation) -> Array:
    return as_type((np.arange(frame.threads) % 32).astype(np.uint64), op)


@operation("nvvm.read.ptx.sreg.tid.x")
def _thread(frame: InlineFrame, op: InlineOperation) -> Array:
    return as_type((np.arange(frame.threads) + frame.first).astype(np.uint64), op)


def lanes(frame: InlineFrame, value: Array) -> Array:
    """A value as [warps, 32, ...]."""
    value = frame.all(value)
    return value.reshape(-1, 32, *value.shape[1:])


@operation("nvvm.shfl.sync")
def _shuffle(
    frame: InlineFrame, op: InlineOperation, mask: Array, value: Array, at: Array, clamp: Array
) -> Array:
    """PTX ISA, "shfl.sync"."""
    del mask
    kind = op.attributes["kind"].rpartition("<")[2].rstrip(">")
    values = lanes(frame, value)
    here = np.broadcast_to(np.arange(32), values.shape[:2])
    other = lanes(frame, at).astype(np.int64) & 31
    bound = lanes(frame, clamp).astype(np.int64)
    segment = bound >> 8 & 31
    low = here & segment
    high = low | (bound & 31 & ~segment)
    if kind == "up":
        source = here - other
        inside = source >= high
    elif kind == "down":
        source = here + other
        inside = source <= high
    elif kind == "bfly":
        source = here ^ other
        inside = source <= high
    else:
        source = low | (other & ~segment)
        inside = source <= high
    source = np.where(inside, source, here)
    return np.take_along_axis(values, source, axis=1).reshape(frame.threads)


@operation("nvvm.elect.sync")
def _elect(frame: InlineFrame, op: InlineOperation, *mask: Array) -> Array:
    """One active thread of each warp: here the first."""
    del op, mask
    active = np.ones(frame.threads, np.bool_) if frame.active is None else frame.active
    found = np.zeros_like(active)
    for warp in range(0, frame.threads, 32):
        there = np.flatnonzero(active[warp : warp + 32])
        if there.size:
            found[warp + there[0]] = True
    return found


@operation("nvvm.vote.sync")
def _vote(frame: InlineFrame, op: InlineOperation, mask: Array, value: Array) -> Array:
    del mask
    kind = op.attributes["kind"].rpartition("<")[2].rstrip(">")
    values = lanes(frame, value)
    if kind == "ballot":
        words = (values.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1)
        return as_type(np.repeat(words, 32), op)
    if kind == "uni":
        found = (values == values[:, :1]).all(1)
    else:
        found = values.all(1) if kind == "all" else values.any(1)
    return np.repeat(found, 32)


@operation("nvvm.redux.sync")
def _reduce(frame: InlineFrame, op: InlineOperation, value: Array, mask: Array) -> Array:
    del mask
    kind = op.attributes["kind"].rpartition("<")[2].rstrip(">")
    values = lanes(frame, value)
    if kind in ("min", "max"):
        values = signed(values)
    elif kind.startswith("f"):
        values = wide(values)
    combine: Any = {
        "add": np.add,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "umax": np.maximum,
        "umin": np.minimum,
        "max": np.maximum,
        "min": np.minimum,
        "fmax": np.maximum,
        "fmin": np.minimum,
    }[kind]
    found = combine.reduce(values, axis=1, dtype=values.dtype)
    return as_type(np.repeat(found, 32), op)


@operation("nvvm.bar.warp.sync", "gpu.printf", "nvvm.nanosleep", "llvm.intr.assume")
def _nothing(frame: InlineFrame, op: InlineOperation, *_: Any) -> tuple[()]:
    """All threads of a warpgroup go on together, and nothing is printed."""
    del frame, op
    return ()


@operation("gpu.barrier", "nvvm.barrier0", "nvvm.barrier")
def _barrier(frame: InlineFrame, op: InlineOperation, *given: Array) -> tuple[()]:
    """A barrier of the threads that run the code, or of more, which is not simulated."""
    count = int(given[-1].reshape(-1)[0]) if len(given) > 1 else frame.geometry["block_dim"][0]
    meet(frame, count, op.name)
    return ()


def meet(frame: InlineFrame, count: int, name: str) -> None:
    """A barrier of some threads.

    Raises:
      MissingRuleError: these are others than those that run the code.
    """
    if count != frame.threads:
        raise MissingRuleError(
            f"{name} of {count} threads, in code that {frame.threads} threads run, is not "
            "simulated: use plgpu.Barrier"
        )


@operation("nvvm.fence.proxy")
def _proxy_fence(frame: InlineFrame, op: InlineOperation) -> tuple[()]:
    """PTX ISA, "fence.proxy.async"."""
    frame.fence("async" in op.attributes["kind"])
    return ()


@operation("nvvm.fence.sc.cluster", "nvvm.memory.barrier", "nvvm.fence.mbarrier.init")
def _fence(frame: InlineFrame, op: InlineOperation) -> tuple[()]:
    del op
    frame.fence(False)
    return ()
