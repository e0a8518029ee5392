"""The short message, put together."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from typing import Any

from pallas_sim.compat.compilers import is_compiler_error
from pytest_pallas.analysis.kernel_calls import KernelCall, kernel_calls
from pytest_pallas.analysis.refusals import places
from pytest_pallas.analysis.refusals.cleaning import CompilerMessage, clean
from pytest_pallas.analysis.refusals.memory import overflow
from pytest_pallas.analysis.refusals.operands import NONE, operands_of, with_names

#: What says by itself which operand, shape or operation is meant.
_SPECIFIC = re.compile(r"[\[(]\d|\dx\d|args\[|(?:in|out)put \d|[Uu]nimplemented primitive")

#: A line with nothing but ``file:line``.
_ONLY_A_PLACE = re.compile(r"\s*at (\S+:\d+)\s*")


def short(
    error_or_text: BaseException | str, *, kernels: Sequence[KernelCall] = (), jaxpr: Any = None
) -> str:
    """What a compiler rejected, in at most five lines.

    What is rejected, with the operand, the limit and the number that is over it; the compiler's
    operation; the line of the user's kernel. Nothing in here is fitted to one kernel: a message of
    an unknown form is cleaned of what does not help its reader and otherwise kept.

    Args:
      error_or_text: what JAX raised while it traced or lowered, or the text that a compiler gave
        or left on stderr.
      kernels: the kernels of the program, to name operands and lines that the text leaves out.
      jaxpr: the program, if its kernels are not at hand.
    """
    kernels = kernels or (() if jaxpr is None else kernel_calls(jaxpr))
    text = error_or_text if isinstance(error_or_text, str) else full_text(error_or_text)
    message = clean(text)
    meant = [kernel for kernel in kernels if kernel.name == message.kernel] or list(kernels)
    operands = operands_of(meant[0]) if len(meant) == 1 else NONE
    lines = overflow(text, operands)
    if lines is None:
        lines = [with_names(line, operands) for line in message.lines]
        if message.operation:
            lines.append(f"in {message.operation}")
        elif not _SPECIFIC.search(text):
            arrays = [str(operand) for operand in operands.all if operand.nbytes]
            lines += [f"operands: {', '.join(arrays[:6])}"] if arrays else []
    place = _place(error_or_text, text, meant)
    if not lines or (isinstance(error_or_text, BaseException) and not str(error_or_text)):
        lines = [_wordless(error_or_text, place)]
    lines = [line for line in lines if not _only_names(line, place)]
    return "\n".join([*lines, *_where(place, message, meant)])


def full_text(error: BaseException) -> str:
    """The whole message of a compiler: the type and text of an error, or of the one it hides.

    JAX replaces libtpu's error by one without the text's locations and puts their frames into the
    traceback, which does not leave the process. The original is its cause.
    """
    cause = error.__cause__
    if cause is not None and is_compiler_error(error) and str(cause):
        error = cause
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _wordless(error_or_text: BaseException | str, place: str | None) -> str:
    """The line for an error without a message, such as a bare assertion.

    It has the line that raised, unless that is ``place``, which the last line names.
    """
    if isinstance(error_or_text, str):
        return "the compiler gave no message"
    frames = traceback.extract_tb(error_or_text.__traceback__)
    where = ""
    if frames and f"{frames[-1].filename}:{frames[-1].lineno}" != place:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"
    return f"{type(error_or_text).__name__} without a message{where}"


def _place(
    error_or_text: BaseException | str, text: str, kernels: Sequence[KernelCall]
) -> str | None:
    """``file:line`` of the user's kernel."""
    place = places.in_text(text)
    if place is None and isinstance(error_or_text, BaseException):
        place = places.in_traceback(error_or_text)
    return place or places.in_kernels(text, kernels) or places.spoken(text)


def _only_names(line: str, place: str | None) -> bool:
    """Whether a line of the message has only the place, in full or without its folder."""
    named = _ONLY_A_PLACE.fullmatch(line)
    return named is not None and f"/{place}".endswith(f"/{named[1]}")


def _where(place: str | None, message: CompilerMessage, kernels: Sequence[KernelCall]) -> list[str]:
    """The line of the user's kernel, and its text."""
    name = message.kernel or (kernels[0].name if len(kernels) == 1 else "")
    if place is None:
        return [f"in kernel {name}"] if name else []
    source = places.source_text(place)
    return [(f"in kernel {name}, " if name else "at ") + place + (f": {source}" if source else "")]
