"""The GPU kernels beside XLA's and the ones bundled with JAX, on the GPU of this machine.

    uv run python benchmarks/gpu_kernels.py [NAME ...] [--rounds N] [--limit SECONDS]
        [--json FILE] [--trace-only]

Each row is one call of three implementations of the same: ours; XLA's of jnp, which is cuBLAS or
cuDNN where XLA takes them; and JAX's bundled kernel. Times are medians on the device by JAX's
profiler, of calls that were compiled and made before, with operands that rotate through more bytes
than the level 2 cache has, each in the layout that its side wants. Shares are of what this GPU was
measured to do in the same run: products of a large matrix, and bytes of a large copy.

Each side of a row has ``--limit`` seconds, with compiling it, and is measured in a process that is
replaced when it does not answer: XLA tries kernels for some products for minutes, and a kernel may
crash or never end. XLA's side is then measured again with cuBLAS alone. A row is written to the
file as soon as it is measured.

``--trace-only`` traces all sides for an H200, or for Blackwell's kernels a B200, that is not there,
and measures nothing. A GPU measures the rows of its generation. Kernels of several GPUs
(``peer_*``) have no row.

Targets on an H200, as times of ours over theirs: bf16 products of 4096 and 8192 at most 1 / 0.9 of
cuBLAS; attention, d = 128, 8192 queries and keys, causal and not, at most 1 / 0.9 of cuDNN; softmax
and RMS norm at least 0.9 of the bandwidth of the copy; ragged_dot at most XLA's. docs/gpu.md has
what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim.chips import attributes
from pallas_sim.tracing import AbsentChip, present
from pytest_pallas.backends.hardware import device_seconds

#: Bytes that the operands of a row rotate through at least: twice the H200's level 2 cache.
ROTATED = 2 * 60 * 2**20

#: Floats that are drawn for an operand; a larger one repeats them.
_DRAWN = 2**24

#: The sides of a row.
SIDES = ("ours", "XLA", "JAX's")

#: Options of XLA's compiler that leave out its own kernels for products.
_CUBLAS = {"xla_gpu_enable_triton_gemm": False}


@dataclass(frozen=True)
class Row:
    """One call.

    Attributes:
      name: of the kernel and its size.
      operands: shapes and dtypes; an int32 vector is a list of group sizes, unless ``below`` is
        given.
      sides: the functions, by name; None for JAX's where it has no such kernel.
      flops: floating-point operations that the result needs.
      moved: bytes that are read or written at least.
      bound: what the share is of: ``"flops"`` or ``"bytes"``.
      chip: that it is for: ``"h200"`` or ``"b200"``, whose generations differ; ``""`` for any.
      below: int32 operands are drawn from 0 up to this, which is left out.
      layouts: what each side wants the operands as, made before the time is taken; None for as they
        are.
    """

    name: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    sides: tuple[Callable[..., Any] | None, ...]
    flops: float
    moved: float
    bound: str
    chip: str = "h200"
    below: int = 0
    layouts: tuple[Callable[..., Any] | None, ...] = (None, None, None)


def _bundled(module: str) -> Any:
    return importlib.import_module(f"jax.experimental.pallas.ops.gpu.{module}")


def _kernels(name: str) -> Any:
    return getattr(importlib.import_module("reference_kernels.mosaic_gpu"), name)


def _bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _bytes(*arrays: jax.ShapeDtypeStruct) -> float:
    return float(sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays))


def _hopper_bundled(x: Any, y: Any) -> Any:
    module = _bundled("hopper_matmul_mgpu")
    config = module.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=4,
        grid_tile_width=8,
        cluster_dimension=module.MatmulDimension.N,
    )
    return module.matmul(x, y, None, config)


def _blackwell_bundled(x: Any, y: Any) -> Any:
    module = _bundled("blackwell_matmul_mgpu")
    config = module.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=4,
        collective=True,
    )
    return module.matmul_kernel(x, y, config)


def _matmul(size: int, kernel: str, chip: str = "h200", bundled: Any = _hopper_bundled) -> Row:
    x = _bf16(size, size)
    sides = (_kernels(kernel), jnp.matmul, bundled)
    return Row(f"{kernel} {size}", (x, x), sides, 2.0 * size**3, _bytes(x, x, x), "flops", chip)


def _float8(size: int) -> Row:
    def plain(x: Any, y: Any) -> Any:
        return jnp.matmul(x, y.T, preferred_element_type=jnp.bfloat16)

    x = jax.ShapeDtypeStruct((size, size), jnp.float8_e4m3fn)
    ours = functools.partial(_kernels("hopper_matmul"), transpose_rhs=True)
    flops = 2.0 * size**3
    return Row(
        f"hopper_matmul float8 {size}", (x, x), (ours, plain, None), flops, 3.0 * size**2, "flops"
    )


def _split(kernel: str, by: str, m: int, k: int, n: int) -> Row:
    x, y = _bf16(m, k), _bf16(k, n)
    ours = functools.partial(_kernels(kernel), by=by)
    dtype = jnp.float32 if kernel == "split_k_matmul" else jnp.bfloat16
    plain = functools.partial(jnp.matmul, preferred_element_type=dtype)
    moved = _bytes(x, y, jax.ShapeDtypeStruct((m, n), dtype))
    name = f"{kernel} {by} {m}x{k}x{n}"
    return Row(name, (x, y), (ours, plain, None), 2.0 * m * k * n, moved, "bytes")


def _conv2d(batch: int, size: int, channels: int) -> Row:
    def plain(x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    x, w = _bf16(batch, size, size, channels), _bf16(3, 3, channels, channels)
    flops = 2.0 * batch * size**2 * channels**2 * 9
    sides = (_kernels("hopper_conv2d"), plain, None)
    return Row(
        f"conv2d {batch}x{size}x{size}x{channels}", (x, w), sides, flops, _bytes(x, w, x), "flops"
    )


def _mixed(size: int) -> Row:
    def plain(x: Any, y: Any, scales: Any) -> Any:
        wide = (scales[:, None] * x).astype(y.dtype)
        return jnp.matmul(wide, y)

    x, y = jax.ShapeDtypeStruct((size, size), jnp.int8), _bf16(size, size)
    scales = jax.ShapeDtypeStruct((size,), jnp.float32)
    sides = (_kernels("blackwell_mixed_matmul"), plain, None)
    moved = _bytes(x, y, scales, y)
    return Row(f"mixed_matmul {size}", (x, y, scales), sides, 2.0 * size**3, moved, "flops", "b200")


def _scaled(size: int, block: int) -> Row:
    """MXFP8 in blocks of 32, or NVFP4 in blocks of 16."""
    element, scale = {
        32: (jnp.float8_e4m3fn, jnp.float8_e8m0fnu),
        16: (jnp.float4_e2m1fn, jnp.float8_e4m3fn),
    }[block]

    def plain(x: Any, y: Any, x_scale: Any, y_scale: Any) -> Any:
        def wide(values: Any, scales: Any) -> Any:
            scales = jnp.repeat(scales.astype(jnp.bfloat16), block, axis=1)
            return values.astype(jnp.bfloat16) * scales

        return jnp.matmul(wide(x, x_scale), wide(y, y_scale).T)

    x = jax.ShapeDtypeStruct((size, size), element)
    s = jax.ShapeDtypeStruct((size, size // block), scale)
    sides = (_kernels("blackwell_scaled_matmul"), plain, None)
    name = f"scaled_matmul {jnp.dtype(element).name} {size}"
    moved = _bytes(x, x, s, s, _bf16(size, size))
    return Row(name, (x, x, s, s), sides, 2.0 * size**3, moved, "flops", "b200")


def _sparse(size: int) -> Row:
    def plain(values: Any, pairs: Any, y: Any) -> Any:
        module = importlib.import_module("reference_kernels.mosaic_gpu.blackwell_sparse_matmul")
        return jnp.matmul(module.expanded(values, pairs), y.T)

    values, y = _bf16(size, size // 2), _bf16(size, size)
    pairs = jax.ShapeDtypeStruct((size, size // 4), jnp.int32)
    sides = (_kernels("blackwell_sparse_matmul"), plain, None)
    moved = _bytes(values, pairs, y, y)
    name = f"sparse_matmul {size}"
    return Row(name, (values, pairs, y), sides, 2.0 * size**3, moved, "flops", "b200", below=6)


def _attention(
    length: int, heads: int, d: int, *, causal: bool, batch: int = 1, backward: bool = False
) -> Row:
    """Attention, or its gradient by all operands with the forward pass."""

    def ours(q: Any, k: Any, v: Any) -> Any:
        return _kernels("hopper_flash_attention")(q, k, v, causal=causal)

    def cudnn(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")

    def bundled(q: Any, k: Any, v: Any) -> Any:
        module = _bundled("attention_mgpu")
        config = module.TuningConfig(
            block_q=64, block_kv=128, max_concurrent_steps=2, causal=causal
        )
        return module.attention(q, k, v, config)

    def heads_behind(q: Any, k: Any, v: Any) -> Any:
        return tuple(jnp.swapaxes(x, 1, 2) for x in (q, k, v))

    def scaled(q: Any, k: Any, v: Any) -> Any:  # JAX's does not scale
        return heads_behind(q * d**-0.5, k, v)

    def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
        def by_operands(q: Any, k: Any, v: Any) -> Any:
            out, pullback = jax.vjp(function, q, k, v)
            return pullback(out)

        return by_operands

    q = jax.ShapeDtypeStruct((batch, heads, length, d), jnp.float16)  # JAX's takes nothing else
    flops = 4.0 * batch * heads * length**2 * d * (0.5 if causal else 1.0)
    name = f"attention {length} d={d}{' causal' if causal else ''}"
    sides: tuple[Callable[..., Any] | None, ...] = (ours, cudnn, bundled)
    if backward:
        name, flops, sides = (
            f"{name} backward",
            3.5 * flops,
            (gradient(ours), gradient(cudnn), None),
        )
    return Row(
        *(name, (q, q, q), sides, flops, _bytes(q, q, q, q), "flops"),
        layouts=(None, heads_behind, scaled),
    )


def _softmax(rows: int, n: int) -> Row:
    x = _bf16(rows, n)
    bundled = functools.partial(_lazily, "softmax", "softmax")
    sides = (_kernels("row_softmax"), functools.partial(jax.nn.softmax, axis=-1), bundled)
    return Row(f"softmax {rows}x{n}", (x,), sides, 0.0, _bytes(x, x), "bytes")


def _rms_norm(rows: int, n: int) -> Row:
    def plain(x: Any, w: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
        return (wide * scale * w.astype(jnp.float32)).astype(x.dtype)

    def bundled(x: Any, w: Any) -> Any:
        # It has two leading axes.
        return _bundled("rms_norm").rms_norm(x[None], w, jnp.zeros_like(w))[0]

    x, w = _bf16(rows, n), _bf16(n)
    sides = (_kernels("row_rms_norm"), plain, bundled)
    return Row(f"rms_norm {rows}x{n}", (x, w), sides, 0.0, _bytes(x, x, w), "bytes")


def _layer_norm(rows: int, n: int) -> Row:
    def plain(x: Any, w: Any, b: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return (centred * scale * w.astype(jnp.float32) + b.astype(jnp.float32)).astype(x.dtype)

    def bundled(x: Any, w: Any, b: Any) -> Any:
        return _bundled("layer_norm").layer_norm(x[None], w, b)[0]

    x, w = _bf16(rows, n), _bf16(n)
    sides = (_kernels("row_layer_norm"), plain, bundled)
    return Row(f"layer_norm {rows}x{n}", (x, w, w), sides, 0.0, _bytes(x, x, w, w), "bytes", "")


def _reductions(rows: int, n: int) -> Iterator[Row]:
    x, wide = _bf16(rows, n), jax.ShapeDtypeStruct((rows, n), jnp.float32)
    lengths = jax.ShapeDtypeStruct((rows,), jnp.int32)

    def ragged(x: Any, lengths: Any) -> Any:
        inside = jnp.arange(n) < lengths[:, None]
        return jnp.sum(jnp.where(inside, x.astype(jnp.float32), 0.0), axis=1).astype(x.dtype)

    def over_rows(x: Any) -> Any:
        return x.astype(jnp.float32).sum(1).astype(x.dtype)

    for by in ("parts", "atomic"):
        ours = functools.partial(_kernels("reduce_columns"), by=by)
        name, sides = f"reduce_columns {by} {rows}x{n}", (ours, lambda x: x.sum(0), None)
        yield Row(name, (wide,), sides, 0.0, _bytes(wide), "bytes", "")
    sides = (_kernels("reduce_rows"), over_rows, None)
    yield Row(f"reduce_rows {rows}x{n}", (x,), sides, 0.0, _bytes(x), "bytes", "")
    sides = (_kernels("ragged_row_sum"), ragged, None)
    moved = _bytes(x) / 2  # as lengths are drawn
    name = f"ragged_row_sum {rows}x{n}"
    yield Row(name, (x, lengths), sides, 0.0, moved, "bytes", "b200", below=n + 1)


def _moves(rows: int, n: int) -> Iterator[Row]:
    x, wide = _bf16(rows, n), jax.ShapeDtypeStruct((rows, n), jnp.float32)
    sides = (_kernels("scale_columns"), jnp.multiply, None)
    yield Row(f"scale_columns {rows}x{n}", (x, _bf16(n)), sides, 0.0, _bytes(x, x), "bytes", "")
    sides = (_kernels("tma_copy_add"), lambda x: x + 1, None)
    yield Row(f"tma_copy_add {rows}x{n}", (wide,), sides, 0.0, _bytes(wide, wide), "bytes")
    module = importlib.import_module("reference_kernels.mosaic_gpu.reverse_bits")
    words = jax.ShapeDtypeStruct((rows * n,), jnp.uint32)
    sides = (_kernels("reverse_bits"), module.reference, None)
    yield Row(f"reverse_bits {rows * n}", (words,), sides, 0.0, _bytes(words, words), "bytes", "")
    pages, table = _bf16(rows, 16, 256), jax.ShapeDtypeStruct((rows,), jnp.int32)
    sides = (_kernels("gather_pages"), lambda pages, table: pages[table], None)
    moved = _bytes(pages, pages)
    yield Row(f"gather_pages {rows}", (pages, table), sides, 0.0, moved, "bytes", below=rows)


def _ragged(m: int, k: int, n: int, groups: int) -> Row:
    def bundled(x: Any, w: Any, sizes: Any) -> Any:
        return _bundled("ragged_dot_mgpu").ragged_dot(
            x,
            w,
            group_sizes=sizes,
            block_m=128,
            block_n=128,
            block_k=64,
            max_concurrent_steps=4,
            grid_block_n=2,
        )

    x, w = _bf16(m, k), _bf16(groups, k, n)
    sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)
    sides = (_kernels("ragged_dot"), jax.lax.ragged_dot, bundled)
    flops, moved = 2.0 * m * k * n, _bytes(x, w, _bf16(m, n))
    return Row(f"ragged_dot {m}x{k}x{n} in {groups}", (x, w, sizes), sides, flops, moved, "flops")


def _lazily(module: str, name: str, *args: Any) -> Any:
    return getattr(_bundled(module), name)(*args)


def rows() -> Iterator[Row]:
    """All rows."""
    for size in (4096, 8192, 16384):
        for kernel in ("hopper_matmul", "hopper_matmul_persistent"):
            yield _matmul(size, kernel)
        yield _matmul(size, "blackwell_matmul", "b200", _blackwell_bundled)
    yield _matmul(4096, "hopper_matmul_pipelined")
    yield _matmul(4096, "ampere_matmul", "", None)
    yield _mixed(4096)
    yield _scaled(8192, 32)
    yield _scaled(8192, 16)
    yield _sparse(4096)
    for by in ("push", "pull"):
        yield _split("cluster_split_k", by, 64, 16384, 256)
    for by in ("sum", "tma", "atomic"):
        yield _split("split_k_matmul", by, 512, 16384, 512)
    yield _conv2d(8, 64, 256)
    for causal in (False, True):
        for length in (4096, 8192, 16384):
            yield _attention(length, 16, 128, causal=causal)
        for length, heads, d in ((8192, 16, 128), (8192, 8, 256), (4096, 32, 64)):
            yield _attention(length, heads, d, causal=causal, backward=True)
    yield _attention(16384, 16, 128, causal=True, backward=True)
    yield _attention(8192, 8, 256, causal=True)
    yield _attention(4096, 32, 64, causal=True)
    yield _softmax(8192, 4096)
    yield _rms_norm(8192, 4096)
    yield _layer_norm(8192, 4096)
    yield from _reductions(8192, 4096)
    yield from _moves(8192, 4096)
    yield _ragged(8192, 4096, 4096, 8)
    yield _float8(8192)  # the last one: XLA tries kernels for minutes


def _drawn(operand: jax.ShapeDtypeStruct, rng: np.random.Generator, below: int = 0) -> jax.Array:
    if operand.dtype in (jnp.int8, jnp.uint32):
        limits = np.iinfo(operand.dtype)
        return jnp.asarray(rng.integers(limits.min, limits.max, operand.shape), operand.dtype)
    if operand.dtype == jnp.int32 and below:
        return jnp.asarray(rng.integers(0, below, operand.shape), jnp.int32)
    if operand.dtype == jnp.int32:  # group sizes of the m of the row
        cuts = np.sort(rng.integers(0, 8192, operand.shape[0] - 1))
        return jnp.asarray(np.diff([0, *cuts, 8192]), jnp.int32)
    values = rng.standard_normal(min(math.prod(operand.shape), _DRAWN), np.float32)
    return jnp.resize(jnp.asarray(values, operand.dtype), operand.shape)


def _median(
    function: Callable[..., Any],
    sets: Sequence[tuple[Any, ...]],
    rounds: int,
    options: dict[str, Any] | None = None,
) -> float:
    """Seconds of a call on the device."""
    jitted = jax.jit(function, compiler_options=options)
    for _ in range(3):
        jax.block_until_ready(jitted(*sets[0]))
    turn = itertools.cycle(sets)
    seconds = device_seconds(lambda: jitted(*next(turn)), calls=rounds)
    if seconds is None:
        raise SystemExit("JAX's profiler says nothing of this device: is there a GPU?")
    return seconds


class Unsupported(str):
    """The error of a side that needs a newer JAX than this one: no failure of the benchmark."""

    __slots__ = ()


def _line_of(error: Exception) -> str:
    """Return an error as one line; an assertion may have no message."""
    text = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"
    return Unsupported(text) if isinstance(error, NotImplementedError) else text


def _operands(row: Row) -> list[tuple[jax.Array, ...]]:
    """Operands of as many calls as ``ROTATED`` asks for."""
    rng = np.random.default_rng(0)
    copies = max(2, math.ceil(ROTATED / _bytes(*row.operands)))
    return [
        tuple(_drawn(operand, rng, row.below) for operand in row.operands) for _ in range(copies)
    ]


def _measure_side(row: Row, sets: Any, side: str, rounds: int, options: Any) -> float | str:
    """Return the seconds of a side, or its error."""
    index = SIDES.index(side)
    function, layout = row.sides[index], row.layouts[index]
    assert function is not None
    try:
        operands = [jax.jit(layout)(*s) for s in sets] if layout else sets
        return _median(function, operands, rounds, options)
    except Exception as error:  # one that this GPU or JAX does not take costs no other row
        return _line_of(error)


def _serve(pipe: Connection, rounds: int) -> None:
    """Answer questions about this machine and its rows, in a process of its own."""
    table = {row.name: row for row in rows()}
    pipe.send(None)  # it has started
    name, sets = "", []
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        if question == "device":
            is_gpu = jax.default_backend() == "gpu"
            pipe.send(_device() if is_gpu else None)
        elif question == "ceilings":
            pipe.send(ceilings(rounds))
        else:
            row, side, options = question
            if row != name:
                sets.clear()  # before there are others
                name, sets = row, _operands(table[row])
            pipe.send(_measure_side(table[row], sets, side, rounds, options))


def _device() -> dict[str, str]:
    device = jax.devices()[0]
    capability = str(device.compute_capability).partition(".")[0]
    return {
        "kind": device.device_kind,
        "platform": device.client.platform_version.split()[0],
        "generation": {"9": "h200", "10": "b200"}.get(capability, ""),
    }


class Machine:
    """A process that has the GPU, and is replaced when it ends or takes too long.

    Args:
      rounds: calls that a median is of.
      limit: seconds that an answer may take.
    """

    def __init__(self, rounds: int, limit: float) -> None:
        self._rounds, self._limit = rounds, limit
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, question: Any) -> Any:
        """Return the answer to a question of ``_serve``, or why there is none."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._rounds), daemon=True)
            self._process.start()
            theirs.close()
            self._pipe.recv()
        self._pipe.send(question)
        reason = f"no time within {self._limit:g} s"
        if self._pipe.poll(self._limit):
            try:
                return self._pipe.recv()
            except EOFError:
                reason = "its process ended"
        self.close()
        return reason

    def close(self) -> None:
        """End the process, which multiprocessing would ask with a SIGTERM: jaxlib prints that."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def measure(self, row: Row) -> dict[str, float | str]:
        """Return the seconds of each side of a row; the error of one that failed."""
        results: dict[str, float | str] = {}
        for side, function in zip(SIDES, row.sides, strict=True):
            if function is None:
                continue
            results[side] = self.ask((row.name, side, None))
            if side == "XLA" and results[side] == f"no time within {self._limit:g} s":
                seconds = self.ask((row.name, side, _CUBLAS))
                if isinstance(seconds, float):
                    results |= {side: seconds, "XLA with its own kernels": results[side]}
        return results


def ceilings(rounds: int) -> dict[str, float]:
    """What this GPU does: operations of a large product, and bytes of a large copy, a second."""
    rng = np.random.default_rng(1)
    x = tuple(_drawn(_bf16(8192, 8192), rng) for _ in range(2))
    large = jnp.ones((2**28,), jnp.float32)
    return {
        "flops": 2 * 8192**3 / _median(jnp.matmul, [x], rounds),
        # A copy that XLA cannot leave out.
        "bytes": 2 * large.nbytes / _median(lambda y: y + 1, [(large,)], rounds),
    }


def trace(row: Row) -> dict[str, str]:
    """What each side is for a chip that is not there: the shape of its answer, or its error."""
    found: dict[str, str] = {}
    chip = row.chip or "h200"
    for side, function, layout in zip(SIDES, row.sides, row.layouts, strict=True):
        if function is None:
            continue
        try:
            shapes = jax.eval_shape(layout, *row.operands) if layout else row.operands
            with present(AbsentChip(f"NVIDIA {chip.upper()}", "gpu", attributes(chip))):
                out = jax.eval_shape(function, *shapes)
            found[side] = ", ".join(f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(out))
        except Exception as error:
            found[side] = _line_of(error)
    return found


def _line(row: Row, found: dict[str, float | str], most: dict[str, float]) -> str:
    ours = found["ours"]
    cells = [f"{row.name:34}"]
    for side in SIDES:
        seconds = found.get(side, "-")
        cells.append(f"{seconds * 1e6:9.1f}" if isinstance(seconds, float) else f"{'-':>9}")
    for side in SIDES[1:]:
        theirs = found.get(side)
        both = isinstance(ours, float) and isinstance(theirs, float)
        cells.append(f"{ours / theirs:7.2f}" if both else f"{'-':>7}")
    if isinstance(ours, float):
        amount = row.flops if row.bound == "flops" else row.moved
        cells.append(f"{100 * amount / ours / most[row.bound]:5.0f} % of {row.bound}")
    return " ".join(cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="rows whose name begins so; by default all")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a side of a row")
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--trace-only", action="store_true")
    asked = parser.parse_args()
    chosen = [row for row in rows() if not asked.names or row.name.startswith(tuple(asked.names))]
    if asked.trace_only:
        for row in chosen:
            print(row.name, *(f"\n  {side}: {text}" for side, text in trace(row).items()))
        return
    with contextlib.closing(Machine(asked.rounds, asked.limit)) as machine:
        results = _measure(machine, chosen, asked.json)
    ours = [sides["ours"] for sides in results["rows"].values()]
    if any(isinstance(side, str) and not isinstance(side, Unsupported) for side in ours):
        sys.exit(1)


def _measure(machine: Machine, chosen: Sequence[Row], file: str | None) -> dict[str, Any]:
    """Print the table of some rows, and write it to a file; returns the numbers."""
    device = machine.ask("device")
    if not isinstance(device, dict):
        sys.exit("there is no GPU here; --trace-only traces the calls without one")
    chosen = [row for row in chosen if row.chip in ("", device["generation"])]
    if not chosen:
        sys.exit(f"no row that was named is for a {device['kind']}")
    most = machine.ask("ceilings")
    if not isinstance(most, dict):
        sys.exit(f"the rates of this GPU were not measured: {most}")
    print(f"{device['kind']}, JAX {jax.__version__}, {device['platform']}")
    print(f"measured: {most['flops'] / 1e12:.0f} TFLOP/s, {most['bytes'] / 1e12:.2f} TB/s")
    print(
        f"{'us on the device':34} {'ours':>9} {'XLA':>9} {'JAX':>9} {'/XLA':>7} {'/JAX':>7}  share"
    )
    results: dict[str, Any] = {"ceilings": most, "device": device["kind"], "rows": {}}
    for row in chosen:
        found = machine.measure(row)
        results["rows"][row.name] = found
        print(_line(row, found, most), flush=True)
        for side, text in found.items():
            if isinstance(text, str):
                print(f"  {side}: {text}")
        if file:  # whatever happens to the next row
            Path(file).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


if __name__ == "__main__":
    main()
