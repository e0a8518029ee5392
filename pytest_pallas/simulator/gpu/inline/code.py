"""The code of ``plgpu.inline_mgpu`` as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class InlineType:
    """The type of a value.

    Attributes:
      kind: ``"scalar"``, ``"vector"``, ``"memory"``, ``"pointer"`` or ``"other"``.
      dtype: of its elements.
      shape: of a vector or of memory; sizes that are known only at run time are -1.
      strides: of memory, in elements; -1 as in ``shape``.
      text: as MLIR prints it.
    """

    kind: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class InlineOperation:
    """An operation.

    Attributes:
      name: ``"arith.addi"`` or the like.
      operands: the numbers of values.
      operand_types: their types.
      results: the numbers of its results.
      types: of its results.
      attributes: as plain values: numbers, text, tuples, arrays, or ``InlineType``.
      regions: of control flow.
    """

    name: str
    operands: tuple[int, ...]
    operand_types: tuple[InlineType, ...]
    results: tuple[int, ...]
    types: tuple[InlineType, ...]
    attributes: Mapping[str, Any]
    regions: tuple[InlineRegion, ...] = ()


@dataclass(frozen=True)
class InlineRegion:
    """Operations one after the other.

    Attributes:
      arguments: the numbers of the values that it is given.
      operations: in order; the last one ends it.
    """

    arguments: tuple[int, ...]
    operations: tuple[InlineOperation, ...]


@dataclass(frozen=True)
class Fragments:
    """Which thread has which element of an array in which register.

    Attributes:
      registers: the numbers of the values.
      elements: positions in the flat array, of shape [threads, registers, elements of a register];
        None where each thread has the one value that all elements are.
    """

    registers: tuple[int, ...]
    elements: Array | None


@dataclass(frozen=True)
class InlineRef:
    """How a reference is laid out in the memory that the code sees.

    Attributes:
      number: of the value.
      tiling: of its last axes; empty for rows one after the other.
      swizzle: bytes of a swizzled row, or 0.
    """

    number: int
    tiling: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class InlineCode:
    """What the function of an ``inline_mgpu`` consists of.

    Attributes:
      body: its operations.
      arguments: in the order of the operands.
      results: in the order of the results.
    """

    body: InlineRegion
    arguments: tuple[Fragments | InlineRef, ...]
    results: tuple[Fragments, ...]
