"""Kernels for GPUs that go wrong only when they go round: rings used again, later tiles and steps.

Each is right on arrays of few tiles, which is what most tests have.
"""

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

_TILE = 64
_TRANSFORMS = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

_spec = functools.partial(
    KernelSpec,
    vmappable=False,
    family="rounds of a GPU",
    backends=("gpu-sim",),
    file=__file__,
)


def _slots(count: int, dtype: Any) -> Any:
    return plgpu.SMEM((count, _TILE, _TILE), dtype, transforms=_TRANSFORMS)


def dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y``, summed in float32 and rounded once."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = jnp.dot(x.astype(wide), y.astype(wide), precision="highest")
    return product.astype(x.dtype if wide == jnp.float32 else wide)


# Products through a ring of three slots.


def product(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x @ y`` in bfloat16, in tiles of 64 x 64; one product is left under way at a time."""
    (m, k), n = x.shape, y.shape[1]
    steps, slots = k // _TILE, 3

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, xs: Any, ys: Any, o_smem: Any, *rest: Any):
        (arrived,) = rest
        row, column = (pl.ds(jax.lax.axis_index(axis) * _TILE, _TILE) for axis in ("row", "column"))

        def load(step: Any) -> None:
            slot, terms = jax.lax.rem(step, slots), pl.ds(step * _TILE, _TILE)
            plgpu.copy_gmem_to_smem(x_gmem.at[row, terms], xs.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(y_gmem.at[terms, column], ys.at[slot], arrived.at[slot])

        pl.loop(0, min(slots, steps))(load)

        def multiply(sums: Any) -> jax.Array:
            @pl.loop(0, steps)
            def _step(step: Any) -> None:
                slot = jax.lax.rem(step, slots)
                plgpu.barrier_wait(arrived.at[slot])
                plgpu.wgmma(sums, xs.at[slot], ys.at[slot])
                plgpu.wgmma_wait(1)  # the product of the step before has read its slot
                if wrong:
                    pl.when(step + slots < steps)(lambda: load(step + slots))
                else:
                    ahead = step + slots - 1
                    pl.when((step > 0) & (ahead < steps))(lambda: load(ahead))

            return sums[...]

        total = pl.run_scoped(multiply, plgpu.ACC((_TILE, _TILE), jnp.float32))
        o_smem[...] = total.astype(o_smem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[row, column])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types=[
            *(_slots(slots, x.dtype), _slots(slots, y.dtype)),
            plgpu.SMEM((_TILE, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        ],
        grid=(m // _TILE, n // _TILE),
        grid_names=("row", "column"),
    )(x, y)


def slot_of_the_product_under_way(x: jax.Array, y: jax.Array) -> jax.Array:
    """The slot is loaded that the product just begun still reads, not that of the one before."""
    return product(x, y, wrong="one step early")


_PRODUCT = pst.arrays(
    "m k, k n", dtype="bfloat16", multiple_of={"m": _TILE, "k": _TILE, "n": _TILE}
)

SPEC_SLOT_OF_THE_PRODUCT_UNDER_WAY = _spec(
    name="slot_of_the_product_under_way",
    kernel={"gpu": slot_of_the_product_under_way},
    reference=dot,
    inputs=_PRODUCT,
)
SPEC_SLOT_OF_THE_PRODUCT_UNDER_WAY_RIGHT = twin(SPEC_SLOT_OF_THE_PRODUCT_UNDER_WAY, product)


# Two slots on the way out.


def shifted(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x + 1`` for x ``(m, 128)`` in float32, 8 rows at a time; a program has all of the rows."""
    steps = x.shape[0] // 8

    def body(x_gmem: Any, o_gmem: Any, coming: Any, leaving: Any, arrived: Any) -> None:
        columns = pl.ds(jax.lax.axis_index("column") * 128, 128)

        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            here = pl.ds(step * 8, 8), columns
            plgpu.copy_gmem_to_smem(x_gmem.at[here], coming, arrived)
            plgpu.barrier_wait(arrived)
            # One store may be under way: the one before, from the other slot.
            plgpu.wait_smem_to_gmem(2 if wrong else 1, wait_read_only=True)
            leaving[jax.lax.rem(step, 2)] = coming[...] + 1
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(leaving.at[jax.lax.rem(step, 2)], o_gmem.at[here])

        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[
            plgpu.SMEM((8, 128), x.dtype),
            plgpu.SMEM((2, 8, 128), x.dtype),
            plgpu.Barrier(),
        ],
        grid=(x.shape[1] // 128,),
        grid_names=("column",),
    )(x)


def two_stores_of_two(x: jax.Array) -> jax.Array:
    """Two stores may be under way when one of the two slots is written again."""
    return shifted(x, wrong="two")


SPEC_TWO_STORES_OF_TWO = _spec(
    name="two_stores_of_two",
    kernel={"gpu": two_stores_of_two},
    reference=lambda x: x + 1,
    inputs=pst.arrays("m n", dtype="float32", multiple_of={"m": 8, "n": 128}),
    exact=True,
)
SPEC_TWO_STORES_OF_TWO_RIGHT = twin(SPEC_TWO_STORES_OF_TWO, shifted)


# Persistent programs of two warpgroups: one loads, one multiplies.


def persistent(x: jax.Array, y: jax.Array, *, programs: int = 132, wrong: str = "") -> jax.Array:
    """``x @ y`` in float16, in tiles of 64 x 64, of which a program has several."""
    (m, k), n = x.shape, y.shape[1]
    rows, columns, steps, slots = m // _TILE, n // _TILE, k // _TILE, 2
    programs = min(programs, rows * columns)

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, xs: Any, ys: Any, o_smem: Any, *rest: Any):
        arrived, free = rest
        warpgroup, program = jax.lax.axis_index("warpgroup"), jax.lax.axis_index("program")
        mine = pl.cdiv(rows * columns - program, programs)

        def corner(turn: Any) -> tuple[Any, Any]:
            tile = program + turn * programs
            row, column = jax.lax.div(tile, columns), jax.lax.rem(tile, columns)
            return pl.ds(row * _TILE, _TILE), pl.ds(column * _TILE, _TILE)

        @pl.when(warpgroup == 1)
        def _load() -> None:
            @pl.loop(0, mine)
            def _tile(turn: Any) -> None:
                row, column = corner(turn)

                @pl.loop(0, steps)
                def _step(step: Any) -> None:
                    loaded, terms = turn * steps + step, pl.ds(step * _TILE, _TILE)
                    slot = jax.lax.rem(loaded, slots)
                    used = (step if wrong == "each tile" else loaded) >= slots
                    pl.when(used)(lambda: plgpu.barrier_wait(free.at[slot]))
                    plgpu.copy_gmem_to_smem(x_gmem.at[row, terms], xs.at[slot], arrived.at[slot])
                    plgpu.copy_gmem_to_smem(y_gmem.at[terms, column], ys.at[slot], arrived.at[slot])

        @pl.when(warpgroup == 0)
        def _multiply() -> None:
            @pl.loop(0, mine)
            def _tile(turn: Any) -> None:
                def add(sums: Any) -> jax.Array:
                    @pl.loop(0, steps)
                    def _step(step: Any) -> None:
                        slot = jax.lax.rem(turn * steps + step, slots)
                        plgpu.barrier_wait(arrived.at[slot])
                        plgpu.wgmma(sums, xs.at[slot], ys.at[slot])
                        plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(free.at[slot])

                    return sums[...]

                total = pl.run_scoped(add, plgpu.ACC((_TILE, _TILE), jnp.float32))
                if wrong != "tile before":
                    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                o_smem[...] = total.astype(o_smem.dtype)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[corner(turn)])

            plgpu.wait_smem_to_gmem(0)

        # What arrived for the last uses of the slots.
        total = mine * steps

        @pl.when(warpgroup == 1)
        def _drain() -> None:
            pl.loop(jnp.maximum(total - slots, 0), total)(
                lambda step: plgpu.barrier_wait(free.at[jax.lax.rem(step, slots)])
            )

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types=[
            *(_slots(slots, x.dtype), _slots(slots, y.dtype)),
            plgpu.SMEM((_TILE, _TILE), x.dtype, transforms=_TRANSFORMS),
            plgpu.Barrier(num_arrivals=2, num_barriers=slots),
            plgpu.Barrier(num_barriers=slots),
        ],
        grid=(programs,),
        grid_names=("program",),
        num_threads=2,
        thread_name="warpgroup",
    )(x, y)


_PERSISTENT = functools.partial(
    _spec,
    reference=dot,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype="float16", multiple_of={"m": _TILE, "k": _TILE, "n": _TILE}),
        tuning={"programs": 3},
    ),
)


def free_anew_for_each_tile(x: jax.Array, y: jax.Array, *, programs: int = 132) -> jax.Array:
    """Slots count as free when a tile begins; the tile before may still be read from them."""
    return persistent(x, y, programs=programs, wrong="each tile")


SPEC_FREE_ANEW_FOR_EACH_TILE = _PERSISTENT(
    name="free_anew_for_each_tile", kernel={"gpu": free_anew_for_each_tile}
)
SPEC_FREE_ANEW_FOR_EACH_TILE_RIGHT = twin(SPEC_FREE_ANEW_FOR_EACH_TILE, persistent)


def tile_before_still_leaving(x: jax.Array, y: jax.Array, *, programs: int = 132) -> jax.Array:
    """A tile is rounded to shared memory from where the one before is still copied out."""
    return persistent(x, y, programs=programs, wrong="tile before")


SPEC_TILE_BEFORE_STILL_LEAVING = _PERSISTENT(
    name="tile_before_still_leaving", kernel={"gpu": tile_before_still_leaving}
)


# JAX's pipeline of four steps.


def emitted(x: jax.Array, y: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x @ y.T`` for x ``(m, k)`` and y ``(n, k)`` in float16, by the pipeline of JAX."""
    (m, k), n = x.shape, y.shape[0]
    steps = k // _TILE

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, o_smem: Any) -> None:
        row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")

        def multiply(sums: Any) -> jax.Array:
            def step(_: Any, x_smem: Any, y_smem: Any) -> None:
                plgpu.wgmma(sums, x_smem, y_smem.T)
                plgpu.wgmma_wait(1)

            def operand(index_map: Any) -> Any:
                return plgpu.BlockSpec(
                    (_TILE, _TILE),
                    index_map,
                    transforms=_TRANSFORMS,
                    delay_release=0 if wrong else 1,
                )

            plgpu.emit_pipeline(
                step,
                grid=(steps,),
                in_specs=[operand(lambda step: (row, step)), operand(lambda step: (column, step))],
                max_concurrent_steps=4,
            )(x_gmem, y_gmem)
            return sums[...]

        total = pl.run_scoped(multiply, plgpu.ACC((_TILE, _TILE), jnp.float32))
        o_smem[...] = total.astype(o_smem.dtype)
        plgpu.commit_smem()
        here = pl.ds(row * _TILE, _TILE), pl.ds(column * _TILE, _TILE)
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types=[plgpu.SMEM((_TILE, _TILE), x.dtype, transforms=_TRANSFORMS)],
        grid=(m // _TILE, n // _TILE),
        grid_names=("row", "column"),
    )(x, y)


def released_under_way(x: jax.Array, y: jax.Array) -> jax.Array:
    """A product is left under way at the end of a step, and ``delay_release`` is not given."""
    return emitted(x, y, wrong="released")


SPEC_RELEASED_UNDER_WAY = _spec(
    name="released_under_way",
    kernel={"gpu": released_under_way},
    reference=lambda x, y: dot(x, y.T),
    inputs=pst.arrays(
        "m k, n k", dtype="float16", multiple_of={"m": _TILE, "k": _TILE, "n": _TILE}
    ),
)
SPEC_RELEASED_UNDER_WAY_RIGHT = twin(SPEC_RELEASED_UNDER_WAY, emitted)


# Triton: as many programs as run at once, each with several tiles.


def strided_sums(x: jax.Array, *, programs: int = 108, wrong: str = "") -> jax.Array:
    """The sum of each tile of 16 rows of x ``(m, n)``, in blocks of 64 columns."""
    tiles, steps = x.shape[0] // 16, x.shape[1] // 64

    def body(x_ref: Any, o_ref: Any) -> None:
        zero = jnp.zeros((), x.dtype)

        def tile_of(carry: Any) -> Any:
            tile, total = carry

            def add(step: Any, total: jax.Array) -> jax.Array:
                return total + jnp.sum(x_ref[pl.ds(tile * 16, 16), pl.ds(step * 64, 64)])

            total = jax.lax.fori_loop(0, steps, add, total if wrong else zero)
            o_ref[tile] = total
            return tile + programs, total

        start = pl.program_id(0), zero
        jax.lax.while_loop(lambda carry: carry[0] < tiles, tile_of, start)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((tiles,), x.dtype),
        grid=(programs,),
    )(x)


def sum_of_all_my_tiles(x: jax.Array, *, programs: int = 108) -> jax.Array:
    """The sum of a persistent program is cleared at the start, and goes on from tile to tile."""
    return strided_sums(x, programs=programs, wrong="carried on")


SPEC_SUM_OF_ALL_MY_TILES = _spec(
    name="sum_of_all_my_tiles",
    kernel=sum_of_all_my_tiles,
    reference=lambda x: x.reshape(-1, 16 * x.shape[1]).sum(axis=1, dtype=x.dtype),
    inputs=pst.arguments(
        pst.arrays("m n", dtype="int32", multiple_of={"m": 16, "n": 64}), tuning={"programs": 4}
    ),
    exact=True,
)
SPEC_SUM_OF_ALL_MY_TILES_RIGHT = twin(SPEC_SUM_OF_ALL_MY_TILES, strided_sums)
