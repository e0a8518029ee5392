"""The arguments of ``pallas_check``, ``pytest_pallas.check`` and ``pallas_run``.

What is refused before anything runs: unknown keywords, and arguments that do not fit together. What
did not end in time is not run again (``once_in_a_test``).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hypothesis

from pallas_sim.errors import OptionError, PallasError
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import Backend
from pytest_pallas.checks import Check
from pytest_pallas.draw.arguments import Arguments, Drawn, as_arguments
from pytest_pallas.draw.examples import draw_name
from pytest_pallas.fixture_types import CheckKeywords, SpecKeywords
from pytest_pallas.run.check_run import (
    name_of,
)
from pytest_pallas.session import CallsOfTest, Session
from pytest_pallas.spec import KernelSpec

if TYPE_CHECKING:
    pass


#: The keyword arguments of ``pallas_check``, and how many of them a spec takes, too.
_KEYWORDS = ("reference", *CheckKeywords.__annotations__)


_OF_SPECS = 1 + len(SpecKeywords.__annotations__)


def listed(checks: str | Check | Sequence[str | Check]) -> list[str | Check]:
    """Return checks as a list, also if only one is given."""
    return [checks] if isinstance(checks, str | Check) else list(checks)


def refuse_others(kernel: Any) -> None:
    """Refuse a kernel that is neither a function nor a spec."""
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


def call_with(args: tuple[Any, ...], options: Any, tuning: Any) -> Arguments:
    """Return the call: a single argument may be all of it, as a strategy draws it.

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


def refuse_spread(call: Arguments) -> None:
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


def refuse_unknown(
    kernel: Callable[..., Any] | KernelSpec,
    reference: Callable[..., Any] | None,
    backend: Backend,
    keywords: Mapping[str, Any],
    also: Sequence[str],
) -> None:
    """Reject unknown keyword arguments, and say where the kernel's own belong."""
    __tracebackhide__ = True
    known = (*_KEYWORDS[:_OF_SPECS], *also, *_KEYWORDS[_OF_SPECS:])
    function: Any = kernel
    if isinstance(kernel, KernelSpec):
        function, reference = kernel.kernel_for(backend.platform), kernel.reference
    for name in keywords:
        if name in known:
            continue
        meant = _did_you_mean(name, known)
        if name in _parameters(function):
            shared = reference is None or name in _parameters(reference)
            where = "options" if shared else "tuning"
            meant = f" It is a parameter of the kernel: give {where}={{{name!r}: ...}}."
        raise TypeError(
            f"there is no keyword argument {name!r}.{meant} There are {', '.join(known)}. The "
            "kernel's own go into options=, or into tuning= if the reference does not take them"
        )


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a sentence with the name that is most like an unknown one; "" if none is."""
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function by name; some builtins do not say theirs."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def refuse_properties(
    spec: KernelSpec, reference: Callable[..., Any] | None, properties: Mapping[str, Any]
) -> None:
    """Reject arguments that a spec has itself."""
    __tracebackhide__ = True
    for name in (*(["reference"] if reference is not None else ()), *properties):
        changed = f" dataclasses.replace(SPEC, {name}=...) or" if hasattr(spec, name) else ""
        raise OptionError(
            f"{spec.name}: the spec in {spec.file} has its own {name}; leave out {name}=, or "
            f"check{changed} the kernel itself, with reference= and what else must hold"
        )


# The arguments of ``pallas_run``.


def arguments_to_run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None,
    tuning: Mapping[str, Any] | None,
) -> Arguments:
    """Return the call that ``pallas_run`` makes of a function; all keyword arguments are options.

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
    for name, mapping in (("options", options), ("tuning", tuning)):
        if mapping is not None and not isinstance(mapping, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"{name}= is a mapping from keyword arguments of the kernel to their values, such "
                f"as {name}={{'block': 8}}, not {mapping!r:.80}"
            )
    whole = len(args) == 1 and isinstance(args[0], Arguments)
    call = (
        call_with(args, options, tuning) if whole else Arguments(args, options or {}, tuning or {})
    )
    parts = (call.options, call.tuning, keywords)
    merged = {name: value for part in parts for name, value in part.items()}
    for name in merged:
        if sum(name in part for part in parts) > 1:
            raise TypeError(
                f"{name_of(function)}: {name}= is given twice; give it in options=, in tuning= or "
                "by itself"
            )
        _refuse_to_run_with(function, name)
    return Arguments(call.args, merged)


def _refuse_to_run_with(function: Callable[..., Any], keyword: str) -> None:
    """Reject a keyword argument that a function does not take, and name the right one."""
    __tracebackhide__ = True
    parameters = _parameters(function).values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [one.name for one in parameters if one.kind in kinds]
    takes_any = not parameters or any(one.kind is one.VAR_KEYWORD for one in parameters)
    if takes_any or keyword in known:
        return
    name = name_of(function)
    if keyword in _KEYWORDS:
        raise TypeError(
            f"{name} takes no keyword argument {keyword!r}: it is one of pallas_check, which "
            "compares the kernel with a reference; pallas_run only runs it"
        )
    meant = _did_you_mean(keyword, (*known, "options", "tuning"))
    raise TypeError(
        f"{name} takes no keyword argument {keyword!r}.{meant} It takes "
        f"{', '.join(known) or 'none'}; pallas_run takes them by themselves, or as options= and "
        "tuning= as pallas_check does"
    )


# A kernel that does not end costs its time limit once in a ``@given`` test.


def once_in_a_test[T](
    session: Session, kernel: str, arguments: Arguments, run: Callable[[], T]
) -> T:
    """Run a call of a kernel, unless one of the running test did not end in time.

    Args:
      session: of the run.
      kernel: name of the kernel.
      arguments: the call.
      run: runs it.

    Returns:
      What ``run`` returns.

    Raises:
      PallasError: this call did not end in time when it ran.
      hypothesis.errors.UnsatisfiedAssumption: another call did not, and this one has not run.
    """
    __tracebackhide__ = True
    if session.item is None or not hypothesis.currently_in_test_context():
        return run()
    calls = session.calls.setdefault((session.item.nodeid, kernel), CallsOfTest())
    call = draw_name(arguments)
    if call in calls.overdue:
        error, traceback = calls.overdue[call]
        raise error.with_traceback(traceback)
    if calls.overdue and call not in calls.ended:
        hypothesis.reject()
    try:
        values = run()
    except Exception as error:
        if isinstance(error, PallasError) and error.timed_out:
            calls.overdue[call] = error, error.__traceback__
        else:
            calls.ended.add(call)
        raise
    calls.ended.add(call)
    return values
