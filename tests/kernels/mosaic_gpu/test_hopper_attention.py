"""Attention on a Hopper GPU: misuses, machine code, and promises that its specs cannot draw."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.lowered_shared_memory import counted
from pallas_test_support.operands import f32, refuses
from pallas_test_support.simulating import simulating

from pallas_sim.chips import GPUS
from reference_kernels.attention.grouped_query import reference
from reference_kernels.mosaic_gpu import hopper_flash_attention as attend
from reference_kernels.mosaic_gpu._hopper_blocks import TILE, Settings
from reference_kernels.mosaic_gpu.hopper_flash_attention import _call, most_stages

HOPPER = ("h100",)  # an h200 runs the same code


def f16(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float16)


def test_ranks_and_sizes() -> None:
    q, k = f16(1, 4, 2, 64), f16(1, 2, 3, 64)
    refuses(lambda: attend(q[0], k, k), "q must have the shape (b, h, q_len, d)")
    refuses(lambda: attend(q, k[0], k), "k must have the shape (b, g, kv_len, d)")
    refuses(lambda: attend(q, k, k[:, :, :2]), "v must have the same kv_len as k, 3")
    refuses(lambda: attend(q, k, k[..., :32]), "v must have the same d as q, 64")
    refuses(lambda: attend(q, f16(2, 2, 3, 64), k), "k must have the same b as q, 1")
    refuses(lambda: attend(q[:, :, :0], k, k), "q must not be empty")


def test_heads() -> None:
    k = f16(1, 3, 3, 64)
    refuses(
        lambda: attend(f16(1, 4, 2, 64), k, k),
        "k must have a number of heads g that divides the h of q, 4",
        "its g is 3",
    )


def test_head_dimension() -> None:
    x = f16(1, 1, 2, 40)
    refuses(lambda: attend(x, x, x), "q must have a d of 64, 128 or 256", "its d is 40")


def test_dtypes() -> None:
    x, wide = f16(1, 1, 2, 64), f32(1, 1, 2, 64)
    refuses(lambda: attend(wide, wide, wide), "q must be bfloat16 or float16")
    refuses(lambda: attend(x, wide, x), "k must have the dtype of q, float16")


def test_options() -> None:
    x = f16(1, 1, 2, 64)
    refuses(lambda: attend(x, x, x, scale=0.0), "scale must be positive", "0.0")
    refuses(lambda: attend(x, x, x, block_kv=96), "block_kv must be 64 or 128", "96")
    wide = f16(1, 1, 2, 256)
    refuses(lambda: attend(wide, wide, wide, block_kv=128), "block_kv must be 64 for a d of 256")
    refuses(lambda: attend(x, x, x, stages=0), "stages must be a positive integer")
    refuses(lambda: attend(x, x, x, stages=1), "stages must be at least 2")
    refuses(
        lambda: attend(wide, wide, wide, stages=3),
        "stages must be at most 2 for a d of 256 and a block_kv of 64",
        "232,448 bytes",
    )


@pytest.mark.parametrize("lengths", [(1, 1), (130, 257), (300, 64), (256, 256), (128, 129)])
@pytest.mark.parametrize("block", [64, 128])
def test_blocks_that_a_causal_tile_sees(lengths: tuple[int, int], block: int) -> None:
    q_len, kv_len = lengths
    settings = Settings(q_len, kv_len, True, 1.0, block, 2, True)
    visible = np.tri(q_len, kv_len, kv_len - q_len, dtype=bool)
    for tile in range(-(-q_len // TILE)):
        rows = visible[tile * TILE : (tile + 1) * TILE]
        blocks = range(-(-kv_len // block))
        parts = [rows[:, j * block : (j + 1) * block] for j in blocks]
        seen, whole = int(settings.seen(tile, block)), int(settings.whole(tile, block))
        assert seen >= max([j + 1 for j in blocks if parts[j].any()], default=1)
        assert seen <= len(parts)
        assert all(parts[j].all() and parts[j].shape[1] == block for j in range(whole))
    for tile in range(-(-kv_len // TILE)):
        seers = np.flatnonzero(visible[:, tile * TILE : (tile + 1) * TILE].any(axis=1))
        assert int(settings.first_query(tile)) == seers[0]


def test_groups_of_heads_in_batches() -> None:
    q, k, v = normal(2, 4, 5, 64), normal(2, 2, 9, 64), normal(2, 2, 9, 64, seed=1)
    settings = {"in_registers": False, "block_kv": 64}
    with simulating("h100"):
        o, pull = jax.vjp(lambda *args: attend(*args, causal=True, **settings), q, k, v)
        o, *gradients = map(np.asarray, (o, *pull(o)))
    expected, pull = jax.vjp(lambda *args: reference(*args, causal=True), q, k, v)
    for got, want in zip((o, *gradients), (expected, *pull(jnp.asarray(o))), strict=True):
        np.testing.assert_allclose(np.float32(got), np.float32(want), rtol=1e-2, atol=4e-3)


def test_head_dimension_of_128_and_blocks_of_128_with_a_scale() -> None:
    q, k, v = normal(1, 1, 3, 128), normal(1, 1, 140, 128), normal(1, 1, 140, 128, seed=1)
    with simulating("h100"):
        o = np.asarray(attend(q, k, v, scale=0.5, in_registers=False, stages=2))
    np.testing.assert_allclose(
        np.float32(o), np.float32(reference(q, k, v, scale=0.5)), rtol=1e-2, atol=1e-3
    )


@pytest.mark.slow  # the compiler works on it for 6 s
@pytest.mark.parametrize("target", HOPPER)
@pytest.mark.parametrize(("deterministic", "spilled"), [(True, [0, 0, 0]), (False, [0, 160])])
def test_little_spills_and_products_run_beside_each_other(
    pallas_compile: Any, target: str, deterministic: bool, spilled: list[int]
) -> None:
    q = jax.ShapeDtypeStruct((1, 16, 8192, 128), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((1, 4, 8192, 128), jnp.bfloat16)

    def gradients(q: Any, k: Any, v: Any, do: Any, causal: bool) -> Any:
        options = {"causal": causal, "deterministic": deterministic}
        return jax.vjp(lambda *args: attend(*args, **options), q, k, v)[1](do)

    for causal in (False, True):
        report = pallas_compile(gradients, q, k, k, q, target=target, options={"causal": causal})
        for cost, most in zip(report.kernels, spilled, strict=True):
            assert cost.spill_store_bytes <= most
            assert cost.warnings == ()  # such as that wgmma is serialised


@pytest.mark.parametrize("in_registers", [True, False])
@pytest.mark.parametrize(("d", "block_kv"), [(64, 64), (64, 128), (128, 64), (128, 128), (256, 64)])
def test_shared_memory_has_room_for_the_most_stages_and_no_more(
    d: int, block_kv: int, in_registers: bool
) -> None:
    def takes(stages: int) -> int | None:
        settings = Settings(TILE, TILE, False, 1.0, block_kv, stages, in_registers)
        call = functools.partial(_call, settings=settings, save=False)
        x = jax.ShapeDtypeStruct((1, TILE, d), jnp.bfloat16)
        return counted(jax.make_jaxpr(call)(x, x, x))[0]

    most = most_stages(d, block_kv, in_registers=in_registers)
    first, second = takes(most), takes(most + 1)
    assert first is not None
    assert second is not None
    assert first <= GPUS["h100"].shared_per_block < second
