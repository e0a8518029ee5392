"""How a kernel is divided: blocks of its arrays, programs of its grid, devices of its mesh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pallas_sim.chips import TARGETS
from pytest_pallas.draw.dtypes import as_dtype, is_float
from pytest_pallas.draw.sizes import check_int, simplicity
from pytest_pallas.errors import SpecError

#: Rows and columns of a tile of 32-bit elements, and the elements of such a tile.
SUBLANES, LANES = 8, 128
CHUNK = SUBLANES * LANES

#: The bounds of a GPU's tensor memory accelerator: elements a dim, bytes in the last dim.
MOST_ELEMENTS, LEAST_BYTES = 256, 16


def bits(dtype: np.dtype[Any]) -> int:
    """Return how many bits of memory on a device an element takes; a bool takes 8."""
    if dtype.kind == "b":
        return 8
    return int(ml_dtypes.finfo(dtype).bits if is_float(dtype) else ml_dtypes.iinfo(dtype).bits)


def tile_rows(dtype: np.dtype[Any]) -> int:
    """Count the rows of a TPU tile: 8 for 32 bits and more, 16 for 16 bits, 32 for 8, 64 for 4."""
    return SUBLANES * max(1, 32 // bits(dtype))


def tpu_candidates(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> list[tuple[list[int], list[int]]]:
    """For each dim of ``shape`` some sizes that a TPU accepts, and some that it rejects."""
    rank = len(shape)
    if rank == 1:
        return [_one_dim(shape[0], LANES * max(1, 32 // bits(dtype)))]
    tiles = {rank - 1: (LANES, LANES), rank - 2: (tile_rows(dtype), SUBLANES)}
    candidates: list[tuple[list[int], list[int]]] = []
    for dim, size in enumerate(shape):
        if dim not in tiles:
            candidates.append((sorted({1, min(2, size), max(size - 1, 1), size}), []))
            continue
        tile, rule = tiles[dim]
        legal = {size, *(number * tile for number in _counts(-(-size // tile)))}
        wrong = {rule // 2, rule - 1, rule + 1, tile - 1, tile + 1, tile + rule // 2}
        wrong |= {size - 1, size + 1}
        refused = [block for block in wrong if block > 0 and block != size and block % rule]
        candidates.append((sorted(legal), sorted(refused)))
    return candidates


def gpu_candidates(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> list[tuple[list[int], list[int]]]:
    """For each dim of ``shape`` some sizes that both GPU lowerings accept, and some not."""
    candidates: list[tuple[list[int], list[int]]] = []
    for dim, size in enumerate(shape):
        least = max(1, 8 * LEAST_BYTES // bits(dtype)) if dim == len(shape) - 1 else 1
        most = max(least, min(MOST_ELEMENTS, 1 << (size - 1).bit_length()))
        legal = [1 << power for power in range(9) if least <= 1 << power <= most]
        wrong = {most - 1, most + 1, most + most // 2, size}
        refused = [block for block in wrong if block > 0 and block & (block - 1)]
        candidates.append((legal, sorted(refused)))
    return candidates


def _one_dim(size: int, least: int) -> tuple[list[int], list[int]]:
    """Return sizes for the only dim of an array, where a tile has ``least`` elements."""
    legal = {size}
    legal |= {least << power for power in range(8) if least << power < 2 * max(size, least)}
    if size > CHUNK:
        legal |= {number * CHUNK for number in _counts(-(-size // CHUNK))}
    wrong = {least // 2, least - 1, least + 1, 3 * least // 2 + 1, CHUNK + 1, size - 1, size + 1}
    return sorted(legal), sorted(
        block
        for block in wrong
        if block > 0 and block != size and block % CHUNK and (block < least or block & (block - 1))
    )


def _counts(tiles: int) -> Iterable[int]:
    """Return some numbers of tiles that a block may span: powers of two and the extremes."""
    powers = [1 << power for power in range(tiles.bit_length())]
    return {count for count in (*powers, tiles // 2, tiles - 1, tiles) if count > 0}


#: Bytes of the largest block: two buffers each of four operands fit in the 16 MiB of VMEM that
#: Mosaic lets a kernel use on TPU v5e.
MAX_BLOCK_BYTES = 2**21

#: Interpreters take milliseconds for a step of the grid, so no more blocks than this.
MAX_BLOCKS = 64

#: Sizes of a grid's axes: one step alone, small even ones, and primes.
_STEPS = (1, 2, 3, 4, 5, 7)

_PLATFORMS = {"tpu": tpu_candidates, "gpu": gpu_candidates}


def block_sizes(
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    *,
    target: str = "tpu",
    legal: bool = True,
    max_blocks: int = MAX_BLOCKS,
    max_bytes: int = MAX_BLOCK_BYTES,
) -> SearchStrategy[tuple[int, ...]]:
    """Return a strategy for the block shape of an array, as ``pl.BlockSpec`` takes it.

    Example::

        block_sizes((300, 256), "bfloat16")
        # draws (300, 256), (16, 128), (304, 128), (256, 256); shrinks to (300, 256), one block

    Legal blocks are the array itself, whole tiles, blocks that do not divide the array and blocks
    that reach beyond it. A block of whole tiles has 8, 16, 32 or 64 rows at least, for 32, 16, 8
    and 4 bits. Illegal blocks are wrong in one dim and right in the others. The compiler must
    reject them; use them to test the kernel's own error message.

    Args:
      shape: the shape of the array, at least one dim, none of them 0.
      dtype: its dtype.
      target: ``"tpu"``, ``"gpu"``, or the name of a chip such as ``"v6e"``.
      legal: False for blocks that the chip's compiler rejects.
      max_blocks: the most blocks that the array may be cut into.
      max_bytes: the most bytes of one block, on the device.

    Raises:
      SpecError: an argument that cannot be used, or no block is within both limits.
    """
    sizes = tuple(check_int("shape", size, 1) for size in shape)
    if not sizes:
        raise SpecError("shape: a scalar has no blocks; give a shape with at least one dim")
    check_int("max_blocks", max_blocks, 1)
    check_int("max_bytes", max_bytes, 1)
    of_dtype = as_dtype(dtype)
    candidates = _PLATFORMS[_platform(target)](sizes, of_dtype)
    blocks = {
        block
        for block in _combinations(candidates, legal)
        if _blocks(sizes, block) <= max_blocks
        and math.prod(block) * bits(of_dtype) <= 8 * max_bytes
    }
    if not blocks:
        raise SpecError(
            f"block_sizes: no {'legal' if legal else 'illegal'} block of {sizes} {of_dtype.name} "
            f"for {target} is within max_bytes={max_bytes} and max_blocks={max_blocks}; "
            "raise one of them"
        )
    # fewest blocks first; of those the array itself, then the smallest
    return st.sampled_from(
        sorted(blocks, key=lambda b: (_blocks(sizes, b), b != sizes, math.prod(b), b))
    )


def grids(
    *, rank: int = 2, max_programs: int = MAX_BLOCKS, min_size: int = 1
) -> SearchStrategy[tuple[int, ...]]:
    """Return a strategy for the ``grid`` of a ``pallas_call``.

    Example::

        grids(rank=2)  # draws (1, 1), (3, 2), (1, 7), (7, 5); shrinks to (1, 1)

    Args:
      rank: how many axes, up to 6; 0 gives ``()``.
      max_programs: the most programs, that is the product of the sizes.
      min_size: the smallest size of an axis; 0 draws empty grids, too.

    Raises:
      SpecError: an argument that cannot be used.
    """
    check_int("rank", rank, 0)
    check_int("max_programs", max_programs, 1)
    check_int("min_size", min_size, 0)
    if rank > 6:
        raise SpecError(f"rank={rank}: a grid can have at most 6 axes; merge some of them")
    steps = [size for size in (0, *_STEPS, min_size) if size >= min_size]
    fitting = {
        grid
        for grid in itertools.product(sorted(set(steps)), repeat=rank)
        if math.prod(grid) <= max_programs
    }
    if not fitting:
        raise SpecError(
            f"grids: no grid of {rank} axes of at least {min_size} has at most "
            f"max_programs={max_programs} programs; raise it"
        )
    ordered = sorted(fitting, key=lambda g: (simplicity(math.prod(g)), max(g, default=0), g))
    return st.sampled_from(ordered)


def _platform(target: str) -> str:
    """Return the platform that ``target`` names or is a chip of."""
    if target in _PLATFORMS:
        return target
    if target not in TARGETS:
        raise SpecError(f"target: {target!r} must be one of {', '.join([*_PLATFORMS, *TARGETS])}")
    return TARGETS[target].platform


def _combinations(
    candidates: Sequence[tuple[list[int], list[int]]], legal: bool
) -> list[tuple[int, ...]]:
    """Blocks that are legal in every dim, or in every dim but one."""
    right = [accepted for accepted, _ in candidates]
    if legal:
        return list(itertools.product(*right))
    return [
        block
        for dim, (_, refused) in enumerate(candidates)
        for block in itertools.product(*right[:dim], refused, *right[dim + 1 :])
    ]


def _blocks(shape: tuple[int, ...], block: tuple[int, ...]) -> int:
    return math.prod(-(-size // of_block) for size, of_block in zip(shape, block, strict=True))


def device_meshes(
    axes: str | Sequence[str],
    *,
    devices: Collection[int] = (1, 2, 3, 4, 6, 8),
    divides: Mapping[str, int] | None = None,
) -> SearchStrategy[dict[str, int]]:
    """Return a strategy for the sizes of a mesh's axes, for a test of your own.

    A spec draws its meshes itself; see ``KernelSpec.meshes``.

    Example::

        device_meshes("x y")                            # draws {"x": 1, "y": 1}, {"x": 3, "y": 2}
        device_meshes("x", divides={"x": 8})            # {"x": 1}, {"x": 2}, {"x": 4}, {"x": 8}
        device_meshes(["x"], devices=[1, 2, 4, 8])      # for kernels that need a power of two

    It shrinks to the fewest devices, in the last axis.

    Args:
      axes: the names of the axes, in one string or several.
      devices: the numbers of devices that a mesh may have in all. By default there are some that
        are no powers of two: a barrier that hears from one neighbour shows from three devices on.
        More than one device needs ``--pallas-devices`` or hardware that has them.
      divides: for some axes the size of the dim that is spread over it: it must be a multiple.

    Draws dicts from axis to size.

    Raises:
      SpecError: an argument that cannot be used, or no mesh satisfies all.
    """
    names = tuple(axes.split() if isinstance(axes, str) else axes)
    if not names or not all(str(name).isidentifier() for name in names):
        raise SpecError(f"axes must name at least one axis, such as 'x y', not {axes!r}")
    if len(set(names)) < len(names):
        raise SpecError(f"axes: a name appears twice in {axes!r}; rename one")
    counts = {check_int("devices", count, 1) for count in devices}
    dims = dict(divides or {})
    for name, dim in dims.items():
        if name not in names:
            raise SpecError(f"divides: there is no axis {name!r}; valid: {', '.join(names)}")
        check_int(f"divides[{name!r}]", dim, 1)
    most = max(counts, default=0)
    divisors = [size for size in range(1, most + 1) if any(count % size == 0 for count in counts)]
    fitting = [
        sizes
        for sizes in itertools.product(divisors, repeat=len(names))
        if math.prod(sizes) in counts
        and all(dims.get(name, size) % size == 0 for name, size in zip(names, sizes, strict=True))
    ]
    if not fitting:
        raise SpecError(
            f"device_meshes: no mesh of {sorted(counts)} devices has axes {', '.join(names)} that "
            f"divide {dims}; allow other numbers of devices"
        )
    fitting.sort(key=lambda sizes: (math.prod(sizes), sizes))
    return st.sampled_from(fitting).map(lambda sizes: dict(zip(names, sizes, strict=True)))
