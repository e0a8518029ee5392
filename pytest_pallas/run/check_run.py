"""``CheckRun``: one check of one kernel in one place, and the way of an example through it.

All take this way: items of specs, ``pallas_check``, ``pytest_pallas.check``, replays, and trials of
mutants. ``check_run`` makes a ``CheckRun`` from a spec or from a call. ``run_example`` runs the
check on one example, and adds what comes out to the run's ``Result``.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError, PallasError
from pallas_sim.traces import equations_inside
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.registry import parse
from pytest_pallas.budget import (
    ELEMENTS_PER_EQUATION,
    EXAMPLE_COST,
    TRACE_COST,
    ExampleBudget,
)
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    ComparisonPeer,
    call,
)
from pytest_pallas.checks.diagnosis import diagnose
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.checks.verdict import drawn_facts, run_check
from pytest_pallas.compat.fuzzing import is_rejection, rejecting
from pytest_pallas.draw.arguments import Arguments, as_arguments
from pytest_pallas.draw.arrays import strategy_errors
from pytest_pallas.draw.examples import draw_name, goal_of
from pytest_pallas.draw.meshes import MeshAxes, examples_for, fixed_sizes, place_of, sizes_of
from pytest_pallas.draw.signatures import as_strategy
from pytest_pallas.errors import NotApplicableError, facts_of
from pytest_pallas.grid.kernel_calls import on_two_devices
from pytest_pallas.judge.tolerance import Tolerance, as_tolerance
from pytest_pallas.options import Options
from pytest_pallas.record import Note
from pytest_pallas.run.backends import adapted, others_of
from pytest_pallas.run.result import Result
from pytest_pallas.session import Session
from pytest_pallas.spec import CallProperties, KernelSpec, properties_of

if TYPE_CHECKING:
    from pytest_pallas.draw.examples import ExampleSource, Subjects
    from pytest_pallas.replay.goldens import LoadedExample


#: The part of the examples of a check that run even if each is expensive, and of ``forward``.
_LEAST, _LEAST_OF_BASE = 1 / 3, 2 / 3


@dataclass(frozen=True, kw_only=True)
class CheckRun(CallProperties):
    """A check of a kernel on a backend and a mesh, in one test.

    ``CallProperties`` has the properties of the kernel, of a spec or of a call.

    Attributes:
      session: of the run.
      results: gets the result, by kernel, check and backend; those of the running test.
      check: the check.
      name: of the kernel, for records and messages.
      kernel: the function on the mesh; see ``CheckContext``.
      reference: likewise; None on a backend that executes nothing.
      backend: where the kernel runs.
      axes: of the mesh, each with its size, or the sizes to draw; empty without one.
      mesh: the ``jax.sharding.Mesh`` to run on; None without one, or if each example draws its own.
      meshes: the meshes that are drawn, with the strategies of their calls; see ``on_its_mesh``.
      others: the peers to compare with.
      spec: the spec; None for a function.
      drawn: whether examples are drawn from the spec, rather than given by a call.
      node: the test whose marks hold: an item of a spec or a test function; None outside of tests.
      options: as they hold for that test.
      test: the name of the test in goldens.
      before: the backends of the spec to compare with.
      expected: whether it is expected to fail, so that it does not shrink.
      left_out: returns whether collection left out a check, by name.
      costs: of the examples that ran; see ``ExampleBudget``.
      traces: of their traces, likewise.
    """

    session: Session
    results: dict[tuple[str, str, str], Result]
    check: Check
    name: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any] | None
    backend: Backend
    axes: MeshAxes
    mesh: Any
    others: Sequence[ComparisonPeer]
    spec: KernelSpec | None
    drawn: bool
    node: pytest.Item | None
    options: Options
    test: str
    meshes: Sequence[tuple[Any, Any]] = ()
    before: Sequence[Backend] = ()
    expected: bool = False
    left_out: Callable[[str], bool] = lambda _: False
    costs: list[int] = field(default_factory=list[int])
    traces: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def backend_name(self) -> str:
        """The backend with the axes of the mesh, which tells its result from others."""
        return place_name(self.backend, self.axes)

    @property
    def headline(self) -> str:
        """The start of its messages."""
        return f"{self.name}: {self.check.name} on {self.backend_name}"

    @property
    def result(self) -> Result:
        """Its result, made at its first use."""
        key = (self.name, self.check.name, self.backend_name)
        if key not in self.results:
            self.results[key] = Result.of(
                self.spec or self.name,
                self.check.name,
                self.backend,
                fixed_sizes(self.axes),
                function=self.kernel,
            )
        return self.results[key]

    def drop_result(self) -> None:
        """Make no record: the check applies to nothing."""
        self.results.pop((self.name, self.check.name, self.backend_name), None)

    @property
    def devices(self) -> int:
        """The number of devices that the kernel runs on, at most if it is drawn."""
        meshes = [self.mesh] if self.mesh is not None else [mesh for mesh, _ in self.meshes]
        return max((mesh.size for mesh in meshes), default=1)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the mesh, by axis; empty without one, or if each example draws its own."""
        return {} if self.mesh is None else dict(self.mesh.shape)

    @property
    def owner(self) -> str:
        """The name of its item, whether there is one or not: its failing examples are under it."""
        assert self.spec is not None
        return item_name(self.spec, self.check.name, self.backend, self.axes)

    @property
    def budget(self) -> ExampleBudget:
        """How many examples to draw, without a time limit.

        It is a fixed number if the options say so, or where nothing counts what examples cost.
        """
        if not self.drawn:
            return ExampleBudget.fixed(0)
        count = self.check.examples(self.options.examples_on(self.backend.kind, self.devices))
        simulates = self.backend.kind == "simulating"
        if "max_examples" in self.options.explicit:
            return ExampleBudget.fixed(count, varies=not simulates)
        part = _LEAST_OF_BASE if self.check.base else _LEAST
        least = max(self.check.min_examples, math.ceil(count * part))
        if self.meshes and self.check.every_mesh:
            least = examples_for(self.axes, [dict(mesh.shape) for mesh, _ in self.meshes])
            count = max(count, least)
        if not simulates or gang() is not None:
            return ExampleBudget.fixed(count, varies=not simulates)
        most = 1 << count.bit_length() if self.check.base else count
        return ExampleBudget(
            count=count, least=least, most=most, costs=self.costs, traces=self.traces
        )

    @property
    def source_key(self) -> tuple[Any, ...]:
        """The key of its examples' source among those of other specs and meshes."""
        assert self.spec is not None
        meshes = [str(mesh.shape) for mesh, _ in self.meshes]
        return (self.spec.file, self.spec.name, *self.axes.items(), *meshes)

    @property
    def source(self) -> ExampleSource:
        """The source of the spec's examples, which its checks and backends share."""
        from pytest_pallas.draw.examples import shared

        return shared(self.session.sources, self.source_key, self._strategy)

    def _strategy(self) -> Any:
        spec: Any = self.spec
        meshes = self.meshes
        if not meshes:
            strategy = spec.inputs
            if self.mesh is not None:
                with strategy_errors():
                    strategy = as_strategy(spec.name, strategy(self.mesh))
            meshes = [(self.mesh, strategy)]
        return adapted(self.session, spec, self.axes, meshes)


def place_name(backend: Backend, axes: MeshAxes) -> str:
    """Return a backend with a mesh: ``tpu-sim:v6e-x4``, or ``tpu-sim:v6e-x`` if that is drawn."""
    return f"{label(backend)}{place_of(axes)}"


def item_name(spec: KernelSpec, check: str, backend: Backend, axes: MeshAxes) -> str:
    """Return the name of the item of a check, which owns its failing examples."""
    return f"{spec.name}-{check}[{place_name(backend, axes)}]"


def check_run(
    session: Session,
    backend: Backend,
    kernel: KernelSpec | Callable[..., Any],
    *,
    mesh: Any = None,
    axes: MeshAxes | None = None,
    **fields: Any,
) -> CheckRun:
    """Make the run of a kernel's check, from a spec or from the arguments of a call.

    Args:
      session: of the run.
      backend: where the kernel runs.
      kernel: a spec, which has its properties, or a function.
      mesh: the ``jax.sharding.Mesh`` that kernel and reference get, or None.
      axes: of the mesh, or of those to draw.
      **fields: other fields of ``CheckRun``; those of a function are its properties, too. The
        check is by default ``forward``, the test that which is running.
    """
    axes = axes or {}
    node: pytest.Item | None = fields.setdefault("node", session.item)
    stated: dict[str, Any] = {"reference": None, "others": (), "spec": None}
    if not isinstance(kernel, KernelSpec):
        stated |= {"name": name_of(kernel), "kernel": kernel}
    else:
        spec = kernel
        stated |= {
            "spec": spec,
            "name": spec.name,
            "kernel": spec.kernel_for(backend.platform),
            "reference": spec.reference,
            "others": others_of(spec, backend, fixed_sizes(axes), fields.get("before", ())),
            "tolerance": spec.tolerance,
            "claimed": spec.claimed,
            **properties_of(spec),
        }
    stated |= fields
    stated |= _functions_on(mesh, stated["kernel"], stated["reference"])
    stated.setdefault("check", session.base)
    stated.setdefault("drawn", False)
    stated.setdefault("test", "" if node is None else node.nodeid.partition("[")[0])
    return CheckRun(
        session=session,
        results=session.results,
        backend=backend,
        mesh=mesh,
        axes=axes,
        options=session.options_for(node),
        **stated,
    )


def _functions_on(mesh: Any, kernel: Any, reference: Any) -> dict[str, Any]:
    """Return the functions on a mesh, by role; as they are without one."""
    return {
        role: function if None in (mesh, function) else functools.partial(function, mesh=mesh)
        for role, function in (("kernel", kernel), ("reference", reference))
    }


def on_its_mesh(run: CheckRun, arguments: Arguments) -> CheckRun:
    """Return a run on the mesh that an example drew; the run itself if it is on one, or has none.

    Raises:
      OptionError: it does not draw this mesh, as in a replay with other devices.
    """
    if not run.meshes or run.mesh is not None or run.spec is None:
        return run
    of_example = [mesh for mesh, _ in run.meshes if dict(mesh.shape) == dict(arguments.mesh)]
    if not of_example:
        raise OptionError(
            f"{run.headline}: the example is for mesh={dict(arguments.mesh)}, and the spec draws "
            f"{', '.join(str(dict(mesh.shape)) for mesh, _ in run.meshes)} here"
        )
    mesh = of_example[0]
    return replace(
        run,
        mesh=mesh,
        others=others_of(run.spec, run.backend, arguments.mesh, run.before),
        **_functions_on(mesh, run.kernel, run.reference),
    )


def replayed_call(run: CheckRun, replayed: LoadedExample) -> Arguments:
    """Return the call of ``--pallas-replay``, on the mesh that it drew."""
    return Arguments(*replayed.call, mesh=replayed.example.mesh if run.meshes else {})


def diagnosed[T](run: CheckRun, function: Callable[[], T]) -> T:
    """Call a function that runs examples, and say more about the failure that it raises.

    Raises:
      PallasError: as the function.
    """
    __tracebackhide__ = True
    try:
        return function()
    except PallasError as error:
        if not run.expected:
            for failed in (error, *facts_of(error).others):
                diagnose(failed)
        raise


def run_example(
    run: CheckRun, drawn: Any, *, typical: bool = False, trial: Runs | None = None
) -> CheckResult | None:
    """Run the check on one example, and add what comes out to the result.

    Args:
      run: the run.
      drawn: the call, as ``Arguments`` or as a strategy draws it.
      typical: whether the spec names it as typical.
      trial: for a trial of a mutant, where its runs are kept; nothing is counted or reported then.

    Returns:
      The result of the check; None for a drawn example to which the check does not apply: it does
      not count.

    Raises:
      NotApplicableError: the check does not apply to a given call.
      PallasError: the output is wrong, or the kernel raised.
    """
    __tracebackhide__ = True
    session, arguments = run.session, as_arguments(drawn)
    run = on_its_mesh(run, arguments)
    counts = trial is None
    result = run.result if counts else Result.of(run.name, run.check.name, run.backend)
    signature = ""
    if counts:
        result.begin(arguments)
        signature = result.inputs[-1].signature
        if session.observer is not None:
            facts = list(drawn_facts(arguments))
            if run.drawn:
                session.observer.example(result, facts, draw_name(drawn), goal_of(arguments))
            else:
                session.observer.example(result, facts)
    context = context_of(run, arguments, typical=typical, trial=trial)
    if counts:
        session.note_run(
            run.name, run.backend, lambda: call(context, context.kernel, arguments.args)
        )
    try:
        with rejecting() if run.drawn else nullcontext():
            check_result = run_check(
                with_goldens(run) if counts else run.check, context, run.name, on_result=result.add
            )
    except Exception as error:
        rejected = run.drawn and counts and is_rejection(error)
        if not run.drawn or not (rejected or isinstance(error, NotApplicableError)):
            raise
        if counts:
            result.withdraw(
                "hypothesis rejected every example (assume() or reject())"
                if rejected
                else facts_of(error).plain,
                final=getattr(error, "final", False),
            )
        return None
    finally:
        run.costs.append(_cost_of(context))
        if counts:
            if run.check.program is not None:  # other checks use the traces of these
                run.traces.setdefault(signature, _trace_cost_of(context))
            result.cover(context.coverage, context.orders)
    kernels = check_result.outcome.kernels if check_result.outcome else ()
    text = on_two_devices(kernels) if counts and run.check.base else None
    if text is not None and not _has_more_devices(run):
        result.add_note(Note(text, "run"))
    for check in _late_checks(run, check_result) if counts else ():
        text = (
            f"ran {check.name}, too: it applies to this example, and to none that was traced at "
            "collection"
        )
        result.add_note(Note(text, "run"))
        with suppress(NotApplicableError):
            run_check(check, context, run.name)
    return check_result


def _cost_of(context: CheckContext) -> int:
    """Return what an example cost, in equations; see ``ExampleBudget``."""
    import jax

    arrays = (leaf for leaf in jax.tree.leaves(context.arguments.args) if hasattr(leaf, "shape"))
    elements = sum(math.prod(array.shape) for array in arrays)
    runs = max(1, len(context.run_steps))
    return EXAMPLE_COST + sum(context.run_steps) + runs * elements // ELEMENTS_PER_EQUATION


def _trace_cost_of(context: CheckContext) -> int:
    """Return what it cost to trace the kernels of an example, likewise."""
    equations = {
        (kernel.name, kernel.source, kernel.path): sum(1 for _ in equations_inside(kernel.eqn))
        for kernel in context.run_kernels
    }
    return TRACE_COST * sum(equations.values())


def _has_more_devices(run: CheckRun) -> bool:
    """Return whether the spec of a run has a mesh of three devices or more."""
    axes = () if run.spec is None else run.spec.mesh_axes
    return any(math.prod(sizes.values()) > 2 for one in axes for sizes in sizes_of(one))


def _late_checks(run: CheckRun, check_result: CheckResult) -> Iterator[Check]:
    """Yield the checks that collection left out, and that apply to the kernels of an example.

    The traced calls need not include every kernel: an example of another shape or dtype may have a
    DMA that none of them has.
    """
    spec, outcome = run.spec, check_result.outcome
    if spec is None or not run.check.base or outcome is None or not outcome.kernels:
        return
    for check in run.session.checks.values():
        if check.requires_kernels is None or not run.left_out(check.name):
            continue
        if check.unmet(spec, run.backend, run.before) is not None:
            continue
        if check.requires_kernels(spec, run.backend, outcome.kernels) is None:
            yield check


def context_of(
    run: CheckRun, arguments: Arguments, *, typical: bool = False, trial: Runs | None = None
) -> CheckContext:
    """Make what the check gets of one example; the arguments are those of ``run_example``.

    Raises:
      OptionError: a mark of the test has an argument that it cannot have.
    """
    run = on_its_mesh(run, arguments)
    session, node = run.session, run.node
    runs = session.runs if session.mutant is None else Runs()
    tolerance, given_by = tolerance_for(run, dtypes_of(arguments.args))
    # Drawn calls change with Hypothesis' version; typical calls of a spec do not.
    costs = typical or not run.drawn or not (run.spec and run.spec.typical)
    return CheckContext(
        kernel=run.kernel,
        reference=run.reference,
        arguments=arguments,
        backend=run.backend,
        settings=session.settings(
            run.options,
            run.backend,
            devices=run.devices,
            jit=run.jit,
            test="" if node is None or trial is not None else node.name,
        ),
        others=run.others,
        tolerance=tolerance,
        tolerance_given_by=given_by,
        check_dtype=run.check_dtype,
        runs=runs if trial is None else trial,
        cache=session.cache,
        typical=typical,
        costs=session.costs if costs else None,
        claimed=run.claimed,
        redundant={} if run.spec is None else run.spec.redundant,
        explained=trial is None or session.mutant is None,
        **properties_of(run),
    )


def with_goldens(run: CheckRun) -> Check:
    """Return the check as it is run: with ``--pallas-golden`` its answers are kept, or compared.

    A mutant's answers are neither.
    """
    session = run.session
    if session.goldens is None or session.mutant is not None:
        return run.check
    if gang() is not None:
        raise OptionError(
            "--pallas-golden keeps whole outputs, and in a program of several processes each holds "
            "a part of them: record and compare goldens in one process"
        )
    from pytest_pallas.checks.golden import GoldenRequest, keeping

    request = GoldenRequest(
        goldens=session.goldens,
        test=run.test,
        mesh=run.sizes,
        seed=run.options.seed,
        examples=run.budget.most,
    )
    return keeping(run.check, run.name, request)


def subjects_of(run: CheckRun) -> Subjects | None:
    """Return a function from a draw to the parts of the check that apply; None if all do."""
    spec, subjects = run.spec, run.check.subjects
    if subjects is None or spec is None:
        return None

    def of(drawn: Any) -> Collection[Any]:
        try:
            return subjects(spec, as_arguments(drawn))
        except Exception as error:
            return (type(error),)  # running the check raises the same error

    return of


# Which tolerance holds, and who gave it: mark > call or spec > hook > default.


def tolerance_for(run: CheckRun, dtypes: Sequence[str]) -> tuple[Tolerance, str]:
    """Return the tolerance for one call, and where it is given, for messages; "" for the default.

    The closest ``pallas_tolerance`` mark of the test wins. Each may be what ``as_tolerance`` takes.
    Of a mapping, whose keys are a dtype, a backend, or both (``"bfloat16"``, ``"gpu"``,
    ``"gpu bfloat16"``), the most specific entry counts.

    Args:
      run: has the marks, the properties and the hook.
      dtypes: names of the dtypes of the array arguments.

    Raises:
      OptionError: a mark or a tolerance is wrong.
    """
    backend = run.backend
    names = (backend.name, label(backend))
    for mark in () if run.node is None else run.node.iter_markers("pallas_tolerance"):
        limits = dict(mark.kwargs)
        only_backend, only_dtype = limits.pop("backend", None), limits.pop("dtype", None)
        _refuse_unknown(run.session, only_backend, only_dtype, "mark pallas_tolerance")
        if only_backend not in (None, *names) or only_dtype not in (None, *dtypes):
            continue
        tolerance = _applying(_of_mark(mark.args, limits), run, dtypes)
        if tolerance is not None:
            return tolerance, "@pytest.mark.pallas_tolerance"
    tolerance = _applying(run.tolerance, run, dtypes)
    if tolerance is not None:
        return tolerance, "tolerance= of the spec or call"
    hooked = _applying(
        run.session.harness.tolerance(
            kernel=run.name, check=run.check.name, backend=backend, dtypes=dtypes
        ),
        run,
        dtypes,
    )
    return (Tolerance(), "") if hooked is None else (hooked, "the hook pytest_pallas_tolerance")


def _of_mark(args: Sequence[Any], limits: Mapping[str, Any]) -> Any:
    """Return what a mark stands for, a value or fields."""
    if len(args) > 1 or (args and limits):
        raise OptionError(
            "mark pallas_tolerance: it takes one tolerance, or its fields by name: "
            "pallas_tolerance(1e-3), pallas_tolerance(rtol=1e-3, atol=1e-5)"
        )
    try:
        return args[0] if args else Tolerance(**limits)
    except TypeError as error:
        raise OptionError(
            f"mark pallas_tolerance: {error}; it takes backend, dtype, factor, floor, rtol, "
            "atol, ulp and fraction"
        ) from None


def _applying(value: Any, run: CheckRun, dtypes: Sequence[str]) -> Tolerance | None:
    """Return the tolerance that a value has for a call; of a mapping, that of the closest key."""
    tolerance = as_tolerance(value)
    if not isinstance(tolerance, Mapping):
        return tolerance
    for key in tolerance:
        backend, _, dtype = key.rpartition(" ")
        if not backend and not _is_dtype(dtype):
            backend, dtype = dtype, ""
        _refuse_unknown(run.session, backend or None, dtype or None, "tolerance")
    names = (label(run.backend), run.backend.name)
    keys = [f"{name} {dtype}" for name in names for dtype in dtypes]
    return next((tolerance[key] for key in (*keys, *names, *dtypes) if key in tolerance), None)


def _refuse_unknown(session: Session, backend: str | None, dtype: str | None, where: str) -> None:
    """Reject unknown names of a mark or a mapping, which would never match."""
    if backend is not None:
        try:
            parse(backend, session.families)
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None
    if dtype is not None and not _is_dtype(dtype):
        raise OptionError(f"{where}: unknown dtype {dtype!r}")


def _is_dtype(name: str) -> bool:
    import jax

    try:
        jax.numpy.dtype(name)
    except TypeError:
        return False
    return True


def dtypes_of(args: Any) -> list[str]:
    """Return names of the dtypes of the arrays in a pytree, without repetition."""
    import jax

    leaves = jax.tree.leaves(args)
    return list(dict.fromkeys(str(leaf.dtype) for leaf in leaves if hasattr(leaf, "dtype")))


# How functions are called.


def name_of(function: Callable[..., Any]) -> str:
    """Return the default name of a function in reports."""
    inner: Any = getattr(function, "func", function)  # a functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


def lacks_mesh(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> bool:
    """Return whether a function takes these arguments with ``mesh=`` only."""
    return misfit(function, args, keywords) is not None and (
        misfit(function, args, {**keywords, "mesh": None}) is None
    )


def misfit(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str | None:
    """Say why a function does not take these arguments; None if it does, or may do."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some builtins have none
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        inner: Any = inspect.unwrap(getattr(function, "func", function))
        code = getattr(inner, "__code__", None)
        where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        return f"{getattr(inner, '__name__', repr(inner))}{signature}{where}: {error}"
    return None
