"""Examples as files."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import GoldenError
from pytest_pallas.checks.golden import written_call
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.replay.goldens import Example, content_of, load_example
from pytest_pallas.replay.values import dump

pytest.importorskip("safetensors")

CALL = Arguments(
    (np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16), [np.int32(4), None]),
    {"causal": True, "scale": float("inf")},
    {"block": 16},
)


def written(tmp_path, **changes):
    call = written_call(CALL)
    example = Example(
        kernel="matmul",
        check="forward",
        mesh={"x": 4},
        suite=("kernels",),
        plain=call.plain,
        kinds=tuple((array.dtype.name, array.shape) for array in call.arrays),
        backend="interpret",
    )
    path = tmp_path / "example.safetensors"
    path.write_bytes(content_of(dataclasses.replace(example, **changes), call.arrays))
    return path, example


def test_a_call_comes_back(tmp_path):
    path, example = written(tmp_path)
    loaded = load_example(path)
    assert loaded.example == example
    args, options, tuning = loaded.call
    np.testing.assert_array_equal(args[0], CALL.args[0])
    assert args[0].dtype == ml_dtypes.bfloat16
    assert (args[1][0].dtype, args[1]) == (np.int32, [4, None])
    assert (options, tuning) == (CALL.options, CALL.tuning)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": (("float32", (2, 3)), ("int32", ()))}, "must be float32"),
        ({"kinds": ()}, "cannot be read"),
        ({"plain": {"list": []}}, "holds no call"),
        ({"plain": {"opaque": "module.mask"}}, "drawn again"),
        ({"mesh": {"x": "four"}}, "no example of pytest-pallas"),
    ],
)
def test_a_file_that_does_not_fit_itself(tmp_path, changes, message):
    path, _ = written(tmp_path, **changes)
    with pytest.raises(GoldenError, match=f"example.safetensors: .*{message}"):
        load_example(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "no example"),
        ({"pytest-pallas example": "{}"}, "no example"),
        ({"pytest-pallas example": "["}, "no example"),
        ({"pytest-pallas example": json.dumps({"schema": 9})}, "schema 9.*reads 1"),
    ],
)
def test_a_foreign_file(tmp_path, metadata, message):
    path = tmp_path / "other.safetensors"
    path.write_bytes(dump({"x": np.ones(3, np.float32)}, metadata))
    with pytest.raises(GoldenError, match=message):
        load_example(path)


def test_a_file_that_is_cut_short(tmp_path):
    path, _ = written(tmp_path)
    content = path.read_bytes()
    for length in (4, 40, len(content) - 3):
        path.write_bytes(content[:length])
        with pytest.raises(GoldenError, match=r"example\.safetensors"):
            load_example(path)
