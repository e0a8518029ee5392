"""Matrices between shared memory and the registers of a warp: ``ldmatrix`` and ``stmatrix``."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.errors import MissingRuleError
from pytest_pallas.simulator.gpu.inline.code import InlineOperation
from pytest_pallas.simulator.gpu.inline.frame import Frame, operation
from pytest_pallas.simulator.gpu.inline.memory import from_bytes, to_bytes

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
def _load(frame: Frame, op: InlineOperation, pointer: Array) -> Any:
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
def _store(frame: Frame, op: InlineOperation, pointer: Array, *values: Array) -> tuple[()]:
    transposed, addresses = _is_transposed(op), frame.all(pointer)
    for number, value in enumerate(values):
        raw = to_bytes(frame.all(value))
        matrix = from_bytes(raw, np.uint16, (2,)).reshape(-1, 8, 8)
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        rows = _rows(addresses, number).reshape(-1)
        frame.space.store(rows, to_bytes(np.ascontiguousarray(matrix).reshape(-1, 8)), None)
    return ()
