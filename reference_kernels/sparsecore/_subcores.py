"""What all kernels of SparseCores share: the mesh, a worker's number, and where they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

CORE, SUBCORE = "core", "subcore"

#: HBM as it is in memory, row after row, and not in the tiles of a TensorCore: a row of any width
#: is contiguous then, so that it can be copied by its index.
LINEAR = pltpu.CompilerParams(use_tc_tiling_on_sc=False)

#: As well, for operations on registers that the compiler's layout passes do not know.
REGISTERS = pltpu.CompilerParams(use_tc_tiling_on_sc=False, needs_layout_passes=False)


def vector_mesh(cores: int | None, subcores: int | None) -> plsc.VectorSubcoreMesh:
    """Vector subcores: ``subcores`` of each of ``cores`` SparseCores; None stands for all."""
    sizes = {"num_cores": cores, "num_subcores": subcores}
    return plsc.VectorSubcoreMesh(
        core_axis_name=CORE,
        subcore_axis_name=SUBCORE,
        **{name: size for name, size in sizes.items() if size is not None},
    )


def workers(mesh: plsc.VectorSubcoreMesh) -> int:
    """How many subcores run the kernel."""
    return mesh.num_cores * mesh.num_subcores


def worker() -> Any:
    """The number of this subcore among all of the mesh."""
    return jax.lax.axis_index((CORE, SUBCORE))


def lanes() -> int:
    """Elements of a vector register of 32-bit elements: 8, or 16 on tpu7x."""
    return plsc.get_sparse_core_info().num_lanes


def granule(dtype: Any) -> int:
    """Elements of the smallest piece of HBM that is copied as a whole."""
    return plsc.get_sparse_core_info().dma_granule_size_bytes // jnp.dtype(dtype).itemsize


def part(i: Any, size: int) -> Any:
    """Elements ``i * size`` to ``(i + 1) * size``."""
    return pl.ds(pl.multiple_of(i * size, size), size)


def padded(x: jax.Array, *multiples: int) -> jax.Array:
    """``x`` with zeros behind each axis up to a multiple of a size."""
    widths = [(0, -size % multiple) for size, multiple in zip(x.shape, multiples, strict=True)]
    return jnp.pad(x, widths) if any(after for _, after in widths) else x


def require_32_bits(name: str, operand: Any) -> None:
    """Raise ValueError unless ``operand`` is of a dtype that fills a lane."""
    if operand.dtype not in (jnp.float32, jnp.int32):
        raise ValueError(
            f"{name} must be float32 or int32, which is what a lane holds, but its dtype is "
            f"{operand.dtype}"
        )


def require_indices(name: str, operand: Any) -> None:
    """Raise ValueError unless ``operand`` holds int32."""
    if operand.dtype != jnp.int32:
        raise ValueError(f"{name} must be int32, but its dtype is {operand.dtype}")


def clear(ref: Any) -> None:
    """Store zeros in a matrix of 32-bit elements, whose rows are whole registers."""
    width, zeros = lanes(), jnp.zeros((lanes(),), ref.dtype)

    @pl.loop(0, ref.shape[0])
    def _row(i: Any) -> None:
        @pl.loop(0, ref.shape[1], step=width)
        def _register(j: Any) -> None:
            ref[i, pl.ds(j, width)] = zeros


def by_blocks(
    body: Callable[..., None],
    refs: Sequence[Any],
    blocks: Sequence[tuple[int, ...]],
    outputs: int = 1,
) -> None:
    """Run ``body`` on blocks of ``refs`` along axis 0, dealt to all subcores, as a pipeline.

    The sizes of the references are multiples of those of ``blocks``, and all have as many blocks.
    The last ``outputs`` of them are written.
    """
    specs = [_along_axis_0(block) for block in blocks]
    pltpu.emit_pipeline(
        body,
        grid=(refs[0].shape[0] // blocks[0][0],),
        in_specs=specs[: len(specs) - outputs],
        out_specs=specs[len(specs) - outputs :],
        core_axis_name=(CORE, SUBCORE),
        dimension_semantics=(pltpu.PARALLEL,),
        tiling=pltpu.Tiling.SPARSE_CORE,  # buffers without the tiles of a TensorCore
    )(*refs)


def _along_axis_0(block: tuple[int, ...]) -> pl.BlockSpec:
    return pl.BlockSpec(block, lambda i: (i, *[0] * (len(block) - 1)))
