"""Which line of the user's files a refusal is about."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.compat.source import is_call_stack, source_line
from pallas_sim.findings import SourceLine, text_at
from pytest_pallas.analysis.kernel_calls import KernelCall
from pytest_pallas.own_code import is_own

#: A frame as MLIR prints it in a location: ``"name"("file":line:column``, innermost first.
_LOCATION_FRAME = re.compile(r'"[^"\n]*"\("(?P<file>[^"\n]+)":(?P<line>\d+):\d+')

#: A place in the words of JAX: ``pallas_call kernel at /path/file.py:12``.
_SPOKEN = re.compile(r"\bat (?P<file>/[^\s:]+|[A-Z]:[^\s:]+):(?P<line>\d+)")

_JAX = re.compile(
    r"[\\/](site|dist)-packages[\\/]jax(lib)?[\\/]|[\\/]jax[\\/](_src|experimental)[\\/]"
)
_KERNELS_OF_JAX = re.compile(r"[\\/]jax[\\/]experimental[\\/]pallas[\\/]ops[\\/]")

#: The primitive that a lowering does not know, in the words of all of Pallas' lowerings; or the
#: instruction that an assembler does not know, which is named like the primitive.
_PRIMITIVE = re.compile(r"[Uu]nimplemented primitive [^:\n]*: (\w+)|Instruction '(\w+)\.")


def in_text(text: str) -> str | None:
    """``file:line`` of the innermost frame of the user in the MLIR locations of a message."""
    return _innermost((m["file"], int(m["line"])) for m in _LOCATION_FRAME.finditer(text))


def spoken(text: str) -> str | None:
    """``file:line`` that a message of JAX names in its words."""
    return _innermost((m["file"], int(m["line"])) for m in _SPOKEN.finditer(text))


def in_traceback(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame of the user that JAX called, or put there.

    Frames before the first one of JAX (or of this package) belong to the caller. JAX appends the
    frames of the operation that it was lowering, or raises from an exception that has them.
    """
    found: str | None = None
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and found is None and id(link) not in seen:
        seen.add(id(link))
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(link.__traceback__)]
        if not is_call_stack(link):
            first = next((i for i, (file, _) in enumerate(frames) if _is_inner(file)), len(frames))
            frames = frames[first:]
        found = _innermost(reversed(frames))
        link = link.__cause__
    return found


def in_kernels(text: str, kernels: Sequence[KernelCall]) -> str | None:
    """``file:line`` of the operation that a message names, else of the kernel it is about."""
    match = _PRIMITIVE.search(text)
    if match is not None:
        name = match[1] or match[2]
        for kernel in kernels:
            line = _line_of(kernel.eqn, name, kernel.source)
            if line is not None:
                return line
    sources = (kernel.source or _definition(kernel.eqn) for kernel in kernels)
    return next((source for source in sources if source), None)


def source_text(place: str, *, most: int = 100) -> str:
    """The text of a line ``file:line``, or "" if it cannot be read."""
    text = text_at(place)
    return text if len(text) <= most else text[: most - 3] + "..."


def _innermost(frames: Iterable[tuple[str, int]]) -> str | None:
    """The first frame of the user's; else the first one in a kernel that comes with JAX."""
    fallback: str | None = None
    for file, line in frames:
        if _is_users(file):
            return str(SourceLine(file, line))
        if fallback is None and _KERNELS_OF_JAX.search(file):
            fallback = str(SourceLine(file, line))
    return fallback


def _is_users(file: str) -> bool:
    return not (file.startswith("<") or _is_inner(file) or _is_stdlib(file))


def _is_inner(file: str) -> bool:
    """Whether a file is JAX's or this package's."""
    return bool(_JAX.search(file)) or is_own(file)


def _is_stdlib(file: str) -> bool:
    return Path(file).parent == Path(linecache.__file__).parent


def _line_of(eqn: Any, primitive: str, around: str | None) -> str | None:
    """The line of the first ``primitive`` inside an equation.

    The body of a jitted function of ``jax.numpy`` has no frame of the user: then the line of the
    equation around it.
    """
    for inner in _equations(eqn):
        line = source_line(inner) or around
        if inner.primitive.name == primitive or inner.primitive.name.startswith(f"{primitive}_"):
            return line
        found = _line_of(inner, primitive, line)
        if found is not None:
            return found
    return None


def _definition(eqn: Any) -> str | None:
    """The line of the first function of the user's inside an equation.

    ``debug_info.func_src_info`` ends in "at file:line". Seen in JAX 0.11.2 and 0.12.0.1.
    """
    for jaxpr in sub_jaxprs(eqn):
        info = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", ""))
        found = spoken(info) or next(filter(None, map(_definition, jaxpr.eqns)), None)
        if found is not None:
            return found
    return None


def _equations(eqn: Any) -> Iterator[Any]:
    for jaxpr in sub_jaxprs(eqn):
        yield from jaxpr.eqns
