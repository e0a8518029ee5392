"""What norms of rows share: ``o = y w``, or ``y w + b``, where ``y = (x - mean) r`` of each row,
with ``r = 1 / sqrt(mean of squares + eps)``; the mean is taken off by layer norm only.

Backward, with ``g = do w``: ``dx = r (g - mean(g) - y mean(g y))``, the mean of ``g`` for layer
norm only; ``dw = sum_i do y`` and ``db = sum_i do``. These sum over all rows, so the grid is as
large as the GPU and no larger: each block goes over its share of the rows and keeps its sums in
registers, where a thread has the same columns of every row. The sums of the blocks are written once
each, and added up outside. Floating point atomics would add them in place, in another order every
time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.spec import EquivalentMutant
from reference_kernels import _gpu, _require
from reference_kernels.mosaic_gpu import _rows

Vectors = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What is no array.

    Attributes:
      n: elements of a row, without padding.
      eps: added to the mean square.
      centered: whether the mean is taken off.
      block_rows: rows at a time, or None.
      blocks: blocks of the backward kernel, or None.
      overlap: whether to use programmatic dependent launch.
      name: of the kernel.
    """

    n: int
    eps: float
    centered: bool
    block_rows: int | None
    blocks: int | None
    overlap: bool
    name: str

    def inside(self, columns: int) -> Vectors:
        """If it matters which columns are padding: 1 for each that is not, 0 for the others."""
        if not self.centered or columns == self.n:
            return ()
        return ((jnp.arange(columns) < self.n).astype(jnp.float32),)

    def normalized(
        self, x: jax.Array, mean: Callable[[jax.Array], jax.Array], inside: Vectors
    ) -> tuple[jax.Array, jax.Array]:
        """``y`` and ``r``. Padding of ``x`` is zero, and adds nothing to a sum."""
        if self.centered:
            x -= mean(x)
        (square,) = (x * each for each in inside) if inside else (x,)
        r = jax.lax.rsqrt(mean(square * square) + self.eps)
        return x * r, r


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _norm(x: jax.Array, vectors: Vectors, settings: _Settings) -> jax.Array:
    def of_rows(x: jax.Array, w: jax.Array, *others: jax.Array) -> jax.Array:
        shift, inside = others[: len(vectors) - 1], others[len(vectors) - 1 :]

        def mean(value: jax.Array) -> jax.Array:
            return _rows.along(jnp.sum(value, axis=1) * (1.0 / settings.n), value.shape)

        y, _ = settings.normalized(x, mean, inside)
        return sum(shift, y * w)

    return _rows.over_rows(
        of_rows,
        (x,),
        (*vectors, *settings.inside(x.shape[1])),
        block_rows=settings.block_rows,
        overlap=settings.overlap,
        name=settings.name,
    )


def _gradient_kernel(
    x_gmem: Any, do_gmem: Any, w_gmem: Any, *refs: Any, plan: _rows.Plan, settings: _Settings
) -> None:
    outputs = 2 + settings.centered
    inside_gmem, (dx_gmem, *sums_gmem) = refs[:-outputs], refs[-outputs:]
    block, blocks = jax.lax.axis_index("block"), sums_gmem[0].shape[0]
    layout = plan.layout.reduce(0)  # of one row, over all warps

    def mean(value: jax.Array) -> jax.Array:
        return jnp.sum(value) * (1.0 / settings.n)

    def some_rows(start: Any, sums: Vectors, rows: int) -> Vectors:
        read = [
            [_rows.load(ref.at[start + i], layout) for ref in (x_gmem, do_gmem)]
            for i in range(rows)
        ]
        # In the L1 cache; registers are scarce.
        w, *inside = (_rows.load(ref, layout) for ref in (w_gmem, *inside_gmem))
        for i, (x, do) in enumerate(read):
            y, r = settings.normalized(x, mean, tuple(inside))
            g = do * w
            inner = g - y * mean(g * y)
            if settings.centered:
                inner -= mean(g)
            _rows.store(dx_gmem.at[start + i], r * inner)
            sums = tuple(map(jnp.add, sums, (do * y, do)))
        return sums

    zeros = plgpu.layout_cast(jnp.zeros((plan.n,), jnp.float32), layout)
    sums = (zeros,) * len(sums_gmem)
    groups, tail = divmod(x_gmem.shape[0], plan.rows)
    share = (groups - block + blocks - 1) // blocks  # of all groups, every blocks-th
    sums = jax.lax.fori_loop(
        0, share, lambda i, sums: some_rows((block + i * blocks) * plan.rows, sums, plan.rows), sums
    )
    if tail:  # the last block has these rows too
        sums = jax.lax.fori_loop(
            0,
            jnp.where(block == blocks - 1, tail, 0),
            lambda i, sums: some_rows(groups * plan.rows + i, sums, 1),
            sums,
        )
    for ref, total in zip(sums_gmem, sums, strict=True):
        _rows.store(ref.at[block], total)


def _forward(
    x: jax.Array, vectors: Vectors, settings: _Settings
) -> tuple[jax.Array, tuple[jax.Array, Vectors]]:
    return _norm(x, vectors, settings), (x, vectors)


def _backward(
    settings: _Settings, operands: tuple[jax.Array, Vectors], do: jax.Array
) -> tuple[jax.Array, Vectors]:
    x, vectors = operands
    m, n = x.shape
    # Three rows of float32 are in registers beside the sums.
    plan = _rows.Plan.of(n, x.dtype.itemsize, 2 if n <= 2048 else 1, share=True)
    # As many as the registers of an SM have room for: 72 a thread for 1024 columns of RMS norm,
    # 167 for 4096.
    per_sm = max(2, min(8, 12288 // n))
    blocks = settings.blocks or per_sm * _gpu.multiprocessors()
    blocks = max(1, min(blocks, m // plan.rows))
    dx, *sums = plgpu.kernel(
        functools.partial(_gradient_kernel, plan=plan, settings=settings),
        out_type=(
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            *(jax.ShapeDtypeStruct((blocks, n), jnp.float32) for _ in vectors),
        ),
        grid=(blocks,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )(x, do, vectors[0], *settings.inside(n))
    return dx, tuple(
        jnp.sum(total, axis=0).astype(vector.dtype)
        for total, vector in zip(sums, vectors, strict=True)
    )


_norm.defvjp(_forward, _backward)


def norm(
    x: jax.Array,
    *,
    eps: float,
    centered: bool,
    block_rows: int | None,
    blocks: int | None,
    overlap: bool,
    name: str,
    **vectors: jax.Array,
) -> jax.Array:
    """The norm of rows of ``x (..., n)``, with ``vectors`` ``w`` and perhaps ``b``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``eps`` is not positive, or a number
        of rows or blocks is not a positive integer.
    """
    m, n = _rows.check(x)
    for each, vector in vectors.items():
        (size,) = _require.axes(each, vector, "n")
        _require.same_size("n", ("x", n), (each, size))
        _rows.dtype(each, vector)
    if not eps > 0:
        raise ValueError(f"eps must be positive, but it is {eps!r}")
    for each, value in (("block_rows", block_rows), ("blocks", blocks)):
        if value is not None:
            _require.positive(**{each: value})
    settings = _Settings(n, eps, centered, block_rows, blocks, overlap, name)
    padded = tuple(_rows.whole(vector, 0.0) for vector in vectors.values())
    o = _norm(_rows.whole(x.reshape(m, n), 0.0), padded, settings)
    return o[:, :n].reshape(x.shape)


#: Of both norms.
EQUIVALENT = (
    EquivalentMutant(
        operator="arithmetic",
        change="add -> sub",
        source="some_rows(groups * plan.rows + i, sums, 1)",
        reason="of pairs of rows one is left at most: i is 0",
    ),
)
