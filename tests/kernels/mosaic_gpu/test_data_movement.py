"""Kernels that copy, scale or reorder on a GPU: what they refuse, and what they show."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses

from pallas_sim import simulate
from reference_kernels.mosaic_gpu import gather_pages, reverse_bits, scale_columns
from reference_kernels.mosaic_gpu.reverse_bits import reference as reversed_in_steps


class TestPages:
    def test_misuse(self) -> None:
        pages, table = f32(3, 128), i32(2)
        refuses(lambda: gather_pages(f32(0, 128), table), "pages must not be empty")
        refuses(lambda: gather_pages(f32(3, 100), table), "a multiple of 128 elements", "(3, 100)")
        refuses(lambda: gather_pages(f32(2, 257, 128), table), "at most 32768", "(2, 257, 128)")
        refuses(lambda: gather_pages(np.zeros((3, 128), bool), table), "elements of 8, 16 or 32")
        refuses(lambda: gather_pages(pages, f32(2)), "table must be int32", "float32")
        refuses(lambda: gather_pages(pages, i32(2, 2)), "table must have the shape (t,)")
        refuses(lambda: gather_pages(pages, table, slots=9), "slots must be at most 8", "9")
        refuses(lambda: gather_pages(pages, table, rounds=0), "rounds must be a positive integer")

    @pytest.mark.parametrize("rounds", [1, 16])
    def test_whenever_pages_arrive(self, rounds: int) -> None:
        """With most seeds some have arrived when they are asked for, and some have not."""
        pages = np.random.default_rng(0).normal(size=(9, 2, 128)).astype(np.float32)
        table = np.arange(21, dtype=np.int32) % 9
        gather = functools.partial(gather_pages, slots=3, rounds=rounds)
        for seed in range(6):
            found = simulate(gather, pages, table, target="h100", seed=seed)
            np.testing.assert_array_equal(found.values, pages[table])
            assert found.findings == ()

    def test_no_thread_holds_a_page(self, pallas_compile: Any) -> None:
        pages = jax.ShapeDtypeStruct((64, 64, 128), jnp.float32)
        table = jax.ShapeDtypeStruct((100,), jnp.int32)
        report = pallas_compile(
            functools.partial(gather_pages, slots=1), pages, table, target="h200"
        )
        assert report.registers <= 32


class TestColumns:
    def test_misuse(self) -> None:
        refuses(lambda: scale_columns(f32(3), f32(3)), "x must have the shape (m, n)")
        refuses(lambda: scale_columns(f32(2, 3), f32(4)), "w must have the same n as x, 3")
        refuses(lambda: scale_columns(i32(2, 3), i32(3)), "x must be float32, bfloat16 or float16")
        refuses(
            lambda: scale_columns(f32(2, 3), np.zeros(3, np.float16)), "w must have the dtype of x"
        )

    def test_layouts_are_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 128), (128,)))
        # A compiled program cannot be exported if it prints (JAX 0.12.0.1); lowered it can be.
        scale = jax.jit(functools.partial(scale_columns, show=True))
        scale.trace(x, w).lower(lowering_platforms=("cuda",))
        of_x, of_w = capsys.readouterr().out.splitlines()
        assert of_x.startswith("x: ")
        assert of_w.startswith("w: ")
        assert "Replicated" in of_w

    def test_a_trace_is_asked_of_the_compiler(self, tmp_path: Path) -> None:
        """It is written by a callback, and ``gpu-compile`` has no host to call back."""
        x, w = f32(64, 128), f32(128)
        for folder in (None, str(tmp_path)):
            text = str(jax.make_jaxpr(functools.partial(scale_columns, trace_dir=folder))(x, w))
            assert (f"profile_dir='{tmp_path}'" in text) == (folder is not None)
            assert ("TraceScope.WARP: 'warp'" in text) == (folder is not None)


class TestBits:
    def test_misuse(self) -> None:
        refuses(lambda: reverse_bits(np.zeros(0, np.uint32)), "x must not be empty")
        refuses(lambda: reverse_bits(i32(3)), "x must be uint32, but its dtype is int32")

    def test_the_reference_reverses(self) -> None:
        numbers = np.array([0, 1, 2, 0x80000000, 0xF0F0A5A5, 2**32 - 1], np.uint32)
        want = [int(f"{number:032b}"[::-1], 2) for number in numbers.tolist()]
        np.testing.assert_array_equal(reversed_in_steps(jnp.asarray(numbers)), want)
