"""What a pipeline keeps: buffers across several pipelines, sums in a block, a fetch under way.

``o = x + 1`` and ``o = x + y``

Shapes: ``(p, m, n)``, where a block is a whole ``(m, n)``. Dtypes: float32, bfloat16 or int32.

A pipeline allocates its buffers when it starts and gives them back when it ends. They can also be
made before and handed to it:

- ``add_one_by_parts`` runs a pipeline for every part of ``x``, in a loop, on the buffers that
  ``emit_pipeline_with_allocations`` says it needs.
- ``add_in_place`` makes the buffers itself. A ``BufferedRef`` has a type: INPUT is fetched, OUTPUT
  is stored, and INPUT_OUTPUT is both, so that the body adds to a block that is already there.
- ``add_one_prefetched`` splits a pipeline over two kernels. The first starts to fetch the first
  blocks and ends; the second waits for them. What XLA runs in between is time won, as in fetching
  weights behind a collective. Buffers and semaphores outlive a kernel, which no interpreter can do
  (JAX 0.12.0.1), so that this one is only ever compiled here.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _add_one(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def _add(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] += x_ref[...]


def _matrices(x: jax.Array, **how: Any) -> pl.BlockSpec:
    """One matrix of the stack ``x`` a step."""
    return pl.BlockSpec((None, *x.shape[1:]), lambda i: (i, 0, 0), **how)


def _in_hbm(body: Any, x: jax.Array, *others: jax.Array, **how: Any) -> jax.Array:
    """A kernel whose operands are left where they are, with an output like ``x``.

    In a list, ``no_block_spec`` is ``BlockSpec(memory_space=pl.ANY)``. In place of all specs, it
    would be the whole array in VMEM.
    """
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.no_block_spec] * (1 + len(others)),
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        **how,
    )(x, *others)


def add_one_by_parts(x: jax.Array, *, parts: int = 1) -> jax.Array:
    """``x + 1`` by ``parts`` pipelines, one after another, on the same buffers.

    Args:
      x: ``(p, m, n)``, of any dtype; four matrices must fit in VMEM.
      parts: how many pipelines share the matrices, a divisor of ``p``.

    Raises:
      ValueError: ``x`` has a wrong rank or is empty, or ``parts`` is no divisor of ``p``.
    """
    p, _, _ = _require.axes("x", x, "p m n")
    _require.positive(parts=parts)
    if p % parts:
        raise ValueError(f"parts must be a divisor of p, {p}, but it is {parts}")
    steps = p // parts
    matrices = _matrices(x)
    pipeline, make_buffers = pltpu.emit_pipeline_with_allocations(
        _add_one, grid=(steps,), in_specs=[matrices], out_specs=[matrices]
    )

    def kernel(x_ref: Any, o_ref: Any) -> None:
        def over_parts(buffers: Any) -> None:
            @pl.loop(0, parts)
            def _part(i: Any) -> None:
                here = pl.ds(i * steps, steps)
                pipeline(x_ref.at[here], o_ref.at[here], allocations=buffers)

        pl.run_scoped(over_parts, make_buffers(x_ref, o_ref))

    return _in_hbm(kernel, x)


def add_in_place(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x + y`` in the memory of ``y``. Under ``jax.jit``, donate it. It needs JAX 0.12.

    Args:
      x: ``(p, m, n)``, of any dtype; four matrices must fit in VMEM.
      y: of the shape and dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype.
    """
    p, _, _ = _require.axes("x", x, "p m n")
    for axis, x_size, y_size in zip("pmn", x.shape, _require.axes("y", y, "p m n"), strict=True):
        _require.same_size(axis, ("x", x_size), ("y", y_size))
    _require.same_dtype(x=x, y=y)
    matrices = _matrices(x)
    x_buffers = pltpu.BufferedRef.input(matrices, x.dtype)
    o_buffers = pltpu.BufferedRef.create(
        matrices, x.dtype, pltpu.BufferType.INPUT_OUTPUT, buffer_count=2
    )

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        del y_ref  # it is o_ref
        pipeline = pltpu.emit_pipeline(_add, grid=(p,))  # the buffers know their blocks

        def with_buffers(*buffers: Any) -> None:
            pipeline(x_ref, o_ref, allocations=buffers)

        pl.run_scoped(with_buffers, x_buffers, o_buffers)

    return _in_hbm(kernel, x, y, input_output_aliases={1: 0})


def add_one_prefetched(x: jax.Array, *, ahead: int = 2) -> jax.Array:
    """``x + 1`` by two kernels: one starts to fetch the first ``ahead`` matrices, one uses them.

    Args:
      x: ``(p, m, n)``, of any dtype; ``ahead + 2`` matrices must fit in VMEM.
      ahead: how many matrices are under way between the kernels, from 2; at most ``p``.

    Raises:
      ValueError: ``x`` has a wrong rank or is empty, or ``ahead`` is out of range.
    """
    p, _, _ = _require.axes("x", x, "p m n")
    _require.positive(ahead=ahead)
    if not 2 <= ahead <= p:
        raise ValueError(f"ahead must be at least 2 and at most p, {p}, but it is {ahead}")
    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    buffering = pl.Buffered(ahead, prefetched_count=ahead)
    pipeline, start = pltpu.emit_pipeline_with_async_prefetch(
        _add_one,
        grid=(p,),
        in_specs=[_matrices(x, pipeline_mode=buffering)],
        out_specs=[_matrices(x)],
        mesh=mesh,
    )

    # An empty reference, and one with a memory space, exists inside of jax.jit only.
    @jax.jit
    def by_two_kernels(x: jax.Array) -> jax.Array:
        x_state = jax.new_ref(x)
        o_state = jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype))
        buffers = start(x_state)

        @pl.kernel(mesh=mesh)
        def rest(x_ref: Any, o_ref: Any, buffers: Any) -> None:
            pipeline(x_ref, o_ref, allocations=buffers)

        rest(x_state, o_state, buffers)
        return jax.freeze(o_state)

    return by_two_kernels(x)


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1


def reference_add(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x + y``."""
    return x + y
