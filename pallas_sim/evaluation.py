"""The evaluator: prepares what JAX traced, once, and runs it, one equation after the other.

``prepare`` makes a ``Program`` of a jaxpr: a ``Step`` for each equation, with the function that its
rule gives (``registry``), and a slot for each value. Short calls are replaced by their equations.
``run`` walks the steps on a thread; it is the inner loop of every simulation. What has no rule is
evaluated as what JAX composes it of, or by JAX itself (``fallback``).
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import (
    CALLS,
    called,
    composition,
    home_of_primitive,
    is_literal,
    open_jaxpr,
    sub_jaxprs,
)
from pallas_sim.compat.source import note_callers
from pallas_sim.dtypes import same_bits
from pallas_sim.eager import bind
from pallas_sim.edges import UndefinedLoadError, report
from pallas_sim.errors import MissingRuleError, PallasError, SimulationError
from pallas_sim.machine import Thread
from pallas_sim.memory import from_jax, to_jax
from pallas_sim.points import Site, operand_site
from pallas_sim.registry import Equation, Evaluate, find_rule
from pallas_sim.sites import SyncSite, site_of

#: Calls of up to so many equations are replaced by them: calling costs as much as two or three.
_SHORT = 64

#: Results from this size on are freed after their last use.
_LARGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Step:
    """One equation, prepared.

    Attributes:
      evaluate: see ``registry.Evaluate``.
      threaded: whether it takes the thread.
      several: whether it gives a sequence of results.
      equation: what it was prepared from.
      ins: slots of its operands.
      operands: gives the operands, of the values of all slots.
      outs: slots of its results.
      dead: slots of large arrays that no later step reads.
      calls: those in whose place it stands, the innermost first.
    """

    evaluate: Callable[..., Any]
    threaded: bool
    several: bool
    equation: Equation
    ins: tuple[int, ...] = ()
    operands: Callable[[list[Any]], Sequence[Any]] = itemgetter(slice(0))
    outs: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    calls: tuple[Equation, ...] = ()

    @property
    def line(self) -> str:
        """``file:line`` of the code that made it, or else of the call, or ""."""
        return next(
            (equation.line for equation in (self.equation, *self.calls) if equation.line), ""
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A jaxpr whose rules are bound and whose variables are slots.

    Attributes:
      slots: initial values: constants and literals in place.
      inputs: slots of the inputs, which follow each other.
      steps: the equations, in order.
      outputs: slots of the results.
      largest: bytes of the largest result of an equation, and what makes it.
      large: slots of results that are freed after their last use.
    """

    slots: list[Any]
    inputs: range
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    largest: tuple[int, Equation | None]
    large: frozenset[int] = frozenset()


_Cache = weakref.WeakKeyDictionary[Any, Program]

_PREPARED: _Cache = weakref.WeakKeyDictionary()
_LIFTED: _Cache = weakref.WeakKeyDictionary()


def prepare(jaxpr: Any) -> Program:
    """Return the program of an open or closed jaxpr, made once and kept as long as the jaxpr.

    Raises:
      MissingRuleError: an effectful primitive has no rule.
    """
    program = _PREPARED.get(jaxpr)
    if program is None:
        inner, consts = open_jaxpr(jaxpr)
        program = _PREPARED[jaxpr] = _prepared(inner, consts)
    return program


def prepare_lifted(jaxpr: Any, around: str = "") -> Program:
    """Prepare as ``prepare`` does, with the constants of the jaxpr as the first inputs.

    That is how ``run_scoped`` passes what its body captures.

    Args:
      jaxpr: open or closed.
      around: ``file:line`` of the equation that it belongs to.
    """
    program = _LIFTED.get(jaxpr)
    if program is None:
        program = _LIFTED[jaxpr] = _prepared(open_jaxpr(jaxpr)[0], None, around)
    return program


def _prepared(jaxpr: Any, consts: Sequence[Any] | None, around: str = "") -> Program:
    slots: list[Any] = []
    large: set[int] = set()
    where: dict[Any, int] = {}

    def slot(var: Any, value: Any = None) -> int:
        slots.append(value)
        where[var] = len(slots) - 1
        return len(slots) - 1

    def read(atom: Any) -> int:
        if not is_literal(atom):
            return where[atom]
        value = from_jax(atom.val, atom.aval)
        # numpy computes with its scalars in a tenth of the time of arrays without axes.
        slots.append(value[()] if isinstance(value, np.ndarray) and not value.ndim else value)
        return len(slots) - 1

    for var, value in zip(jaxpr.constvars, consts or (), strict=consts is not None):
        slot(var, from_jax(value, var.aval))
    first = len(slots)
    for var in (*(jaxpr.constvars if consts is None else ()), *jaxpr.invars):
        slot(var)
    inputs = range(first, len(slots))
    largest: tuple[int, Equation | None] = (0, None)
    steps: list[Step] = []
    used = {atom for eqn in jaxpr.eqns for atom in eqn.invars if not is_literal(atom)}
    used.update(atom for atom in jaxpr.outvars if not is_literal(atom))
    for eqn in jaxpr.eqns:
        ins = tuple(map(read, eqn.invars))
        note_callers(eqn)
        program = _inlined(eqn)
        if program is not None:
            places = _append(program, ins, _equation(eqn, around), slots, steps)
            where.update(zip(eqn.outvars, map(places.__getitem__, program.outputs), strict=True))
            large.update(places[number] for number in program.large)
            if program.largest[0] > largest[0]:
                largest = program.largest
            continue
        step = prepare_equation(eqn, around, used=not used.isdisjoint(eqn.outvars))
        outs = tuple(map(slot, eqn.outvars))
        for out, aval in zip(outs, step.equation.outs, strict=True):
            size = size_of(aval)
            if size >= _LARGE:
                large.add(out)
            if size > largest[0]:
                largest = (size, step.equation)
        steps.append(replace(step, ins=ins, operands=_getter(ins), outs=outs))
    outputs = tuple(map(read, jaxpr.outvars))
    steps = _with_sums_of_products(steps, outputs)
    freeing = _freeing(steps, large.difference(outputs))
    return Program(slots, inputs, freeing, outputs, largest, frozenset(large))


def _inlined(eqn: Any) -> Program | None:
    """Return the program of a call whose equations can stand in its place, or None.

    Most of what ``jax.numpy`` does is a call of a few equations. One that gets references is
    evaluated as it is: a debugger knows references by the program that has them.
    """
    if eqn.primitive.name not in CALLS:
        return None
    if any(hasattr(atom.aval, "inner_aval") for atom in eqn.invars):
        return None
    program = prepare(called(eqn.params))
    return program if len(program.steps) <= _SHORT else None


def _append(
    program: Program,
    ins: Sequence[int],
    call: Equation,
    slots: list[Any],
    steps: list[Step],
) -> list[int]:
    """Append the steps of a program to those of another one, and give the new numbers of its slots.

    Args:
      program: whose steps.
      ins: slots of its inputs, in the other program.
      call: in whose place they stand.
      slots: of the other program.
      steps: of the other program.
    """
    inputs = dict(zip(program.inputs, ins, strict=True))
    new_slots: list[int] = []
    for number, value in enumerate(program.slots):
        if number in inputs:
            new_slots.append(inputs[number])
        else:
            slots.append(value)
            new_slots.append(len(slots) - 1)
    site = operand_site(call)
    for step in program.steps:
        if site is not None and step.equation.name == "select_n":
            step = _watching(step, site)
        moved = tuple(new_slots[slot] for slot in step.ins)
        steps.append(
            replace(
                step,
                ins=moved,
                operands=_getter(moved),
                outs=tuple(new_slots[slot] for slot in step.outs),
                calls=(*step.calls, call),
            )
        )
    return new_slots


def _with_sums_of_products(steps: list[Step], outputs: Sequence[int]) -> list[Step]:
    """Return the steps, each float32 product that is only added to something as one with the sum.

    Triton makes what is added the first value of the accumulator (``CombineDotAddFPattern`` in
    ``triton/lib/Dialect/Triton/Transforms/Combine.td``); the rule of ``sum_of_product`` does so
    where a chip's arithmetic is simulated.
    """
    products = {
        step.outs[0]: number
        for number, step in enumerate(steps)
        if step.equation.name == "dot_general" and step.equation.out.dtype == np.float32
    }
    if not products:
        return steps
    uses = Counter(slot for step in steps for slot in step.ins)
    uses.update(outputs)
    merged: list[Step | None] = list(steps)
    for number, step in enumerate(steps):
        if step.equation.name != "add" or len({aval.shape for aval in step.equation.ins}) > 1:
            continue
        slot = next((slot for slot in step.ins if slot in products and uses[slot] == 1), None)
        if slot is not None:
            merged[number] = _sum_of_product(steps[products[slot]], step)
            merged[products[slot]] = None
    return [step for step in merged if step is not None]


def _sum_of_product(product: Step, addition: Step) -> Step:
    """Return the step that multiplies, and adds the other operand of an addition."""
    other = 1 - addition.ins.index(product.outs[0])
    ins = (*product.ins, addition.ins[other])
    equation = replace(
        product.equation,
        name="sum_of_product",
        ins=(*product.equation.ins, addition.equation.ins[other]),
        outs=addition.equation.outs,
    )
    rule = find_rule(equation.name)
    assert rule is not None
    return replace(
        product,
        evaluate=rule.bind(equation),
        threaded=rule.threaded,
        equation=equation,
        ins=ins,
        operands=_getter(ins),
        outs=addition.outs,
    )


def _getter(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Gives the values of some slots. All of it is C, since every step does this."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


def _freeing(steps: Sequence[Step], large: Collection[int]) -> tuple[Step, ...]:
    """Return the steps, each with the large results that it is the last one to read."""
    last = {slot: number for number, step in enumerate(steps) for slot in step.ins}
    dead: dict[int, list[int]] = {}
    for slot, number in last.items():
        if slot in large:
            dead.setdefault(number, []).append(slot)
    return tuple(
        replace(step, dead=tuple(dead.get(number, ()))) if step.dead or number in dead else step
        for number, step in enumerate(steps)
    )


def prepare_equation(eqn: Any, around: str = "", *, used: bool = True) -> Step:
    """Bind the rule of one equation; the step that it returns has no slots.

    Args:
      eqn: of a jaxpr.
      around: ``file:line`` of the equation around it.
      used: whether something reads a result.

    Raises:
      SimulationError: it cannot be evaluated: an effectful primitive has no rule, for one.
    """
    equation = _equation(eqn, around, used=used)
    rule = find_rule(equation.name, equation.home)
    try:
        evaluate = fallback(equation) if rule is None else rule.bind(equation)
    except SimulationError as error:
        if not error.line:  # of an equation inside, which JAX made
            error.at(equation.line, "")
        raise
    step = Step(
        evaluate=evaluate,
        threaded=rule is None or rule.threaded,
        several=eqn.primitive.multiple_results,
        equation=equation,
    )
    synchronizes = site_of(equation)
    if synchronizes is not None:
        step = _synchronizing(step, synchronizes)
    site = operand_site(equation)
    return step if site is None or equation.name in CALLS else _watching(step, site)


def _synchronizing(step: Step, site: SyncSite) -> Step:
    """Return a step that a run may leave out; see ``Machine.sites``."""
    evaluate = step.evaluate

    def synchronized(thread: Thread, *operands: Any) -> Any:
        sites = thread.machine.sites
        if sites is None:
            return evaluate(thread, *operands)
        return sites.evaluate(site, evaluate, thread, operands)

    return replace(step, evaluate=synchronized)


def _watching(step: Step, site: Site) -> Step:
    """Return a step that also counts what its mask or predicate is, inside of kernels."""
    evaluate, threaded, position = step.evaluate, step.threaded, site.decides

    def watched(thread: Thread, *operands: Any) -> Any:
        if thread.kernels:
            thread.machine.coverage.look(site, thread.kernels[-1], operands[position])
        return evaluate(thread, *operands) if threaded else evaluate(*operands)

    return replace(step, evaluate=watched, threaded=True)


def _equation(eqn: Any, around: str, *, used: bool = True) -> Equation:
    return Equation(
        name=eqn.primitive.name,
        params=eqn.params,
        ins=tuple(atom.aval for atom in eqn.invars),
        outs=tuple(var.aval for var in eqn.outvars),
        origin=eqn,
        home=home_of_primitive(eqn.primitive),
        around=around,
        used=used,
    )


def size_of(aval: Any) -> int:
    """Return bytes of an array of this shape and dtype; 0 for what is no array."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or not isinstance(dtype, np.dtype) or hasattr(aval, "inner_aval"):
        return 0
    if not all(isinstance(n, int) for n in shape):
        return 0
    return math.prod(shape) * dtype.itemsize


# The evaluator: walks a prepared program, one equation after the other.


def run(
    program: Program, thread: Thread, args: Sequence[Any], *, passes_on: bool = False
) -> list[Any]:
    """Return the results of a program.

    Args:
      program: what to evaluate.
      thread: who evaluates it.
      args: arrays and references, as many as the program has inputs.
      passes_on: whether its results are those of the equation that is evaluated, so that the
        caller follows a load beyond an edge whose value is among them.

    Raises:
      SimulationError: an equation cannot be evaluated; the message names its line.
      UndefinedLoadError: with ``passes_on``: the results, and what else they may be.
    """
    machine = thread.machine
    steps = program.steps
    if machine.steps + len(steps) > machine.limits.steps or (
        program.largest[0] > machine.limits.bytes
    ):
        _reject(program, thread)
    machine.steps += len(steps)
    inputs = program.inputs
    if len(args) != len(inputs):
        raise ValueError(f"a program of {len(inputs)} inputs gets {len(args)}")
    env = program.slots.copy()
    env[inputs.start : inputs.stop] = args
    walk: Iterator[Step] = iter(steps)
    if machine.inspector is not None:
        walk = machine.inspector.steps(steps, thread, env)
    step: Any = None  # the ``Step`` that is evaluated
    followed: list[Generator[Step]] = []
    alternatives: list[dict[int, Sequence[Any]]] = []  # of the slots, for each that is followed
    loads: list[UndefinedLoadError] | None = [] if passes_on else None
    try:
        while True:
            try:
                for step in walk:
                    if step.threaded:
                        result = step.evaluate(thread, *step.operands(env))
                    else:
                        result = step.evaluate(*step.operands(env))
                    if not step.several:
                        env[step.outs[0]] = result
                    elif step.outs:
                        for slot, value in zip(step.outs, result, strict=True):
                            env[slot] = value
                    if step.dead:
                        for slot in step.dead:
                            env[slot] = None
                break
            except UndefinedLoadError as load:
                values = load.values if step.several else [load.values]
                for slot, value in zip(step.outs, values, strict=True):
                    env[slot] = value
                outputs = program.outputs
                walk = _following(load, step, walk, thread, env, outputs, loads, alternatives)
                followed.append(walk)
    except SimulationError as error:
        if not error.line and step is not None:
            error.at(step.line, thread.location)
        raise
    except PallasError:
        raise
    except Exception as error:
        if machine.inspector is not None and error is machine.inspector.raised:
            raise
        assert step is not None
        wrapped = SimulationError(
            f"the simulator cannot evaluate {step.equation.name}: {type(error).__name__}: {error}"
        )
        wrapped.at(step.line, thread.location)
        raise wrapped from error
    finally:
        for generator in reversed(followed):
            generator.close()
    if loads:
        for load in loads[1:]:  # one is followed, and the others are taken to reach something
            report(thread, load.finding)
        raise loads[0]
    return [env[slot] for slot in program.outputs]


def _following(
    load: UndefinedLoadError,
    loading: Step,
    walk: Iterator[Step],
    thread: Thread,
    env: Sequence[Any],
    outputs: Sequence[int],
    loads: list[UndefinedLoadError] | None,
    alternatives: list[dict[int, Sequence[Any]]],
) -> Generator[Step]:
    """Yield the steps after a load beyond an edge, and report the load and what becomes of it.

    What only computes is evaluated again with the other values that the load may give. The value
    reaches something if it changes what the program returns, or what any other step gets.

    Args:
      load: what the load gives.
      loading: its step.
      walk: the steps that follow.
      thread: who evaluates them.
      env: the values of the slots.
      outputs: slots of the results of the program.
      loads: takes the results instead of a report, if the value is among them; or None.
      alternatives: what slots may hold for each load that is followed; this one is added.
    """
    finding = replace(load.finding, line=load.finding.line or loading.line)
    columns = load.others if loading.several else [[value] for value in load.others]
    others: dict[int, Sequence[Any]] = dict(
        zip(loading.outs, zip(*columns, strict=True), strict=True)
    )
    alternatives.append(others)
    dropped, passed = False, False
    try:
        for step in walk:
            operands = [env[slot] for slot in step.ins]
            yield step
            if others.keys().isdisjoint(step.ins) or _ignores(step, operands, others):
                continue
            if not _computes(step.equation.origin):
                break
            results = [env[slot] for slot in step.outs]
            changed = _changed(step, thread, operands, results, others)
            for also in alternatives:
                if also is others or also.keys().isdisjoint(step.ins):
                    continue
                # What one load gives may hide the other one, as NaN does in a sum.
                for number in range(len(load.others)):
                    varied = _with(step.ins, operands, also, number)
                    results = _evaluated(step, thread, varied)
                    changed = _changed(step, thread, varied, results, others) | changed
            others.update(changed)
        else:
            dropped = others.keys().isdisjoint(outputs)
            passed = not dropped and loads is not None
    finally:
        if not passed:
            report(thread, replace(finding, dropped=dropped))
    if passed and loads is not None:
        values = [env[slot] for slot in outputs]
        columns = [
            [others[slot][number] if slot in others else env[slot] for slot in outputs]
            for number in range(len(load.others))
        ]
        loads.append(UndefinedLoadError(values, columns, finding))
    yield from walk


def _ignores(step: Step, operands: Sequence[Any], others: Mapping[int, Sequence[Any]]) -> bool:
    """Return whether a step runs a branch that uses none of the values that may be others."""
    index, *slots = step.ins
    if step.equation.name != "cond" or index in others:
        return False
    branches = step.equation.params["branches"]
    branch = open_jaxpr(branches[max(0, min(int(operands[0]), len(branches) - 1))])[0]
    used = {atom for eqn in branch.eqns for atom in eqn.invars if not is_literal(atom)}
    used.update(atom for atom in branch.outvars if not is_literal(atom))
    pairs = zip(slots, branch.invars, strict=True)
    return not any(slot in others and var in used for slot, var in pairs)


def _changed(
    step: Step,
    thread: Thread,
    operands: Sequence[Any],
    results: Sequence[Any],
    others: Mapping[int, Sequence[Any]],
) -> dict[int, Sequence[Any]]:
    """Return what the results of a step are with other values of its operands, where they differ.

    Args:
      step: the step.
      thread: who evaluates it.
      operands: its operands.
      results: what it gives for them.
      others: for slots, the other values.
    """
    count = len(next(iter(others.values())))
    varied = [
        _evaluated(step, thread, _with(step.ins, operands, others, number))
        for number in range(count)
    ]
    return {
        slot: values
        for slot, result, values in zip(step.outs, results, zip(*varied, strict=True), strict=True)
        if not all(same_bits(np.asarray(result), np.asarray(value)) for value in values)
    }


def _with(
    slots: Sequence[int], operands: Sequence[Any], others: Mapping[int, Sequence[Any]], number: int
) -> list[Any]:
    """Return operands with one of the other values in the place of those that have some."""
    pairs = zip(slots, operands, strict=True)
    return [others[slot][number] if slot in others else operand for slot, operand in pairs]


def _evaluated(step: Step, thread: Thread, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a step for some operands."""
    result = step.evaluate(thread, *operands) if step.threaded else step.evaluate(*operands)
    return result if step.several else [result]


def _computes(eqn: Any) -> bool:
    """Return whether all that an equation does is to compute its results, and it surely ends."""
    if eqn is None or eqn.effects or any(hasattr(atom.aval, "inner_aval") for atom in eqn.invars):
        return False
    rule = find_rule(eqn.primitive.name, home_of_primitive(eqn.primitive))
    if rule is not None and (rule.computes or not rule.threaded):
        return True
    calls = eqn.primitive.name in CALLS or eqn.primitive.name == "cond"
    bodies = [open_jaxpr(jaxpr)[0] for jaxpr in sub_jaxprs(eqn)]
    return calls and all(_computes(inner) for body in bodies for inner in body.eqns)


def _reject(program: Program, thread: Thread) -> None:
    """Raise what ``run`` raises for a program that exceeds a limit."""
    machine = thread.machine
    try:
        machine.count(len(program.steps))
        size, equation = program.largest
        assert equation is not None
        aval = equation.out
        machine.require(size, f"the result of {equation.name}, {aval.dtype}{list(aval.shape)},")
    except SimulationError as error:
        guilty = program.largest[1] or program.steps[0].equation
        if machine.steps > machine.limits.steps and program.steps:
            guilty = program.steps[0].equation
        error.at(guilty.line, thread.location)
        raise


# Primitives without a rule: what JAX composes of others, or evaluates; others are rejected.


def fallback(eqn: Equation) -> Evaluate:
    """Evaluate an equation as what JAX lowers it to, or by JAX on the CPU.

    JAX compiles for each shape; runs count it.

    Raises:
      MissingRuleError: the primitive has effects, works on references, or runs a program.
    """
    takes_references = any(hasattr(aval, "inner_aval") for aval in (*eqn.ins, *eqn.outs))
    if eqn.origin is not None and not eqn.origin.effects and not takes_references:
        composed = _composed(eqn)
        if composed is not None:
            return composed
        if not any(sub_jaxprs(eqn.origin)):
            return by_jax(eqn)
    error = MissingRuleError(f"the simulator has no rule for the primitive {eqn.name!r}")
    error.at(eqn.line, "")
    raise error


def by_jax(eqn: Equation) -> Evaluate:
    """Evaluate an equation by JAX on the CPU."""

    def evaluate(thread: Thread, *values: Any) -> Any:
        import jax
        from jax.core import eval_context

        thread.machine.fallbacks[eqn.name] += 1
        with jax.default_device(jax.local_devices(backend="cpu")[0]), eval_context():
            results = bind(eqn.origin, [to_jax(value) for value in values])
        outputs = [from_jax(result, out) for result, out in zip(results, eqn.outs, strict=True)]
        return outputs if eqn.origin.primitive.multiple_results else outputs[0]

    return evaluate


def _composed(eqn: Equation) -> Evaluate | None:
    """Return how to evaluate what JAX composes a primitive of; None if it does not."""
    jaxpr = composition(eqn.origin.primitive, eqn.ins, eqn.params)
    if jaxpr is None:
        return None
    program = prepare(jaxpr)
    if eqn.origin.primitive.multiple_results:
        return lambda thread, *values: run(program, thread, values)
    return lambda thread, *values: run(program, thread, values)[0]
