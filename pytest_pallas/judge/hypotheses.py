"""Hypotheses about a wrong output: what a kernel did instead of what its reference does.

A hypothesis predicts the output: the values of an argument, another block, the reference of other
arguments. ``first_fit`` returns the first one whose prediction is what the kernel returned, in
every element that it is about. A prediction that fits by chance is none: see ``_is_no_chance``.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pallas_sim.dtypes import Array
from pytest_pallas.judge.wrong_elements import fits, moved_values

#: Limits on the evaluations of a reference: their number, and the seconds of all.
_EVALUATIONS, _SECONDS = 64, 2.0

#: Number of blocks of an axis that are left out or counted twice, one after the other.
_BLOCKS = 8

#: Number of blocks of an output among which the origin of a block is looked for.
_MOST_BLOCKS = 1024

#: A prediction is only reported if it would come true by chance less than once in this many times.
_ODDS = math.log(1e4)

#: How much nearer than the oracle a prediction must be, as a ratio of root mean squares.
_NEARER = 8.0


class NamedArray(NamedTuple):
    """An array of the call.

    Attributes:
      name: for messages, such as ``"argument 2"``.
      values: in float64 or complex128.
    """

    name: str
    values: Array


@dataclass(frozen=True, kw_only=True)
class WrongOutput:
    """A wrong output, and what a hypothesis may be made of. Arrays are float64 or complex128.

    Attributes:
      mask: bool, True where the output is wrong.
      actual: the kernel's output.
      oracle: the right values.
      slack: how far values may be from a prediction, relative to its scale; 0 of integers.
      arguments: the arrays of the call.
      others: the right values of the kernel's other outputs.
      evaluate: the right values of this output for other arrays in the place of ``arguments``;
        None if the reference does not take them. None where no reference is known.
      block: shape of the blocks that the output is written in; empty if that is not known.
      sizes: sizes of blocks along an axis, by the length of the axis.
    """

    mask: Array
    actual: Array
    oracle: Array
    slack: float
    arguments: Sequence[NamedArray] = ()
    others: Sequence[NamedArray] = ()
    evaluate: Callable[[Sequence[Array]], Array | None] | None = None
    block: tuple[int, ...] = ()
    sizes: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])


class Prediction(NamedTuple):
    """What a hypothesis predicts.

    Attributes:
      text: the hypothesis, a sentence.
      values: the output by it.
      wrong_only: whether it is about the wrong elements only.
    """

    text: str
    values: Array
    wrong_only: bool = False


def first_fit(wrong: WrongOutput) -> str:
    """Return the first hypothesis that explains every wrong element, with numbers; or ""."""
    if not wrong.mask.any() or wrong.actual.size < 2:
        return ""
    with np.errstate(all="ignore"):
        if any(moved_values(wrong.mask, wrong.actual, wrong.oracle, wrong.slack)):
            return ""  # a pattern says so
        for tried, prediction in enumerate(_predictions(wrong), 1):
            if _explains(prediction, wrong, tried):
                count = int(np.count_nonzero(wrong.mask))
                noun = "the wrong element" if count == 1 else f"all {count:,} wrong elements"
                error = _distance(wrong.actual[wrong.mask], prediction.values[wrong.mask])
                how = f"within {error:.2g} of their scale" if error else "exactly"
                return f"{prediction.text}: that gives {noun} {how}"
    return ""


def _predictions(wrong: WrongOutput) -> Iterator[Prediction]:
    """Yield predictions, the simplest first."""
    yield from _values_of_arrays(wrong)
    yield from _other_blocks(wrong)
    yield from _with_an_array(wrong)
    yield from _rows_of_their_own(wrong)
    if wrong.evaluate is not None:
        yield from _other_arguments(wrong, _Evaluator(wrong.evaluate))


def _explains(prediction: Prediction, wrong: WrongOutput, tried: int) -> bool:
    values, mask = prediction.values, wrong.mask
    if values.shape != wrong.actual.shape:
        return False
    where = mask if prediction.wrong_only else np.ones(mask.shape, bool)
    if not fits(wrong.actual[where], values[where], wrong.slack):
        return False
    actual, right = wrong.actual[mask], wrong.oracle[mask]
    near, far = _distance(actual, values[mask]), _distance(actual, right)
    if not far > _NEARER * near:  # also if the oracle is NaN
        return False
    return _is_no_chance(actual, values[mask], wrong.slack, tried)


def _distance(actual: Array, values: Array) -> float:
    """Return the root mean square difference, relative to that of ``actual``."""
    finite = np.isfinite(actual) & np.isfinite(values)
    scale = _root_mean_square(actual[finite])
    return _root_mean_square((actual[finite] - values[finite]) / scale) if scale else 0.0


def _root_mean_square(array: Array) -> float:
    """Return the root mean square of the finite elements; 0 without any."""
    magnitude = np.abs(array[np.isfinite(array)])
    return float(np.sqrt(np.mean(np.square(magnitude)))) if magnitude.size else 0.0


def _is_no_chance(actual: Array, values: Array, slack: float, tried: int) -> bool:
    """Return whether predicted values can hardly be right by chance.

    The chance of one element is estimated by comparing each with the predictions of others: in an
    output of few different values, every prediction is right somewhere.
    """
    count = actual.size
    shifts = sorted({*range(1, min(count, 5)), *(count * n // 7 for n in range(1, 7))} - {0})
    scale = _root_mean_square(values)
    hits = 0
    for shift in shifts:
        other = np.roll(values, shift)
        near = np.abs(actual - other) <= slack * np.maximum(np.abs(other), scale)
        hits += int(np.count_nonzero(near | (actual == other) | np.isnan(actual)))
    chance = (hits + 1) / (len(shifts) * count + 1)
    return count * -math.log(chance) - math.log(tried) > _ODDS


# The values of another array.


def _values_of_arrays(wrong: WrongOutput) -> Iterator[Prediction]:
    shape = wrong.oracle.shape
    for name, values in (*wrong.arguments, *wrong.others):
        text = f"the wrong elements are the values of {name}"
        if values.shape == shape:
            yield Prediction(text, values, wrong_only=True)
        if values.ndim >= 2 and np.swapaxes(values, -1, -2).shape == shape:
            yield Prediction(
                f"{text} with its last two axes transposed",
                np.swapaxes(values, -1, -2),
                wrong_only=True,
            )
        if values.shape != shape and values.size == math.prod(shape) > 1:
            yield Prediction(f"{text}, reshaped", values.reshape(shape), wrong_only=True)


def _with_an_array(wrong: WrongOutput) -> Iterator[Prediction]:
    """Yield what an argument that is left out or applied twice would give."""
    right, shape = wrong.oracle, wrong.oracle.shape
    for name, values in wrong.arguments:
        if not values.size or not values.ndim:
            continue
        columns = values.reshape(*values.shape, *(1,) * (right.ndim - values.ndim))
        for one in (values, columns) if values.ndim < right.ndim else (values,):
            if not _broadcasts(one.shape, shape):
                continue
            yield Prediction(f"the wrong elements lack {name} as a summand", right - one, True)
            yield Prediction(f"{name} is added twice to the wrong elements", right + one, True)
            yield Prediction(f"the wrong elements lack {name} as a factor", right / one, True)
            yield Prediction(f"{name} is a factor of the wrong elements twice", right * one, True)


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    try:
        return np.broadcast_shapes(tuple(shape), tuple(to)) == tuple(to)
    except ValueError:
        return False


# Blocks of the output that hold those of other places.


def _other_blocks(wrong: WrongOutput) -> Iterator[Prediction]:
    shape = wrong.oracle.shape
    if not shape or math.prod(shape) < 4:
        return
    blocks = [wrong.block] if len(wrong.block) == len(shape) else []
    blocks += [(1, *shape[1:]), (*shape[:-1], 1)] if len(shape) > 1 else []
    for block in dict.fromkeys(blocks):
        prediction = _moved_blocks(wrong, tuple(map(min, block, shape)))
        if prediction is not None:
            yield prediction


def _moved_blocks(wrong: WrongOutput, block: tuple[int, ...]) -> Prediction | None:
    """Find for each wrong block the block of the oracle that it is; None if one is of none."""
    shape = wrong.oracle.shape
    counts = [length // size for length, size in zip(shape, block, strict=True)]
    number, volume = math.prod(counts), math.prod(block)
    whole = all(length % size == 0 for length, size in zip(shape, block, strict=True))
    if not whole or volume < 2 or not 2 <= number <= _MOST_BLOCKS:
        return None
    actual, right = _as_blocks(wrong.actual, block), _as_blocks(wrong.oracle, block)
    bad = np.flatnonzero(_as_blocks(wrong.mask, block).any(axis=1))
    origins: dict[int, int] = {}
    probe = np.linspace(0, volume - 1, min(volume, 8)).astype(np.int64)
    scale = _root_mean_square(right)
    for position in bad.tolist():
        limit = wrong.slack * np.maximum(np.abs(right[:, probe]), scale)
        near = (np.abs(right[:, probe] - actual[position, probe]) <= limit).all(axis=1)
        candidates = [
            int(n)
            for n in np.flatnonzero(near)[:4]
            if fits(actual[position], right[n], wrong.slack)
        ]
        if len(candidates) != 1:
            return None
        origins[position] = candidates[0]
    moved = right.copy()
    moved[list(origins)] = right[list(origins.values())]
    text = _describe_origins(origins, counts, block, shape)
    return Prediction(text, _from_blocks(moved, block, shape))


def _as_blocks(array: Array, block: Sequence[int]) -> Array:
    """Return the blocks of an array, each flat, in row-major order."""
    sizes = [pair for n, b in zip(array.shape, block, strict=True) for pair in (n // b, b)]
    order = [*range(0, 2 * array.ndim, 2), *range(1, 2 * array.ndim, 2)]
    return array.reshape(sizes).transpose(order).reshape(-1, math.prod(block))


def _from_blocks(blocks: Array, block: Sequence[int], shape: Sequence[int]) -> Array:
    """Return the array of such blocks."""
    counts = [n // b for n, b in zip(shape, block, strict=True)]
    order = list(itertools.chain(*((a, a + len(shape)) for a in range(len(shape)))))
    return blocks.reshape(*counts, *block).transpose(order).reshape(tuple(shape))


def _describe_origins(
    origins: Mapping[int, int], counts: Sequence[int], block: tuple[int, ...], shape: Sequence[int]
) -> str:
    moves = [
        (
            tuple(map(int, np.unravel_index(at, counts))),
            tuple(map(int, np.unravel_index(of, counts))),
        )
        for at, of in origins.items()
    ]
    noun, size = "block", f" of shape {block}"
    for axis, name in ((0, "row"), (len(shape) - 1, "column")):
        if len(shape) == 2 and [*block] == [1 if a == axis else n for a, n in enumerate(shape)]:
            noun, size = name, ""
            moves = [((at[axis],), (of[axis],)) for at, of in moves]
    shown = "; ".join(
        f"{noun} {_index(at)}{size} holds what belongs in {_index(of)}" for at, of in moves[:3]
    )
    more = len(moves) - 3
    text = shown + (f"; and {more:,} more" if more > 0 else "")
    steps = {tuple(np.subtract(of, at).tolist()) for at, of in moves}
    sources = {of for _, of in moves}
    if len(moves) > 1 and len(sources) == 1:
        return f"every wrong {noun} holds what belongs in {_index(*sources)}: {text}"
    if len(moves) > 1 and len(steps) == 1:
        (step,) = steps
        sign = ", ".join(f"{n:+d}" if n else "0" for n in step)
        return f"every wrong {noun} holds what belongs {sign} further: {text}"
    return text


def _index(index: Sequence[int]) -> str:
    return str(index[0]) if len(index) == 1 else f"({', '.join(map(str, index))})"


# Rows with another statistic, as of a norm or a softmax.


def _rows_of_their_own(wrong: WrongOutput) -> Iterator[Prediction]:
    """Yield rows that are divided by the statistic of another row, or of one with more elements.

    The rows are those of the last axis. The statistic of each row is read off the oracle and an
    argument of the same shape, of which a row of the oracle is a multiple, with or without a shift,
    or the exponential times a constant.
    """
    shape = wrong.oracle.shape
    if len(shape) < 2 or shape[-1] < 4 or math.prod(shape[:-1]) < 2:
        return
    right = wrong.oracle.reshape(-1, shape[-1])
    if np.iscomplexobj(right):
        return
    for name, values in wrong.arguments:
        if values.shape != shape or np.iscomplexobj(values):
            continue
        yield from _of_other_rows(wrong, name, values.reshape(right.shape), right)


def _of_other_rows(
    wrong: WrongOutput, name: str, rows: Array, right: Array
) -> Iterator[Prediction]:
    count = len(rows)
    origins = (
        ("the row before it", np.maximum(np.arange(count) - 1, 0)),
        ("the row before it, around the end", np.arange(count) - 1),
        ("the row after it", np.minimum(np.arange(count) + 1, count - 1)),
        ("the row after it, around the end", (np.arange(count) + 1) % count),
        ("row 0", np.zeros(count, np.int64)),
        (f"row {count - 1}, the last", np.full(count, count - 1)),
    )
    for statistic, predict in _statistics(rows, right):
        for origin, at in origins:
            values = predict(at).reshape(wrong.mask.shape)
            yield Prediction(
                f"each wrong row of the output has the {statistic} of {origin}, in {name}",
                np.where(wrong.mask, values, wrong.oracle),
            )


def _statistics(rows: Array, right: Array) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    """Yield what rows are normalized by, and a function of the rows whose statistic is taken."""
    affine = _affine(rows, right)
    if affine is not None:
        factor, shift = affine
        mean = -shift / factor
        yield "statistics", lambda at: (rows - mean[at]) * factor[at]
        yield "scale", lambda at: (rows - mean) * factor[at]
        yield "mean", lambda at: (rows - mean[at]) * factor
        return
    top = rows.max(axis=1, keepdims=True)
    shares = _affine(np.exp(rows - top), right, shift=False)
    if shares is not None:
        yield "statistics", lambda at: np.exp(rows - top[at]) * shares[0][at]
        yield "sum", lambda at: np.exp(rows - top) * shares[0][at]


def _affine(base: Array, right: Array, *, shift: bool = True) -> tuple[Array, Array] | None:
    """Return factor and shift of each row such that ``right`` is ``base * factor + shift``."""
    means = base.mean(axis=1, keepdims=True) if shift else np.zeros((len(base), 1))
    centered = base - means
    target = right.mean(axis=1, keepdims=True) if shift else np.zeros((len(base), 1))
    norms = np.square(centered).sum(axis=1, keepdims=True)
    if not (norms > 0).all():
        return None
    factor = (centered * (right - target)).sum(axis=1, keepdims=True) / norms
    offset = target - factor * means
    return (factor, offset) if fits(right, base * factor + offset, 1e-6) else None


# The reference of other arguments.


@dataclass
class _Evaluator:
    """Evaluates a reference for changed arguments, within ``_EVALUATIONS`` and ``_SECONDS``."""

    evaluate: Callable[[Sequence[Array]], Array | None]
    left: int = _EVALUATIONS
    until: float = field(default_factory=lambda: time.monotonic() + _SECONDS)

    def of(self, text: str, arrays: Sequence[Array]) -> Iterator[Prediction]:
        """Yield the prediction for these arrays; nothing if the reference does not take them."""
        if self.left > 0 and time.monotonic() < self.until:
            self.left -= 1
            values = self.evaluate(arrays)
            if values is not None:
                yield Prediction(text, values)


def _other_arguments(wrong: WrongOutput, evaluator: _Evaluator) -> Iterator[Prediction]:
    """Yield the reference of arguments that are exchanged, moved, left out or padded."""
    names = [argument.name for argument in wrong.arguments]
    arrays = [argument.values for argument in wrong.arguments]

    def changed(position: int, values: Array) -> list[Array]:
        return [*arrays[:position], values, *arrays[position + 1 :]]

    for one, two in itertools.combinations(range(len(arrays)), 2):
        if arrays[one].shape == arrays[two].shape and arrays[one].dtype == arrays[two].dtype:
            order = changed(one, arrays[two])
            order[two] = arrays[one]
            numbers = f"{names[one]} and {names[two]}"
            yield from evaluator.of(f"the kernel exchanges {numbers}", order)
    for position, values in enumerate(arrays):
        if values.ndim >= 2 and values.shape[-1] == values.shape[-2] > 1:
            text = f"the kernel takes {names[position]} transposed"
            yield from evaluator.of(text, changed(position, np.swapaxes(values, -1, -2)))
    yield from _lengthened(wrong, evaluator)
    for position, axis, size in _blocked_axes(wrong):
        values = arrays[position]
        of = f"along axis {axis} of {names[position]}"
        for part in _parts(values.shape[axis], size):
            text = f"{_name_of(part, size)} {of}"
            without = values.copy()
            without[(slice(None),) * axis + (part,)] = 0
            yield from evaluator.of(f"the kernel leaves out {text}", changed(position, without))
            twice = values.copy()
            twice[(slice(None),) * axis + (part,)] *= 2
            yield from evaluator.of(f"the kernel counts twice {text}", changed(position, twice))
    for position, axis, size in _blocked_axes(wrong):
        values, length = arrays[position], arrays[position].shape[axis]
        at = np.arange(length)
        unit = f"a block of {size}" if size > 1 else "an element"
        for text, origin in (
            (f"{unit} too far", np.minimum(at + size, length - size + at % size)),
            (f"{unit} too early", np.maximum(at - size, at % size)),
            (f"{unit} too far, around the end", (at + size) % length),
            (f"{unit} too early, around the end", (at - size) % length),
        ):
            yield from evaluator.of(
                f"the kernel reads {names[position]} {text} along axis {axis}",
                changed(position, np.take(values, np.clip(origin, 0, length - 1), axis)),
            )


def _lengthened(wrong: WrongOutput, evaluator: _Evaluator) -> Iterator[Prediction]:
    """Yield the reference of arrays of which all axes of one length are longer or shorter."""
    arrays = [argument.values for argument in wrong.arguments]
    for length, sizes in _lengths(wrong).items():
        for size in sizes:
            extra = -length % size
            if extra:
                yield from _cut(
                    evaluator,
                    f"the kernel counts {extra} zeros beyond an axis of length {length}, whose "
                    f"blocks of {size} hang over",
                    [_resized(array, length, length + extra) for array in arrays],
                    wrong,
                )
            last = length - (length % size or size)
            if last > 0:
                what = f"the last block, {last}:{length}," if size > 1 else "the last element"
                yield from evaluator.of(
                    f"the kernel does not reach {what} of an axis of length {length}",
                    [_resized(array, length, last) for array in arrays],
                )


def _cut(
    evaluator: _Evaluator, text: str, arrays: Sequence[Array], wrong: WrongOutput
) -> Iterator[Prediction]:
    """Yield a prediction for padded arrays without the padding of the output."""
    shape = wrong.oracle.shape
    for prediction in evaluator.of(text, arrays):
        values = prediction.values
        if values.ndim == len(shape) and all(
            n >= m for n, m in zip(values.shape, shape, strict=True)
        ):
            yield prediction._replace(values=values[tuple(slice(0, n) for n in shape)])


def _resized(array: Array, length: int, to: int) -> Array:
    """Return an array whose axes of ``length`` are cut, or filled with zeros."""
    for axis, size in enumerate(array.shape):
        if size == length and to < length:
            array = np.take(array, np.arange(to), axis)
        elif size == length:
            widths = [(0, to - length if a == axis else 0) for a in range(array.ndim)]
            array = np.pad(array, widths)
    return array


def _lengths(wrong: WrongOutput) -> Mapping[int, Sequence[int]]:
    """Return the sizes of blocks of each length that an axis of an argument has; 1 is the last."""
    lengths = {size for argument in wrong.arguments for size in argument.values.shape}
    return {
        length: tuple(dict.fromkeys((*wrong.sizes.get(length, ()), 1)))
        for length in sorted(lengths)
        if length
    }


def _blocked_axes(wrong: WrongOutput) -> Iterator[tuple[int, int, int]]:
    """Yield the position, axis and block size of each axis of an argument; 1 is the last size."""
    for position, argument in enumerate(wrong.arguments):
        for axis, length in enumerate(argument.values.shape):
            sizes = [size for size in wrong.sizes.get(length, ()) if size < length]
            for size in dict.fromkeys((*sizes, 1)):
                if length > 1:
                    yield position, axis, size


def _parts(length: int, size: int) -> list[slice]:
    """Return the last, the first and further blocks of an axis."""
    starts = list(range(0, length, size))
    order = [starts[-1], *starts[:-1]] if size > 1 else [starts[-1], starts[0]]
    return [slice(start, min(start + size, length)) for start in order[:_BLOCKS]]


def _name_of(part: slice, size: int) -> str:
    if size == 1:
        return f"element {part.start}"
    return f"block {part.start // size}, {part.start}:{part.stop},"
