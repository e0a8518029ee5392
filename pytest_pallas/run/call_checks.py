"""Checks of a function or a spec, where no item of a spec asks them: in a test, in a script.

``check_function`` asks about one call of a function, ``check_spec`` about a call or drawn examples
of a spec. Both make a ``CheckRun`` for each check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError, PallasError
from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.backends.protocol import Backend, Call, RunSettings, label
from pytest_pallas.backends.tracing import outputs_of
from pytest_pallas.budget import COPIES, FLOAT_BYTES, available_bytes, check_memory
from pytest_pallas.checks import Check
from pytest_pallas.checks.verdict import conclude, drawn_facts
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.errors import (
    EXPECTED,
    NotApplicableError,
    SpecError,
    TooFewDevicesError,
    UnsupportedKernelError,
    facts_of,
)
from pytest_pallas.option_values import choose
from pytest_pallas.record import Note
from pytest_pallas.run.applicability import unmet_by_kernels
from pytest_pallas.run.backends import (
    backend_of_spec,
    backends_before,
    expected_failure,
    mesh_on,
    on_claimed_chips,
    on_its_platform,
)
from pytest_pallas.run.check_run import CheckRun, check_run, misfit, run_example
from pytest_pallas.run.drawn import run_drawn
from pytest_pallas.run.fuzzing import ANOTHER
from pytest_pallas.run.result import Result
from pytest_pallas.session import Session
from pytest_pallas.spec import ExpectedFailure, KernelSpec

if TYPE_CHECKING:
    from jax.sharding import Mesh


def check_function(run: CheckRun, arguments: Arguments, names: Sequence[str]) -> Any:
    """Ask checks about one call of a kernel.

    Args:
      run: of the kernel, with any check.
      arguments: the call.
      names: of the checks; ``("all",)`` for those that can be asked about one call.

    Returns:
      What the kernel returned, or the report of its compiler.

    Raises:
      PallasError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    session = run.session
    sanitizers = session.sanitizers_for(run.options)
    values: Any = None
    for name in choose(names, session.checks, "checks="):
        check = session.checks[name]
        if list(names) == ["all"]:
            if check.conclude is not None:
                continue  # one call is not the examples that it concludes from
            if check.kind == "sanitizer" and name not in sanitizers:
                continue
        of_check = dataclasses.replace(run, check=check)
        answer = _check_call(of_check, arguments, needed=list(names) != ["all"])
        values = values if answer is None else answer
    return values


def _check_call(run: CheckRun, arguments: Arguments, *, needed: bool) -> Any:
    """Ask one check about one call; the result is as in ``check_function``, or None.

    Raises:
      NotApplicableError: the check is ``needed``, and cannot be asked about the call.
      PallasError: the answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    session, check, backend = run.session, run.check, run.backend
    loaded = session.replayed
    if loaded is not None and (loaded.example.kernel, loaded.example.check) == (
        run.name,
        check.name,
    ):
        arguments = Arguments(*loaded.call)
    headline = f"{run.name}: {check.name} on {label(backend)}"
    try:
        with guarded(session, headline, backend):
            finding = run_example(run, arguments)
            conclude(check, run.result.evidence, run.name, backend)
    except UnsupportedKernelError as error:
        if session.item is None:
            raise
        run.result.withdraw(facts_of(error).plain)
        pytest.skip(f"{headline}: not applicable ({facts_of(error).plain})")
    except NotApplicableError:
        if needed:
            raise
        run.result.withdraw()
        if not run.result.examples:
            run.drop_result()
        return None
    outcome = None if finding is None else finding.outcome
    return None if outcome is None else outcome.report or outcome.values


@contextlib.contextmanager
def tracing_first(
    session: Session,
    kernel: str,
    backend: Backend,
    arguments: Arguments | None = None,
    check: str = "",
) -> Generator[None]:
    """Trace a kernel before its checks, to know what they are, in one time limit for all traces.

    What it leaves behind is undone. The checks trace it again, and fail for it.

    Args:
      session: of the run.
      kernel: name of the kernel.
      backend: where it will run.
      arguments: the call; None if examples are drawn.
      check: name of the first check, to which it counts if the process dies.

    Raises:
      SimulationLimitError: it takes longer than ``--pallas-timeout``.
    """
    __tracebackhide__ = True
    from pytest_pallas.isolate.leaks import leaving_nothing

    executes = backend.kind in ("simulating", "interpreting")
    if session.observer is not None and arguments is not None:
        begun = Result(kernel=kernel, check=check, backend=label(backend), examples=1)
        session.observer.example(begun, list(drawn_facts(arguments)))
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


def refuse_too_large(run: CheckRun, arguments: Arguments, names: Sequence[str]) -> None:
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

    made = Call(
        function=run.kernel,
        args=arguments.args,
        options={**arguments.options, **arguments.tuning},
        settings=RunSettings(timeout=session.options.timeout, jit=run.jit),
    )
    outputs = outputs_of(made, backend) if run.jit and run.devices == 1 else ()
    own = needed = 0
    for leaf in [*jax.tree.leaves(arguments.args), *outputs]:
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


#: Bytes for which nothing is asked of the system.
_SMALL = 256 * 2**20


def guarded(
    session: Session, headline: str, backend: Backend
) -> contextlib.AbstractContextManager[None]:
    """A check that fails for what it leaves behind in this process."""
    if backend.kind not in ("simulating", "interpreting"):
        return contextlib.nullcontext()
    import jax

    from pytest_pallas.isolate import leaks

    jax.devices("cpu")  # starting JAX changes settings
    return leaks.guarded(session, headline)


# Checks of a spec where it has no items: of given arguments, or of examples that it draws.


def check_spec(
    session: Session,
    backend: Backend,
    spec: KernelSpec,
    arguments: Arguments | None,
    *,
    names: Sequence[str] = (),
    mesh: Mesh | Mapping[str, int] | None = None,
) -> Any:
    """Ask a spec's checks in the running test.

    Args:
      session: of the run.
      backend: of the test.
      spec: the spec.
      arguments: the call to ask about; None for examples that the spec draws, as its items do.
      names: of the checks; by default those that its items ask.
      mesh: the mesh to run on, or its sizes by axis; by default every mesh of the spec.

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
    with tracing_first(session, spec.name, backend):
        spec = on_its_platform(session, spec)
    backend = _claimed(session, spec, backend)
    meshes = _meshes(session, spec, backend, mesh)
    if arguments is not None and len(meshes) > 1:
        sizes = " or ".join(f"mesh={dict(each)}" for each, _ in meshes)
        raise OptionError(
            f"{spec.name}: the spec in {spec.file} has several meshes; say for which one the "
            f"arguments are: {sizes}"
        )
    values: Any = None
    for sizes, made in meshes:
        run = functools.partial(check_run, session, backend, spec, mesh=made, sizes=sizes)
        if arguments is None:
            _check_drawn(run, names)
        else:
            values = _check_given(run, arguments, names)
    return values


def _claimed(session: Session, spec: KernelSpec, backend: Backend) -> Backend:
    """The backend, for a chip that the spec claims.

    The test is skipped if it claims none of it.

    Raises:
      OptionError: it claims none of it, and no test is running.
    """
    __tracebackhide__ = True
    found = backend_of_spec(session, backend, spec)
    if not spec.claims(label(found)):
        known = [name for name in spec.claimed if Label.of(name).name in session.families]
        claims = f"{spec.name} claims {', '.join(known) or 'no backend'} only"
        if session.item is None:
            raise OptionError(f"{claims}; give backend=, one of these")
        pytest.skip(f"{claims}; @pytest.mark.pallas(backends=[...]) chooses backends for a test")
    return found


def _meshes(
    session: Session, spec: KernelSpec, backend: Backend, mesh: Mesh | Mapping[str, int] | None
) -> Sequence[tuple[Mapping[str, int], Mesh | None]]:
    """The meshes to run on with their sizes, without those of too few devices."""
    __tracebackhide__ = True
    if mesh is not None and not spec.meshes:
        raise OptionError(f"{spec.name}: the spec in {spec.file} has no meshes; leave out mesh=")
    if mesh is not None and not isinstance(mesh, Mapping):
        return [(dict(mesh.shape), mesh)]
    found: list[tuple[Mapping[str, int], Mesh | None]] = []
    lacking = ""
    for sizes in (mesh,) if mesh is not None else spec.meshes or ({},):
        try:
            found.append((sizes, mesh_on(backend, sizes) if sizes else None))
        except TooFewDevicesError as error:
            if session.item is None or session.options_for(session.item).missing == "error":
                raise
            lacking = str(error)
    if not found:
        pytest.skip(lacking)
    return found


def _before(run: CheckRun, spec: KernelSpec, check: Check) -> Sequence[Backend]:
    """The backends of the test that a check compares this one with."""
    session = run.session
    marks = () if session.item is None else list(session.item.iter_markers("pallas"))
    chosen, _ = session.backends_for(marks)
    known, _ = on_claimed_chips(session, spec, chosen, session.selection.automatic)
    if label(run.backend) not in map(label, known):  # of an override of pallas_backend
        return ()
    return backends_before(spec, run.backend, known, (session.base, check))


def _applying(run: CheckRun, names: Sequence[str], *, drawn: bool) -> Iterator[Check]:
    """The checks to ask: those that are named, or that the items of the spec ask, and that apply.

    Raises:
      NotApplicableError: a check that is named does not apply.
    """
    __tracebackhide__ = True
    session, backend, spec = run.session, run.backend, run.spec
    assert spec is not None
    named = bool(names) and list(names) != ["all"]
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


def _check_drawn(made: Callable[..., CheckRun], names: Sequence[str]) -> None:
    """Ask the checks about drawn examples, as the items of the spec do."""
    __tracebackhide__ = True
    plain = made()
    session, backend, spec = plain.session, plain.backend, plain.spec
    assert spec is not None
    checks: list[Check] = []
    left_out: set[str] = set()
    with tracing_first(session, spec.name, backend):
        for check in _applying(plain, names, drawn=True):
            automatic = not names or list(names) == ["all"]
            if automatic and unmet_by_kernels(session, spec, check, backend, plain.sizes):
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
            with guarded(session, run.headline, backend):
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

    Hypothesis' notes say to decorate a test that nobody wrote. What was drawn is in the message.
    """
    __tracebackhide__ = True
    try:
        return run_drawn(run)
    except PallasError as error:
        vars(error).pop("__notes__", None)
        raise _with_others(error).with_traceback(None) from error.__cause__


def _with_others(error: PallasError) -> PallasError:
    """The error whose text has the failures of other causes, too; its data stay."""
    if not facts_of(error).others:
        return error
    text = "\n".join([str(error), *(f"{ANOTHER}:\n{other}" for other in facts_of(error).others)])
    whole = error.with_message(text)
    whole.explanation = error.explanation
    return whole


def _replays(run: CheckRun, check: Check) -> bool:
    """Whether a check runs: with ``--pallas-replay`` only what the example is of."""
    loaded = run.session.replayed
    if loaded is None:
        return True
    example = loaded.example
    here = dict(example.mesh) in ({}, dict(run.sizes))
    return here and (example.kernel, example.check) == (run.name, check.name)


def _check_given(made: Callable[..., CheckRun], arguments: Arguments, names: Sequence[str]) -> Any:
    """Ask the checks about one call."""
    __tracebackhide__ = True
    named = bool(names) and list(names) != ["all"]
    values: Any = None
    plain = made()
    spec = plain.spec
    assert spec is not None
    _refuse_misfits(plain, arguments)
    with tracing_first(plain.session, spec.name, plain.backend):
        refuse_too_large(plain, arguments, names or ["all"])
    for check in list(_applying(plain, names, drawn=False)):
        run = made(check=check, before=_before(plain, spec, check))
        failure = expected_failure(spec, run.backend, check)
        try:
            answer = _check_call(run, arguments, needed=named)
        except EXPECTED:
            if failure is None:
                raise
            _note_expected(run, failure)
            continue
        values = values if answer is None else answer
    return values


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
    """Let the record say that a failure was expected; where there will be none, warn."""
    text = f"failed as expected: {failure.reason} (JAX {failure.jax})"
    run.result.add_note(Note(text, "run"))
    if run.session.item is None:
        warnings.warn(f"{run.headline} {text}", stacklevel=2)
