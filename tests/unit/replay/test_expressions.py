"""What a script is told about values and functions makes them again."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from pallas_test_support import places_of_functions as places

import pytest_pallas
from pytest_pallas.replay import script as literals
from pytest_pallas.replay.script import folder_of, variable_name


def again(value: Any, writer: literals.Writer | None = None) -> Any:
    """The value of the expression for a value, evaluated as in a script."""
    writer = writer or literals.Writer()
    text = writer.write(value)
    scope: dict[str, Any] = {"functools": functools, "jax": jax, "np": np, "STORED": writer.arrays}
    for line in writer.imports:
        exec(line, scope)
    for name in writer.modules:
        scope[variable_name(name)] = sys.modules[name]
    return eval(text, scope)


DTYPES = sorted(
    {
        *("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"),
        *(name for name in vars(ml_dtypes) if name.startswith(("int", "uint", "float", "bfloat"))),
    }
)


@pytest.mark.parametrize("size", [0, 3, 200], ids=["empty", "tiny", "long"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_have_the_same_bits(dtype, size):
    values = np.arange(size) % 2 * np.linspace(-1, 1, size) if size else np.zeros(0)
    with np.errstate(all="ignore"):
        array = values.reshape(1, size).astype(np.dtype(dtype))
    copy = again(array)
    assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
    assert copy.tobytes() == array.tobytes()


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0, 1e-40, 0.1])
def test_special_values_have_the_same_bits(value):
    array = np.array([value, 1.0], np.float32)
    assert again(array).tobytes() == array.tobytes()


def test_tiny_arrays_can_be_read():
    for dtype in ("int32", "float32", "bfloat16"):
        text = literals.Writer().write(np.array([[1, 2]], np.dtype(dtype)))
        assert text == f'np.array([[1, 2]], "{dtype}")'


@pytest.mark.parametrize("value", [1.0, -0.0, math.nan])
def test_constant_arrays_can_be_read(value):
    array = np.full((64, 128), value, ml_dtypes.bfloat16)
    assert again(array).tobytes() == array.tobytes()
    assert len(literals.Writer().write(array)) < 120


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4"])
def test_large_arrays_go_to_a_file(dtype, tmp_path):
    array = np.random.default_rng(0).normal(size=(128, 64)).astype(np.dtype(dtype))
    writer = literals.Writer()
    text = writer.write(array)
    assert len(text) < 100
    np.savez(tmp_path / "script.npz", **writer.arrays)
    with np.load(tmp_path / "script.npz") as stored:
        copy = eval(text, {"np": np, "STORED": stored})
    assert copy.dtype == array.dtype
    assert copy.tobytes() == array.tobytes()


VALUES = {
    "nested": {"a": (1, [2.5, None]), "b": (True,)},
    "infinite": (math.inf, -math.inf),
    "text": ("a'\"\n", b"\0", ...),
    "enum": places.Kind.CAUSAL,
    "dataclass": places.Blocks(rows=8),
    "named tuple": places.Pair(1, places.Blocks(8, 16)),
    "slice": slice(0, None, 2),
    "set": frozenset({3, 1}),
    "dtype": (np.dtype("bfloat16"), jnp.bfloat16, np.float32),
    "shape": jax.ShapeDtypeStruct((8, 128), jnp.bfloat16),
    "spec": PartitionSpec("x", None),
    "function of JAX": (jax.nn.silu, jnp.sin, jax.lax.add),
    "of this package": (pytest_pallas.Tolerance(atol=1.5), pytest_pallas.Linear((0, 1))),
    "scalar": np.float32(0.1),
    "jax array": jnp.arange(3),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_values_are_made_again(value):
    copy = again(value)
    if isinstance(value, jax.Array):
        copy, value = copy.tolist(), value.tolist()
    assert type(copy) is type(value)
    assert copy == value


def test_random_keys_are_made_again():
    key = jax.random.key(7)
    assert (jax.random.bits(again(key)) == jax.random.bits(key)).all()


def test_meshes_are_made_again():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    assert again(mesh) == mesh


@pytest.mark.parametrize(
    "function", [places.plain, places.Holder.inside, places.aliased, places.jitted]
)
def test_functions_with_a_name_are_found(function):
    assert again(function) is function


FUNCTIONS = {
    "partial": (functools.partial(places.closure(1), more=2), 0),
    "first of a line": (places.two[0], 0),
    "second of a line": (places.two[1], 0),
    "closure": (places.closure(2), -5),
    "defaults": (places.closure(2), 100),
    "closure over an array": (places.closure(np.float32(0.5)), 0),
    "closure over a function": (places.closure(jnp.float32), None),
    "jitted closure": (places.jitted_closure(3), 1),
}


@pytest.mark.parametrize(("function", "argument"), FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_functions_without_a_name_are_made_again(function, argument):
    copy = again(function)
    if argument is not None:
        assert copy(argument) == function(argument)
    else:
        assert copy.__closure__[0].cell_contents is jnp.float32


def test_a_function_of_a_file_that_is_no_module_is_loaded_from_it():
    assert folder_of("names.other", Path("/a/b/kernels.py")) == ""
    assert folder_of("b.kernels", Path("/a/b/kernels.py")) == "/a"
    assert folder_of("b", Path("/a/b/__init__.py")) == "/a"


def recursive() -> Any:
    def inner(x: Any) -> Any:
        return inner(x)

    return inner


class Opaque:
    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("value", "message"),
    [(recursive(), "holds itself"), (Opaque(), "Opaque"), (object(), "object")],
    ids=["recursive", "callable", "object"],
)
def test_what_cannot_be_written_is_named(value, message):
    with pytest.raises(literals.UnwritableError, match=message):
        literals.Writer().write(value)
