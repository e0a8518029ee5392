"""Rules: kernels, and what their bodies ask about the grid."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pytest_pallas.compat.avals import semaphore_kind, space_of
from pytest_pallas.compat.compositions import expanded
from pytest_pallas.compat.grids import BlockFacts, GridFacts, grid_facts
from pytest_pallas.compat.jaxprs import argument_names, kernel_name, open_jaxpr, written_inputs
from pytest_pallas.compat.keys import key_shape
from pytest_pallas.errors import SimulationError
from pytest_pallas.findings import Finding
from pytest_pallas.simulator.concurrency.launches import traffic_of
from pytest_pallas.simulator.gpu.portable import programs
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.memory.capacity import capacity_findings
from pytest_pallas.simulator.pipeline import Kernel, execute, window_of
from pytest_pallas.simulator.program import prepare, prepare_lifted
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.values import Keys, is_key_dtype


@rule("pallas_call", threaded=True)
def _pallas_call(eqn: Equation) -> Evaluate:
    written_for = grid_facts(eqn.origin).written_for
    if written_for == "Mosaic GPU":
        return _mosaic_gpu(eqn)
    kernel = kernel_of(eqn)
    keys = [aval.dtype if is_key_dtype(aval.dtype) else None for aval in eqn.outs]

    excesses: dict[str, tuple[Finding, ...]] = {}

    def evaluate(thread: Thread, *operands: Any) -> Any:
        words = [each.data if isinstance(each, Keys) else each for each in operands]
        outputs: list[Any]
        if thread.machine.platform == "gpu":
            _require_platform(thread, written_for, "TPUs")
            outputs = programs.execute(kernel, thread, words)
        else:
            target = thread.machine.target
            _require_platform(thread, written_for, "Triton")
            if target not in excesses:
                excesses[target] = tuple(capacity_findings(kernel, target))
            for finding in excesses[target]:
                thread.machine.report(finding)
            outputs = execute(kernel, thread, words)
        outputs = [
            each if dtype is None else Keys(each, dtype)
            for each, dtype in zip(outputs, keys, strict=True)
        ]
        if thread.machine.outputs is not None:
            thread.machine.outputs(kernel.equation, outputs)
        return outputs

    return evaluate


def _require_platform(thread: Thread, written_for: str, other: str) -> None:
    """Refuse a kernel of another platform.

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
    """Refuse a ``pallas_call`` of Mosaic GPU: JAX 0.11.2 and 0.12.0.1 lower none for a GPU."""
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


def kernel_of(eqn: Equation) -> Kernel:
    """The kernel of a ``pallas_call``, prepared."""
    origin = eqn.origin
    facts = grid_facts(origin)
    facts = dataclasses.replace(
        facts,
        inputs=tuple(map(_of_words, facts.inputs)),
        outputs=tuple(map(_of_words, facts.outputs)),
    )
    body = eqn.params["jaxpr"]
    inner = open_jaxpr(body)[0]
    return Kernel(
        name=kernel_name(origin),
        facts=facts,
        captured=len(inner.constvars),
        body=prepare_lifted(body) if inner.constvars else prepare(body),
        names=_names(argument_names(inner), facts),
        windows=tuple(
            window_of(number, block, output=number >= len(facts.inputs), home=_home(eqn, number))
            for number, block in enumerate((*facts.inputs, *facts.outputs))
        ),
        written=written_inputs(body),
        parallel=_parallel(facts),
        traffic=traffic_of(
            [body],
            facts.params,
            lasting=any(semaphore_kind(block.dtype) is not None for block in facts.outputs),
        ),
        equation=origin,
    )


def _home(eqn: Equation, number: int) -> str:
    """The memory space that the array of an input was asked to be in, or ""."""
    facts = grid_facts(eqn.origin)
    captured = len(open_jaxpr(eqn.params["jaxpr"])[0].constvars)
    at = captured + len(facts.sizes) + len(facts.scalars) + number
    return space_of(eqn.ins[at]) if number < len(facts.inputs) else ""


def _of_words(block: BlockFacts) -> BlockFacts:
    """The blocks of an array of typed keys as those of the keys' words."""
    if not is_key_dtype(block.dtype):
        return block
    words = key_shape(block.dtype)
    return dataclasses.replace(
        block,
        shape=(*block.shape, *words),
        dtype=np.dtype(np.uint32),
        dims=(*block.dims, *(("Blocked", size, (0, 0)) for size in words)),
        of_dims=lambda leaves: (*block.of_dims(leaves), *(0 for _ in words)),
    )


def _names(names: tuple[str, ...], facts: GridFacts) -> tuple[str, ...]:
    """The names of the body's parameters; where it has none, what the call says of an operand."""
    blocks = [block.name for block in (*facts.inputs, *facts.outputs)]
    count = len(facts.scalars)
    return tuple(
        name or (blocks[number - count] if 0 <= number - count < len(blocks) else "")
        for number, name in enumerate(names)
    )


def _parallel(facts: GridFacts) -> tuple[int, ...]:
    semantics = getattr(facts.params, "dimension_semantics", None) or ()
    names = [str(getattr(each, "value", each)).lower() for each in semantics]
    # What vmap adds has no semantics of its own.
    axes = [axis for axis in range(len(facts.grid)) if axis not in facts.vmapped]
    return tuple(axis for axis, name in zip(axes, names, strict=False) if "parallel" in name)


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
