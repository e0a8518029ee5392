"""References: the memory that a kernel reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class AllocationKey(NamedTuple):
    """Names an allocation, alike on every device and core that runs the same program.

    Attributes:
      launch: of the kernel: which one, and how often the device had entered it before.
      core: whose it is, or () for memory that the cores of a device share.
      site: which allocation of the kernel.
    """

    launch: tuple[Any, ...]
    core: tuple[tuple[str, int], ...]
    site: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Elements of memory that arrays of indices name.

    Attributes:
      memory: a view of the memory.
      key: for each of its first axes, the index of every element; all are of one length.
    """

    memory: np.ndarray[Any, Any]
    key: tuple[np.ndarray[Any, Any], ...]


#: What an access or a copy touches: a view of memory, or elements of one.
Region = np.ndarray[Any, Any] | Elements


class Ref:
    """A piece of memory.

    Attributes:
      data: its elements. A reference may share them with another one.
      name: of the parameter or variable that it is bound to, for messages.
      space: its memory space, such as ``"vmem"``.
      input: whether it is the window of an input that shares no memory with an output.
      key: names the same memory on another device or core; None where there is none.
      left: whether it is the window of an output's block that the grid had left before.
      block: of a program of a GPU's grid: which memory of all programs it is part of; else None.
      reached: the threads on other devices or cores that have reached it, with the line.
    """

    __slots__ = ("block", "data", "input", "key", "left", "name", "reached", "space")

    def __init__(
        self,
        data: np.ndarray[Any, Any],
        name: str = "",
        space: str = "",
        input: bool = False,
        key: AllocationKey | None = None,
        left: bool = False,
        block: Any = None,
    ) -> None:
        """Make a reference to ``data``, which it keeps and changes."""
        self.data = data
        self.name = name
        self.space = space
        self.input = input
        self.key = key
        self.left = left
        self.block = block
        self.reached: set[tuple[int, str]] = set()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the memory."""
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return self.data.dtype

    def __repr__(self) -> str:
        return f"Ref({self.name or '?'}: {self.dtype}{list(self.shape)} in {self.space or '?'})"
