"""Devices send each other runs of rows of any length: tokens to experts, and back.

Device ``i`` cuts runs out of ``operand``; run ``g`` begins at ``input_offsets[g]``, has
``send_sizes[g]`` rows and goes to device ``g // runs`` of the axis, where it lies at
``output_offsets[g]`` of the result. Elsewhere the result is ``output``.

Shapes: ``operand (m, h, d)``, ``output`` and the result ``(l, h, d)``, the others
``(devices * runs,)`` int32. Dtypes: any, the same for ``operand`` and ``output``. It is
``jax.lax.ragged_all_to_all``. Rows must be an axis that is not tiled, here the first of three:
along the last two, a DMA moves whole tiles, and would overwrite what belongs to the neighbor.

Schedule: every device starts all its copies, beginning with those to its right neighbor, and sends
nothing for a run without rows. Then it waits: for its own copies to have left, and for what
``recv_sizes`` announces. That is what they are for. A semaphore counts bytes, and a device that
does not know how many it will get does not know when it has them all.

Bytes: a device sends its runs for others and nothing else.

Who receives nothing may end its call while others still wait at the entry, and enter the next. Its
signal there may be taken for that of a third device, and yet nobody passes an entry before all have
come to it: all signal all. Whoever passes it first has taken a signal of each other device for each
call so far, and had one of them not come to this call, the others would have come to the next one.

Gale, Narayanan, Young and Zaharia, "MegaBlocks: efficient sparse training with mixture-of-experts",
2022 (arXiv:2211.15841) on why experts get numbers of tokens that are known at run time only.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels.collectives import _stacked


def _ragged_kernel(
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    x_ref: Any,
    into_ref: Any,
    o_ref: Any,
    sent: Any,
    received: Any,
    *,
    axis_name: str,
) -> None:
    del into_ref  # it is o_ref
    me, count = jax.lax.axis_index(axis_name), send_sizes.shape[0]
    others = [_mesh.neighbor(axis_name, step) for step in range(1, jax.lax.axis_size(axis_name))]
    runs = count // (len(others) + 1)

    def pieces(run: Any) -> tuple[Any, Any]:
        size = send_sizes[run]
        return x_ref.at[pl.ds(input_offsets[run], size)], o_ref.at[pl.ds(output_offsets[run], size)]

    def copy(run: Any) -> Any:
        target = _mesh.at(axis_name, jax.lax.div(run, runs))
        return pltpu.make_async_remote_copy(*pieces(run), sent, received, device_id=target)

    def when(run: Any, action: Any, *, own: bool = False) -> None:
        """If the run has rows, and stays on this device or not."""
        if others or own:
            stays = jax.lax.div(run, runs) == me
            pl.when((send_sizes[run] > 0) & (stays == own))(lambda: action(run))

    if others:
        _mesh.enter(axis_name, *others)

    @pl.loop(0, count)
    def _start(step: Any) -> None:
        run = jax.lax.rem((me + 1) * runs + step, count)
        when(run, lambda run: copy(run).start())
        when(run, lambda run: pltpu.make_async_copy(*pieces(run), received).start(), own=True)

    @pl.loop(0, count)
    def _finish(run: Any) -> None:
        when(run, lambda run: copy(run).wait_send())
        size = recv_sizes[run]
        there = o_ref.at[pl.ds(0, size)]  # anywhere: what counts is how much
        pl.when(size > 0)(lambda: pltpu.make_async_copy(there, there, received).wait())


def ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: str,
    collective_id: int = 6,
) -> jax.Array:
    """``output`` with the runs that all devices of an axis send here; inside ``jax.shard_map``.

    Args:
      operand: ``(m, h, d)``, of any dtype. A TPU wants whole tiles of ``(h, d)`` for speed.
      output: ``(l, h, d)``, of the dtype of ``operand``. Donate it to the ``jax.jit`` around this.
      input_offsets: ``(devices * runs,)`` int32, the first row of each run in ``operand``. Runs may
        overlap there. The first ``runs`` go to the first device of the axis, and so on.
      send_sizes: ``(devices * runs,)`` int32, the rows of each run, from 0.
      output_offsets: ``(devices * runs,)`` int32, the first row of each run in the result of the
        device that it goes to. Where runs overlap there, any may win.
      recv_sizes: ``(devices * runs,)`` int32, the rows of the runs that come here, in the order of
        the devices: ``jax.lax.all_to_all(send_sizes, axis_name, 0, 0, tiled=True)``. Runs must lie
        inside both arrays, and the sizes agree: there is nobody to complain to at run time.
      axis_name: an axis of the mesh.
      collective_id: selects the barrier semaphore. Calls along different axes need different ones.

    Returns:
      ``(l, h, d)``, of the dtype of ``operand``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype.
    """
    numbers = {
        "input_offsets": input_offsets,
        "send_sizes": send_sizes,
        "output_offsets": output_offsets,
        "recv_sizes": recv_sizes,
    }
    devices = jax.lax.axis_size(axis_name)
    _check(operand.shape, output.shape, numbers, axis_name, devices)
    _require.same_dtype(operand=operand, output=output)
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    dma = pltpu.SemaphoreType.DMA
    return pl.pallas_call(
        functools.partial(_ragged_kernel, axis_name=axis_name),
        out_shape=jax.ShapeDtypeStruct(output.shape, output.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(numbers),
            grid=(),
            in_specs=[hbm, hbm],
            out_specs=hbm,
            scratch_shapes=[dma, dma],
        ),
        input_output_aliases={len(numbers) + 1: 0},
        compiler_params=pltpu.CompilerParams(collective_id=collective_id if devices > 1 else None),
    )(*numbers.values(), operand, output)


def _check(
    operand: tuple[int, ...],
    output: tuple[int, ...],
    numbers: dict[str, Any],
    axis_name: str,
    devices: int,
) -> None:
    for name, shape in (("operand", operand), ("output", output)):
        if len(shape) != 3 or 0 in shape:
            raise ValueError(
                f"{name} must have three axes, of rows and what a row is, and not be empty, but "
                f"its shape is {shape}"
            )
    if operand[1:] != output[1:]:
        raise ValueError(
            f"output must have rows like those of operand, {operand[1:]}, but they are {output[1:]}"
        )
    for name, each in numbers.items():
        if each.dtype != jnp.int32:
            raise ValueError(f"{name} must have the dtype int32, but its dtype is {each.dtype}")
        if each.ndim != 1:
            raise ValueError(f"{name} must have one axis, but its shape is {each.shape}")
    count = len(numbers["send_sizes"])
    if count % devices or not count:
        raise ValueError(
            f"send_sizes must have a multiple of {devices} elements, as many for each device of "
            f"axis {axis_name!r}, but it has {count}"
        )
    for name, each in numbers.items():
        if len(each) != count:
            raise ValueError(
                f"{name} must have as many elements as send_sizes, {count}, but it has {len(each)}"
            )


def ragged_all_to_all_on_mesh(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
) -> jax.Array:
    """Runs of rows exchanged between the devices along an axis of a mesh.

    Args:
      operand: ``(devices, m, h, d)``, a shard for each device of the mesh.
      output: ``(devices, l, h, d)``.
      input_offsets: ``(devices, n)`` int32, where ``n`` is a multiple of the size of the axis.
      send_sizes: likewise.
      output_offsets: likewise.
      recv_sizes: likewise.
      mesh: any mesh with that axis.
      axis_name: the axis; devices at other positions on the other axes exchange nothing.

    Returns:
      ``(devices, l, h, d)``, of the dtype of ``operand``.

    Raises:
      ValueError: as in ``ragged_all_to_all``; the mesh has no such axis; or an operand has a wrong
        first dimension.
    """
    _mesh.axis_size(mesh, axis_name)
    return _mesh.on_each_device(
        functools.partial(ragged_all_to_all, axis_name=axis_name),
        mesh,
        operand=jnp.asarray(operand),
        output=jnp.asarray(output),
        input_offsets=jnp.asarray(input_offsets),
        send_sizes=jnp.asarray(send_sizes),
        output_offsets=jnp.asarray(output_offsets),
        recv_sizes=jnp.asarray(recv_sizes),
    )


def reference(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
) -> jax.Array:
    """Each row of the result looked up in the operands of all devices."""
    del recv_sizes  # they say nothing new

    def exchange(
        operand: jax.Array, output: jax.Array, starts: jax.Array, sizes: jax.Array, to: jax.Array
    ) -> jax.Array:
        devices, rows = operand.shape[:2]
        starts = starts + rows * jnp.arange(devices)[:, None]  # in all operands together
        # Of what every device sends, the part for each: (receiver, run).
        starts, sizes, to = (
            jnp.moveaxis(each.reshape(devices, devices, -1), 0, 1).reshape(devices, -1)
            for each in (starts, sizes, to)
        )
        row = jnp.arange(output.shape[1])[None, :, None]
        inside = (row >= to[:, None]) & (row < (to + sizes)[:, None])
        source = jnp.sum(jnp.where(inside, row + (starts - to)[:, None], 0), axis=2)
        found = operand.reshape(devices * rows, *operand.shape[2:])[source]
        return jnp.where(inside.any(axis=2)[..., None, None], found, output)

    along = [
        _stacked.by_axis(each, mesh, axis_name)
        for each in (operand, output, input_offsets, send_sizes, output_offsets)
    ]
    return _stacked.by_device(jax.vmap(exchange, in_axes=1, out_axes=1)(*along), mesh, axis_name)
