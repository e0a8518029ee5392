"""``check_kernel``: what ``pallas_check`` and ``pytest_pallas.check`` do.

It makes a ``CheckRun`` for each check of a function or a spec, and runs them. The fixture and the
function differ in their session only. ``call_arguments`` refuses what does not fit together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError, PallasError, SimulationLimitError
from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.tracing import context_of_traces, outputs_of
from pytest_pallas.budget import COPIES, FLOAT_BYTES, available_bytes, check_memory
from pytest_pallas.checks import Check
from pytest_pallas.checks.cross import accepted
from pytest_pallas.checks.verdict import conclude, drawn_facts
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.draw.meshes import is_drawn, sizes_of
from pytest_pallas.errors import (
    EXPECTED,
    NotApplicableError,
    SpecError,
    TooFewDevicesError,
    UnsupportedKernelError,
    facts_of,
)
from pytest_pallas.options import choose
from pytest_pallas.record import Note
from pytest_pallas.run.backends import (
    backend_of_call,
    backend_of_spec,
    backends_before,
    call_of,
    expected_failure,
    implementations_of,
    mesh_or_skip,
    on_claimed_chips,
    on_its_platform,
    peers_of,
    run_on,
    with_named,
)
from pytest_pallas.run.call_arguments import (
    call_with,
    listed,
    once_in_a_test,
    refuse_others,
    refuse_properties,
    refuse_spread,
    refuse_unknown,
)
from pytest_pallas.run.causes import title_of
from pytest_pallas.run.check_run import (
    CheckRun,
    check_run,
    diagnosed,
    lacks_mesh,
    misfit,
    name_of,
    replayed_call,
    run_example,
)
from pytest_pallas.run.drawn import run_drawn
from pytest_pallas.run.nodes import unmet_by_kernels
from pytest_pallas.run.result import Result
from pytest_pallas.session import Session
from pytest_pallas.spec import ExpectedFailure, KernelSpec

if TYPE_CHECKING:
    from jax.sharding import Mesh


#: Bytes of arrays that a check may take without a look at the free memory.
_SMALL = 256 * 2**20


def check_kernel(
    session: Session,
    backend: Backend,
    kernel: Callable[..., Any] | KernelSpec,
    args: tuple[Any, ...],
    reference: Callable[..., Any] | None,
    keywords: Mapping[str, Any],
    *,
    also: Sequence[str] = (),
) -> Any:
    """Check a function on arguments, or a spec on arguments that are given or drawn.

    Args:
      session: has the options.
      backend: where the kernel runs.
      kernel: the function or the spec.
      args: positional arguments, or one ``Arguments``; none for what the spec draws.
      reference: the same function in jnp; a spec has its own.
      keywords: the others, as they were given. ``checks`` are by default those of the spec, those
        that the test's mark names, or ``forward``.
      also: keyword arguments that the caller takes besides, for messages.

    Returns:
      What the kernel returned, or the report of its compiler; None for drawn examples.

    Raises:
      TypeError: a keyword argument that there is not, or no reference.
      OptionError: the arguments do not fit together.
      PallasError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    refuse_others(kernel)
    properties: dict[str, Any] = dict(keywords)
    refuse_unknown(kernel, reference, backend, properties, also)
    call = call_with(args, properties.pop("options", None), properties.pop("tuning", None))
    refuse_spread(call)
    checks, mesh = listed(properties.pop("checks", ())), properties.pop("mesh", None)
    names = [check if isinstance(check, str) else check.name for check in checks]
    if not isinstance(kernel, KernelSpec):
        check = functools.partial(
            *(_check_function, session, backend, kernel, call),
            *(names, reference, properties, mesh),
        )
        return once_in_a_test(session, name_of(kernel), call, check)
    refuse_properties(kernel, reference, properties)
    if not args and (call.options or call.tuning):
        raise OptionError(
            f"{kernel.name}: the spec draws options and tuning with its examples; leave out "
            "options= and tuning=, or give the arguments of a call, too"
        )
    if not args:
        return _check_spec(session, backend, kernel, None, names, mesh)
    check = functools.partial(_check_spec, session, backend, kernel, call, names, mesh)
    return once_in_a_test(session, kernel.name, call, check)


# The checks of a function, on one call.


def _check_function(
    session: Session,
    backend: Backend,
    kernel: Callable[..., Any],
    call: Arguments,
    names: Sequence[str],
    reference: Callable[..., Any] | None,
    properties: Mapping[str, Any],
    mesh: Mesh | Mapping[str, int] | None,
) -> Any:
    """Check a function on one call; the arguments are those of ``check_kernel``.

    Returns:
      What the kernel returned, or the report of its compiler.
    """
    __tracebackhide__ = True
    name = properties.get("name") or name_of(kernel)
    if reference is None and backend.kind != "compiling":
        raise TypeError(
            f"{name}: reference= is missing: give the same function in jnp; only a KernelSpec has "
            "one of its own"
        )
    if mesh is None and lacks_mesh(kernel, call.args, {**call.options, **call.tuning}):
        raise OptionError(
            f"{name}: the kernel needs mesh=: give the sizes of its axes, such as "
            'mesh={"x": 4}, or a jax.sharding.Mesh'
        )
    fields = {**properties, "name": name, "reference": reference}
    names = names or _marked_checks(session)
    if "vmap" in names:  # it is named, so that the compiler decides
        fields["vmappable"] = True
    run = _run_of_call(session, backend, kernel, fields, mesh)
    chosen = backend
    with (
        contextlib.suppress(SimulationLimitError),  # the check says it, of an example that counts
        _tracing_first(session, name, backend, call, names[0] if names else "", run.kernel),
    ):
        chosen = backend_of_call(session, backend, run.kernel, call)
        _refuse_too_large(dataclasses.replace(run, backend=chosen), call, names)
    if chosen is not backend:
        run = _run_of_call(session, chosen, kernel, fields, mesh)
    checks = [session.checks[name] for name in choose(names, session.checks, "checks=")]
    named = _are_named(names)
    if not named:
        sanitizers = session.sanitizers_for(run.options)
        checks = [
            check
            for check in checks
            # one call is not the examples that a check concludes from
            if (check.name in sanitizers if check.kind == "sanitizer" else check.conclude is None)
        ]
    return _check_call((dataclasses.replace(run, check=check) for check in checks), call, named)


def _run_of_call(
    session: Session,
    backend: Backend,
    kernel: Callable[..., Any],
    properties: Mapping[str, Any],
    mesh: Mesh | Mapping[str, int] | None,
) -> CheckRun:
    """Make the run of a function's checks, on its mesh, with its properties."""
    __tracebackhide__ = True
    fields = dict(properties)
    sizes = {} if mesh is None else dict(mesh if isinstance(mesh, Mapping) else mesh.shape)
    fields["others"] = (
        *peers_of(session, kernel, fields.pop("peers", None) or (), sizes),
        *implementations_of(fields.pop("implementations", None) or {}, backend, sizes),
    )
    made = mesh_or_skip(session, backend, mesh) if isinstance(mesh, Mapping) else mesh
    for role, function in (("kernel", kernel), ("reference", fields["reference"])):
        if made is not None and function is not None and not accepted(function, ["mesh"]):
            raise OptionError(f"{fields['name']}: the {role} takes no mesh=; leave it out")
    return check_run(session, backend, kernel, mesh=made, axes=sizes, **fields)


def _marked_checks(session: Session) -> Sequence[str]:
    """Return the checks that the running test's mark names, else the one that all build on."""
    marks = [] if session.item is None else session.item.iter_markers("pallas")
    if any("checks" in mark.kwargs for mark in marks):
        return session.options_for(session.item).checks
    return (session.base.name,)


# One call, of a function or a spec.


def _check_call(runs: Iterable[CheckRun], arguments: Arguments, named: bool) -> Any:
    """Run checks on one call; return what the kernel returned, or the report of its compiler.

    Args:
      runs: one for each check.
      arguments: the call.
      named: whether the checks are named, so that each of them must apply.

    Raises:
      NotApplicableError: a named check does not apply to the call.
      PallasError: an answer is wrong, or there is none.
      OptionError: the blob of ``--pallas-replay`` is to be run, and a call draws nothing.
    """
    __tracebackhide__ = True
    values: Any = None
    for run in runs:
        if blob := run.options.replay.blob:
            raise OptionError(
                f"--pallas-replay={blob}: this call of {run.name} has its arguments and draws no "
                "example. Run the test without --pallas-replay, or give it the file that the "
                "failure names"
            )
        failure = run.spec and expected_failure(run.spec, run.backend, run.check)
        try:
            answer = _check_once(run, arguments, named)
        except EXPECTED:
            if failure is None:
                raise
            _note_expected(run, failure)
            continue
        values = values if answer is None else answer
    return values


def _check_once(run: CheckRun, arguments: Arguments, named: bool) -> Any:
    """Run one check on one call; the result is as in ``_check_call``, or None."""
    __tracebackhide__ = True
    session, check, backend = run.session, run.check, run.backend
    replayed = session.replayed
    if replayed is not None and _is_of(replayed.example, run, check):
        arguments = replayed_call(run, replayed)
    headline = f"{run.name}: {check.name} on {label(backend)}"
    try:
        with _guarded(session, headline, backend):
            result = diagnosed(run, functools.partial(run_example, run, arguments))
            conclude(check, run.result.evidence, run.name, backend)
    except UnsupportedKernelError as error:
        if session.item is None:
            raise
        run.result.withdraw(facts_of(error).plain)
        pytest.skip(f"{headline}: not applicable ({facts_of(error).plain})")
    except NotApplicableError:
        if named:
            raise
        run.result.withdraw()
        if not run.result.examples:
            run.drop_result()
        return None
    outcome = None if result is None else result.outcome
    return None if outcome is None else outcome.report or outcome.values


def _is_of(example: Any, run: CheckRun, check: Check) -> bool:
    """Return whether a saved example is one of a check of a kernel."""
    return (example.kernel, example.check) == (run.name, check.name)


@contextlib.contextmanager
def _tracing_first(
    session: Session,
    kernel: str,
    backend: Backend,
    arguments: Arguments | None = None,
    check: str = "",
    function: Callable[..., Any] | None = None,
) -> Generator[None]:
    """Trace a kernel before its checks, to know which apply, in one time limit for all traces.

    What it leaves behind is undone. The checks trace it again, and fail for it.

    Args:
      session: of the run.
      kernel: name of the kernel.
      backend: where it will run.
      arguments: the call; None if examples are drawn.
      check: name of the first check, to which it counts if the process dies.
      function: the kernel, likewise.

    Raises:
      SimulationLimitError: it takes longer than ``--pallas-timeout``.
    """
    __tracebackhide__ = True
    from pytest_pallas.isolate.leaks import leaving_nothing

    executes = _may_leave_state(session, backend)
    if session.observer is not None and arguments is not None:
        result = Result.of(kernel, check, backend, function=function)
        result.examples = 1
        session.observer.example(result, list(drawn_facts(arguments)))
    timeout = session.timeout(session.options_for(session.item))
    try:
        with (
            leaving_nothing(session, tells=True) if executes else contextlib.nullcontext(),
            ending_whole(timeout),
        ):
            yield
    except OverdueError as late:
        error = late.error(timeout)
        raise error.with_message(f"{kernel} on {label(backend)}: {error}") from None


def _refuse_too_large(run: CheckRun, arguments: Arguments, names: Sequence[str]) -> None:
    """Refuse a call whose checks take more memory than there is: the system would end the session.

    Args:
      run: of the kernel, with any check.
      arguments: the call.
      names: of the checks. Those that only trace the kernel take little memory.

    Raises:
      DrawTooLargeError: it does.
    """
    __tracebackhide__ = True
    session, backend = run.session, run.backend
    if backend.kind not in ("simulating", "interpreting"):
        return
    if all(name in session.checks and not session.checks[name].executes for name in names):
        return
    import jax

    call = call_of(run.kernel, arguments, session.options.timeout, jit=run.jit)
    alone = run.jit and run.devices == 1
    outputs = outputs_of(call, context_of_traces(backend)) if alone else ()
    own = needed = 0
    for leaf in jax.tree.leaves((arguments.args, outputs)):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            continue
        elements, width = math.prod(leaf.shape), getattr(leaf.dtype, "itemsize", 0)
        floats = jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)
        own += elements * width
        needed += elements * (FLOAT_BYTES if floats else COPIES * width)
    if needed > _SMALL:
        most = available_bytes()
        if getattr(session, "in_worker", False):
            limit = int(session.options.worker_memory * 2**30)
            most = limit if most is None else min(most, limit)
        check_memory(f"{run.name} on {label(backend)}", own, needed, most)


def _may_leave_state(session: Session, backend: Backend) -> bool:
    """Return whether a kernel on a backend may change state of this process."""
    return not session.only_programs and backend.kind in ("simulating", "interpreting")


def _guarded(
    session: Session, headline: str, backend: Backend
) -> contextlib.AbstractContextManager[None]:
    """Let a check fail for state that it leaves changed in this process."""
    if not _may_leave_state(session, backend):
        return contextlib.nullcontext()
    import jax

    from pytest_pallas.isolate import leaks

    jax.devices("cpu")  # starting JAX changes settings
    return leaks.guarded(session, headline)


# The checks of a spec where it has no items: on a call, or on examples that it draws.


def _check_spec(
    session: Session,
    backend: Backend,
    spec: KernelSpec,
    arguments: Arguments | None,
    names: Sequence[str],
    mesh: Mesh | Mapping[str, int] | None,
) -> Any:
    """Run the checks of a spec in the running test.

    Args:
      session: of the run.
      backend: of the test.
      spec: the spec.
      arguments: the call; None for examples that the spec draws, as its items do.
      names: of the checks; by default those of its items.
      mesh: the mesh to run on, or its sizes by axis; by default that of the call, or every mesh of
        the spec.

    Returns:
      What the kernel returned for the arguments, or the report of its compiler; None for examples.

    Raises:
      OptionError: the arguments do not fit the kernel, or there is no mesh for them.
      NotApplicableError: one of the ``names`` does not apply.
      SpecError: a check passes, and the spec expects that it fails.
      PallasError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    if arguments is None and hypothesis.currently_in_test_context():
        raise OptionError(
            f"{spec.name}: a spec without arguments draws its examples itself, and this is called "
            "under @given; leave out @given, or give what that draws as arguments"
        )
    choose(
        tuple(spec.checks or ()), session.checks, f"checks of the spec {spec.name} in {spec.file}"
    )
    with _tracing_first(session, spec.name, backend):
        spec = on_its_platform(session, spec)
    backend = _claimed(session, spec, backend)
    spec = with_named(spec, backend, names or session.options_for(session.item).checks)
    if arguments is not None and mesh is None:
        mesh = arguments.mesh or None
    meshes = _meshes(session, spec, backend, mesh)
    if arguments is not None and (len(meshes) > 1 or is_drawn(meshes[0]["axes"])):
        several = " or ".join(
            f"mesh={sizes}" for axes in spec.mesh_axes for sizes in sizes_of(axes)
        )
        raise OptionError(
            f"{spec.name}: the spec in {spec.file} has several meshes; say for which one the "
            f"arguments are: {several}"
        )
    values: Any = None
    for fields in meshes:
        run = functools.partial(check_run, session, backend, spec, **fields)
        if arguments is None:
            _check_drawn(run, names)
        else:
            values = _check_given(run, arguments, names)
    return values


def _claimed(session: Session, spec: KernelSpec, backend: Backend) -> Backend:
    """Return the backend, for a chip that the spec claims.

    The test is skipped if it claims none of it.

    Raises:
      OptionError: it claims none of it, and no test is running.
    """
    __tracebackhide__ = True
    chosen = backend_of_spec(session, backend, spec)
    if not spec.claims(label(chosen)):
        known = [name for name in spec.claimed if Label.of(name).name in session.families]
        claims = f"{spec.name} claims {', '.join(known) or 'no backend'} only"
        if session.item is None:
            raise OptionError(f"{claims}; give backend=, one of these")
        pytest.skip(f"{claims}; @pytest.mark.pallas(backends=[...]) chooses backends for a test")
    return chosen


def _meshes(
    session: Session, spec: KernelSpec, backend: Backend, mesh: Mesh | Mapping[str, int] | None
) -> Sequence[Mapping[str, Any]]:
    """Return the meshes to run on, as fields of ``CheckRun``, without those of too few devices."""
    __tracebackhide__ = True
    if mesh is not None and not spec.meshes:
        raise OptionError(f"{spec.name}: the spec in {spec.file} has no meshes; leave out mesh=")
    if mesh is not None and not isinstance(mesh, Mapping):
        return [{"axes": dict(mesh.shape), "mesh": mesh}]
    meshes: list[Mapping[str, Any]] = []
    lacking = ""
    for axes in (mesh,) if mesh is not None else spec.mesh_axes or ({},):
        try:
            meshes.append(run_on(session, backend, spec, axes, skips=False))
        except TooFewDevicesError as error:
            if session.item is None or session.options_for(session.item).missing == "error":
                raise
            lacking = str(error)
    if not meshes:
        pytest.skip(lacking)
    return meshes


def _before(run: CheckRun, spec: KernelSpec, check: Check) -> Sequence[Backend]:
    """Return the backends of the test that a check compares this one with."""
    session = run.session
    marks = () if session.item is None else list(session.item.iter_markers("pallas"))
    chosen, _ = session.backends_for(marks)
    known, _ = on_claimed_chips(session, spec, chosen, session.selection.automatic)
    if label(run.backend) not in map(label, known):  # of an override of pallas_backend
        return ()
    return backends_before(spec, run.backend, known, (session.base, check))


def _applying(run: CheckRun, names: Sequence[str], *, drawn: bool) -> Iterator[Check]:
    """Yield the checks that apply, of those that are named, or else of those of the spec's items.

    Raises:
      NotApplicableError: a check that is named does not apply.
    """
    __tracebackhide__ = True
    session, backend, spec = run.session, run.backend, run.spec
    assert spec is not None
    named = _are_named(names)
    if named:
        chosen = [session.checks[name] for name in choose(names, session.checks, "checks=")]
    else:
        options = dataclasses.replace(run.options, checks=("all",)) if names else run.options
        chosen = session.checks_for(options)
    for check in chosen:
        if not named and spec.checks is not None and check.name not in spec.checks:
            continue
        if session.mutant is not None and not check.tries_mutants:
            continue
        if not drawn and not named and check.conclude is not None:
            continue  # one call is not the examples that it concludes from
        if backend.kind == "compiling" and check.program is None:
            unmet = "it compiles nothing that another check does not"
        else:
            unmet = check.unmet(spec, backend, _before(run, spec, check))
        if unmet is not None and named:
            raise NotApplicableError(
                f"{spec.name}: {check.name} on {label(backend)}: not applicable ({unmet}); "
                f"leave it out of checks=, or change the spec in {spec.file}"
            )
        if unmet is None:
            yield check


def _are_named(names: Sequence[str]) -> bool:
    """Return whether these are names of checks, rather than all that apply."""
    return bool(names) and list(names) != ["all"]


def _check_drawn(made: Callable[..., CheckRun], names: Sequence[str]) -> None:
    """Run the checks on drawn examples, as the items of the spec do."""
    __tracebackhide__ = True
    plain = made()
    session, backend, spec = plain.session, plain.backend, plain.spec
    assert spec is not None
    checks: list[Check] = []
    left_out: set[str] = set()
    with _tracing_first(session, spec.name, backend):
        for check in _applying(plain, names, drawn=True):
            if not _are_named(names) and unmet_by_kernels(
                session, spec, check, backend, plain.axes
            ):
                left_out.add(check.name)
            else:
                checks.append(check)
    raised = False
    for check in checks:
        failure = expected_failure(spec, backend, check)
        if not _replays(plain, check) or (raised and failure is not None):
            continue  # where the kernel raises as expected, others that fail would raise the same
        run = made(
            check=check,
            drawn=True,
            before=_before(plain, spec, check),
            expected=failure is not None,
            left_out=left_out.__contains__,
        )
        try:
            with _guarded(session, run.headline, backend):
                requirement = _run(run)
        except EXPECTED:
            if failure is None:
                raise
            _note_expected(run, failure)
            raised = raised or check.base
            continue
        if requirement:
            run.drop_result()
        elif failure is not None and session.mutant is None:
            raise SpecError(
                f"{run.headline} passes, and its xfail expects a failure: {failure.reason} (JAX "
                f"{failure.jax}); remove that from the spec in {spec.file}"
            )


def _run(run: CheckRun) -> str:
    """Run drawn examples; see ``run_drawn``. A failure is reported as that of a call.

    Hypothesis' notes go: they say how to decorate a test, and here is none. The message has the
    drawn arguments.
    """
    __tracebackhide__ = True
    try:
        return run_drawn(run)
    except PallasError as error:
        vars(error).pop("__notes__", None)
        raise _with_others(error).with_traceback(None) from error.__cause__


def _with_others(error: PallasError) -> PallasError:
    """Return the error whose text has the failures of other causes, too; its data stay."""
    others = [f"{title_of(other)}:\n{other}" for other in facts_of(error).others]
    if not others:
        return error
    whole = error.with_message("\n".join([str(error), *others]))
    whole.explanation = error.explanation
    return whole


def _replays(run: CheckRun, check: Check) -> bool:
    """Return whether a check runs: with ``--pallas-replay`` only what the example is of."""
    if (replayed := run.session.replayed) is None:
        return True
    here = dict(replayed.example.mesh) in ({}, *sizes_of(run.axes))
    return here and _is_of(replayed.example, run, check)


def _check_given(made: Callable[..., CheckRun], arguments: Arguments, names: Sequence[str]) -> Any:
    """Run the checks on one call."""
    __tracebackhide__ = True
    plain = made()
    spec = plain.spec
    assert spec is not None
    _refuse_misfits(plain, arguments)
    with _tracing_first(plain.session, spec.name, plain.backend):
        _refuse_too_large(plain, arguments, names or ["all"])
    checks = list(_applying(plain, names, drawn=False))
    runs = (made(check=check, before=_before(plain, spec, check)) for check in checks)
    return _check_call(runs, arguments, _are_named(names))


def _refuse_misfits(run: CheckRun, arguments: Arguments) -> None:
    """Refuse a call that the kernel or its reference does not take."""
    spec = run.spec
    assert spec is not None
    functions = [
        ("kernel", run.kernel, {**arguments.options, **arguments.tuning}),
        ("reference", run.reference or spec.reference, dict(arguments.options)),
    ]
    for role, function, keywords in functions:
        problem = misfit(function, arguments.args, keywords)
        if problem:
            strategy: Any = spec.inputs
            drawn = draw_once(strategy if run.mesh is None else strategy(run.mesh))
            usual = "; ".join(f"{fact.name} {fact.text}" for fact in drawn_facts(drawn))
            raise OptionError(
                f"{spec.name}: the arguments do not fit the {role} {problem}. Give what the spec "
                f"in {spec.file} draws, such as {usual}"
            )


def _note_expected(run: CheckRun, failure: ExpectedFailure) -> None:
    """Note for the record that a failure was expected; outside of tests, warn."""
    text = f"failed as expected: {failure.reason} (JAX {failure.jax})"
    run.result.add_note(Note(text, "run"))
    if run.session.item is None:
        warnings.warn(f"{run.headline} {text}", stacklevel=2)
