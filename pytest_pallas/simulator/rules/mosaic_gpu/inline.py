"""Rules: code that a kernel inlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.sim_errors import BoundsError, MissingRuleError
from pytest_pallas.simulator.gpu.inline.code import InlineCode
from pytest_pallas.simulator.gpu.inline.memory import UnreachableError
from pytest_pallas.simulator.gpu.inline.mlir import InlineError, inline_code, inline_places
from pytest_pallas.simulator.gpu.inline.run import execute, prepared
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.memory.accesses import bounds_error
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, part_of
from pytest_pallas.transforms import RefPart


@gpu_rule("inline_mgpu", "inline_mgpu_p")  # the latter is that of JAX 0.11
def _inline_mgpu(eqn: Equation) -> Evaluate:
    """Any code whose operations are known.

    Raises:
      MissingRuleError: one of them is not, or the code needs what only a compiler has.
    """
    params, line = eqn.params, eqn.line
    places = inline_places(params)
    results = [(tuple(each.shape), each.dtype) for each in params["flat_ret_ty"]]
    known: dict[Any, InlineCode] = {}

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        arguments = [
            operands[position] if place is None else _reference(thread, place, operands, line)
            for position, place in enumerate(places)
        ]
        kinds = tuple(map(_kind, arguments))
        key = (thread.machine.target, len(thread.lanes), kinds)
        if key not in known:
            known[key] = _code(params, kinds, thread)
        try:
            return execute(known[key], thread, arguments, results, line)
        except UnreachableError as error:
            raise _outside(thread, error, line) from None

    return evaluate


def _reference(
    thread: GpuThread, place: RefPart, operands: Sequence[Any], line: str
) -> tuple[str, Any, bool]:
    """Name and elements of a reference, and whether they are in shared memory."""
    ref, part = part_of(thread, place, operands, "use of", line)
    if ref.space not in ("gmem", "smem"):
        raise MissingRuleError(f"{ref.name}, which inline_mgpu is given, is in {ref.space}")
    return ref.name, part, ref.space == "smem"


def _kind(argument: Any) -> tuple[tuple[int, ...], Any, bool]:
    if isinstance(argument, tuple):
        _, part, shared = argument
        return tuple(np.shape(part)), part.dtype, shared
    return tuple(np.shape(argument)), np.asarray(argument).dtype, False


def _code(params: Any, kinds: Any, thread: GpuThread) -> InlineCode:
    capability = GPUS[thread.machine.target].capability
    try:
        code = inline_code(params, kinds, (capability, 0), one_warp=len(thread.lanes) == 1)
    except InlineError as error:
        raise MissingRuleError(f"the function of inline_mgpu {error}") from None
    return prepared(code)


def _outside(thread: GpuThread, error: UnreachableError, line: str) -> BoundsError:
    message = f"the code of inline_mgpu is beyond an edge: {error}"
    return bounds_error(thread, message, line, seed=thread.machine.seed)
