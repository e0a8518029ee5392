"""``o = concatenate(x_0, x_1, ...) @ y``: the rows of all GPUs times the matrix of each.

Shapes: ``x (m, k)`` and ``y (k, n)`` on each device, ``o (devices * m, n)``. Dtypes: bfloat16 or
float16, the same for all three; sums are float32. Operands of any size.

With the columns of a weight split over the devices, and the rows of the activations too, this is
the first product of a tensor-parallel layer. Gathering first and multiplying then would leave the
tensor cores idle while the links work, and the links while the tensor cores do. Here both happen in
one kernel, in different blocks:

- ``movers`` blocks write the own ``x`` into a buffer of every other device. When all that a block
  has for a device is there, it signals the semaphore that this device has for that sender.
- The others multiply: the own rows first, which need nobody, then those of the next device, and so
  on. Before each shard they wait for the signals of all movers of its sender.

Device ``d`` multiplies the shards ``d, d + 1, ...``, so each device sends to ``d - 1`` first, which
is the first to need it, then to ``d - 2``. That also gives each link to one sender at a time.

Movers wait for nobody, so those that wait for them wait for something that happens. There are at
most as many blocks as SMs, so that all run at once. A device that has multiplied all shards has
received all, and nobody writes to it any more: no other meeting is needed at the end.

The product is the simplest with ``wgmma`` that keeps loads under way: one warpgroup, which loads
the blocks of later steps into a ring while it multiplies. Each tile begins with an empty ring.

Wang et al., "Overlap communication with dependent computation via decomposition in large deep
learning models", ASPLOS 2023; Chang et al., "FLUX", 2024 (arXiv:2406.06858), for copies from inside
of the kernel that multiplies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _mesh, _require
from reference_kernels.collective_matmul.all_gather_matmul import reference as on_tpu
from reference_kernels.mosaic_gpu import _peers, _tiles

_ROWS, _COLUMNS = 128, 128  # of a tile of the output: 128 registers of sums for each thread


def _kernel(
    x_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    gathered: Any,
    x_smem: Any,
    y_smem: Any,
    o_smem: Any,
    moved: Any,
    filled: Any,
    *,
    axis_name: str,
    movers: int,
    programs: int,
) -> None:
    (m, k), n = x_gmem.shape, y_gmem.shape[1]
    stages, _, block_k = x_smem.shape
    steps = pl.cdiv(k, block_k)
    program, me = jax.lax.axis_index("program"), _peers.position(axis_name)
    arrived = pl.get_global(plgpu.SemaphoreType.REGULAR((jax.lax.axis_size(axis_name),)))

    def move() -> None:
        for step in _peers.others(axis_name):
            target = _peers.at(gathered.at[me], axis_name, -step)

            def tile(row: Any, column: Any, local: Any, target: Any = target) -> None:
                here = pl.ds(row * _ROWS, _ROWS), pl.ds(column * block_k, block_k)
                buffer = x_smem.at[jax.lax.rem(local, 2)]
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # but the last have left it
                plgpu.copy_gmem_to_smem(x_gmem.at[here], buffer, moved)
                plgpu.barrier_wait(moved)
                plgpu.copy_smem_to_gmem(buffer, target.at[here])

            _share(tile, (pl.cdiv(m, _ROWS), steps), program, movers)
            plgpu.wait_smem_to_gmem(0)  # it has arrived, too
            _peers.signal(arrived.at[me], axis_name, [-step])

    def multiply(x: Any, shard: Any) -> None:
        def tile(row: Any, column: Any, local: Any) -> None:
            del local
            row, column = row * _ROWS, column * _COLUMNS

            def fetch(step: Any) -> None:
                slot, terms = jax.lax.rem(step, stages), pl.ds(step * block_k, block_k)
                here = x.at[pl.ds(row, _ROWS), terms]
                plgpu.copy_gmem_to_smem(here, x_smem.at[slot], filled.at[slot])
                here = y_gmem.at[terms, pl.ds(column, _COLUMNS)]
                plgpu.copy_gmem_to_smem(here, y_smem.at[slot], filled.at[slot])

            def accumulate(acc: Any) -> jax.Array:
                @pl.loop(0, steps)
                def _step(step: Any) -> None:
                    slot = jax.lax.rem(step, stages)
                    plgpu.barrier_wait(filled.at[slot])
                    plgpu.wgmma(acc, x_smem.at[slot], y_smem.at[slot])
                    plgpu.wgmma_wait(1)  # the product of the step before is done: its slot is free
                    ahead = step + stages - 1
                    pl.when(jnp.logical_and(step > 0, ahead < steps))(lambda: fetch(ahead))

                return acc[...]

            pl.loop(0, min(stages, steps))(fetch)
            total = pl.run_scoped(accumulate, plgpu.ACC((_ROWS, _COLUMNS), jnp.float32))
            _tiles.store(total, o_smem, o_gmem.at[shard], row, column)

        tiles = (pl.cdiv(m, _ROWS), pl.cdiv(n, _COLUMNS))
        _share(tile, tiles, program - movers, programs - movers)

    @pl.when(program >= movers)
    def _multiply() -> None:
        multiply(x_gmem, me)

        @pl.loop(1, gathered.shape[0])
        def _next(step: Any) -> None:
            shard = _mesh.neighbor(axis_name, step)
            pl.semaphore_wait(arrived.at[shard], movers, decrement=False)
            multiply(gathered.at[shard], shard)

        plgpu.wait_smem_to_gmem(0)

    pl.when(program < movers)(move)


def _share(
    tile: Callable[[Any, Any, Any], None], tiles: tuple[int, int], worker: Any, workers: int
) -> None:
    """Call ``tile(row, column, turn)`` for every ``workers``-th tile, from ``worker`` on."""
    rows, columns = tiles

    @pl.loop(0, (rows * columns - worker + workers - 1) // workers)
    def _turn(turn: Any) -> None:
        index = worker + turn * workers
        tile(jax.lax.div(index, columns), jax.lax.rem(index, columns), turn)


def peer_all_gather_matmul(
    x: jax.Array,
    y: jax.Array,
    axis_name: str,
    *,
    movers: int = 16,
    stages: int = 4,
    programs: int | None = None,
) -> jax.Array:
    """The rows of all devices of an axis times ``y``; inside ``jax.shard_map``.

    Args:
      x: the rows of this device, ``(m, k)``, bfloat16 or float16.
      y: the matrix of this device, ``(k, n)``, of the dtype of ``x``.
      axis_name: an axis of the mesh.
      movers: how many blocks send; so few that all others multiply, so many that they fill the
        links. Without other devices there are none.
      stages: buffers in the ring, at least 2.
      programs: how many blocks there are, movers and others; by default one for each SM.

    Returns:
      ``(devices * m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a setting is not as above.
    """
    m, k = _require.axes("x", x, "m k")
    y_k, n = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", y_k))
    _tiles.check_dtype("x", x)
    _require.same_dtype(x=x, y=y)
    programs = _gpu.multiprocessors() if programs is None else programs
    _require.positive(movers=movers, stages=stages, programs=programs)
    if movers >= programs:
        raise ValueError(
            f"movers must be less than the {programs} programs, but there are {movers}: "
            "nobody would multiply"
        )
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")
    devices = jax.lax.axis_size(axis_name)
    movers = movers if devices > 1 else 0
    block_k = _tiles.width(x.dtype)
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    o, _ = plgpu.kernel(
        functools.partial(_kernel, axis_name=axis_name, movers=movers, programs=programs),
        out_type=[
            jax.ShapeDtypeStruct((devices, *_tiles.whole((m, n), x.dtype)), x.dtype),
            jax.ShapeDtypeStruct((devices, *x.shape), x.dtype),
        ],
        scratch_types={
            "x_smem": _tiles.smem((stages, _ROWS, block_k), x.dtype),
            "y_smem": _tiles.smem((stages, block_k, _COLUMNS), x.dtype),
            "o_smem": _tiles.staging(x.dtype),
            "moved": plgpu.Barrier(),
            "filled": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        },
        grid=(programs,),
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x, y)
    return o[:, :m, :n].reshape(devices * m, n)


def peer_all_gather_matmul_on_mesh(
    x: jax.Array, y: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str, **options: Any
) -> jax.Array:
    """``peer_all_gather_matmul`` of ``x (mesh.size, m, k)`` and ``y (mesh.size, k, n)``.

    Returns:
      ``(mesh.size, devices * m, n)``: what each device gets.

    Raises:
      ValueError: the mesh has no such axis, an operand not one shard for each device, and whatever
        ``peer_all_gather_matmul`` raises.
    """
    _mesh.axis_size(mesh, axis_name)
    one = functools.partial(peer_all_gather_matmul, axis_name=axis_name, **options)
    return _mesh.on_each_device(one, mesh, x=jnp.asarray(x), y=jnp.asarray(y))


def reference(x: jax.Array, y: jax.Array, *, mesh: jax.sharding.Mesh, axis_name: str) -> jax.Array:
    """All rows of the axis times the matrix of each device."""
    return on_tpu(x, y, mesh=mesh, axis_name=axis_name)
