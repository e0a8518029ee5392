"""The task: the reference, and the calls that a candidate is judged on; also whether it is one."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from pallas_sim.dtypes import is_float
from pallas_sim.errors import OptionError
from pytest_pallas.candidates.sandbox import Case
from pytest_pallas.draw.arguments import Arguments, as_arguments
from pytest_pallas.draw.arrays import MAX_SEED, arrays, build
from pytest_pallas.draw.dtypes import as_dtype
from pytest_pallas.draw.examples import choose
from pytest_pallas.draw.sizes import concrete, holds, parse
from pytest_pallas.errors import KernelReferenceError

#: Numbers of calls: those that stand for the shapes that were given, and the hidden ones.
GIVEN, HIDDEN = 2, 20

#: Dtypes of hidden calls, by platform: what kernels for it are usually given.
HIDDEN_DTYPES: Mapping[str, tuple[str, ...]] = {
    "tpu": ("bfloat16", "float32"),
    "gpu": ("float16", "bfloat16", "float32"),
}

#: Calls of each hidden dtype.
_VARIANTS = 2

#: Most elements of an array: simulating more takes long.
MOST_ELEMENTS = 1 << 16

#: The variant of a call whose arrays are larger: a candidate may keep all of them in fast memory.
LARGE = f"arrays of more than {MOST_ELEMENTS:,} elements"

#: Most elements of all arrays of such a call.
_LARGE_ELEMENTS = 1 << 18

#: Below this, the answers of float32 are no numbers to compare.
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class DrawnCall:
    """A call of the task.

    Attributes:
      arguments: the values; the candidate never sees them.
      case: their shapes, dtypes and options, which it sees.
      example: the choices of the draw, as text.
      hidden: whether its shape was not given.
      reference: the reference with the options of the call.
      variant: the dtype or option that a candidate need not serve, such as ``"bfloat16"``; "" if it
        has to serve the call.
      outputs: of a variant, the dtypes of the reference's results.
    """

    arguments: Arguments
    case: Case
    example: str
    hidden: bool
    reference: Callable[..., Any] = field(repr=False)
    variant: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelTask:
    """What candidates are to compute.

    Attributes:
      reference: the same function in jnp.
      calls: what they are judged on: the given shapes first.
      seed: of the draws.
      differentiable: positions to differentiate by.
      doubts: what is doubtful about it, one sentence each.
      fault: why nothing can be judged by it; "".
    """

    reference: Callable[..., Any]
    calls: tuple[DrawnCall, ...]
    seed: int
    differentiable: tuple[int, ...] = ()
    doubts: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskInputs:
    """How the calls of a task are drawn.

    Attributes:
      inputs: shapes such as ``"m k, k n"``, a strategy of hypothesis, a sequence of arrays and
        ``jax.ShapeDtypeStruct``, or one of ``Arguments``, of which the first is the given call.
      dtypes: one for all arrays, or one for each.
      hidden_dtypes: those of hidden calls in place of that of the first array of floats.
      sizes: sizes of the given call, by name.
      options: keyword arguments of every call.
      around: tile size around which dimensions are drawn.
      hidden: the number of hidden calls.
    """

    inputs: Any
    dtypes: tuple[str, ...] = ("float32",)
    hidden_dtypes: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    around: int = 128
    hidden: int = HIDDEN


def task_of(
    reference: Callable[..., Any],
    inputs: TaskInputs,
    *,
    seed: int,
    differentiable: Sequence[int] = (),
) -> KernelTask:
    """Draw the calls of a task, and judge it.

    Raises:
      OptionError: ``inputs`` cannot be understood.
      ShapeLanguageError: a text of shapes cannot be understood.
      KernelReferenceError: the reference raises.
    """
    calls = tuple(_calls(reference, inputs, seed))
    if not calls:
        raise OptionError("the inputs draw no call; give shapes, such as 'm k, k n'")
    arguments = len(calls[0].case.args)
    for position in differentiable:
        if not 0 <= position < arguments:
            raise OptionError(
                f"there is no argument {position} to differentiate by: calls have {arguments}"
            )
    doubts: list[str] = []
    if any(call.example == "replaced zeros" for call in calls):
        doubts.append("arguments of zeros were replaced by drawn values: zeros hide what is wrong")
    more, fault = _judged(calls)
    variants = () if fault else _variants(reference, inputs, calls, seed)
    return KernelTask(
        reference=reference,
        calls=(*calls, *variants),
        seed=seed,
        differentiable=tuple(differentiable),
        doubts=(*doubts, *more),
        fault=fault,
    )


def _calls(reference: Callable[..., Any], inputs: TaskInputs, seed: int) -> Iterator[DrawnCall]:
    given = inputs.inputs
    if isinstance(given, str):
        yield from _of_shapes(reference, inputs, given, seed)
    elif hasattr(given, "example"):
        drawn = choose(given, seed=seed, examples=GIVEN + inputs.hidden)
        for number, (name, value) in enumerate(drawn.items()):
            yield _call(reference, as_arguments(value), inputs, name, hidden=number >= GIVEN)
    elif isinstance(given, Sequence) and any(isinstance(one, Arguments) for one in given):
        for number, one in enumerate(given):
            yield _call(reference, as_arguments(one), inputs, f"call {number}", hidden=number > 0)
    elif isinstance(given, Sequence):
        yield from _of_arrays(reference, inputs, given, seed)
    else:
        raise OptionError(
            "inputs must be shapes such as 'm k, k n', a strategy, or a sequence of arrays, not "
            f"{given!r}"
        )


def _of_shapes(
    reference: Callable[..., Any], inputs: TaskInputs, shapes: str, seed: int
) -> Iterator[DrawnCall]:
    spec = parse(shapes)
    dtypes: Any = inputs.dtypes[0] if len(inputs.dtypes) == 1 else inputs.dtypes
    unknown = set(inputs.sizes) - set(spec.names)
    if unknown:
        raise OptionError(
            f"there is no size {sorted(unknown)[0]!r} in {shapes!r}; it has {', '.join(spec.names)}"
        )
    first = GIVEN
    if inputs.sizes:
        first = 1
        fixed = {name: int(size) for name, size in inputs.sizes.items()}
        strategy = arrays(spec, dtype=dtypes, dims=fixed, max_elements=1 << 30)
        for name, value in list(choose(strategy, seed=seed, examples=1).items()):
            yield _call(reference, as_arguments(value), inputs, name, hidden=False)
    strategy = arrays(spec, dtype=dtypes, around=inputs.around, max_elements=MOST_ELEMENTS)
    count = inputs.hidden + (0 if inputs.sizes else first)
    drawn = choose(strategy, seed=seed, examples=count)
    for number, (name, value) in enumerate(drawn.items()):
        hidden = bool(inputs.sizes) or number >= first
        yield _call(reference, as_arguments(value), inputs, name, hidden=hidden)


def _of_arrays(
    reference: Callable[..., Any], inputs: TaskInputs, given: Sequence[Any], seed: int
) -> Iterator[DrawnCall]:
    """Yield calls of the shapes of arrays: their values, and others."""
    rng = np.random.default_rng(seed)
    listed = [np.asarray(value) if not hasattr(value, "dtype") else value for value in given]
    for number in range(1 + min(inputs.hidden, 4)):
        values: list[Any] = []
        example = "given" if number == 0 else f"values {number}"
        for value in listed:
            known = hasattr(value, "__array__") and number == 0
            array = np.asarray(value) if known else None
            if array is not None and array.size and not array.any() and array.dtype.kind in "fcV":
                array, example = None, "replaced zeros"
            values.append(_drawn(rng, value) if array is None else array)
        arguments = Arguments(args=tuple(values))
        yield _call(reference, arguments, inputs, example, hidden=number > 0)


def _drawn(rng: np.random.Generator, like: Any) -> Any:
    dtype = np.dtype(like.dtype)
    if dtype.kind == "b":
        return rng.random(like.shape) < 0.5
    if dtype.kind in "iu":
        return np.asarray(like) if hasattr(like, "__array__") else np.zeros(like.shape, dtype)
    return rng.standard_normal(like.shape).astype(dtype)


def _call(
    reference: Callable[..., Any],
    arguments: Arguments,
    inputs: TaskInputs,
    example: str,
    *,
    hidden: bool,
) -> DrawnCall:
    of_both = {**inputs.options, **arguments.options}
    options = {**of_both, **arguments.tuning}
    for name, value in options.items():
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise OptionError(
                f"the option {name} is {value!r}; options of a candidate must be numbers and texts"
            )
    shapes: list[tuple[tuple[int, ...], str]] = []
    for value in arguments.args:
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            raise OptionError(f"an argument of a candidate must be an array, not {value!r}")
        shapes.append((tuple(map(int, value.shape)), np.dtype(value.dtype).name))
    case = Case(args=tuple(shapes), options=options)
    return DrawnCall(
        arguments=arguments,
        case=case,
        example=example,
        hidden=hidden,
        reference=functools.partial(reference, **of_both) if of_both else reference,
    )


# Calls of other dtypes and options, which a candidate may serve.


def _variants(
    reference: Callable[..., Any], inputs: TaskInputs, calls: Sequence[DrawnCall], seed: int
) -> Iterator[DrawnCall]:
    """Yield calls of dtypes and options that were not given, where the reference supports them."""
    rng = np.random.default_rng(seed)
    hidden = [call for call in calls if call.hidden and all(map(np.size, call.arguments.args))]
    bases = hidden[:_VARIANTS] or calls[:1]
    if not hasattr(inputs.inputs, "example"):  # a strategy draws dtypes by itself
        for dtype in inputs.hidden_dtypes:
            for base in bases:
                arguments = _with_dtype(rng, base.arguments, as_dtype(dtype))
                if arguments is not None:
                    yield from _variant(reference, inputs, base, arguments, dtype)
    if isinstance(inputs.inputs, str):
        yield from _large(reference, inputs, bases[0], seed)
    base = bases[0]
    given = {**inputs.options, **base.arguments.options}
    for name, value in other_options(reference, len(base.arguments.args), given):
        arguments = replace(base.arguments, options={**base.arguments.options, name: value})
        yield from _variant(reference, inputs, base, arguments, f"{name}={value}")


def _large(
    reference: Callable[..., Any], inputs: TaskInputs, base: DrawnCall, seed: int
) -> Iterator[DrawnCall]:
    """Yield a call whose largest array has more than ``MOST_ELEMENTS`` elements, if there is one.

    Its sizes are those of another call, doubled one after the other.
    """
    spec = parse(inputs.inputs)
    sizes = {name: int(base.arguments.recipe[name]) for name in spec.variables}
    growing = list(np.random.default_rng(seed).permutation(sorted(sizes)))

    def elements(sizes: Mapping[str, int]) -> list[int]:
        return [math.prod(shape) for shape in concrete(spec, sizes)]

    while growing and max(elements(sizes)) <= MOST_ELEMENTS:
        name = growing.pop(0)
        larger = {**sizes, name: 2 * sizes[name]}
        if sum(elements(larger)) <= _LARGE_ELEMENTS and all(
            holds(constraint, larger) for constraint in spec.constraints
        ):
            growing.append(name)
            sizes = larger
    if max(elements(sizes), default=0) > MOST_ELEMENTS:
        dtypes = [as_dtype(dtype) for dtype in inputs.dtypes]
        drawn = build(spec, sizes, dtypes, values="normal", seed=seed % MAX_SEED)
        arguments = Arguments(args=tuple(drawn), recipe=drawn.recipe)
        yield from _variant(reference, inputs, replace(base, example=repr(drawn)), arguments, LARGE)


def _variant(
    reference: Callable[..., Any],
    inputs: TaskInputs,
    base: DrawnCall,
    arguments: Arguments,
    variant: str,
) -> Iterator[DrawnCall]:
    """Yield a call unless the reference raises for it."""
    import jax

    call = _call(reference, arguments, inputs, f"{base.example}, {variant}", hidden=True)
    try:
        outputs = jax.eval_shape(call.reference, *arguments.args)
    except Exception:  # the reference does not support it
        return
    dtypes = tuple(leaf.dtype.name for leaf in jax.tree.leaves(outputs))
    yield replace(call, variant=variant, outputs=dtypes)


def _with_dtype(rng: np.random.Generator, arguments: Arguments, dtype: Any) -> Arguments | None:
    """Return a call whose floats have another dtype; None if it has none, or this one."""
    floats = [arg.dtype for arg in arguments.args if is_float(arg.dtype)]
    if not floats or floats[0] == dtype:
        return None
    args = tuple(
        rng.standard_normal(arg.shape).astype(dtype) if arg.dtype == floats[0] else arg
        for arg in arguments.args
    )
    return replace(arguments, args=args)


def other_options(
    reference: Callable[..., Any], positions: int, given: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield options that a function's signature shows, each with a value that is not its default.

    Args:
      reference: the function.
      positions: how many of its parameters are arrays.
      given: options that the caller has set.
    """
    try:
        parameters = list(inspect.signature(reference).parameters.values())
    except (TypeError, ValueError):
        return
    bound: set[str] = set(getattr(reference, "keywords", ()))  # what a partial has set
    try:
        typed = get_type_hints(reference)
    except Exception:  # annotations that cannot be evaluated
        typed = {}
    for parameter in parameters[positions:]:
        name = parameter.name
        if parameter.kind not in _BY_NAME or name in bound:
            continue
        value = given.get(name, parameter.default)
        chosen = get_args(typed.get(name)) if get_origin(typed.get(name)) is Literal else ()
        if chosen:
            yield from ((name, other) for other in chosen if other != value)
        elif isinstance(value, bool):
            yield name, not value
        elif isinstance(value, float) and math.isfinite(value):
            yield name, _other_number(value)
        elif isinstance(value, int) and value > 0:
            yield name, value // 2 or value + 1


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _other_number(value: float) -> float:
    """Return a number that is as valid: one from 0 to 1 remains there, and a tiny one matters."""
    if abs(value) < 0.01:
        return 0.125
    return value / 2 if 0 < value <= 1 else 1.5 * value


# Whether the task can tell a right candidate from a wrong one.


def _judged(calls: Sequence[DrawnCall]) -> tuple[tuple[str, ...], str]:
    """Return what is doubtful about a reference, and why it is none."""
    # Of the largest calls the last: the given one may have zeros for weights.
    call = max(reversed(calls), key=lambda call: sum(np.prod(shape) for shape, _ in call.case.args))
    args = [np.asarray(value) for value in call.arguments.args]
    answers = _answers(call.reference, args)
    doubts: list[str] = []
    rng = np.random.default_rng(0)
    for position, value in enumerate(args):
        if not value.size:
            continue
        changed = list(args)
        changed[position] = _changed(rng, value)
        others = _answers(call.reference, changed)
        same = all(
            one.shape == other.shape and one.tobytes() == other.tobytes()
            for one, other in zip(answers, others, strict=True)
        )
        if same:
            doubts.append(f"the answer of the reference does not depend on argument {position}")
    floats = [answer for answer in answers if answer.dtype.kind in "fcV" and answer.size]
    fault = ""
    if not answers or any(answer.dtype.kind in "OSU" for answer in answers):
        fault = "the reference returns no arrays"
    elif args and len(doubts) == len([value for value in args if value.size]):
        fault = "the answer of the reference is the same for all arguments"
    elif floats and all(
        np.nanmax(np.abs(answer.astype(np.float64)), initial=0.0) < _TINY for answer in floats
    ):
        fault = f"the answers of the reference are smaller than {_TINY:g}"
    elif floats and all(
        answer.size > 1 and np.ptp(answer.astype(np.float64)) == 0 for answer in floats
    ):
        doubts.append("the answer of the reference is constant: every element is the same number")
    return tuple(doubts), fault


def _answers(reference: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    import jax

    try:
        try:
            answers = reference(*args)
        except AttributeError:  # of arrays of numpy, such as ``at``
            answers = reference(*map(jax.numpy.asarray, args))
        return [np.asarray(leaf) for leaf in jax.tree.leaves(answers)]
    except Exception as error:  # whatever a reference raises
        raise KernelReferenceError(
            f"the reference raised {type(error).__name__}: {error}"
        ) from error


def _changed(rng: np.random.Generator, value: Any) -> Any:
    """Return other values of the same shape and dtype."""
    if value.dtype.kind == "b":
        return ~value
    if value.dtype.kind in "iu":
        return (
            np.roll(value, 1)
            if value.size > 1 and np.ptp(value)
            else np.where(value == 0, value, 0)
        )
    return (rng.standard_normal(value.shape) + 0.5).astype(value.dtype)


def gradient_call(
    reference: Callable[..., Any], args: Sequence[Any], wrt: Sequence[int]
) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """Return the arguments of a derivative, with what it is multiplied by, and its reference."""
    import jax

    outputs = jax.eval_shape(reference, *args)
    rng = np.random.default_rng(0)
    cotangents = [
        rng.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in jax.tree.leaves(outputs)
    ]
    count, tree = len(args), jax.tree.structure(outputs)

    def derivative(*values: Any) -> Any:
        inputs = list(values[:count])

        def of_some(*some: Any) -> Any:
            for position, value in zip(wrt, some, strict=True):
                inputs[position] = value
            return reference(*inputs)

        _, pull = jax.vjp(of_some, *(inputs[position] for position in wrt))
        return pull(jax.tree.unflatten(tree, values[count:]))

    return (*args, *cotangents), derivative
