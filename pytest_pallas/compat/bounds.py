"""Private names of JAX: loads and stores of the portable interpreter, checked against their refs.

That interpreter makes XLA's slices and gathers of them, which move an index that is out of range to
one that is not. The rules by which it does so are wrapped here.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.compat.jaxprs import sub_jaxprs

_STATE = "jax._src.state.primitives"
_PALLAS = "jax._src.pallas.primitives"
_TPU = "jax._src.pallas.mosaic.primitives"
_TRITON = "jax._src.pallas.triton.primitives"


@dataclass(frozen=True)
class Beyond:
    """An access of a kernel's body that goes beyond the edges of a ref.

    Attributes:
      what: such as ``"load"``.
      ref: the kernel's name for the ref, or "".
      shape: of the ref, or of the part of it that is indexed.
      axis: of that shape.
      low: the least index along the axis; of what a mask leaves out, none counts.
      high: the greatest.
      place: ``file:line (function)`` of the access, or "".
      kernel: name of the kernel.
    """

    what: str
    ref: str
    shape: tuple[int, ...]
    axis: int
    low: int
    high: int
    place: str
    kernel: str


@dataclass(frozen=True)
class _Access:
    """An equation that accesses refs: the names of these, in order, and its line."""

    kernel: str
    names: tuple[str, ...]
    place: str
    #: Kept, because its id is a key.
    traceback: Any = field(repr=False)


#: What an equation accesses, by its operands: the number of the ref, the transforms, the mask.
_Parts = Callable[[Sequence[Any], Mapping[str, Any]], Iterator[tuple[int, Sequence[Any], Any]]]


@contextmanager
def bounds_checked(told: Callable[[Beyond], None]) -> Generator[None]:
    """Let the portable interpreter tell of every access beyond the edges of a ref.

    Traces made inside are cached by JAX as any other: the caller must be in a context that is part
    of jit's key. The calls come from other threads, at the latest when ``jax.effects_barrier()``
    returns.
    """
    interpreter: Any = importlib.import_module("jax._src.pallas.hlo_interpreter")
    rules: Any = importlib.import_module("jax._src.state.discharge")._discharge_rules
    accesses: dict[int, _Access] = {}
    interpret = interpreter.pallas_call_hlo_interpret

    def known(*args: Any, **params: Any) -> Any:
        kernel = str(params.get("name") or params["jaxpr"].debug_info.func_name or "")
        for access in _accesses(params["jaxpr"], {}, kernel, ""):
            accesses[id(access.traceback)] = access
        return interpret(*args, **params)

    with ExitStack() as stack:
        stack.callback(setattr, interpreter, "pallas_call_hlo_interpret", interpret)
        interpreter.pallas_call_hlo_interpret = known
        for module, name, what, parts in _ACCESSES:
            primitive = getattr(importlib.import_module(module), name)
            stack.callback(rules.__setitem__, primitive, rules[primitive])
            rules[primitive] = _checked(rules[primitive], what, parts, accesses)
        # What is staged is compiled once and run again: it tells whoever listens then.
        _listening.append(told)
        stack.callback(_listening.remove, told)
        yield


_listening: list[Callable[[Beyond], None]] = []


def _accesses(jaxpr: Any, names: Mapping[Any, str], kernel: str, around: str) -> Iterator[_Access]:
    """The equations of a body that access refs, also inside loops, branches and calls.

    Those of what JAX composes, such as ``sync_copy``, have the line of what is ``around`` them.
    """
    sources: Any = importlib.import_module("jax._src.source_info_util")
    given = list(getattr(jaxpr.debug_info, "arg_names", None) or ())
    own = dict(zip(jaxpr.invars, given, strict=False)) | dict(names)
    for eqn in jaxpr.eqns:
        refs = [own.get(var, "") for var in eqn.invars if _is_ref(var)]
        traceback = eqn.source_info.traceback
        inside = list(sub_jaxprs(eqn))
        place = around
        if refs or inside:
            place = sources.summarize(eqn.source_info) or around
        if refs and traceback is not None:
            yield _Access(kernel, tuple(refs), place, traceback)
        for inner in inside:
            # A body's constants come first, if its operands are not all that the equation has.
            outer = list(eqn.invars)
            passed = dict(zip(reversed(inner.invars), reversed(outer), strict=False))
            if len(inner.constvars) == len(outer):
                passed = dict(zip(inner.constvars, outer, strict=True))
            passed_on = {
                var: own[source]
                for var, source in passed.items()
                if _is_ref(var) and _is_ref(source) and own.get(source)
            }
            yield from _accesses(inner, passed_on, kernel, place)


def _is_ref(var: Any) -> bool:
    return hasattr(var, "aval") and hasattr(var.aval, "inner_aval")


def _indexed(args: Sequence[Any], params: Mapping[str, Any], *, first: int) -> Any:
    tree = importlib.import_module("jax.tree_util")
    yield 0, tree.tree_unflatten(params["tree"], list(args[first:])), None


def _masked(args: Sequence[Any], params: Mapping[str, Any]) -> Any:
    parts: Any = params["args_tree"].unflatten(args)
    # A load has a mask and a value for what it leaves out, others a value and a mask.
    yield 0, parts[1], parts[2]


def _masked_store(args: Sequence[Any], params: Mapping[str, Any]) -> Any:
    parts: Any = params["args_tree"].unflatten(args)
    yield 0, parts[1], parts[3]


def _copied(args: Sequence[Any], params: Mapping[str, Any]) -> Any:
    parts: Any = params["tree"].unflatten(args)
    for number, ref in enumerate(parts[:2]):
        yield number, getattr(ref, "transforms", ()), None


_ACCESSES: tuple[tuple[str, str, tuple[str, ...], _Parts], ...] = (
    (_STATE, "get_p", ("load",), lambda args, params: _indexed(args, params, first=1)),
    (_STATE, "swap_p", ("store",), lambda args, params: _indexed(args, params, first=2)),
    (_STATE, "addupdate_p", ("store",), lambda args, params: _indexed(args, params, first=2)),
    (_PALLAS, "load_p", ("load",), _masked),
    (_PALLAS, "swap_p", ("store",), _masked_store),
    (_TRITON, "atomic_rmw_p", ("atomic operation",), _masked_store),
    (_TPU, "dma_start_p", ("copy from", "copy to"), _copied),
)


def _checked(
    rule: Callable[..., Any],
    what: tuple[str, ...],
    parts: _Parts,
    accesses: Mapping[int, _Access],
) -> Callable[..., Any]:
    """A rule that stages a check of every index, and then does what it did."""
    sources: Any = importlib.import_module("jax._src.source_info_util")

    def checked(context: Any, *args: Any, **params: Any) -> Any:
        current = sources.current()
        access = accesses.get(id(current.traceback))
        if access is not None:  # else it is none of a kernel's body
            for number, transforms, mask in parts(args, params):
                name = access.names[number] if number < len(access.names) else ""
                for transform in transforms:
                    if type(transform).__name__ == "NDIndexer":
                        last = transform is transforms[-1]
                        about = (what[number], name, access.place, access.kernel)
                        _stage(transform, mask if last else None, about)
        return rule(context, *args, **params)

    return checked


def _stage(indexer: Any, mask: Any, about: tuple[str, str, str, str]) -> None:
    """Tell, when the program runs, of each axis along which an index is out of range."""
    import jax
    import jax.numpy as jnp

    shape = tuple(int(size) for size in indexer.shape)
    ranges = [
        (axis, *found)
        for axis, found in enumerate(_ranges(indexer, mask))
        if found is not None and not _within(found, shape[axis])
    ]
    if not ranges:
        return
    axes = [axis for axis, _, _ in ranges]
    low = jnp.stack([_int32(low) for _, low, _ in ranges])
    high = jnp.stack([_int32(high) for _, _, high in ranges])
    # Where a mask leaves nothing, the range is empty.
    beyond = jnp.stack(
        [
            (low[i] <= high[i]) & ((low[i] < 0) | (high[i] >= shape[axis]))
            for i, axis in enumerate(axes)
        ]
    )
    what, name, place, kernel = about

    def tell(low: Any, high: Any, beyond: Any) -> None:
        for i, axis in enumerate(axes):
            if beyond[i]:
                found = Beyond(what, name, shape, axis, int(low[i]), int(high[i]), place, kernel)
                for told in list(_listening):
                    told(found)

    def report(*values: Any) -> None:
        jax.debug.callback(tell, *values)

    jax.lax.cond(beyond.any(), report, lambda *_: None, low, high, beyond)


def _int32(index: Any) -> Any:
    """An index as an array. A constant array may not come into being where bodies are staged."""
    import jax
    import jax.numpy as jnp

    if isinstance(index, int):
        return jax.lax.full((), index, jnp.int32)
    return jnp.asarray(index).astype(jnp.int32)


def _within(found: tuple[Any, Any], size: int) -> bool:
    """Whether a range is known to be within an axis."""
    low, high = found
    return isinstance(low, int) and isinstance(high, int) and low >= 0 and high < size


def _ranges(indexer: Any, mask: Any) -> Iterator[tuple[Any, Any] | None]:
    """For each axis the least and greatest index; None if nothing is accessed."""
    import jax.numpy as jnp

    slices = [hasattr(index, "stride") for index in indexer.indices]
    limits = jnp.iinfo(jnp.int32)
    for axis, index in enumerate(indexer.indices):
        if slices[axis]:
            if index.size == 0:
                yield None
                continue
            if mask is None:
                yield index.start, index.start + (index.size - 1) * index.stride
                continue
            # The axes of the value are those of the slices: single indices have none.
            behind = sum(slices[axis + 1 :])
            index = jnp.arange(index.size, dtype=jnp.int32) * index.stride + index.start
            index = index.reshape(index.shape + (1,) * behind)
        index = _int32(index)
        if index.size == 0:
            yield None
        elif mask is None:
            yield index.min(), index.max()
        else:
            shape = jnp.broadcast_shapes(index.shape, jnp.shape(mask))
            index, allowed = jnp.broadcast_to(index, shape), jnp.broadcast_to(mask, shape)
            yield (
                jnp.where(allowed, index, limits.max).min(),
                jnp.where(allowed, index, limits.min).max(),
            )
