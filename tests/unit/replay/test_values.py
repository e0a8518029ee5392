"""Calls and arrays as files, and back."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import GoldenError
from pytest_pallas.replay import values as tensors
from pytest_pallas.replay.values import read, write

pytest.importorskip("safetensors")

DTYPES = [
    *("bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64"),
    *("complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2"),
]


def array(name: str, shape: tuple[int, ...] = (3, 5)) -> Any:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return (np.arange(np.prod(shape)).reshape(shape) % 3).astype(np.float32).astype(dtype)


class TestTensors:
    @pytest.mark.parametrize("name", DTYPES)
    @pytest.mark.parametrize("shape", [(3, 5), (0, 4), (), (1,), (40, 70)], ids=str)
    @pytest.mark.parametrize("compressed", [False, True])
    def test_every_dtype_comes_back(
        self, name: str, shape: tuple[int, ...], compressed: bool
    ) -> None:
        before = array(name, shape)
        content = tensors.dump({"a": before}, compressed=compressed)
        after = tensors.load(content, {"a": (before.dtype.name, before.shape)})["a"]
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        assert after.tobytes() == before.tobytes()

    def test_arrays_that_are_not_in_order_in_memory(self) -> None:
        before = np.arange(24.0).reshape(4, 6).T[::2]
        after = tensors.load(tensors.dump({"a": before}), {"a": ("float64", before.shape)})["a"]
        np.testing.assert_array_equal(after, before)

    def test_equal_arrays_are_equal_files(self) -> None:
        one = {"a": array("int8"), "b": array("float32")}
        assert tensors.dump(one) == tensors.dump(dict(reversed(one.items())))

    @pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"{" + b, lambda _: b""])
    def test_damage_is_an_error(self, damage: Any) -> None:
        content = damage(tensors.dump({"a": array("float32")}))
        with pytest.raises(GoldenError, match="safetensors"):
            tensors.load(content, {"a": ("float32", (3, 5))})

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            (("float32", (3, 6)), "must be float32"),
            (("nothing", (3, 5)), "there is no dtype"),
        ],
    )
    def test_what_is_said_of_an_array_must_be_true(self, kind: Any, message: str) -> None:
        with pytest.raises(GoldenError, match=message):
            tensors.load(tensors.dump({"a": array("float32")}), {"a": kind})

    def test_compressed_arrays_are_smaller(self) -> None:
        numbers = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
        few, many = array("float32", (64, 64)), numbers
        plain = tensors.dump({"few": few, "many": many})
        assert len(tensors.dump({"few": few, "many": many}, compressed=True)) < 0.6 * len(plain)
        tiny = {"a": np.arange(3, dtype=np.float32)}
        assert tensors.dump(tiny, compressed=True) == tensors.dump(tiny)

    @pytest.mark.parametrize("size", [(40, 69), (40, 71), (4, 70)])
    def test_a_compressed_array_of_another_size_is_damaged(self, size: Any) -> None:
        """However large it is when it is decompressed: no more is read than it must have."""
        content = tensors.dump({"a": array("float32", (40, 70))}, compressed=True)
        with pytest.raises(GoldenError, match=r"the array 'a' is damaged: it has not \d+ bytes"):
            tensors.load(content, {"a": ("float32", size)})

    def test_a_compressed_array_that_was_changed_is_damaged(self) -> None:
        content = tensors.dump({"a": array("float32", (40, 70))}, compressed=True)
        changed = content[:-9] + bytes(byte ^ 255 for byte in content[-9:])
        with pytest.raises(GoldenError, match="the array 'a' is damaged"):
            tensors.load(changed, {"a": ("float32", (40, 70))})

    def test_a_missing_array(self) -> None:
        with pytest.raises(GoldenError, match="'b' is missing"):
            tensors.load(tensors.dump({"a": array("int8")}), {"b": ("int8", (3, 5))})


class TestDigests:
    def test_dtype_shape_and_bytes_count(self) -> None:
        one = np.zeros((2, 3), np.float32)
        others = [one.astype(np.int32), one.reshape(3, 2), one + 1]
        assert len({tensors.digest(array) for array in [one, *others]}) == 4
        assert tensors.digest(one) == tensors.digest(one.copy(order="F"))


CALLS = [
    (np.arange(4), jnp.ones(3), 1, 2.5, "x", None, True),
    {"a": [1, (2, {"b": np.float32(3)})]},
    (float("inf"), float("-inf"), np.dtype("bfloat16"), np.dtype("int4")),
    ((), [], {}),
]


class TestCalls:
    @pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
    def test_they_come_back(self, call: Any) -> None:
        written = write(call)
        assert not written.opaque
        again = read(written.plain, written.arrays)
        assert jax.tree.structure(again) == jax.tree.structure(call)
        for mine, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(call), strict=True):
            assert np.array_equal(mine, theirs)
            assert isinstance(mine, np.generic) == isinstance(theirs, np.generic)
        assert write(again).digest == written.digest

    def test_nan_comes_back(self) -> None:
        assert np.isnan(read(*[(w := write(float("nan"))).plain, w.arrays]))

    @pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
    def test_keys_come_back(self, impl: str) -> None:
        key = jax.random.key(7, impl=impl)
        written = write((key,))
        (again,) = read(written.plain, written.arrays)
        assert again.dtype == key.dtype
        assert jax.random.bits(again) == jax.random.bits(key)

    def test_functions_are_known_by_name_only(self) -> None:
        written = write((jax.nn.gelu, np.ones(2)))
        assert written.opaque == ["jax._src.nn.functions.gelu"]
        with pytest.raises(GoldenError, match="must be drawn again"):
            read(written.plain, written.arrays)

    def test_what_has_an_address_has_the_same_digest_anywhere(self) -> None:
        one, two = (functools.partial(lambda x: x) for _ in range(2))
        assert "0x" not in str(write(one).opaque)
        assert write(one).digest == write(two).digest

    def test_all_that_differs_has_another_digest(self) -> None:
        calls = [1, 1.0, True, "1", None, (1,), [1], {"a": 1}, np.int32(1), np.array(1), (1, 1)]
        assert len({write(call).digest for call in calls}) == len(calls)

    @pytest.mark.parametrize(
        "plain",
        [
            [1],
            {"array": 3},
            {"tuple": 5},
            {"code": "os.system"},
            {"float": "x"},
            {"key": "threefry2x32"},
            {"key": ["x"], "array": 0},
            {"dict": "text"},
            {"dtype": "O"},
            {"dtype": "f4,f4"},
            {"dtype": "finfo"},
            {"dtype": ["int8"]},
            {"float": 10**400},
            {"opaque": "\x1b[2J"},
            {"x" * 5000: 1},
            {},
        ],
        ids=lambda plain: str(plain)[:20],
    )
    def test_what_nobody_wrote_is_an_error(self, plain: Any) -> None:
        with pytest.raises(GoldenError) as caught:
            read(plain, [np.ones(2)])
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300
