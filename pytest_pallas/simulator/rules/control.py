"""Rules: branches, loops, and scopes with memory of their own."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pytest_pallas.compat.avals import space_of
from pytest_pallas.compat.jaxprs import argument_names, open_jaxpr, scan_parts
from pytest_pallas.simulator.arithmetic.keyed import value_of, words_of
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.memory.allocation import allocate, free
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.program import prepare, prepare_lifted
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.simulator.values import KeyArray


@rule("cond", threaded=True)
def _cond(eqn: Equation) -> Evaluate:
    branches = [prepare(branch) for branch in eqn.params["branches"]]
    last = len(branches) - 1
    # Where a `pl.when` does not hold: half of all that kernels ask.
    idle = [not (branch.steps or branch.outputs) for branch in branches]

    def evaluate(thread: Thread, index: Any, *args: Any) -> Any:
        chosen = max(0, min(int(index), last))
        return () if idle[chosen] else run(branches[chosen], thread, args)

    return evaluate


@rule("while", threaded=True)
def _while(eqn: Equation) -> Evaluate:
    condition, body = prepare(eqn.params["cond_jaxpr"]), prepare(eqn.params["body_jaxpr"])
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]

    def evaluate(thread: Thread, *args: Any) -> Any:
        of_condition, of_body = args[:first], args[first : first + second]
        carry = list(args[first + second :])
        while np.any(going := run(condition, thread, (*of_condition, *carry))[0]):
            thread.machine.count(1)  # an empty loop has no equations to count
            found = run(body, thread, (*of_body, *carry))
            carry = found if np.ndim(going) == 0 else _advanced(going, found, carry)
        return carry

    return evaluate


def _advanced(going: Any, after: list[Any], before: list[Any]) -> list[Any]:
    """The state of a loop that ``vmap`` made of several: those that have ended keep theirs."""

    def chosen(new: Any, old: Any) -> Any:
        if isinstance(new, KeyArray):
            return KeyArray(chosen(new.data, old.data), new.dtype)
        return np.where(going.reshape(going.shape + (1,) * (np.ndim(new) - going.ndim)), new, old)

    return list(map(chosen, after, before))


@rule("scan", threaded=True)
def _scan(eqn: Equation) -> Evaluate:
    body = prepare(eqn.params["jaxpr"])
    length = int(eqn.params["length"])
    consts, carried, _ = scan_parts(eqn.params, len(eqn.ins))
    order = range(length - 1, -1, -1) if eqn.params["reverse"] else range(length)
    stacked = eqn.outs[carried:]

    def evaluate(thread: Thread, *args: Any) -> Any:
        constant, carry = args[:consts], list(args[consts : consts + carried])
        scanned = args[consts + carried :]
        if not stacked:
            for number in order:
                thread.machine.count(1)
                carry = run(body, thread, (*constant, *carry, *[_at(x, number) for x in scanned]))
            return carry
        results: list[list[Any]] = [[None] * length for _ in stacked]
        for number in order:
            found = run(body, thread, (*constant, *carry, *[_at(x, number) for x in scanned]))
            carry = found[:carried]
            for rows, value in zip(results, found[carried:], strict=True):
                rows[number] = value
        return [*carry, *map(_stacked, results, stacked)]

    return evaluate


def _at(array: Any, number: int) -> Any:
    return (
        KeyArray(array.data[number], array.dtype) if isinstance(array, KeyArray) else array[number]
    )


def _stacked(rows: list[Any], aval: Any) -> Any:
    """The results of all steps as one array."""
    if rows and isinstance(rows[0], KeyArray):
        return KeyArray(np.stack([row.data for row in rows]), rows[0].dtype)
    array = np.empty(aval.shape, aval.dtype)
    for number, row in enumerate(rows):
        array[number] = row
    return array


@rule("run_scoped", threaded=True)
def _run_scoped(eqn: Equation) -> Evaluate:
    jaxpr = eqn.params["jaxpr"]
    program = prepare_lifted(jaxpr, eqn.line)
    inner, _ = open_jaxpr(jaxpr)
    names = argument_names(inner)
    memory = [
        (var.aval, name or f"scoped memory {number}")
        for number, (var, name) in enumerate(zip(inner.invars, names, strict=True))
    ]

    @functools.cache
    def scope_on_gpu() -> Any:
        from pytest_pallas.simulator.gpu.launches import scopes

        return functools.partial(scopes.run_scope, scope=scopes.scope_of(eqn))

    def evaluate(thread: Thread, *captured: Any) -> Any:
        if thread.is_warpgroup:
            return scope_on_gpu()(
                thread, work=lambda refs: run(program, thread, (*captured, *refs))
            )
        refs = [
            allocate(thread, aval, name, id(eqn), number)
            for number, (aval, name) in enumerate(memory)
        ]
        results = run(program, thread, (*captured, *refs))
        free(thread, refs, eqn.line)
        return results

    return evaluate


@rule("run_state", threaded=True)
def _run_state(eqn: Equation) -> Evaluate:
    jaxpr = eqn.params["jaxpr"]
    program = prepare(jaxpr)
    inner, _ = open_jaxpr(jaxpr)
    given = eqn.params["is_initialized"]
    memory = [
        (var.aval, name or f"state {number}")
        for number, (var, name) in enumerate(zip(inner.invars, argument_names(inner), strict=True))
    ]

    def evaluate(thread: Thread, *args: Any) -> Any:
        values = iter(args)
        refs = [
            initialized(next(values), aval, name)
            if first
            else allocate(thread, aval, name, id(eqn), n)
            for n, ((aval, name), first) in enumerate(zip(memory, given, strict=True))
        ]
        run(program, thread, refs)
        if thread.is_warpgroup:
            _wait_for_products(thread)
        return [value_of(ref.data, aval) for ref, (aval, _) in zip(refs, memory, strict=True)]

    return evaluate


def _wait_for_products(thread: Any) -> None:
    """Wait for all ``wgmma`` of a ``GpuThread``, as JAX's lowering does."""
    from pytest_pallas.simulator.gpu.operations import wait_groups

    wait_groups(thread, thread.products, 0)


@rule("new_ref")
def _new_ref(eqn: Equation) -> Evaluate:
    return lambda value: initialized(value, eqn.out, "")


@rule("empty_ref", threaded=True)
def _empty_ref(eqn: Equation) -> Evaluate:
    return lambda thread: allocate(thread, eqn.out, "", id(eqn))


@rule("freeze")
def _freeze(eqn: Equation) -> Evaluate:
    return lambda ref: value_of(ref.data, eqn.out)


@rule("free_ref")
def _free_ref(eqn: Equation) -> Evaluate:
    return lambda *_: ()


def initialized(value: Any, aval: Any, name: str) -> Ref:
    """Memory that holds a value, or the memory itself that is given."""
    if isinstance(value, Ref):
        return value
    return Ref(np.array(words_of(value)), name, space_of(aval))
