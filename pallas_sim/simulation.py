"""``simulate``: run a function that holds Pallas kernels, without compiling anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pallas_sim import rules as rules  # which registers them
from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Target, accumulations
from pallas_sim.compat.grids import platform_of
from pallas_sim.compat.jaxprs import KERNEL_PRIMITIVES, equations
from pallas_sim.copies import release
from pallas_sim.coverage import Reached
from pallas_sim.eager import EvaluateJaxpr, evaluated_eagerly, evaluating_eagerly
from pallas_sim.errors import (
    BoundsError,
    DeadlockError,
    Inline,
    MissingRuleError,
    OptionError,
    PallasError,
    first_line,
)
from pallas_sim.evaluation import (
    CALLS,
    Program,
    Step,
    called,
    prepare,
    prepare_equation,
    run,
)
from pallas_sim.exploration.orders import ReplayedOrder
from pallas_sim.exploration.witness import Witness
from pallas_sim.findings import Finding, text_of
from pallas_sim.inspector import Inspector, RefChange
from pallas_sim.liveness import uses_of_kernels
from pallas_sim.machine import Limits, Machine, Thread
from pallas_sim.memory import Ref, from_jax, to_output
from pallas_sim.order.disorder import report_disorder
from pallas_sim.platforms import set_platforms
from pallas_sim.registry import Equation
from pallas_sim.scheduler import one_thread
from pallas_sim.sites import SiteLog, SyncSite
from pallas_sim.timeline import Timeline, check_path, timeline_text
from pallas_sim.tracing import tracing_for


@dataclass(frozen=True, kw_only=True)
class Simulation(Inline):
    """How a simulated call went.

    Attributes:
      values: what the function returned, as a pytree of numpy arrays.
      findings: what is wrong with its kernels, whatever they returned.
      steps: how many equations were evaluated.
      fallbacks: how often JAX evaluated a primitive that has no rule, by name.
      watched: the changes of the references named by ``watch``.
      notes: which behavior of the run is unverified, as no document describes it.
      coverage: which ways its kernels went, and did not go: see ``coverage.Reached``.
    """

    values: Any
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    fallbacks: dict[str, int]
    watched: tuple[RefChange, ...] = ()
    notes: tuple[str, ...] = ()
    coverage: tuple[Reached, ...] = ()


def evaluate(jaxpr: Any, machine: Machine, args: Sequence[Any]) -> list[Any]:
    """Return the results of a jaxpr on a machine.

    Args:
      jaxpr: open or closed, as JAX traced it.
      machine: where it runs; it keeps what is found.
      args: arrays, as many as the jaxpr has inputs.

    Raises:
      SimulationError: an equation cannot be evaluated; the message names its line.
      OptionError: the machine's inspector is to watch or stop at what the jaxpr does not have.
    """
    inputs = [from_jax(value, var.aval) for value, var in zip(args, _inputs(jaxpr), strict=True)]
    if machine.inspector is not None:
        machine.inspector.learn(jaxpr)
        machine.inspector.require()
    machine.uses = uses_of_kernels(jaxpr)
    machine.choices.begin(jaxpr)
    thread = Thread(machine)
    with np.errstate(all="ignore"), one_thread(), _monitored(thread):
        outputs = [to_output(value) for value in _results_of(prepare(jaxpr), thread, inputs)]
        _hand_over(machine, outputs)
        machine.choices.complete()
        return outputs


def _results_of(program: Program, thread: Thread, inputs: Sequence[Any]) -> Sequence[Any]:
    """Run a program; as a task where every order is explored, also those of one core's copies."""
    machine = thread.machine
    if not machine.choices.explores:
        return run(program, thread, inputs)
    return machine.scheduler.run([thread], lambda thread: run(program, thread, inputs))[0]


def _hand_over(machine: Machine, outputs: Sequence[Any]) -> None:
    """Leave it to the caller what becomes of the semaphores among the results."""
    semaphores = {id(one) for array in outputs if array.dtype == object for one in array.flat}
    if semaphores:
        machine.lasting[:] = [one for one in machine.lasting if id(one) not in semaphores]


def evaluate_equation(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of one equation of a jaxpr.

    Args:
      eqn: the equation; one without effects.
      values: of its operands.

    Raises:
      SimulationError: it cannot be evaluated.
    """
    step = prepare_equation(eqn)
    inputs = [from_jax(value, aval) for value, aval in zip(values, step.equation.ins, strict=True)]
    with np.errstate(all="ignore"), one_thread():
        return _results(step, Thread(Machine()), inputs)


def _results(step: Step, thread: Thread, arrays: Sequence[Any]) -> Sequence[Any]:
    results = step.evaluate(thread, *arrays) if step.threaded else step.evaluate(*arrays)
    return results if step.several else [results]


#: Gives the results of an equation on arrays.
OnArrays = Callable[[Sequence[Any]], Sequence[Any]]


def evaluate_with[Value](
    jaxpr: Any,
    args: Sequence[Any],
    apply: Callable[[Equation, Sequence[Value], OnArrays], Sequence[Value]],
    wrap: Callable[[Any], Value],
    unwrap: Callable[[Value], Any],
) -> list[Any]:
    """Evaluate a jaxpr on values of the caller's own, such as numbers with their errors.

    Functions that are called (``jit``, ``checkpoint``) are entered. Anything else, a loop or a
    branch too, is one equation.

    Args:
      jaxpr: open or closed, as JAX traced it.
      args: arrays, as many as the jaxpr has inputs.
      apply: gives the results of an equation. It gets the equation, its operands and a function
        that evaluates the equation on arrays. Equations are the same objects in each call.
      wrap: makes a value of an array: of an argument, a constant or a literal.
      unwrap: gives the array of a value.

    Returns:
      The arrays of the results.

    Raises:
      SimulationError: an equation cannot be evaluated.
    """
    thread = Thread(Machine())

    def walk(program: Program, inputs: Sequence[Any]) -> list[Any]:
        values: list[Any] = [None if array is None else wrap(array) for array in program.slots]
        values[program.inputs.start : program.inputs.stop] = inputs
        for step in program.steps:
            operands = [values[slot] for slot in step.ins]
            if step.equation.name in CALLS:
                results = walk(prepare(called(step.equation.params)), operands)
            else:
                results = apply(step.equation, operands, partial(_results, step, thread))
            for slot, value in zip(step.outs, results, strict=True):
                values[slot] = value
        return [values[slot] for slot in program.outputs]

    pairs = zip(args, _inputs(jaxpr), strict=True)
    with np.errstate(all="ignore"), one_thread():
        inputs = [wrap(from_jax(value, var.aval)) for value, var in pairs]
        return [to_output(unwrap(value)) for value in walk(prepare(jaxpr), inputs)]


def run_eagerly(
    function: Callable[..., Any],
    machine: Machine,
    args: Sequence[Any],
    change: Callable[[Any], Any] | None = None,
) -> Any:
    """Call a function operation by operation, on values that it may look at.

    Args:
      function: called with one value for each of ``args``.
      machine: where it runs; it keeps what is found.
      args: arrays.
      change: applied to the jaxpr of each operation before it is evaluated, or None.

    Raises:
      SimulationError: an operation cannot be evaluated; the message names its line.
      Exception: what the function itself raises.
    """
    thread = Thread(machine)
    with np.errstate(all="ignore"), one_thread(), _monitored(thread):
        import jax

        values = evaluated_eagerly(function, args, _evaluator(thread, change))
        outputs = jax.tree.map(to_output, values)
    if machine.inspector is not None:
        machine.inspector.require()
    return outputs


@contextmanager
def simulating(machine: Machine) -> Generator[None]:
    """Evaluate all of JAX's operations in this context on a machine, one by one.

    What JAX gives are tracers, which have values. The machine keeps what is found, and looks for
    what is out of order when the context ends. The chip that kernels ask for is up to the caller:
    see ``tracing.tracing_for``.

    Raises:
      SimulationError: an operation cannot be evaluated; the message names its line.
    """
    thread = Thread(machine)
    with (
        np.errstate(all="ignore"),
        one_thread(),
        _monitored(thread),
        evaluating_eagerly(_evaluator(thread)),
    ):
        yield


def _evaluator(thread: Thread, change: Callable[[Any], Any] | None = None) -> EvaluateJaxpr:
    """Evaluates the jaxpr of one operation, changed by ``change``, on values."""
    inspector = thread.machine.inspector

    def evaluated(jaxpr: Any, values: Sequence[Any]) -> Sequence[Any]:
        jaxpr = jaxpr if change is None else change(jaxpr)
        if inspector is not None:
            inspector.learn(jaxpr)
        inputs = [
            value if isinstance(value, Ref) else from_jax(value, var.aval)
            for value, var in zip(values, _inputs(jaxpr), strict=True)
        ]
        return run(prepare(jaxpr), thread, inputs)

    return evaluated


@contextmanager
def _monitored(thread: Thread) -> Generator[None]:
    """Find what is out of order in a run, and left behind at its end.

    Raises:
      BoundsError: an access was beyond an edge, and the limits say that such a run raises, or
        something else ended it, which may follow from that.
    """
    machine = thread.machine
    try:
        yield
        release(thread, machine.lasting, "")
        for device in machine.devices.values():
            release(thread, device.barriers.values(), "")
    except Exception as error:
        report_disorder(machine, machine.recording)
        if machine.beyond and not isinstance(error, BoundsError | MissingRuleError):
            raise _beyond(machine, error) from error
        _keep_findings(error, machine.findings)
        raise
    finally:
        report_disorder(machine, machine.recording)
    if machine.beyond and machine.limits.out_of_bounds == "raise":
        raise _beyond(machine)


def _beyond(machine: Machine, error: Exception | None = None) -> BoundsError:
    """Return the error of a run with accesses beyond an edge, and with all else that it found."""
    findings = machine.findings
    first = [finding for finding in findings if finding.kind == "bounds"]
    bounds = BoundsError.of(*first, *(finding for finding in findings if finding not in first))
    if error is not None and not getattr(error, "findings", ()):
        bounds.args = (f"{bounds}\n  then the run ended: {first_line(error)}",)
    bounds.timed_out = getattr(error, "timed_out", False)
    return bounds


def _keep_findings(error: Exception, findings: Sequence[Finding]) -> None:
    """Let an error that ended a run say what was found until then: a deadlock, first."""
    own = error.findings if isinstance(error, PallasError) else ()
    before = tuple(finding for finding in findings if finding not in own)
    if not before:
        return
    if not isinstance(error, PallasError):
        error.add_note(f"found until then: {text_of(before)}")
        return
    error.findings = (*before, *own)
    if isinstance(error, DeadlockError):
        error.args = (f"{text_of(before)}\n  {error}",)
    elif own:
        error.args = (f"{error}\n  {text_of(before)}",)
    else:
        error.args = (f"{error}\n  found until then: {text_of(before)}",)


def _inputs(jaxpr: Any) -> Sequence[Any]:
    return getattr(jaxpr, "jaxpr", jaxpr).invars


def simulate(
    fn: Callable[..., Any],
    *args: Any,
    target: str = "",
    seed: int = 0,
    limits: Limits | None = None,
    machine: Machine | None = None,
    jit: bool = True,
    arithmetic: str = "",
    read_fences: str = "",
    witness: Witness | str = "",
    trace: str | os.PathLike[str] | None = None,
    watch: str | Sequence[str] = (),
    stop_at: str | Sequence[str] = (),
    without: Collection[SyncSite] = (),
    **options: Any,
) -> Simulation:
    """Run ``fn(*args, **options)`` on a simulated chip.

    The function is traced by JAX and evaluated equation by equation: nothing is compiled. Without
    ``jit`` it is called as it is, and may look at values.

    Args:
      fn: calls Pallas kernels, and may do anything else that JAX can trace.
      args: pytrees of arrays; leaves that are no arrays are passed as they are, untraced.
      target: the chip: ``"v4"``, ``"v5e"``, ``"v5p"``, ``"v6e"``, ``"tpu7x"``, ``"a100"``,
        ``"h100"``, ``"h200"`` or ``"b200"``. By default ``"v6e"``, or ``"h100"`` if all kernels
        that show their platform are for GPUs; with ``jit=False`` always ``"v6e"``. If a TPU is
        named, kernels that its compiler refuses for their operations or dtypes are refused here.
      seed: decides everything that hardware may do in any order, and the errors of functions.
      limits: how many equations may be evaluated, and how much memory used.
      machine: where it runs, in place of a new one of that target, seed, limits, arithmetic and
        fences.
      jit: False to call the function as it is, because it needs the values of its arguments.
      arithmetic: ``"chip"``: the sums of tensor cores keep the bits that the chip keeps, functions
        of GPUs have its errors, and TPUs multiply float32 in passes; or ``"float32"``. By default
        ``"chip"`` on chips that gave the same bits: ``"h100"`` and ``"h200"``; also known of
        ``"a100"``, ``"b200"`` and TPUs. See docs/simulator.md.
      read_fences: which TMA copies of a GPU need a fence after threads have read what they
        overwrite: ``"kernel"``, those that the kernel starts itself (the default), ``"all"``, also
        those of JAX's pipelines, or ``"none"``. See docs/simulator.md.
      witness: an order that ``explore`` gave for this call, as data or text, in place of that of
        the seed.
      trace: a file to write a timeline of the run to, for Perfetto or chrome://tracing; also that
        of a run that an error ends.
      watch: names of references: each change of their values is printed, and in ``watched``.
      stop_at: lines of kernels, ``"kernel.py:41"``: before each equation of one, the debugger
        (``breakpoint()``) stops in ``inspector.stopped``, where ``refs``, ``values``, ``operands``,
        ``program`` and ``thread`` can be looked at.
      without: sites of waits, signals and barriers that are left out: see ``synchronization``.
      options: keyword arguments, passed untraced.

    Raises:
      OptionError: there is no such target or setting, or its arithmetic is not known; ``witness``
        is of another call, or ``jit`` is False; ``trace`` cannot be written; no kernel has a
        reference of a name in ``watch``, or no equation is at a line of ``stop_at``.
      SimulationError: the call cannot be simulated; the message names the kernel's line.
      Exception: what the function itself raises while it is traced.
    """
    set_platforms()
    call = SimulatedCall.of(fn, args, options)
    named = bool(target)
    chip = call.chip(target if machine is None else machine.target, jit=jit)
    if machine is None:
        limits = limits or Limits()
        machine = Machine(
            target=chip.name,
            seed=seed,
            cores=chip.cores,
            limits=limits,
            arithmetic=arithmetic,
            read_fences=read_fences,
            named=named,
            sites=SiteLog(frozenset(without)) if without else None,
        )
    accumulations(machine.target, machine.arithmetic)  # which rejects what is not known
    if witness:
        replay(machine, witness, jit=jit)
    with _looked_at(machine, trace, watch, stop_at):
        values = call.run(machine, jit=jit)
    inspector = machine.inspector
    return Simulation(
        values=values,
        findings=tuple(machine.findings),
        steps=machine.steps,
        fallbacks=dict(machine.fallbacks),
        watched=tuple(inspector.changes) if isinstance(inspector, Inspector) else (),
        notes=tuple(machine.notes),
        coverage=machine.coverage.reached(),
    )


def replay(machine: Machine, witness: Witness | str, *, jit: bool = True) -> None:
    """Let a machine repeat an order.

    Args:
      machine: that has run nothing yet.
      witness: the order, as data or text. ``evaluate`` rejects one of another call.
      jit: False if the call is not traced as a whole.

    Raises:
      OptionError: the text is none of an order, or ``jit`` is False.
    """
    replayed = Witness.parse(witness) if isinstance(witness, str) else witness
    if not jit:
        raise OptionError(
            "a witness is of a call that is traced as a whole: leave out jit=False, or witness="
        )
    machine.choices = ReplayedOrder(machine=machine, replayed=replayed)


@contextmanager
def _looked_at(
    machine: Machine,
    trace: str | os.PathLike[str] | None,
    watch: str | Sequence[str],
    stop_at: str | Sequence[str],
) -> Generator[None]:
    """Give a machine an inspector where one is needed, and write its timeline at the end."""
    path = None if trace is None else check_path(trace)
    if path is not None:
        machine.keep_timeline(Timeline())
    if watch or stop_at:
        machine.inspector = Inspector(_listed(watch), _listed(stop_at))
    try:
        yield
    finally:
        if path is not None and machine.timeline is not None:
            about = {"target": machine.target, "seed": machine.seed}
            path.write_text(timeline_text(machine.timeline, about), encoding="utf-8")


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) and names else tuple(names)


@dataclass(eq=False)
class SimulatedCall:
    """A call of a function, as one of arrays.

    Attributes:
      function: takes the arrays.
      arrays: those among its arguments.
      target: the chip that it was traced for; "" before.
      traced: the jaxpr, and the structure of the results.
    """

    function: Callable[..., Any]
    arrays: Sequence[Any]
    target: str = ""
    traced: tuple[Any, Any] = (None, None)

    @classmethod
    def of(
        cls, fn: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
    ) -> SimulatedCall:
        """Return the call ``fn(*args, **options)``."""
        import jax

        leaves, tree = jax.tree.flatten(args)
        where = [position for position, leaf in enumerate(leaves) if _is_array(leaf)]

        def of_arrays(*arrays: Any) -> Any:
            filled = list(leaves)
            for position, array in zip(where, arrays, strict=True):
                filled[position] = array
            return fn(*jax.tree.unflatten(tree, filled), **options)

        return cls(of_arrays, [leaves[position] for position in where])

    def chip(self, target: str, *, jit: bool = True) -> Target:
        """Return the chip of a name; without one, that which its kernels are for.

        Raises:
          OptionError: there is none of that name.
        """
        target = target or (self.trace_for_default() if jit else DEFAULT_TARGETS["tpu"])
        if target not in TARGETS:
            raise OptionError(f"unknown target {target!r}; valid: {', '.join(TARGETS)}")
        return TARGETS[target]

    def trace(self, target: str) -> None:
        """Trace the function for a chip, unless that was done."""
        import jax

        if self.target != target:
            self.traced = jax.make_jaxpr(self.function, return_shape=True)(*self.arrays)
            self.target = target

    def trace_for_default(self) -> str:
        """Trace the function for the default chip of its kernels' platform, and return that."""
        tpu, gpu = DEFAULT_TARGETS["tpu"], DEFAULT_TARGETS["gpu"]
        try:
            with tracing_for(TARGETS[tpu]):
                self.trace(tpu)
        except Exception:  # some kernels ask for what only a GPU has
            with suppress(Exception), tracing_for(TARGETS[gpu]):
                self.trace(gpu)
            if self.target != gpu or not self._is_for_gpus():
                raise
        return gpu if self._is_for_gpus() else tpu

    def _is_for_gpus(self) -> bool:
        kernels = (e for e in equations(self.traced[0]) if e.primitive.name in KERNEL_PRIMITIVES)
        platforms = set(map(platform_of, kernels))
        return "gpu" in platforms and "tpu" not in platforms

    def run(self, machine: Machine, *, jit: bool) -> Any:
        """Return what the function returns on a machine."""
        import jax

        with tracing_for(TARGETS[machine.target]):
            if not jit:
                return run_eagerly(self.function, machine, self.arrays)
            self.trace(machine.target)
            jaxpr, shape = self.traced
            flat = evaluate(jaxpr, machine, self.arrays)
            return jax.tree.unflatten(jax.tree.structure(shape), flat)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
