"""Read the arguments of ``pallas_check``, ``pytest_pallas.check`` and ``pallas_run``.

``check_kernel`` refuses what does not fit together, and gives the rest to ``call_checks``. The
fixture and the function differ in their session only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import OptionError, SimulationLimitError
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.registry import parse
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import ComparisonPeer
from pytest_pallas.checks.cross import accepted
from pytest_pallas.draw.arguments import Arguments, Drawn, as_arguments
from pytest_pallas.errors import BackendUnavailableError
from pytest_pallas.fixture_types import CheckKeywords, Peers, SpecKeywords
from pytest_pallas.run.backends import backend_of_call, implementations_of, mesh_or_skip, on_mesh
from pytest_pallas.run.call_checks import (
    check_function,
    check_spec,
    refuse_too_large,
    tracing_first,
)
from pytest_pallas.run.check_run import CheckRun, check_run, lacks_mesh, name_of
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec

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
    chosen = names or _marked_checks(session)

    def on(backend: Backend) -> CheckRun:
        return _run_of_call(session, backend, kernel, reference, given, name, sizes, mesh)

    run = on(backend)
    moved = backend
    with (
        contextlib.suppress(SimulationLimitError),  # the check says it, of an example that counts
        tracing_first(session, name, backend, call, chosen[0] if chosen else ""),
    ):
        moved = backend_of_call(session, backend, run.kernel, call)
        refuse_too_large(dataclasses.replace(run, backend=moved), call, chosen)
    return check_function(run if moved is backend else on(moved), call, chosen)


def listed(checks: str | Check | Sequence[str | Check]) -> list[str | Check]:
    """Checks as a list, also if only one is given."""
    return [checks] if isinstance(checks, str | Check) else list(checks)


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


def _run_of_call(
    session: Session,
    backend: Backend,
    kernel: Callable[..., Any],
    reference: Callable[..., Any] | None,
    keywords: Mapping[str, Any],
    name: str,
    sizes: Mapping[str, int],
    mesh: Mesh | Mapping[str, int] | None,
) -> CheckRun:
    """The run of a function's checks, on its mesh, with its properties."""
    __tracebackhide__ = True
    rest = dict(keywords)
    implementations, peers = rest.pop("implementations", None) or {}, rest.pop("peers", None) or ()
    others = (
        *_peers(session, kernel, peers, sizes),
        *implementations_of(implementations, backend, sizes),
    )
    made = mesh_or_skip(session, backend, mesh) if isinstance(mesh, Mapping) else mesh
    for role, function in (("kernel", kernel), ("reference", reference)):
        if made is not None and function is not None and not accepted(function, ["mesh"]):
            raise OptionError(f"{name}: the {role} takes no mesh=; leave it out")
    fields = {**rest, "name": name, "reference": reference, "others": others}
    return check_run(session, backend, kernel, mesh=made, sizes=sizes, **fields)


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
