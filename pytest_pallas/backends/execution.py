"""Compiled programs take memory maps, of which Linux gives a process 65,530.

Each executable of XLA's CPU compiler takes about five and keeps them. Beyond the limit an
allocation fails inside LLVM, and the process dies of a segmentation fault: after some ten thousand
programs, which is minutes of fuzzing. JAX forgets its programs when it is asked to.
"""

from __future__ import annotations

import functools
import itertools
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.analysis import KernelCall, kernel_calls
from pytest_pallas.backends.protocol import Call, Outcome
from pytest_pallas.backends.tracing import Static, apply, jitted, split
from pytest_pallas.compat.interpreters import clear_effect_tokens, reset_interpreters
from pytest_pallas.compat.rejection import is_rejection
from pytest_pallas.errors import (
    BoundsError,
    KernelError,
    NoPallasCallError,
    PallasTestError,
)
from pytest_pallas.notes import Note

#: The share of the maps at which programs are forgotten: what is compiled next needs some, and
#: other threads compile too.
SHARE = 0.5

#: Runs between looks at the maps, which take a millisecond for a thousand of them.
EVERY = 32

_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")


def relieve() -> bool:
    """Forget all compiled programs if they took too many maps; looked at every so many calls.

    Nothing is done where there is no such limit. True if they were forgotten.
    """
    if next(_runs()) % EVERY or not near_limit(_MAPS, _LIMIT):
        return False
    jax.clear_caches()
    return True


def near_limit(maps: Path, limit: Path) -> bool:
    """Whether the process has more than its share of the maps that it may have.

    Args:
      maps: a file with a line a map.
      limit: a file with the number that is allowed.
    """
    try:
        most = int(limit.read_text())
        with maps.open("rb") as lines:
            return sum(1 for _ in lines) > SHARE * most
    except (OSError, ValueError):
        return False  # another system, or one that does not say


@functools.cache
def _runs() -> itertools.count[int]:
    return itertools.count(1)


#: Runs the static part of a call on its arrays.
Runner = Callable[[Static, list[Any]], Any]


def trace(call: Call, static: Static, arrays: list[Any]) -> tuple[KernelCall, ...]:
    """The Pallas kernels of a call, traced in the context that is in force.

    Raises:
      NoPallasCallError: there are none, although the call needs one.
      BaseException: the call's observer does not want it to be executed.
    """
    if not call.jit:
        if call.observer is not None:
            call.observer.traced(call, None, ())
        return ()
    jaxpr = jitted().trace(static, arrays).jaxpr
    kernels = kernels_of(call, jaxpr)
    if call.observer is not None:
        call.observer.traced(call, jaxpr, kernels)
    return kernels


def kernels_of(call: Call, jaxpr: Any) -> tuple[KernelCall, ...]:
    """The Pallas kernels of a call that was traced to a jaxpr.

    Raises:
      NoPallasCallError: there are none, although the call needs one.
    """
    kernels = _kernels(jaxpr)
    if not kernels and call.needs_kernel:
        name = getattr(call.function, "__name__", repr(call.function))
        raise NoPallasCallError(
            f"{name} traces to no Pallas kernel for these arguments, so this would compare jnp "
            "with jnp. Pass the function that calls pl.pallas_call, or arguments for which it "
            "does not fall back to jnp."
        )
    return kernels


@functools.lru_cache(maxsize=256)
def _kernels(jaxpr: Any) -> tuple[KernelCall, ...]:
    """The kernels of a jaxpr, which JAX gives again for the next values of a shape."""
    return tuple(kernel_calls(jaxpr))


def execute(
    call: Call,
    context: Callable[[], AbstractContextManager[Any]],
    *,
    runner: Runner | None = None,
    kernels: tuple[KernelCall, ...] = (),
    notes: tuple[Note, ...] = (),
) -> Outcome:
    """Run a call inside ``context`` and convert what it returns to numpy.

    Args:
      call: the call.
      context: makes the context to trace and run in.
      runner: how to run it; by default jitted, or as it is if the call says so.
      kernels: its kernels, where they are known already.
      notes: notes for the outcome.
    """
    relieve()
    started = time.perf_counter()
    inputs: tuple[Any, ...] | None = None
    values: Any = None
    error: Exception | None = None
    try:
        with context():
            static, arrays = split(call)
            kernels = kernels or trace(call, static, arrays)
            run = runner or (jitted() if call.jit else apply)
            values = to_numpy(run(static, arrays))
            inputs = tuple(None if array.is_deleted() else to_numpy(array) for array in arrays)
    except Exception as raised:  # the kernel's error is a result, whatever it is
        if is_rejection(raised):
            raise
        error = readable(raised)
    finally:
        if call.observer is not None:
            call.observer.ended(call)
    return Outcome(
        values=values,
        inputs=inputs,
        error=error,
        seconds=time.perf_counter() - started,
        kernels=kernels,
        notes=notes,
    )


def to_numpy(values: Any) -> Any:
    """A pytree with numpy arrays for jax arrays. Waits for them, so their errors surface here."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            return np.asarray(leaf)
        return np.asarray(leaf)

    return jax.tree.map(convert, values)


#: The last line of a Python traceback inside a message: ``IndexError: Out-of-bounds read ...``.
_RAISED = re.compile(
    r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Interrupt|Timeout)): ", re.MULTILINE
)
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_BEYOND = re.compile(r"(Index|Value)Error: Out-of-bounds ")
_UNBOUND = "Only interpret mode is supported on CPU backend"


def readable(error: Exception) -> Exception:
    """The error as its reader wants it: the interpreters wrap theirs in several tracebacks.

    An error that is ours, or that was raised while the function was traced, is returned as it is:
    its own traceback points to the user's line.
    """
    text = str(error)
    if _UNBOUND in text:
        return _chained(
            "the kernel was not under the backend's control: its pallas_call object was built "
            "before the test ran (at import, say). Build it inside the function under test.",
            error,
        )
    if isinstance(error, PallasTestError) or "error calling callback" not in text:
        return error
    matches = list(_RAISED.finditer(text))
    core = text[matches[-1].start() :].strip() if matches else text.strip()
    if matches and not text[matches[-1].end() :].strip():  # as an assert without words
        frames = _FRAME.findall(text[: matches[-1].start()])
        core += " in {2} ({0}:{1})".format(*frames[-1]) if frames else ""
    if _BEYOND.match(core):
        beyond = BoundsError(brief(core))
        beyond.__cause__ = error
        return beyond
    return _chained(brief(core), error)


def brief(text: str, *, lines: int = 12, width: int = 300) -> str:
    """A compiler's message without its location notes, cut to a size that a person reads."""
    kept = [line for line in text.splitlines() if line.strip() and " loc(" not in line]
    shown = [line if len(line) <= width else line[:width] + " ..." for line in kept[:lines]]
    return "\n".join(shown + ["..."] if len(kept) > lines else shown)


def _chained(message: str, cause: Exception) -> KernelError:
    error = KernelError(message)
    error.__cause__ = cause
    return error


def recover() -> None:
    """Leave no trace of a failed call: interpreter state and the tokens of its callbacks."""
    reset_interpreters()
    clear_effect_tokens()
