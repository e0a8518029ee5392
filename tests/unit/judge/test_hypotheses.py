"""``judge.hypotheses``: what a kernel did, told by the numbers of a wrong output."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_pallas.judge.hypotheses import NamedArray, WrongOutput, first_fit

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 12, 20))
W, V = RNG.normal(size=(20, 20)), RNG.normal(size=(20, 7))
BIAS, SCALES = RNG.normal(size=20), RNG.normal(size=12)


def fit(reference, kernel, *args, slack=1e-6, sizes=None, block=()):
    """The hypothesis about a kernel in float64."""
    with np.errstate(all="ignore"):
        oracle, actual = reference(*args), kernel(*args)
        mask = ~(np.abs(actual - oracle) <= slack)

    def evaluate(arrays):
        try:
            return reference(*arrays)
        except ValueError:
            return None

    return first_fit(
        WrongOutput(
            mask=mask,
            actual=actual,
            oracle=oracle,
            slack=slack,
            arguments=[NamedArray(f"argument {n}", array) for n, array in enumerate(args)],
            evaluate=evaluate,
            block=block,
            sizes=sizes or {},
        )
    )


def softmax(x):
    shares = np.exp(x - x.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def norm(x, mean=None, variance=None):
    mean = x.mean(axis=1, keepdims=True) if mean is None else mean
    variance = x.var(axis=1, keepdims=True) if variance is None else variance
    return (x - mean) / np.sqrt(variance + 1e-5)


@pytest.mark.parametrize(
    ("reference", "kernel", "args", "sentence"),
    [
        (np.add, lambda x, _: x, (X, Y), "the wrong elements are the values of argument 0"),
        (np.add, lambda _, y: y, (X, Y), "the wrong elements are the values of argument 1"),
        (
            lambda w: 2 * w,
            lambda w: w.T,
            (W,),
            "the wrong elements are the values of argument 0 with its last two axes transposed",
        ),
        (np.subtract, lambda x, y: y - x, (X, Y), "the kernel exchanges argument 0 and argument 1"),
        (np.matmul, lambda x, w: x @ w.T, (X, W), "the kernel takes argument 1 transposed"),
        (np.add, lambda x, b: 0 * b + x, (X, BIAS), "the wrong elements are the values of arg"),
        (
            lambda x, b: 2 * x + b,
            lambda x, b: 2 * x + 0 * b,
            (X, BIAS),
            "the wrong elements lack argument 1 as a summand",
        ),
        (
            lambda x, s: x * s[:, None],
            lambda x, s: x * s[:, None] ** 2,
            (X, SCALES),
            "argument 1 is a factor of the wrong elements twice",
        ),
    ],
)
def test_arguments(reference, kernel, args, sentence):
    assert fit(reference, kernel, *args).startswith(sentence)


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (lambda x, w: x[:, :16] @ w[:16], "the kernel does not reach the last block, 16:20,"),
        (lambda x, w: x[:, :19] @ w[:19], "the kernel does not reach the last element"),
        (
            lambda x, w: x[:, 4:] @ w[4:],
            "the kernel leaves out block 0, 0:4, along axis 1 of argument 0",
        ),
        (
            lambda x, w: x @ w + x[:, 8:12] @ w[8:12],
            "the kernel counts twice block 2, 8:12, along axis 1 of argument 0",
        ),
        (
            lambda x, w: np.roll(x, -4, 1) @ w,
            "the kernel reads argument 0 a block of 4 too far, around the end along axis 1",
        ),
    ],
)
def test_blocks_of_a_sum(kernel, sentence):
    assert fit(np.matmul, kernel, X, V, sizes={20: (4,)}).startswith(sentence)


@pytest.mark.parametrize(
    ("reference", "kernel"),
    [
        (softmax, lambda x: softmax(np.pad(x, ((0, 0), (0, 4))))[:, :20]),
        (norm, lambda x: norm(np.pad(x, ((0, 0), (0, 4))))[:, :20]),
        (lambda x: x.mean(axis=1), lambda x: x.sum(axis=1) / 24),
    ],
)
def test_padding_that_is_counted(reference, kernel):
    text = fit(reference, kernel, X, sizes={20: (8,)})
    assert text.startswith("the kernel counts 4 zeros beyond an axis of length 20, whose blocks")


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (lambda x: norm(x, x[:1].mean(), x[:1].var()), "the statistics of row 0"),
        (
            lambda x: norm(x, None, np.roll(x.var(axis=1, keepdims=True), 1, 0)),
            "the scale of the row before it, around the end",
        ),
        (
            lambda x: norm(x, np.roll(x.mean(axis=1, keepdims=True), -1, 0)),
            "the mean of the row after it, around the end",
        ),
    ],
)
def test_statistics_of_another_row(kernel, sentence):
    text = fit(norm, kernel, X)
    assert text.startswith(f"each wrong row of the output has {sentence}, in argument 0")


def test_the_sum_of_another_row():
    def kernel(x):
        shares = np.exp(x - x.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)[-1:]

    text = fit(softmax, kernel, X)
    assert text.startswith("each wrong row of the output has the sum of row 11, the last, in")


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([1, 2, 2], "every wrong block holds what belongs +1, 0 further: block (0, 0) of shape"),
        (
            [2, 2, 2],
            "every wrong block holds what belongs in (2, 0): block (0, 0) of shape",
        ),
        ([0, 2, 1], "block (1, 0) of shape (4, 20) holds what belongs in (2, 0); block (2, 0)"),
    ],
)
def test_blocks_of_other_places(order, sentence):
    def kernel(x):
        return 2 * x.reshape(3, 4, 20)[order].reshape(12, 20)

    assert fit(lambda x: 2 * x, kernel, X, block=(4, 20)).startswith(sentence)


def test_rows_of_other_places():
    rows = [1, 0, *range(2, 12)]
    text = fit(lambda x: 2 * x, lambda x: 2 * x[rows], X)
    assert text.startswith("row 0 holds what belongs in 1; row 1 holds what belongs in 0")


@pytest.mark.parametrize("share", [1.0, 0.3, 0.02])
@pytest.mark.parametrize("reference", [np.add, np.multiply, lambda x, y: softmax(x) + y])
def test_random_errors_have_none(reference, share):
    """Neither have those of integers, which are often right by chance."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        shape = tuple(rng.integers(1, 20, 2))
        for slack in (0.0, 1e-6, 1 / 32):
            if slack:
                x, y, error = rng.normal(size=(3, *shape))
            else:
                x, y, error = rng.integers(-2, 3, size=(3, *shape)).astype(float)

            def kernel(x, y, error=error, rng=rng):
                return reference(x, y) + error * (rng.random(error.shape) < share)

            sizes = {int(length): (2, 8) for length in shape}
            text = fit(reference, kernel, x, y, slack=slack, sizes=sizes, block=(2, int(shape[1])))
            assert text == "", (seed, slack)


def test_a_pattern_needs_no_hypothesis():
    """The transposed product is also that of exchanged arguments."""
    assert fit(lambda x, y: x @ y.T, lambda x, y: y @ x.T, X, Y) == ""


def test_a_small_error_is_no_other_argument():
    """The reference without a small element is as near to the output as the oracle is."""
    x = X.copy()
    x[:, -1] = 1e-5
    assert fit(lambda x: x.sum(axis=1), lambda x: x.sum(axis=1) * (1 + 3e-6), x) == ""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 7.0])
def test_a_constant_shows_nothing(value):
    def kernel(x, y):
        return np.full_like(x, value)

    assert fit(np.add, kernel, X, Y) == ""
    assert fit(np.add, kernel, np.full_like(X, value), Y) == ""
