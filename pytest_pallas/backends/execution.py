"""Execute calls, and clear compiled programs before the process runs out of memory maps.

Linux allows a process 65,530 memory maps, and each executable of XLA's CPU compiler uses about
five. Beyond the limit an allocation fails inside LLVM, and the process dies of a segmentation
fault: after about ten thousand programs, which takes minutes of fuzzing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim.errors import BoundsError, KernelError, PallasError
from pytest_pallas.backends.ending import NOT_TRACED, ending
from pytest_pallas.backends.processes import Gang, agree, gang
from pytest_pallas.backends.protocol import Call, Outcome
from pytest_pallas.backends.spreading import (
    LocalShards,
    Spread,
    local_shards,
    spread_array,
    spread_of,
)
from pytest_pallas.backends.tracing import (
    StaticPart,
    apply,
    identity,
    jitted,
    on_host,
    signature,
    split,
)
from pytest_pallas.compat.fuzzing import is_rejection
from pytest_pallas.compat.settings import clear_effect_tokens, reset_interpreters
from pytest_pallas.errors import NoPallasCallError
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_calls, live_kernel_calls

#: The fraction of the maps at which programs are cleared: the next compilation needs some, and
#: other threads compile, too.
SHARE = 0.5

#: Number of runs between two counts of the maps; a count takes a millisecond for a thousand maps.
EVERY = 32

#: Of an object, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")

#: The numbers of the runs of this process.
_RUNS = itertools.count(1)


def relieve() -> bool:
    """Clear all compiled programs if they use too many maps; checked once in many calls.

    It does nothing without such a limit. Returns whether they were cleared.
    """
    if next(_RUNS) % EVERY or not near_limit(_MAPS, _LIMIT):
        return False
    jax.clear_caches()
    return True


def near_limit(maps: Path, limit: Path) -> bool:
    """Return whether the process uses too many of its maps.

    Args:
      maps: a file with one line for each map.
      limit: a file with the allowed number.
    """
    try:
        most = int(limit.read_text())
        with maps.open("rb") as lines:
            return sum(1 for _ in lines) > SHARE * most
    except (OSError, ValueError):
        return False  # another system, or an unreadable file


#: Prepares a call whose static part and arrays are given: the result runs it on arrays. With
#: ``spread=True`` the arrays are spread over several processes, and the call must be compiled, so
#: that afterwards it can only fail while it runs.
Preparer = Callable[..., Callable[[list[Any]], Any]]


def trace(call: Call, static: StaticPart, arrays: list[Any]) -> tuple[KernelCall, ...]:
    """Return the Pallas kernels of a call, traced in the current context.

    Raises:
      NoPallasCallError: there is no kernel, although the call needs one.
      SimulationLimitError: it takes longer than the time limit.
      BaseException: the call's observer prevents the execution.
    """
    if not call.settings.jit:
        call.settings.observer.traced(call, None, ())
        return ()
    with ending(call.settings.timeout, NOT_TRACED):
        jaxpr = jitted(static).trace(arrays).jaxpr
    kernels = kernels_of(call, jaxpr)
    call.settings.observer.traced(call, jaxpr, kernels)
    return kernels


def kernels_of(call: Call, jaxpr: Any) -> tuple[KernelCall, ...]:
    """Return the Pallas kernels of a call, from its jaxpr.

    Raises:
      NoPallasCallError: no output depends on a kernel, although the call needs one.
    """
    kernels, live = _kernels(jaxpr)
    if live or not call.needs_kernel:
        return kernels
    name = getattr(call.function, "__name__", repr(call.function))
    if not kernels:
        raise NoPallasCallError(
            f"{name} has no Pallas kernel for these arguments, so the check would compare jnp with "
            "jnp. Pass the function that calls pl.pallas_call, or arguments for which it does not "
            "fall back to jnp."
        )
    raise NoPallasCallError(
        f"no output of {name} depends on its Pallas kernel ({kernels[0].name}), so a compiler "
        "removes the kernel, and the check would compare jnp with jnp. Return what the kernel "
        "computes."
    )


@functools.lru_cache(maxsize=256)
def _kernels(jaxpr: Any) -> tuple[tuple[KernelCall, ...], bool]:
    """Return the kernels of a jaxpr, and whether one is no dead code.

    JAX returns the same jaxpr for equal shapes.
    """
    kernels = tuple(kernel_calls(jaxpr))
    return kernels, bool(kernels and live_kernel_calls(jaxpr))


def execute(
    call: Call, context: Callable[[], AbstractContextManager[Any]], prepare: Preparer
) -> Outcome:
    """Run a call inside ``context`` and convert its outputs to numpy.

    Args:
      call: the call.
      context: makes the context to trace and run in.
      prepare: prepares it; not called for a call without jit, whose function is called as it is.
    """
    relieve()
    started = time.perf_counter()
    inputs: tuple[Any, ...] | None = None
    values: Any = None
    error: Exception | None = None
    kernels: tuple[KernelCall, ...] = ()
    try:
        with context():
            arrays, kernels, run = _prepared(call, prepare)
            values = to_numpy(run(arrays))
            inputs = tuple(None if array.is_deleted() else to_numpy(array) for array in arrays)
    except Exception as raised:  # any error of the kernel is a result
        if is_rejection(raised):
            raise
        error = readable(raised)
    finally:
        call.settings.observer.ended(call)
    return Outcome(
        values=values,
        inputs=inputs,
        error=error,
        seconds=time.perf_counter() - started,
        kernels=kernels,
    )


#: The arrays of a call, its kernels, and what runs it on the arrays.
_Prepared = tuple[list[Any], tuple[KernelCall, ...], Callable[[list[Any]], Any]]


def _prepared(call: Call, prepare: Preparer) -> _Prepared:
    """Return a call that is ready to run, in this process and, if it is spread, in all others.

    Raises:
      Exception: tracing, compiling or placing the arguments failed in this process.
      PeerError: it failed in another process.
      GangError: the processes have different calls, or one did not come.
      DeviceError: see ``spread_of``.
    """
    processes = gang()
    if processes is not None:
        if call.settings.jit:
            return _prepared_together(call, processes, prepare)
        if call.settings.devices > 1:  # what it is spread over is not known before it runs
            agree("run", subject=describe_call(call), timeout=call.settings.timeout)
    static, arrays = split(call)
    return arrays, trace(call, static, arrays), _runner(call, prepare, static)


def _runner(call: Call, prepare: Preparer, static: StaticPart) -> Callable[[list[Any]], Any]:
    if not call.settings.jit:
        return functools.partial(apply, static)
    return lambda arrays: prepare(static, arrays)(arrays)


def _prepared_together(call: Call, processes: Gang, prepare: Preparer) -> _Prepared:
    """Prepare a jitted call in one of several processes; if it is spread, they go on together.

    All processes must then have an equal call, values included.
    """
    static, arrays = on_host(call)
    spread: Spread | None = None
    problem: Exception | None = None
    kernels: tuple[KernelCall, ...] = ()
    run: Callable[[list[Any]], Any] = _runner(call, prepare, static)
    try:
        spread = spread_of(jitted(static).trace(arrays).jaxpr, processes)
        kernels = trace(call, static, arrays)
        if spread is None:
            return split(call)[1], kernels, run
        arrays = [spread_array(array, s) for array, s in zip(arrays, spread.shardings, strict=True)]
        run = prepare(static, arrays, spread=True)
    except Exception as error:  # it is raised below, when the others know
        problem = error
    if spread is None and problem is not None:
        raise problem  # before anything is known of the others
    agree(
        "run",
        subject=describe_call(call),
        problem="" if problem is None else f"{type(problem).__name__}: {problem}",
        kernel_raised=problem is not None,
        timeout=call.settings.timeout,
    )
    if problem is not None:
        vars(problem)["shared"] = True  # see PallasError
        raise problem
    return arrays, kernels, run


def describe_call(call: Call) -> str:
    """Return the name, the shapes and a digest of the values of a call."""
    function: Any = getattr(call.function, "func", call.function)
    name = getattr(function, "__name__", type(function).__name__)
    leaves = [
        leaf
        for leaf in jax.tree.leaves(call.args)
        if isinstance(leaf, np.ndarray | np.generic | int | float | complex)
        or (isinstance(leaf, jax.Array) and leaf.is_fully_addressable)
    ]
    shown = _ADDRESS.sub("", signature(call))
    values = hashlib.blake2b(repr(digest(leaves)).encode(), digest_size=6).hexdigest()
    return f"{name}({shown}), values {values}"


def describe_arrays(tree: Any) -> str:
    """Write dtype and shape of the arrays in a tree: ``float32[8, 128], int32[]``."""
    return ", ".join(
        f"{leaf.dtype}[{', '.join(map(str, np.shape(leaf)))}]"
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "dtype")
    )


def to_numpy(values: Any) -> Any:
    """Convert the JAX arrays of a pytree to numpy. It waits for them, and raises their errors.

    Arrays that are spread over several processes become ``LocalShards``, which it leaves alone.
    """

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, LocalShards):
            return leaf
        if isinstance(leaf, jax.Array):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            if not leaf.is_fully_addressable:
                return local_shards(leaf)
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
    """Return the error in readable form: the interpreters wrap theirs in several tracebacks.

    Errors of this package, and errors while the function is traced, are returned unchanged: their
    tracebacks point to the user's line.
    """
    text = str(error)
    if _UNBOUND in text:
        return _caused(
            KernelError,
            "the backend cannot control the kernel: its pallas_call object was built before the "
            "test ran (at import, for example). Build it inside the function under test.",
            error,
        )
    if isinstance(error, PallasError) or "error calling callback" not in text:
        return error
    matches = list(_RAISED.finditer(text))
    core = text[matches[-1].start() :].strip() if matches else text.strip()
    if matches and not text[matches[-1].end() :].strip():  # such as an assert without a message
        frames = _FRAME.findall(text[: matches[-1].start()])
        core += " in {2} ({0}:{1})".format(*frames[-1]) if frames else ""
    return _caused(BoundsError if _BEYOND.match(core) else KernelError, brief(core), error)


def brief(text: str, *, lines: int = 12, width: int = 300) -> str:
    """Return a compiler's message without its location notes, cut to a readable size."""
    kept = [line for line in text.splitlines() if line.strip() and " loc(" not in line]
    shown = [line if len(line) <= width else line[:width] + " ..." for line in kept[:lines]]
    return "\n".join(shown + ["..."] if len(kept) > lines else shown)


def _caused(kind: type[PallasError], message: str, cause: Exception) -> PallasError:
    error = kind(message)
    error.__cause__ = cause
    return error


def recover() -> None:
    """Clear the state of a failed call: interpreter state and the tokens of its callbacks."""
    reset_interpreters()
    clear_effect_tokens()


def digest(tree: Any) -> Hashable:
    """Return a key that is equal for pytrees of equal arrays and equal other leaves."""
    leaves, structure = jax.tree.flatten(tree)
    parts: list[Hashable] = [structure]
    for leaf in leaves:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            content = np.ascontiguousarray(to_numpy(leaf)).tobytes()
            parts.append(
                (leaf.shape, str(leaf.dtype), hashlib.blake2b(content, digest_size=16).digest())
            )
        else:
            parts.append(identity(leaf))
    return tuple(parts)
