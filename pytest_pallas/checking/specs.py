"""Checks of a spec where it has no items: of given arguments, or of examples that it draws."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pallas_sim.errors import OptionError, PallasError
from pytest_pallas.backends import Backend, Label, label
from pytest_pallas.bindings.backends import backends_before, mesh_on, on_claimed_chips, others_of
from pytest_pallas.bindings.bound_checks import BoundCheck, bind
from pytest_pallas.bindings.call_checks import (
    Place,
    check_call,
    guarded,
    refuse_too_large,
    tracing_first,
)
from pytest_pallas.bindings.contexts import Subject, misfit, subject_of
from pytest_pallas.bindings.platforms import backend_of_spec, on_its_platform
from pytest_pallas.checks import Check
from pytest_pallas.checks.verdict import drawn_facts
from pytest_pallas.errors import EXPECTED, NotApplicableError, SpecError, TooFewDevicesError
from pytest_pallas.items.applicability import unmet_by_kernels
from pytest_pallas.items.item import ANOTHER, expected_failure, item_name
from pytest_pallas.items.running import run_bound
from pytest_pallas.notes import Note
from pytest_pallas.options.values import choose
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.session import Session
from pytest_pallas.spec import ExpectedFailure, KernelSpec
from pytest_pallas.strategies.arguments import Arguments
from pytest_pallas.strategies.once import draw_once

if TYPE_CHECKING:
    from jax.sharding import Mesh


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
        place = Place(session=session, backend=backend, family=spec.family, mesh=sizes)
        if arguments is None:
            _check_drawn(place, spec, made, names)
        else:
            values = _check_given(place, spec, made, arguments, names)
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


def _chosen(place: Place, spec: KernelSpec, names: Sequence[str]) -> Iterator[Check]:
    """The named checks, or those that the items of the spec ask."""
    session, options = place.session, place.options
    if names and list(names) != ["all"]:
        yield from (session.checks[name] for name in choose(names, session.checks, "checks="))
        return
    if names:
        options = dataclasses.replace(options, checks=("all",))
    for check in session.checks_for(options):
        if spec.checks is None or check.name in spec.checks:
            yield check


def _before(place: Place, spec: KernelSpec, check: Check) -> Sequence[Backend]:
    """The backends of the test that a check compares this one with."""
    session = place.session
    marks = () if session.item is None else list(session.item.iter_markers("pallas"))
    chosen, _ = session.backends_for(marks)
    known, _ = on_claimed_chips(session, spec, chosen, session.selection.automatic)
    if label(place.backend) not in map(label, known):  # of an override of pallas_backend
        return ()
    return backends_before(spec, place.backend, known, (session.base, check))


def _unmet(place: Place, spec: KernelSpec, check: Check, before: Sequence[Backend]) -> str | None:
    """Why a check does not apply, as far as that is known without an example."""
    if place.backend.kind == "compiling" and check.program is None:
        return "it compiles nothing that another check does not"
    return check.unmet(spec, place.backend, before)


def _applying(
    place: Place, spec: KernelSpec, names: Sequence[str], *, drawn: bool
) -> tuple[list[tuple[Check, Sequence[Backend]]], set[str]]:
    """The checks to ask with the backends that they compare with, and names of what is left out.

    Raises:
      NotApplicableError: a check that is named does not apply.
    """
    __tracebackhide__ = True
    named = bool(names) and list(names) != ["all"]
    session = place.session
    found: list[tuple[Check, Sequence[Backend]]] = []
    left_out: set[str] = set()
    for check in _chosen(place, spec, names):
        if session.mutant is not None and not check.tries_mutants:
            continue
        if not drawn and not named and check.conclude is not None:
            continue  # one call is not the examples that it concludes from
        before = _before(place, spec, check)
        unmet = _unmet(place, spec, check, before)
        if unmet is not None and named:
            raise NotApplicableError(
                f"{spec.name}: {check.name} on {label(place.backend)}: not applicable ({unmet}); "
                f"leave it out of checks=, or change the spec in {spec.file}"
            )
        if unmet is not None:
            continue
        if (
            drawn
            and not named
            and unmet_by_kernels(session, spec, check, place.backend, place.mesh)
        ):
            left_out.add(check.name)
            continue
        found.append((check, before))
    return found, left_out


def _check_drawn(place: Place, spec: KernelSpec, mesh: Mesh | None, names: Sequence[str]) -> None:
    """Ask the checks about drawn examples, as the items of the spec do."""
    __tracebackhide__ = True
    session, backend = place.session, place.backend
    with tracing_first(session, spec.name, backend):
        checks, left_out = _applying(place, spec, names, drawn=True)
    raised = False
    for check, before in checks:
        failure = expected_failure(spec, backend, check)
        if not _replays(place, spec, check) or (raised and failure is not None):
            continue  # where the kernel raises as expected, others that fail would raise the same
        bound = bind(
            session,
            session.item,
            options=place.options,
            spec=spec,
            check=check,
            backend=backend,
            mesh=mesh,
            sizes=place.mesh,
            before=before,
            name=item_name(spec, check.name, backend, place.mesh),
            test=place.test,
            place=place.name,
            expected=failure is not None,
            left_out=left_out.__contains__,
        )
        headline = f"{spec.name}: {check.name} on {place.name}"
        try:
            with guarded(session, headline, backend):
                requirement = _run(bound)
        except EXPECTED:
            if failure is None:
                raise
            _note_expected(session, bound.builder, headline, failure)
            raised = raised or check.base
            continue
        if requirement:
            session.builders.pop((spec.name, check.name, place.name), None)
        elif failure is not None and session.mutant is None:
            raise SpecError(
                f"{headline} passes, and its xfail expects a failure: {failure.reason} (JAX "
                f"{failure.jax}); remove that from the spec in {spec.file}"
            )


def _run(bound: BoundCheck) -> str:
    """See ``running.run_bound``. A failure is told as that of a call, without what hypothesis did.

    It says to decorate a test that nobody wrote. What was drawn is in the message.
    """
    __tracebackhide__ = True
    try:
        return run_bound(bound)
    except PallasError as error:
        vars(error).pop("__notes__", None)
        raise _with_others(error).with_traceback(None) from error.__cause__


def _with_others(error: PallasError) -> PallasError:
    """The error whose text has the failures of other causes, too; its data stay."""
    if not error.others:
        return error
    text = "\n".join([str(error), *(f"{ANOTHER}:\n{other}" for other in error.others)])
    whole = error.with_message(text)
    whole.explanation = error.explanation
    return whole


def _replays(place: Place, spec: KernelSpec, check: Check) -> bool:
    """Whether a check is bound: with ``--pallas-replay`` only what the example is of."""
    loaded = place.session.replayed
    if loaded is None:
        return True
    example = loaded.example
    here = dict(example.mesh) in ({}, dict(place.mesh))
    return here and (example.kernel, example.check) == (spec.name, check.name)


def _check_given(
    place: Place,
    spec: KernelSpec,
    mesh: Mesh | None,
    arguments: Arguments,
    names: Sequence[str],
) -> Any:
    """Ask the checks about one call."""
    __tracebackhide__ = True
    named = bool(names) and list(names) != ["all"]
    values: Any = None
    plain = subject_of(spec, place.backend, mesh, ())
    _refuse_misfits(spec, plain, mesh, arguments)
    with tracing_first(place.session, spec.name, place.backend):
        refuse_too_large(place.session, place.backend, plain, arguments, names or ["all"])
    for check, before in _applying(place, spec, names, drawn=False)[0]:
        others = others_of(spec, place.backend, place.mesh, before)
        subject = subject_of(spec, place.backend, mesh, others)
        failure = expected_failure(spec, place.backend, check)
        try:
            found = check_call(place, subject, check, arguments, needed=named)
        except EXPECTED:
            if failure is None:
                raise
            builder = place.session.builders[spec.name, check.name, place.name]
            headline = f"{spec.name}: {check.name} on {place.name}"
            _note_expected(place.session, builder, headline, failure)
            continue
        values = values if found is None else found
    return values


def _refuse_misfits(
    spec: KernelSpec, subject: Subject, mesh: Mesh | None, arguments: Arguments
) -> None:
    """Refuse a call that the kernel or its reference does not take."""
    __tracebackhide__ = True
    functions = [("kernel", subject.kernel, {**arguments.options, **arguments.tuning})]
    if subject.reference is not None:
        functions.append(("reference", subject.reference, dict(arguments.options)))
    for role, function, keywords in functions:
        problem = misfit(function, arguments.args, keywords)
        if problem:
            strategy: Any = spec.inputs
            drawn = draw_once(strategy if mesh is None else strategy(mesh))
            usual = "; ".join(f"{fact.name} {fact.text}" for fact in drawn_facts(drawn))
            raise OptionError(
                f"{spec.name}: the arguments do not fit the {role} {problem}. Give what the spec "
                f"in {spec.file} draws, such as {usual}"
            )


def _note_expected(
    session: Session, builder: ResultBuilder, headline: str, failure: ExpectedFailure
) -> None:
    """Let the record say that a failure was expected; where there will be none, warn."""
    text = f"failed as expected: {failure.reason} (JAX {failure.jax})"
    builder.add_note(Note(text, "run"))
    if session.item is None:
        warnings.warn(f"{headline} {text}", stacklevel=2)
