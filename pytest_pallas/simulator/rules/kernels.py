"""Rules: kernels, and what their bodies ask about the grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pytest_pallas.compat.compositions import expanded
from pytest_pallas.compat.grids import grid_facts
from pytest_pallas.findings import Finding
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.grids.capacity import capacity_findings
from pytest_pallas.simulator.grids.kernels import PreparedKernel, kernel_of
from pytest_pallas.simulator.grids.pipeline import execute
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.program import prepare
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.simulator.values import KeyArray, is_key_dtype


@rule("pallas_call", threaded=True)
def _pallas_call(eqn: Equation) -> Evaluate:
    written_for = grid_facts(eqn.origin).written_for
    if written_for == "Mosaic GPU":
        return _mosaic_gpu(eqn)
    kernel = kernel_of(eqn)
    keys = [aval.dtype if is_key_dtype(aval.dtype) else None for aval in eqn.outs]

    excesses: dict[tuple[str, bool], tuple[Finding, ...]] = {}
    lowered: set[str] = set()

    def evaluate(thread: Thread, *operands: Any) -> Any:
        words = [each.data if isinstance(each, KeyArray) else each for each in operands]
        machine, on_gpu = thread.machine, thread.machine.platform == "gpu"
        _require_platform(thread, written_for, "TPUs" if on_gpu else "Triton")
        if on_gpu and machine.target not in lowered:
            _require_lowering(kernel, machine)
            lowered.add(machine.target)
        key = (machine.target, machine.shared_bytes is None)
        if key not in excesses:
            excesses[key] = tuple(_excesses(kernel, machine))
        for finding in excesses[key]:
            machine.report(finding)
        outputs: list[Any] = (_execute_on_gpu if on_gpu else execute)(kernel, thread, words)
        outputs = [
            each if dtype is None else KeyArray(each, dtype)
            for each, dtype in zip(outputs, keys, strict=True)
        ]
        if thread.machine.outputs is not None:
            thread.machine.outputs(kernel.equation, outputs)
        return outputs

    return evaluate


def _require_lowering(kernel: PreparedKernel, machine: Machine) -> None:
    """Reject what JAX does not lower for the machine's GPU."""
    from pytest_pallas.simulator.gpu.portable.lowering import require_lowering

    require_lowering(kernel.equation, machine.target)


def _excesses(kernel: PreparedKernel, machine: Machine) -> Iterable[Finding]:
    """What of a kernel does not fit into the memory of a chip."""
    if machine.platform != "gpu":
        return capacity_findings(kernel, machine.target)
    from pytest_pallas.simulator.gpu.portable.shared_memory import shared_memory_findings

    return shared_memory_findings(kernel, machine.target, machine.shared_bytes)


def _execute_on_gpu(kernel: PreparedKernel, thread: Thread, operands: Sequence[Any]) -> list[Any]:
    """Run the grid of a kernel as a GPU does."""
    from pytest_pallas.simulator.gpu.portable import programs

    return programs.execute(kernel, thread, operands)


def _require_platform(thread: Thread, written_for: str, other: str) -> None:
    """Reject a kernel of another platform.

    Raises:
      SimulationError: it is written for ``other``.
    """
    if written_for == other:
        machine = thread.machine
        backend = "tpu-sim" if machine.platform == "gpu" else "gpu-sim"
        raise SimulationError(
            f"this kernel is written for {other}, by its compiler parameters or memory spaces, and "
            f"the simulated chip is {machine.target}: use {backend}, or simulate(..., target=...)"
        )


def _mosaic_gpu(eqn: Equation) -> Evaluate:
    """Reject a ``pallas_call`` of Mosaic GPU: JAX 0.11.2 and 0.12.0.1 lower none for a GPU."""
    del eqn

    def evaluate(thread: Thread, *operands: Any) -> Any:
        del operands
        if thread.machine.platform != "gpu":
            _require_platform(thread, "Mosaic GPU", "Mosaic GPU")
        raise SimulationError(
            "JAX compiles no pl.pallas_call with plgpu.CompilerParams for a GPU: call plgpu.kernel"
            ", and plgpu.emit_pipeline in it for blocks"
        )

    return evaluate


@rule("program_id", threaded=True)
def _program_id(eqn: Equation) -> Evaluate:
    axis = eqn.params["axis"]
    return lambda thread: np.int32(thread.grids[-1].point[axis])


@rule("num_programs", threaded=True)
def _num_programs(eqn: Equation) -> Evaluate:
    axis = eqn.params["axis"]
    return lambda thread: np.int32(thread.grids[-1].sizes[axis])


@rule("delay")
def _delay(eqn: Equation) -> Evaluate:
    # Nothing takes time here.
    return lambda *_: ()


@rule("call_hi_primitive", threaded=True)
def _high(eqn: Equation) -> Evaluate:
    from pytest_pallas.simulator.evaluation import run

    program = prepare(expanded(eqn.params, eqn.ins))
    return lambda thread, *args: run(program, thread, args)
