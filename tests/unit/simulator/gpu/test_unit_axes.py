"""TMA copies along axes of one tile, whose index JAX drops: as an H200 does them, and reported."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.errors import BoundsError
from pytest_pallas.simulator import simulate

#: Array, box and start of the copies that an H200 ran, each as a constant and as a value (JAX
#: 0.11.2). In tiles of 8 x 64 bfloat16 and in tiles of 8 x 32 float32, and without tiles.
BOXES = (
    ((64, 64), (64, 64), (0, 64)),
    ((64, 64), (64, 64), (64, 0)),
    ((64, 64), (64, 64), (64, 64)),
    ((64, 128), (64, 64), (0, 128)),
    ((64, 128), (64, 128), (0, 128)),
    ((128, 64), (64, 64), (0, 64)),
    ((8, 64), (64, 64), (0, 64)),
    ((64, 64), (64, 128), (0, 128)),
    ((64, 64), (64, 64), (0, 32)),
    ((64, 64), (64, 64), (32, 0)),
    ((72, 64), (64, 64), (0, 128)),
    ((64, 192), (64, 64), (0, 192)),
)

#: Those of them, in tiles of bfloat16, that gave the block at column 0. All others gave what is
#: documented: zeros for what is outside. JAX compiles no tiled copy at (0, 32).
AT_ZERO = (0, 5, 6, 10)

KINDS = {
    "tiles of bfloat16": (jnp.bfloat16, (8, 64)),
    "bfloat16": (jnp.bfloat16, None),
    "tiles of float32": (jnp.float32, (8, 32)),
}

CASES = [
    pytest.param(*box, *kind, kind[1] == (8, 64) and number in AT_ZERO, id=f"{number} {name}")
    for name, kind in KINDS.items()
    for number, box in enumerate(BOXES)
    if box[2] != (0, 32) or kind[1] is None
]


def smem(shape: tuple[int, ...], dtype: Any, tiling: tuple[int, ...] | None) -> Any:
    """Shared memory, in tiles that a swizzle of 128 bytes permutes, or without."""
    pallas: Any = plgpu
    if tiling is None:
        return plgpu.SMEM(shape, dtype)
    transforms = (pallas.TilingTransform(tiling), pallas.SwizzleTransform(128))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def slices(starts: Any, box: tuple[int, ...]) -> tuple[Any, ...]:
    """The box that begins at ``starts``; None of them is an integer index."""
    return tuple(
        start if size is None else pl.ds(start, size)
        for start, size in zip(starts, box, strict=True)
    )


def loaded(x: Any, box: Any, starts: Any, tiling: Any = None, *, prefetch: bool = False) -> Any:
    """A box of ``x`` as it is in shared memory, copied by TMA; ``starts`` are values."""
    shape = tuple(size for size in box if size is not None)

    def body(x_gmem, starts_gmem, o_gmem, buffer, arrived):
        here = slices([starts_gmem[axis] for axis in range(len(box))], box)
        if prefetch:
            plgpu.async_prefetch(x_gmem.at[here])
        plgpu.copy_gmem_to_smem(x_gmem.at[here], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    def function(x, starts):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(shape, x.dtype),
            scratch_types=[smem(shape, x.dtype, tiling), plgpu.Barrier()],
        )(x, starts)

    return simulate(function, x, np.asarray(starts, np.int32), target="h100")


def stored(x: Any, shape: tuple[int, ...], starts: Any, tiling: Any = None) -> Any:
    """Zeros of ``shape`` into which a block ``x`` was copied by TMA from ``starts`` on."""

    def body(x_gmem, starts_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem, buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.commit_smem()
        here = slices([starts_gmem[axis] for axis in range(2)], x.shape)
        plgpu.copy_smem_to_gmem(buffer, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)

    def function(x, starts):
        o = jax.new_ref(jnp.zeros(shape, x.dtype))
        plgpu.kernel(
            lambda x, starts, o, *scratch: body(x, starts, o, *scratch),
            out_type=(),
            scratch_types=[smem(x.shape, x.dtype, tiling), plgpu.Barrier()],
        )(x, starts, o)
        return jax.freeze(o)

    return simulate(jax.jit(function), x, np.asarray(starts, np.int32), target="h100")


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    """Small integers, none of which is 0."""
    return (np.arange(np.prod(shape)).reshape(shape) % 255 + 1).astype(jnp.dtype(dtype))


def window(x: Any, box: tuple[int, ...], starts: tuple[int, ...]) -> Any:
    """A box of ``x``, with zeros for what is outside."""
    whole = np.zeros([n + start + size for n, start, size in zip(x.shape, starts, box)], x.dtype)
    whole[tuple(slice(n) for n in x.shape)] = x
    return whole[tuple(slice(start, start + size) for start, size in zip(starts, box))]


@pytest.mark.parametrize(("shape", "box", "starts", "dtype", "tiling", "at_zero"), CASES)
def test_loads_give_what_an_h200_gave(shape, box, starts, dtype, tiling, at_zero):
    x = numbers(shape, dtype)
    found = loaded(x, box, starts, tiling)
    expected = window(x, box, (starts[0], 0) if at_zero else starts)
    np.testing.assert_array_equal(found.values, expected)
    assert [finding.kind for finding in found.findings] == ["bounds"] * at_zero
