"""Mosaic GPU: sums and products through shared memory; kernels that follow each other."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import twin

_COLUMNS = 128


def add(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """``x + y`` for x and y ``(m, n)``, in blocks of ``block x 128``, which divide m and n."""
    m, n = x.shape

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, x_smem: Any, y_smem: Any, arrived: Any) -> None:
        row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
        here = (pl.ds(row * block, block), pl.ds(column * _COLUMNS, _COLUMNS))
        there = (here[0], pl.ds(0, _COLUMNS)) if wrong == "same columns" else here
        plgpu.copy_gmem_to_smem(x_gmem.at[here], x_smem, arrived)
        plgpu.copy_gmem_to_smem(y_gmem.at[there], y_smem, arrived)
        if wrong != "no wait":
            plgpu.barrier_wait(arrived)
        x_smem[...] = x_smem[...] + y_smem[...]
        if wrong != "not committed":
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[here])
        if wrong != "store not waited for":
            plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[
            plgpu.SMEM((block, _COLUMNS), x.dtype),
            plgpu.SMEM((block, _COLUMNS), x.dtype),
            plgpu.Barrier(num_arrivals=1 if wrong == "one arrival" else 2),
        ],
        grid=(m // block, n // _COLUMNS),
        grid_names=("row", "column"),
    )(x, y)


_spec = functools.partial(
    KernelSpec,
    reference=jnp.add,
    inputs=pst.arguments(
        pst.arrays("m n, m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256]}),
        tuning={"block": 8},
    ),
    backends=("gpu-sim",),
    exact=True,
    vmappable=False,
    family="Mosaic GPU",
    file=__file__,
)


def no_wait(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """Nobody waits at the barrier: shared memory is read while copies are under way."""
    return add(x, y, block=block, wrong="no wait")


SPEC_NO_WAIT = _spec(name="no_wait", kernel={"gpu": no_wait})
SPEC_NO_WAIT_RIGHT = twin(SPEC_NO_WAIT, add)


def one_arrival(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """The barrier opens after one of two copies."""
    return add(x, y, block=block, wrong="one arrival")


SPEC_ONE_ARRIVAL = _spec(name="one_arrival", kernel={"gpu": one_arrival})


def not_committed(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """What threads wrote to shared memory is not made visible to the copy engine."""
    return add(x, y, block=block, wrong="not committed")


SPEC_NOT_COMMITTED = _spec(name="not_committed", kernel={"gpu": not_committed})


def store_not_waited_for(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """A block ends while the copy out of its shared memory is under way."""
    return add(x, y, block=block, wrong="store not waited for")


SPEC_STORE_NOT_WAITED_FOR = _spec(name="store_not_waited_for", kernel={"gpu": store_not_waited_for})


def same_columns(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """Every block adds the first columns of y."""
    return add(x, y, block=block, wrong="same columns")


SPEC_SAME_COLUMNS = _spec(name="same_columns", kernel={"gpu": same_columns})


def doubled_product(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``2 x @ y`` for x and y ``(64, 64)``: threads double ``x`` where the tensor core reads it."""

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, x_smem: Any, y_smem: Any, *rest: Any) -> None:
        o_smem, arrived = rest
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, arrived)
        plgpu.copy_gmem_to_smem(y_gmem, y_smem, arrived)
        plgpu.barrier_wait(arrived)
        x_smem[...] = x_smem[...] + x_smem[...]
        if wrong != "not committed":
            plgpu.commit_smem()

        def multiply(sums: Any) -> jax.Array:
            plgpu.wgmma(sums, x_smem, y_smem)
            return sums[...]

        o_smem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    swizzled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    operand = plgpu.SMEM((64, 64), x.dtype, transforms=swizzled)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[
            *(operand, operand),
            plgpu.SMEM((64, 64), jnp.float32),
            plgpu.Barrier(num_arrivals=2),
        ],
    )(x, y)


def doubled_product_reference(x: jax.Array, y: jax.Array) -> jax.Array:
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return 2 * jnp.dot(x.astype(wide), y.astype(wide), precision="highest")


def product_not_committed(x: jax.Array, y: jax.Array) -> jax.Array:
    """What threads wrote to shared memory is not made visible to the tensor core."""
    return doubled_product(x, y, wrong="not committed")


SPEC_PRODUCT_NOT_COMMITTED = _spec(
    name="product_not_committed",
    kernel={"gpu": product_not_committed},
    reference=doubled_product_reference,
    inputs=pst.arrays("m k, k n", dtype="bfloat16", dims={"m": 64, "k": 64, "n": 64}),
    exact=False,
)
SPEC_PRODUCT_NOT_COMMITTED_RIGHT = twin(SPEC_PRODUCT_NOT_COMMITTED, doubled_product)


def doubled_sums(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """``2 (x + y)``: the second of two kernels begins before the first has ended."""

    def rows(refs: Any) -> Any:
        return [ref.at[pl.ds(jax.lax.axis_index("row") * block, block)] for ref in refs]

    def sums(*refs: Any) -> None:
        a, b, o = rows(refs)
        plgpu.griddepcontrol_launch_dependents()  # which makes nothing visible
        o[...] = a[...] + b[...]

    def double(*refs: Any) -> None:
        a, o = rows(refs)
        if wrong != "late":
            plgpu.griddepcontrol_wait()
        value = a[...]
        if wrong == "late":
            plgpu.griddepcontrol_wait()
        o[...] = 2 * value

    kernel = functools.partial(
        plgpu.kernel,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // block,),
        grid_names=("row",),
    )
    return kernel(double)(kernel(sums)(x, y))


def waits_late(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """A kernel reads what the one ahead writes, and waits for that one only afterwards."""
    return doubled_sums(x, y, block=block, wrong="late")


SPEC_WAITS_LATE = _spec(
    name="waits_late", kernel={"gpu": waits_late}, reference=lambda x, y: 2 * (x + y)
)
SPEC_WAITS_LATE_RIGHT = twin(SPEC_WAITS_LATE, doubled_sums)


def sum_of_blocks(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """``x + y``: both come to the same shared memory, one after the other."""
    m, n = x.shape

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, buffer: Any, arrived: Any) -> None:
        row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
        here = (pl.ds(row * block, block), pl.ds(column * _COLUMNS, _COLUMNS))
        plgpu.copy_gmem_to_smem(x_gmem.at[here], buffer, arrived)
        plgpu.barrier_wait(arrived)
        total = buffer[...]
        if wrong != "not committed":
            plgpu.commit_smem()
        plgpu.copy_gmem_to_smem(y_gmem.at[here], buffer, arrived)
        plgpu.barrier_wait(arrived)
        o_gmem[here] = total + buffer[...]

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.SMEM((block, _COLUMNS), x.dtype), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        grid=(m // block, n // _COLUMNS),
        grid_names=("row", "column"),
    )(x, y)


def refilled_too_early(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """Without JAX's barriers, a block is copied to where some warps still read another."""
    return sum_of_blocks(x, y, block=block, wrong="not committed")


SPEC_REFILLED_TOO_EARLY = _spec(name="refilled_too_early", kernel={"gpu": refilled_too_early})
SPEC_REFILLED_TOO_EARLY_RIGHT = twin(SPEC_REFILLED_TOO_EARLY, sum_of_blocks)


def sum_in_a_pipeline(x: jax.Array, y: jax.Array, *, block: int = 8, wrong: str = "") -> jax.Array:
    """The sum of all blocks of x and y, each of ``block x 128``; JAX's pipeline loads them."""
    (m, _), shape = x.shape, (block, _COLUMNS)

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any) -> None:
        def add(_: Any, x_smem: Any, y_smem: Any, x_read: Any, y_read: Any, total: Any) -> Any:
            total = total + x_smem[...] + y_smem[...]
            if not wrong:
                plgpu.commit_smem()
            plgpu.barrier_arrive(x_read)
            plgpu.barrier_arrive(y_read)
            return total

        def compute(pipeline: Any) -> None:
            layout = plgpu.Layout.WG_STRIDED(shape, 2)
            o_gmem[...] = pipeline(plgpu.layout_cast(jnp.zeros(shape, x.dtype), layout))

        loaded = plgpu.BlockSpec(shape, lambda i: (i, 0))
        plgpu.emit_pipeline_warp_specialized(
            add,
            grid=(m // block,),
            in_specs=[loaded, loaded],
            max_concurrent_steps=2,
            num_compute_wgs=1,
            memory_registers=40,
            wg_axis="wg",
            manual_consumed_barriers=True,
            compute_context=compute,
        )(x_gmem, y_gmem)

    out = jax.ShapeDtypeStruct(shape, x.dtype)
    return plgpu.kernel(body, out_type=out, num_threads=2, thread_name="wg")(x, y)


def sum_in_a_pipeline_reference(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x + y).reshape(-1, 8, x.shape[1]).sum(0)


def released_without_fence(x: jax.Array, y: jax.Array, *, block: int = 8) -> jax.Array:
    """A slot is released, and no fence orders the reads of threads with the copy that fills it."""
    return sum_in_a_pipeline(x, y, block=block, wrong="no fence")


SPEC_RELEASED_WITHOUT_FENCE = _spec(
    name="released_without_fence",
    kernel={"gpu": released_without_fence},
    reference=sum_in_a_pipeline_reference,
    inputs=pst.arguments(
        pst.arrays("m n, m n", dtype="float32", dims={"m": [8, 16, 32], "n": [128]}),
        tuning={"block": 8},
    ),
)
SPEC_RELEASED_WITHOUT_FENCE_RIGHT = twin(SPEC_RELEASED_WITHOUT_FENCE, sum_in_a_pipeline)


def pairs_of_tiles(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """Sums of two tiles of 64 columns side by side; a last one without a neighbour is itself."""
    m, n = x.shape

    def body(x_gmem: Any, o_gmem: Any, buffer: Any, arrived: Any) -> None:
        first = jax.lax.axis_index("pair") * 128

        def add(start: Any) -> None:
            plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(start, 64)], buffer.at[1], arrived)
            plgpu.barrier_wait(arrived)
            buffer[0] = buffer[0] + buffer[1]

        plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(first, 64)], buffer.at[0], arrived)
        plgpu.barrier_wait(arrived)
        if wrong:
            add(first + 64)
        else:
            pl.when(first + 64 < n)(lambda: add(first + 64))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer.at[0], o_gmem.at[jax.lax.axis_index("pair")])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((pl.cdiv(n, 128), m, 64), x.dtype),
        scratch_types=[_tiles((2, m, 64), x.dtype), plgpu.Barrier()],
        grid=(pl.cdiv(n, 128),),
        grid_names=("pair",),
    )(x)


def _tiles(shape: tuple[int, ...], dtype: Any) -> Any:
    swizzled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.SMEM(shape, dtype, transforms=swizzled)


def pairs_of_tiles_reference(x: jax.Array) -> jax.Array:
    m, n = x.shape
    wide = jnp.pad(x, ((0, 0), (0, -n % 128))).reshape(m, -1, 2, 64)
    return wide.sum(axis=2).transpose(1, 0, 2)


def same_tile_twice(x: jax.Array) -> jax.Array:
    """A load behind an array of one tile is taken for zeros: it reads that tile again."""
    return pairs_of_tiles(x, wrong="no guard")


_tiled_spec = functools.partial(
    _spec, inputs=pst.arrays("m n", dtype="bfloat16", dims={"m": 64, "n": [64, 192]})
)
SPEC_SAME_TILE_TWICE = _tiled_spec(
    name="same_tile_twice", kernel={"gpu": same_tile_twice}, reference=pairs_of_tiles_reference
)
SPEC_SAME_TILE_TWICE_RIGHT = twin(SPEC_SAME_TILE_TWICE, pairs_of_tiles)


def negated(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``-x``, by blocks of two tiles of 64 columns, each of which is copied out by itself."""
    m, n = x.shape

    def body(x_gmem: Any, o_gmem: Any, buffer: Any, parts: Any, arrived: Any) -> None:
        first = jax.lax.axis_index("block") * 128
        plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(first, 128)], buffer, arrived)
        plgpu.barrier_wait(arrived)
        for part in range(2 if wrong else min(2, n // 64)):
            parts[part] = -buffer[:, part * 64 : (part + 1) * 64]
            plgpu.commit_smem()
            there = pl.ds(first + part * 64, 64)
            plgpu.copy_smem_to_gmem(parts.at[part], o_gmem.at[:, there])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[
            _tiles((m, 128), x.dtype),
            _tiles((2, m, 64), x.dtype),
            plgpu.Barrier(),
        ],
        grid=(pl.cdiv(n, 128),),
        grid_names=("block",),
    )(x)


def only_tile_overwritten(x: jax.Array) -> jax.Array:
    """A store behind an output of one tile is taken for nothing: it overwrites that tile."""
    return negated(x, wrong="no guard")


SPEC_ONLY_TILE_OVERWRITTEN = _tiled_spec(
    name="only_tile_overwritten", kernel={"gpu": only_tile_overwritten}, reference=jnp.negative
)
SPEC_ONLY_TILE_OVERWRITTEN_RIGHT = twin(SPEC_ONLY_TILE_OVERWRITTEN, negated)
