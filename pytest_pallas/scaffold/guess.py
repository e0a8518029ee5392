"""Everything that is guessed of a function, as data, from which its test module is written."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from pytest_pallas.checks.cross import accepted
from pytest_pallas.scaffold.loading import Loaded
from pytest_pallas.scaffold.parameters import Static, parameters_of
from pytest_pallas.scaffold.search import Found, search
from pytest_pallas.scaffold.sizes import Dims, dims_of, refusal

#: Dtypes that arrays of floats may have, besides the one that was found.
_OTHER_FLOATS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Guess:
    """What a test module is written of.

    Attributes:
      loaded: the function.
      found: arguments that it accepts, or the likeliest ones if it accepts none.
      dims: the dims of its arrays.
      dtypes: the dtypes of all arrays, one row for each combination that it accepts.
      tuning: values of keyword arguments of the kernel only.
      options: values of keyword arguments of kernel and reference.
      vmap_error: why ``jax.vmap`` of it cannot be traced, or "".
      differentiable: positions of the arrays by which it defines a derivative of its own.
      left_out: options that it accepts for some sizes only, in words.
      alike: a function of JAX of the same name that returns the same shapes, or "".
      seconds: how long it took.
    """

    loaded: Loaded
    found: Found
    dims: Dims
    dtypes: tuple[tuple[str, ...], ...]
    tuning: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    vmap_error: str = ""
    differentiable: tuple[int, ...] = ()
    alike: str = ""
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def traced(self) -> bool:
        """Whether the function accepts the arguments."""
        return not self.found.trace.error


def guess(loaded: Loaded) -> Guess:
    """Guess the arguments of a function.

    Raises:
      OptionError: it has no signature.
    """
    begin = time.monotonic()
    parameters = parameters_of(loaded.function)
    found = search(loaded.function, loaded.reference_function, parameters)
    dims = dims_of(found) if not found.trace.error else _as_said(found)
    made = Guess(loaded, found, dims, (found.attempt.dtypes,))
    if made.traced:
        tuning, options = _keywords(loaded, found, parameters.optional)
        options, left_out = _for_all_sizes(found, dims, options)
        made = replace(
            made,
            left_out=left_out,
            dtypes=_dtypes(found),
            tuning=tuning,
            options=options,
            vmap_error=_vmap_error(found),
            differentiable=_differentiable(loaded.function, found),
            alike="" if loaded.reference else _alike(loaded.short, found),
        )
    else:
        tuning, options = _keywords(loaded, found, ())
        made = replace(made, tuning=tuning, options=options)
    return replace(made, seconds=time.monotonic() - begin)


def _as_said(found: Found) -> Dims:
    """The dims where no call is accepted: those that are said, without trials."""
    nothing = replace(
        found, lab=replace(found.lab, function=_accepts_all, reference=None, known={})
    )
    return dims_of(replace(nothing, trace=nothing.lab.trace(nothing.attempt)))


def _accepts_all(*leaves: Any, **statics: Any) -> Any:
    del statics
    return jax.tree.leaves(leaves)


def _dtypes(found: Found) -> tuple[tuple[str, ...], ...]:
    """The dtypes that all arrays may have together."""
    rows = [found.attempt.dtypes]
    said = [leaf.dtypes for leaf in found.leaves]
    for other in dict.fromkeys([*_OTHER_FLOATS, *(name for names in said for name in names)]):
        row = tuple(
            other
            if (other in names if names else _is_float(mine) and other in _OTHER_FLOATS)
            else mine
            for mine, names in zip(found.attempt.dtypes, said, strict=True)
        )
        if row not in rows and found.lab.trace(replace(found.attempt, dtypes=row)).right:
            rows.append(row)
    return tuple(rows)


def _is_float(name: str) -> bool:
    return jnp.issubdtype(jnp.dtype(name), jnp.floating)


def _keywords(
    loaded: Loaded, found: Found, optional: Sequence[Static]
) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    """The values of tuning and of options that the function accepts."""
    tuning, options = dict[str, tuple[Any, ...]](), dict[str, tuple[Any, ...]]()
    given = dict(found.attempt.statics)
    for static in found.statics:
        values = (given[static.name],)
        shared = _shared(loaded, static.name)
        if shared or (shared is None and not static.tuning):
            others = [v for v in static.values if v not in values and _fine(found, static, v)]
            enumerated = len(static.values) > 1 and not static.tuning and _is_enumerated(static)
            options[static.name] = (*values, *(others if enumerated else ()))
        else:
            tuning[static.name] = values
    for static in optional:
        shared = _shared(loaded, static.name)
        values = tuple(value for value in static.values if _fine(found, static, value))
        if len(values) < 2:
            continue
        if static.tuning and not shared:
            if not isinstance(static.default, bool) and static.name not in ("backend", "name"):
                tuning[static.name] = values
        elif shared:
            options[static.name] = values
    return tuning, options


def _for_all_sizes(
    found: Found, dims: Dims, options: Mapping[str, tuple[Any, ...]]
) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """The options without the values that the function refuses for some sizes; those in words."""
    kept, left_out = dict[str, tuple[Any, ...]](), list[str]()
    for name, values in options.items():
        fine: list[Any] = []
        for value in values:
            problem = _refused_with(found, dims, name, value) if len(values) > 1 else ""
            if problem:
                left_out.append(f"{name}={value!r} is left out: {problem}")
            else:
                fine.append(value)
        if len(fine) > 1 or any(static.name == name for static in found.statics):
            kept[name] = tuple(fine or values)
    return kept, tuple(left_out)


def _refused_with(found: Found, dims: Dims, name: str, value: Any) -> str:
    """For which size the function accepts a call, and not with an option; or ""."""
    others = tuple(each for each in found.attempt.statics if each[0] != name)
    attempt = replace(found.attempt, statics=(*others, (name, value)))
    for dim in dims.dims:
        for size in (2 * found.size, found.size // 2):
            sizes = dict.fromkeys(dim.axes, size)
            if size and refusal(found, sizes) == "":
                problem = refusal(replace(found, attempt=attempt), sizes)
                if problem:
                    return f"for {dim.name}={size}, {problem}"
    return ""


def _is_enumerated(static: Static) -> bool:
    return not any(isinstance(value, (float, tuple)) for value in static.values) and (
        all(isinstance(value, bool) for value in static.values)
        or not any(isinstance(value, int) for value in static.values)
    )


def _shared(loaded: Loaded, name: str) -> bool | None:
    """Whether the reference takes a keyword argument; None without a reference."""
    if loaded.reference_function is None:
        return None
    return bool(accepted(loaded.reference_function, [name]))


def _fine(found: Found, static: Static, value: Any) -> bool:
    """Whether the function accepts a value of a keyword, and its blocks remain legal."""
    others = tuple(each for each in found.attempt.statics if each[0] != static.name)
    attempt = replace(found.attempt, statics=(*others, (static.name, value)))
    trace = found.lab.trace(attempt)
    illegal = trace.illegal_blocks and not found.trace.illegal_blocks
    same = trace.reference_problem == found.trace.reference_problem
    return not trace.error and not illegal and same


def _vmap_error(found: Found) -> str:
    """Why ``jax.vmap`` of the function cannot be traced, with all arrays and the first batched."""
    if not found.attempt.shapes:
        return "it takes no arrays"
    for batched in ((True,) * len(found.leaves), (True, *(False,) * (len(found.leaves) - 1))):
        lab = replace(found.lab, known={}, reference=None)
        function = _Vmapped(lab.function, tuple(lab.operands), batched)
        shapes = tuple(
            (2, *shape) if each else shape
            for shape, each in zip(found.attempt.shapes, batched, strict=True)
        )
        trace = replace(lab, function=function, operands=_flat(found)).trace(
            replace(found.attempt, shapes=shapes)
        )
        if trace.error:
            return trace.error
    return ""


@dataclass(frozen=True)
class _Vmapped:
    """The function under ``jax.vmap``, called with its leaves."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    batched: tuple[bool, ...]

    def __call__(self, *leaves: Any, **statics: Any) -> Any:
        from pytest_pallas.scaffold.trials import called

        axes = tuple(0 if each else None for each in self.batched)
        return jax.vmap(
            lambda *rows: called(self.function, self.operands, *rows, **statics), in_axes=axes
        )(*leaves)


def _flat(found: Found) -> tuple[Any, ...]:
    """An operand for each leaf."""
    from pytest_pallas.scaffold.parameters import Operand

    return tuple(Operand(leaf.name, (leaf,)) for leaf in found.leaves)


def _differentiable(function: Any, found: Found) -> tuple[int, ...]:
    """The positions of floats, if the function has a derivative of its own."""
    own: Any = function
    while own is not None and not isinstance(own, (jax.custom_vjp, jax.custom_jvp)):
        own = getattr(own, "__wrapped__", None)
    if own is None:
        return ()
    return tuple(n for n, name in enumerate(found.attempt.dtypes) if _is_float(name))


def _alike(name: str, found: Found) -> str:
    """A function of JAX of the same name that returns the same shapes."""
    for affix in ("_pallas", "_kernel", "pallas_"):
        name = name.replace(affix, "")
    for place, module in (("jax.nn", jax.nn), ("jnp", jnp), ("jax.lax", jax.lax)):
        function = getattr(module, name, None)
        if not inspect.isroutine(function) and not callable(function):
            continue
        lab = replace(found.lab, function=function, reference=None, known={})
        trace = lab.trace(replace(found.attempt, statics=()))
        shapes = [shape for shape, _ in trace.outputs]
        if not trace.error and shapes == [shape for shape, _ in found.trace.outputs]:
            return f"{place}.{name}"
    return ""
