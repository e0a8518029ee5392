"""``Row``: one of our kernels beside a kernel of others, and how much work a step of each does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Side:
    """A kernel, and the work of one round of its loop.

    Attributes:
      call: a function of arrays only; options and block sizes are bound in it.
      args: a ``jax.ShapeDtypeStruct`` for each array, or the array itself where its values decide
        what is compiled.
      work: units of work (``Row.unit``) that one round of the outermost loop of the grid does.
      trips: how often each loop inside of that round runs, in the order of the code; loops that
        are not named run once.
      kernel: which kernel of the program is meant, by its position.
      steps: of a kernel over several devices, how many messages are sent one after another,
        because each waits for one that comes in; None for other kernels.
      wire_bytes: bytes that a device sends, where they cannot be counted in the program
        (``wire.wire_bytes``), because they are known at run time only or under a condition.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    work: float
    trips: Mapping[int, float] = field(default_factory=dict[int, float])
    kernel: int = 0
    steps: int | None = None
    wire_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
      name: the kernel and the variant, such as ``"flash_attention d=64"``.
      unit: what work is counted in, such as ``"block of 512 x 512 scores"``.
      ours: the reference kernel.
      theirs: the kernel that it is measured by; None to print the numbers of ours alone.
      chips: the chips to compile for.
      wire_bound: of kernels over several devices, the fewest bytes that a device can send; its
        bytes and steps are then shown in a table of their own.
    """

    name: str
    unit: str
    ours: Side
    theirs: Side | None = None
    chips: tuple[str, ...] = ("v5e", "v5p", "v6e")
    wire_bound: int | None = None
