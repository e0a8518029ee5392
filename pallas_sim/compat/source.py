"""Private names of JAX: where in the source an equation, or a function, comes from.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.extend.source_info_util`` gives the frames of
a traceback. Probe: ``tests/pallas_sim/compat/test_source.py``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.findings import SourceLine, generated_line, read

#: Files of JAX whose equations belong to a loop or pipeline that JAX wrote, and not to the line of
#: the user that asked for it.
_MACHINERY = (
    "/pallas/pipelining/",
    "/pallas/mosaic/pipeline.py",
    "/pallas/mosaic_gpu/pipeline.py",
    "/pallas/mosaic_gpu/helpers.py",
    "/pallas/utils.py",
    "/lax/control_flow/loops.py",
    "/lax/control_flow/for_loop.py",
)

#: Files of JAX that move the blocks of ``emit_pipeline``, and the functions there that do it.
_PIPELINES = ("/pallas/mosaic/pipeline.py", "/pallas/mosaic_gpu/pipeline.py")
_MOVES: dict[str, Literal["fetch", "write back"]] = {
    "copy_in": "fetch",
    "copy_out": "write back",
}

#: Files of JAX whose loops and branches are its own, whoever called them.
_OWN_LOOPS = ("/pallas/pipelining/", *_PIPELINES)

#: Folders of what runs kernels, or calls functions for them: no kernel is written there.
_RUNNERS = (
    *(f"/{name}/" for name in ("pallas_sim", "pytest_pallas", "_pytest", "pytest", "pluggy")),
    *(f"/{name}/" for name in ("hypothesis", "xdist", "IPython", "ipykernel", "bin")),
)

#: Files of JAX that trace a kernel's body: what is outside of them is not the kernel.
_CALLERS = ("/pallas/pallas_call.py", "/pallas/mpmd.py", "/pallas/core.py")


class Spot(NamedTuple):
    """A stretch of source code.

    Attributes:
      file: its path.
      line: the first line, from 1.
      column: the first column, from 0.
      end_line: the last line.
      end_column: the column after the last.
      function: the qualified name of the function that it is in.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str

    @property
    def at(self) -> SourceLine:
        """Its file and first line."""
        return SourceLine(self.file, self.line)


def _info() -> Any:
    return importlib.import_module("jax._src.source_info_util")


def places_in_kernel(eqn: Any) -> tuple[Spot, ...]:
    """Return where an equation of a kernel's body was made: the user's frames inside the body.

    The outermost first; frames of whoever called the kernel are left out. Empty if JAX does not
    know.
    """
    traceback = getattr(eqn.source_info, "traceback", None)
    return () if traceback is None else _frames(traceback)[0]


def is_machinery(eqn: Any) -> bool:
    """Return whether JAX made an equation for a loop or pipeline of its own, in whatever line."""
    traceback = getattr(eqn.source_info, "traceback", None)
    return traceback is not None and _frames(traceback)[1]


class UserCall(NamedTuple):
    """The user's call of JAX that made an equation.

    Attributes:
      spot: where it is.
      functions: JAX's functions between the equation and it, the innermost first.
      in_pipeline: whether a pipeline of JAX's made the equation, and not what the user wrote.
    """

    spot: Spot
    functions: tuple[str, ...]
    in_pipeline: bool


def call_of_user(eqn: Any) -> UserCall | None:
    """Return the user's call that made an equation; None of what JAX made on its own.

    None also in a derivative that ``jax.custom_vjp`` defines: JAX gives all of its equations the
    place of the call that it is the derivative of.
    """
    traceback = getattr(getattr(eqn, "source_info", None), "traceback", None)
    return None if traceback is None else _call(traceback)


@functools.lru_cache(maxsize=8192)
def _call(traceback: Any) -> UserCall | None:
    info = _info()
    functions: list[str] = []
    in_pipeline = False
    for code, instruction in zip(*traceback.raw_frames(), strict=True):
        if info.is_user_filename(code.co_filename):
            if "process_custom_vjp_call" in functions:
                return None
            spot = _spot(info.raw_frame_to_frame(code, instruction))
            return UserCall(spot, tuple(functions), in_pipeline)
        functions.append(code.co_name)
        in_pipeline = in_pipeline or any(part in code.co_filename for part in _OWN_LOOPS)
    return None


def waits_for_source(eqn: Any) -> bool:
    """Return whether the wait for a copy only waits until the source is read (``wait_send``)."""
    call = call_of_user(eqn)
    return call is not None and not {"wait_read", "wait_send"}.isdisjoint(call.functions)


def move_of_block(eqn: Any) -> Literal["fetch", "write back"] | None:
    """Return what a copy does for a pipeline that JAX wrote; None for a copy of the user."""
    traceback = getattr(getattr(eqn, "source_info", None), "traceback", None)
    if traceback is None or not is_machinery(eqn):
        return None
    codes, _ = traceback.raw_frames()
    names = (code.co_name for code in codes if code.co_filename.endswith(_PIPELINES))
    return next((_MOVES[name] for name in names if name in _MOVES), None)


@functools.lru_cache(maxsize=8192)
def _frames(traceback: Any) -> tuple[tuple[Spot, ...], bool]:
    info = _info()
    codes, instructions = traceback.raw_frames()
    user: list[Spot] = []
    machinery = False
    for code, instruction in zip(codes, instructions, strict=True):
        if user and code.co_filename.endswith(_CALLERS):
            break
        if info.is_user_filename(code.co_filename):
            user.append(_spot(info.raw_frame_to_frame(code, instruction)))
        elif not user:
            machinery = machinery or any(part in code.co_filename for part in _MACHINERY)
    return tuple(reversed(user)), machinery


def place_of_call(eqn: Any) -> Spot | None:
    """Return the user's innermost frame of an equation outside of a kernel (a ``pallas_call``)."""
    frame = _info().user_frame(getattr(eqn.source_info, "traceback", None))
    return None if frame is None else _spot(frame)


def _spot(frame: Any) -> Spot:
    return Spot(
        frame.file_name,
        frame.start_line,
        frame.start_column,
        frame.end_line,
        frame.end_column,
        frame.function_name,
    )


@contextmanager
def own_lines() -> Generator[None]:
    """Keep the user's lines while tracing.

    Of what JAX traces for a gradient, or of a function that it evaluates again, it says the line of
    the call that was differentiated: a kernel's body would be one line.
    """
    info = _info()
    partial_eval: Any = importlib.import_module("jax._src.interpreters.partial_eval")
    state = info._source_info_context
    original = partial_eval.trace_to_jaxpr

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        before = state.context
        state.context = info.SourceInfo(None, before.name_stack)
        try:
            return original(*args, **kwargs)
        finally:
            state.context = before

    def without_lines(source: Any) -> Any:
        stack = info.current_name_stack() + source.name_stack
        return info.user_context(None, name_stack=stack)

    derivatives: Any = importlib.import_module("jax._src.interpreters.ad")
    context = derivatives._name_stack_ctx
    partial_eval.trace_to_jaxpr, derivatives._name_stack_ctx = traced, without_lines
    try:
        yield
    finally:
        partial_eval.trace_to_jaxpr, derivatives._name_stack_ctx = original, context


def home_of(jaxpr: Any) -> tuple[str, str, int]:
    """Return name, file and line of the function that an open jaxpr is of, as far as known."""
    info = getattr(jaxpr, "debug_info", None)
    text = str(getattr(info, "func_src_info", "") or "")
    name, _, rest = text.partition(" at ")
    line = read(rest) or SourceLine(rest, 0)
    return name, line.file, line.line


def source_line(eqn: Any) -> str | None:
    """Return ``file:line`` of the user's code that made an equation, or None.

    Of code that ``exec`` made, it is the line of the nearest caller in a file, followed by the name
    of the function; see ``findings.generated_line``.
    """
    traceback = getattr(eqn.source_info, "traceback", None)
    inner, caller = (None, None) if traceback is None else _ends(traceback)
    if inner is None or inner is caller:
        return None if inner is None else str(inner.at)
    function = inner.function.rpartition(".")[2]
    return generated_line(_line_in_file(traceback), inner.at, function)


@functools.lru_cache(maxsize=8192)
def _ends(traceback: Any) -> tuple[Spot | None, Spot | None]:
    """Return the user's innermost frame, and the first one of it and its callers in a file."""
    frames = iter(_info().user_frames(traceback))
    frame = next(frames, None)
    if frame is None:
        return None, None
    inner = _spot(frame)
    if os.path.isfile(inner.file):
        return inner, inner
    caller = next((frame for frame in frames if _may_have_kernels(frame.file_name)), None)
    return inner, None if caller is None else _spot(caller)


#: Lines of callers, by the identity of a traceback (and the traceback, which keeps that). A
#: traceback in a kernel ends where JAX began to trace the body.
_CALLERS_OF: dict[int, tuple[Any, SourceLine]] = {}

_MOST_CALLERS = 8192


def note_callers(eqn: Any) -> None:
    """Note the line of an equation for those in its jaxprs whose traceback has no file."""
    at: SourceLine | None = None
    for inner in (inner for jaxpr in sub_jaxprs(eqn) for inner in jaxpr.eqns):
        traceback = getattr(inner.source_info, "traceback", None)
        if traceback is None or _ends(traceback)[1] is not None:
            continue
        around = getattr(eqn.source_info, "traceback", None)
        at = at or (around and _line_in_file(around)) or _line_that_runs()
        if at is None:
            return
        _CALLERS_OF[id(traceback)] = traceback, at
        if len(_CALLERS_OF) > _MOST_CALLERS:
            del _CALLERS_OF[next(iter(_CALLERS_OF))]


def _line_that_runs() -> SourceLine | None:
    """Return the nearest line of the user that is running now: it calls what was traced."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if _may_have_kernels(code.co_filename) and _info().is_user_filename(code.co_filename):
            return SourceLine(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def _line_in_file(traceback: Any) -> SourceLine | None:
    caller = _ends(traceback)[1]
    return _CALLERS_OF.get(id(traceback), (None, None))[1] if caller is None else caller.at


#: Where the modules of Python are, and those that are installed; asking takes long.
_STANDARD, _INSTALLED = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")


def _may_have_kernels(file: str) -> bool:
    """Return whether a file exists, and is of a user or of a library that has kernels."""
    standard = file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    return not standard and os.path.isfile(file) and not any(part in file for part in _RUNNERS)


def is_of_jax(jaxpr: Any) -> bool:
    """Return whether an open jaxpr is of a function that JAX defines, such as ``jnp.where``."""
    return "/jax/_src/" in home_of(jaxpr)[1]


def is_call_stack(error: BaseException) -> bool:
    """Return whether an error only holds the frames of an operation that JAX was lowering."""
    return type(error).__name__ == "JaxStackTraceBeforeTransformation"
