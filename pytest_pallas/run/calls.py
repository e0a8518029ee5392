"""What ``pallas_check`` and ``pytest_pallas.check`` do: they differ in their session only."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError, PallasError, SimulationLimitError
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.registry import parse
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import ComparisonPeer
from pytest_pallas.checks.cross import accepted
from pytest_pallas.checks.verdict import drawn_facts
from pytest_pallas.draw.arguments import Arguments, Drawn, as_arguments
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.errors import (
    EXPECTED,
    BackendUnavailableError,
    NotApplicableError,
    SpecError,
    TooFewDevicesError,
)
from pytest_pallas.fixture_types import CheckKeywords, Peers, SpecKeywords
from pytest_pallas.option_values import choose
from pytest_pallas.record import Note
from pytest_pallas.run.applicability import unmet_by_kernels
from pytest_pallas.run.backends import (
    backend_of_call,
    backend_of_spec,
    backends_before,
    implementations_of,
    mesh_on,
    mesh_or_skip,
    on_claimed_chips,
    on_its_platform,
    on_mesh,
    others_of,
)
from pytest_pallas.run.call_checks import (
    Place,
    check_call,
    check_function,
    guarded,
    refuse_too_large,
    tracing_first,
)
from pytest_pallas.run.context import BoundCheck, Subject, bind, lacks_mesh, misfit, subject_of
from pytest_pallas.run.item import ANOTHER, expected_failure, item_name, run_bound
from pytest_pallas.run.result import ResultBuilder
from pytest_pallas.session import Session
from pytest_pallas.spec import ExpectedFailure, KernelSpec

if TYPE_CHECKING:
    from jax.sharding import Mesh


#: The keyword arguments of ``pallas_check``, and how many of them a spec takes, too.
_KEYWORDS = ("reference", *CheckKeywords.__annotations__)
_OF_SPECS = 1 + len(SpecKeywords.__annotations__)


def check_kernel(
    session: Session,
    backend: Backend,
    kernel: Callable[..., Any] | KernelSpec,
    args: tuple[Any, ...],
    reference: Callable[..., Any] | None,
    keywords: CheckKeywords,
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
      OptionError: what is given does not fit together.
      PallasError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    refuse_others(kernel)
    given: dict[str, Any] = dict(keywords)
    _refuse_unknown(kernel, reference, backend, given, also)
    call = _call(args, given.pop("options", None), given.pop("tuning", None))
    _refuse_spread(call)
    asked, mesh = listed(given.pop("checks", ())), given.pop("mesh", None)
    names = [each if isinstance(each, str) else each.name for each in asked]
    if isinstance(kernel, KernelSpec):
        _refuse_properties(kernel, reference, given)
        if not args and (call.options or call.tuning):
            raise OptionError(
                f"{kernel.name}: the spec draws options and tuning with its examples; leave out "
                "options= and tuning=, or give the arguments of a call, too"
            )
        return check_spec(session, backend, kernel, call if args else None, names=names, mesh=mesh)
    name = given.get("name") or name_of(kernel)
    if reference is None and backend.kind != "compiling":
        raise TypeError(
            f"{name}: reference= is missing: give the same function in jnp; only a KernelSpec has "
            "one of its own"
        )
    sizes: Mapping[str, int] = {}
    if mesh is not None:
        sizes = dict(mesh if isinstance(mesh, Mapping) else mesh.shape)
    if mesh is None and lacks_mesh(kernel, call.args, {**call.options, **call.tuning}):
        raise OptionError(
            f"{name}: the kernel needs mesh=: give the sizes of its axes, such as "
            'mesh={"x": 4}, or a jax.sharding.Mesh'
        )
    subject = _subject(session, backend, kernel, reference, given, name, sizes, mesh)
    chosen = names or _marked_checks(session)
    moved = backend
    with (
        contextlib.suppress(SimulationLimitError),  # the check says it, of an example that counts
        tracing_first(session, name, backend, call, chosen[0] if chosen else ""),
    ):
        moved = backend_of_call(session, backend, subject.kernel, call)
        refuse_too_large(session, moved, subject, call, chosen)
    if moved is not backend:
        subject = _subject(session, moved, kernel, reference, given, name, sizes, mesh)
        backend = moved
    place = Place(session=session, backend=backend, mesh=sizes)
    return check_function(place, subject, call, chosen)


def listed[T](given: T | Sequence[T]) -> list[T]:
    """The members of what may be a single one, such as the name of a check."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return list(given) if several else [given]  # pyright: ignore[reportReturnType]


def arguments_to_run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None,
    tuning: Mapping[str, Any] | None,
) -> Arguments:
    """What ``pallas_run`` calls a function with; all keyword arguments are options.

    Args:
      function: the function.
      args: its positional arguments, or one ``Arguments``.
      keywords: its keyword arguments.
      options: more of them, as ``pallas_check`` takes them.
      tuning: likewise.

    Raises:
      TypeError: the function has no such parameter, or an argument is given twice.
      OptionError: options or tuning beside a whole call, or no mapping.
    """
    __tracebackhide__ = True
    for word, given in (("options", options), ("tuning", tuning)):
        if given is not None and not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"{word}= is a mapping from keyword arguments of the kernel to their values, such "
                f"as {word}={{'block': 8}}, not {given!r:.80}"
            )
    whole = len(args) == 1 and isinstance(args[0], Arguments)
    call = _call(args, options, tuning) if whole else Arguments(args, options or {}, tuning or {})
    parts = (call.options, call.tuning, keywords)
    merged = {name: value for part in parts for name, value in part.items()}
    for word in merged:
        if sum(word in part for part in parts) > 1:
            raise TypeError(
                f"{name_of(function)}: {word}= is given twice; give it in options=, in tuning= or "
                "by itself"
            )
        _refuse_to_run_with(function, word)
    return Arguments(call.args, merged)


def _refuse_to_run_with(function: Callable[..., Any], word: str) -> None:
    """Reject a keyword argument that a function does not take, and name the right one."""
    __tracebackhide__ = True
    taken = _keywords_of(function)
    if taken is None or word in taken:
        return
    name = name_of(function)
    if word in _KEYWORDS:
        raise TypeError(
            f"{name} takes no keyword argument {word!r}: it is one of pallas_check, which compares "
            "the kernel with a reference; pallas_run only runs it"
        )
    near = difflib.get_close_matches(word, (*taken, "options", "tuning"), 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise TypeError(
        f"{name} takes no keyword argument {word!r}.{meant} It takes {', '.join(taken) or 'none'}; "
        "pallas_run takes them by themselves, or as options= and tuning= as pallas_check does"
    )


def _keywords_of(function: Any) -> list[str] | None:
    """The keyword arguments that a function takes; None for any, or if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None  # some builtins have none
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in kinds]


def name_of(function: Callable[..., Any]) -> str:
    """The default name of a function in reports."""
    inner: Any = getattr(function, "func", function)  # a functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


def _call(args: tuple[Any, ...], options: Any, tuning: Any) -> Arguments:
    """The call that is given: a single argument may be all of it, as a strategy draws it.

    Raises:
      OptionError: options or tuning beside such a call.
    """
    __tracebackhide__ = True
    if len(args) == 1 and isinstance(args[0], (Arguments, Drawn)):
        if options or tuning:
            raise OptionError(
                "options= and tuning= are those of the call; change them there, by "
                "dataclasses.replace(call, options=...)"
            )
        return as_arguments(args[0])
    return Arguments(args, dict(options or {}), dict(tuning or {}))


def _subject(
    session: Session,
    backend: Backend,
    kernel: Callable[..., Any],
    reference: Callable[..., Any] | None,
    properties: Mapping[str, Any],
    name: str,
    sizes: Mapping[str, int],
    mesh: Mesh | Mapping[str, int] | None,
) -> Subject:
    """The function, on its mesh, with its properties."""
    __tracebackhide__ = True
    rest = dict(properties)
    for word in ("name", "implementations", "peers"):
        rest.pop(word, None)
    implementations: Mapping[str, Any] = properties.get("implementations") or {}
    others = (
        *_peers(session, kernel, properties.get("peers") or (), sizes),
        *implementations_of(implementations, backend, sizes),
    )
    devices = 1
    if mesh is not None:
        made = mesh_or_skip(session, backend, mesh) if isinstance(mesh, Mapping) else mesh
        devices = made.size
        for role, function in (("kernel", kernel), ("reference", reference)):
            if function is not None and not accepted(function, ["mesh"]):
                raise OptionError(f"{name}: the {role} takes no mesh=; leave it out")
        kernel = functools.partial(kernel, mesh=made)
        reference = None if reference is None else functools.partial(reference, mesh=made)
    return Subject(
        name=name, kernel=kernel, reference=reference, others=others, devices=devices, **rest
    )


def _peers(
    session: Session, kernel: Callable[..., Any], peers: Peers, sizes: Mapping[str, int]
) -> Sequence[ComparisonPeer]:
    """The backends to compare with.

    Raises:
      OptionError: an unknown name.
      BackendUnavailableError: it cannot be had here, or executes nothing.
    """
    __tracebackhide__ = True
    found: list[ComparisonPeer] = []
    for word in [peers] if isinstance(peers, str) else peers:
        function = peers[word] if isinstance(peers, Mapping) else kernel
        for backend in parse(word, session.families):
            missing = backend.available()
            if missing is None and backend.kind == "compiling":
                missing = "it executes nothing"
            if missing is not None:
                raise BackendUnavailableError(f"peers=: {label(backend)}: {missing}")
            made = on_mesh(sizes, backend, function)
            found.append(ComparisonPeer(name=label(backend), function=made, backend=backend))
    return found


def _marked_checks(session: Session) -> Sequence[str]:
    """The checks that the running test's mark names, else the one that all build on."""
    marks = [] if session.item is None else session.item.iter_markers("pallas")
    if any("checks" in mark.kwargs for mark in marks):
        return session.options_for(session.item).checks
    return (session.base.name,)


def refuse_others(kernel: Any) -> None:
    """Refuse what is neither a function nor a spec."""
    __tracebackhide__ = True
    if isinstance(kernel, KernelSpec) or callable(kernel):
        return
    old = ""
    if isinstance(kernel, str):
        old = f"; a check of your own is declared by @pytest_pallas.declare_check({kernel!r}, ...)"
    raise OptionError(
        f"a kernel or a KernelSpec is checked, not {kernel!r:.80}; give the function or the spec "
        f"first{old}"
    )


def _refuse_spread(call: Arguments) -> None:
    """Refuse arrays of which this process holds only a part: a reference needs all elements."""
    __tracebackhide__ = True
    if gang() is None:
        return
    import jax

    for path, leaf in jax.tree_util.tree_leaves_with_path(call.args):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            first, *rest = path
            where = f"argument {getattr(first, 'idx', first)}{jax.tree_util.keystr(tuple(rest))}"
            raise OptionError(
                f"{where} is a jax.Array that is spread over the processes, and the reference "
                "needs all of it: give a numpy array that is equal in all processes; each makes "
                "the shards on its own devices"
            )


def _refuse_unknown(
    kernel: Callable[..., Any] | KernelSpec,
    reference: Callable[..., Any] | None,
    backend: Backend,
    keywords: Mapping[str, Any],
    also: Sequence[str],
) -> None:
    """Reject unknown keyword arguments, and name the place for the kernel's own."""
    __tracebackhide__ = True
    known = (*_KEYWORDS[:_OF_SPECS], *also, *_KEYWORDS[_OF_SPECS:])
    function: Any = kernel
    if isinstance(kernel, KernelSpec):
        function, reference = kernel.kernel_for(backend.platform), kernel.reference
    for word in keywords:
        if word in known:
            continue
        near = difflib.get_close_matches(word, known, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        if _takes(function, word):
            where = "options" if reference is None or _takes(reference, word) else "tuning"
            meant = f" It is a parameter of the kernel: give {where}={{{word!r}: ...}}."
        raise TypeError(
            f"there is no keyword argument {word!r}.{meant} There are {', '.join(known)}. The "
            "kernel's own go into options=, or into tuning= if the reference does not take them"
        )


def _takes(function: Any, word: str) -> bool:
    """Whether a function has a parameter of this name."""
    try:
        return word in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # some builtins have none


def _refuse_properties(
    spec: KernelSpec, reference: Callable[..., Any] | None, properties: Mapping[str, Any]
) -> None:
    """Reject arguments that a spec has itself."""
    __tracebackhide__ = True
    for word in (*(["reference"] if reference is not None else ()), *properties):
        changed = f" dataclasses.replace(SPEC, {word}=...) or" if hasattr(spec, word) else ""
        raise OptionError(
            f"{spec.name}: the spec in {spec.file} has its own {word}; leave out {word}=, or "
            f"check{changed} the kernel itself, with reference= and what else must hold"
        )


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
