"""Turn calls into jitted calls, so that equal calls share one compiled executable."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from pallas_sim.errors import OptionError
from pallas_sim.traces import limit_traces
from pallas_sim.tracing import noting_questions, tracing_for
from pytest_pallas.backends.ending import uncaught
from pytest_pallas.backends.protocol import Backend, Call, chip_of
from pytest_pallas.compat.fuzzing import rejecting

if TYPE_CHECKING:
    from pytest_pallas.grid.kernel_calls import KernelCall


@dataclass(frozen=True, eq=False)
class StaticPart:
    """The non-array part of a call. Hashable, and compared by value, so that jit can reuse it."""

    function: Callable[..., Any]
    tree: Any
    leaves: tuple[tuple[int, Any], ...]
    key: Hashable
    rewriting: Callable[[Any], Any] | None = None

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticPart) and self.key == other.key


@dataclass(frozen=True, eq=False)
class _Identity:
    """A key that is equal for the same object only, and keeps it alive: an id may be reused."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value


def split(call: Call) -> tuple[StaticPart, list[Any]]:
    """Return the static part of a call, and copies of its arrays, which a kernel may change.

    Numpy scalars are arrays among the arguments, and plain numbers among the options.
    """
    return _taken_apart(call, _copied)


def abstract(call: Call) -> tuple[StaticPart, list[Any]]:
    """As ``split``, with a ``jax.ShapeDtypeStruct`` for each array: for compilation only.

    Shardings over several devices are kept; an argument may be a ``ShapeDtypeStruct`` already.
    """
    return _taken_apart(call, shape_of)


def on_host(call: Call) -> tuple[StaticPart, list[Any]]:
    """As ``split``, with numpy arrays, for the simulator.

    Typed keys stay JAX arrays, and so do arrays that are spread over several processes.
    """
    return _taken_apart(call, _host_copy)


def _host_copy(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _copied(leaf)  # which raises for it
    if isinstance(leaf, jax.Array) and (
        jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) or not leaf.is_fully_addressable
    ):
        return leaf
    return np.array(leaf)


def _taken_apart(call: Call, convert: Callable[[Any], Any]) -> tuple[StaticPart, list[Any]]:
    leaves, tree = jax.tree.flatten((call.args, dict(call.options)))
    positional = len(jax.tree.leaves(call.args))
    arrays: list[Any] = []
    rest: list[tuple[int, Any]] = []
    for position, leaf in enumerate(leaves):
        scalar = isinstance(leaf, np.generic) and position < positional
        if scalar or isinstance(leaf, (np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
            arrays.append(convert(leaf))
        else:
            rest.append((position, leaf))
    statics = tuple((position, identity(leaf)) for position, leaf in rest)
    key = (identity(call.function), tree, statics, call.settings.rewriting)
    return StaticPart(call.function, tree, tuple(rest), key, call.settings.rewriting), arrays


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise OptionError(
            "a jax.ShapeDtypeStruct has no values, so a kernel cannot run on it; give an array, or "
            "use a compiling backend"
        )
    if isinstance(leaf, jax.Array):
        return leaf.copy()
    return jax.device_put(np.array(leaf, copy=True))  # jnp.array compiles a copy for every shape


def shape_of(array: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of an array or a ShapeDtypeStruct."""
    sharding = getattr(array, "sharding", None)
    spread = sharding is not None and len(sharding.device_set) > 1
    dtype = array.dtype
    if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)  # as jnp.array would
    return jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding if spread else None)


def signature(call: Call) -> str:
    """Return dtypes and shapes of the arrays of a call, and its options, for messages and keys."""
    parts = [
        f"{leaf.dtype}[{','.join(map(str, np.shape(leaf)))}]"
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape")
        else repr(leaf)
        for leaf in jax.tree.leaves(call.args)
    ]
    parts += [
        f"{name}={getattr(value, '__name__', None) or value}"
        for name, value in sorted(call.options.items())
    ]
    return " ".join(parts)


def apply(static: StaticPart, arrays: list[Any]) -> Any:
    """Execute the call that ``split`` took apart; with its rewriting, if it has one."""
    if static.rewriting is not None:
        return _rewritten(static, static.rewriting, arrays)
    leaves: list[Any] = []
    rest = dict(static.leaves)
    remaining = iter(arrays)
    for position in range(static.tree.num_leaves):
        leaves.append(rest[position] if position in rest else next(remaining))
    args, options = jax.tree.unflatten(static.tree, leaves)
    with uncaught():
        return static.function(*args, **options)


def _rewritten(static: StaticPart, rewriting: Callable[[Any], Any], arrays: list[Any]) -> Any:
    """Execute the call with its program rewritten. JAX caches the trace of the original."""
    plain = dataclasses.replace(static, key=(static.key, "without"), rewriting=None)
    try:
        traced = jitted(plain).trace(arrays)
    except jax.errors.ConcretizationTypeError:
        return apply(plain, arrays)  # it needs values, and there is no program to rewrite
    outs = jaxpr_as_fun(rewriting(traced.jaxpr))(*arrays)
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs)


#: Options of XLA for the shortest compilation.
QUICK: Mapping[str, Any] = {"xla_backend_optimization_level": 0}

#: Number of traces that are kept. One of a small kernel takes 0.1 MB with its program.
MOST_TRACES = 512

#: Number of traces that JAX keeps, these and those of the functions that they call.
MOST_OF_JAX = 2048


@dataclass(eq=False)
class _JittedCall:
    """A function of its own that is ``apply``, and its jitted forms, which share their traces.

    Attributes:
      function: the function; it counts its traces.
      traces: how often JAX traced it.
      kept: whether ``JittedCalls`` keeps it.
      questions: what it asks the devices of the chip for, by attribute.
    """

    function: Callable[..., Any] = apply
    traces: int = 0
    kept: bool = True
    questions: set[str] = dataclasses.field(default_factory=set[str])

    @functools.cached_property
    def usual(self) -> Any:
        return jax.jit(self.function)

    @functools.cached_property
    def quick(self) -> Any:
        return jax.jit(self.function, compiler_options=dict(QUICK))


class JittedCalls:
    """``apply`` under ``jax.jit``, once for each static part; keeps those that were used last.

    JAX keeps every trace of a function as long as the function (``trace_to_jaxpr`` has no limit),
    so each static part has a function of its own, which can be dropped.

    Attributes:
      most: limit on the static parts, and on their traces.
      traces: the number of traces of those that are kept.
    """

    def __init__(self, most: int = MOST_TRACES) -> None:
        """Keep ``most`` traces."""
        self.most, self.traces = most, 0
        self._kept: OrderedDict[StaticPart, _JittedCall] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of static parts that are kept."""
        return len(self._kept)

    def get(self, static: StaticPart) -> _JittedCall:
        """Return the jitted call of a static part."""
        with self._lock:
            call = self._kept.pop(static, None)
            if call is not None and call.traces > self.most:
                self._drop(call)
                call = None
            if call is None:
                limit_traces(MOST_OF_JAX)
                call = self._made(static)
            while self._kept and max(self.traces, len(self) + 1) > self.most:
                self._drop(self._kept.popitem(last=False)[1])
            self._kept[static] = call
        return call

    def _drop(self, call: _JittedCall) -> None:
        call.kept = False
        self.traces -= call.traces

    def _made(self, static: StaticPart) -> _JittedCall:
        call = _JittedCall()

        def traced(arrays: list[Any]) -> Any:
            call.traces += 1
            self.traces += call.kept
            with noting_questions() as questions:
                result = apply(static, arrays)
            call.questions |= questions
            return result

        traced.__name__ = traced.__qualname__ = apply.__name__  # programs are named so
        call.function = traced
        return call


_JITTED = JittedCalls()


def jitted(static: StaticPart, *, quick: bool = False) -> Any:
    """``apply`` under ``jax.jit`` for one static part, whose traces all equal calls share.

    The result takes the list of arrays. The static part is no argument of it: JAX keeps arguments,
    and whatever they refer to, in caches of thousands of entries. The forced interpreter, the
    abstract device and x64 are part of jit's own key.

    Args:
      static: the static part of the calls.
      quick: compile as quickly as possible, because interpreted kernels are compiled more often
        than they run.
    """
    call = _JITTED.get(static)
    return call.quick if quick else call.usual


def asks_for(static: StaticPart, attribute: str) -> bool:
    """Return whether the calls of a static part asked a device for an attribute when traced."""
    return attribute in _JITTED.get(static).questions


def identity(value: Any) -> Hashable:
    """Return a key that is equal for equivalent values, such as equal partials."""
    if isinstance(value, functools.partial):
        keywords = tuple(sorted((name, identity(v)) for name, v in value.keywords.items()))
        return ("partial", identity(value.func), tuple(map(identity, value.args)), keywords)
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    # 1, 1.0 and True are equal keys, but make different programs
    return (type(value), value)


def kernels_of(
    call: Call, context: Callable[[], AbstractContextManager[Any]]
) -> Sequence[KernelCall] | None:
    """Return the kernels of a call; None if it cannot be traced within its time limit.

    Args:
      call: the call to trace; its arrays may be abstract.
      context: makes the context to trace in.
    """
    from pytest_pallas.grid.kernel_calls import kernel_calls

    with rejecting():
        traced = _traced(call, context)
    return None if traced is None else kernel_calls(traced.jaxpr)


def traced_kernels(call: Call, backend: Backend) -> Sequence[KernelCall]:
    """Return the kernels of a call without its rewriting; () if it cannot be traced."""
    return kernels_of(call.with_settings(rewriting=None), context_of_traces(backend)) or ()


def traced_jaxpr(call: Call, backend: Backend) -> Any:
    """Return the trace of a call without its rewriting; None if it cannot be traced."""
    traced = _traced(call.with_settings(rewriting=None), context_of_traces(backend))
    return None if traced is None else traced.jaxpr


def outputs_of(call: Call, context: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Return shapes and dtypes of the outputs of a call, a pytree; None if it cannot be traced.

    JAX caches the trace, which its run uses.
    """
    traced = _traced(call, context)
    return None if traced is None else traced.out_info


def _traced(call: Call, context: Callable[[], AbstractContextManager[Any]]) -> Any:
    from pytest_pallas.backends.ending import ending

    try:
        static, shapes = abstract(call)
        with context(), ending(call.settings.timeout):
            return jitted(static).trace(shapes)
    except Exception:  # tracing runs user code; the item will raise the same
        return None


def context_of_traces(backend: Backend) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context to trace in for a backend."""
    usual: Any = functools.partial(tracing_for, chip_of(backend))
    if backend.kind == "hardware":
        usual = nullcontext
    return getattr(backend, "context", usual)
