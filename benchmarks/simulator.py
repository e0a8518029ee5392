"""The simulator against JAX's interpreters: new shapes, the same shape again, and large ones.

    uv run python benchmarks/simulator.py [--shapes=5] [--skip-large]

For each of ten kernels, in one process and one call after the other, so that all see the same
machine: the time of a new shape (tracing included, for all three), and of the same shape again. The
medians over ``--shapes`` new shapes, and how many times as long an interpreter takes. Targets of a
new shape, tracing and simulation: 10 ms (matmul), 20 (softmax), 45 (flash attention).
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from pytest_pallas.backends.interpreters import interpret, tpu_interpret
from pytest_pallas.backends.protocol import Backend, Call, RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from reference_kernels.attention.flash_attention import flash_attention
from reference_kernels.basics.add_vectors import add_blocks
from reference_kernels.matmul.matmul import matmul
from reference_kernels.reductions.layer_norm import layer_norm
from reference_kernels.reductions.rms_norm import rms_norm
from reference_kernels.reductions.softmax import softmax

#: Makes the arguments of one call from a number, another shape for each.
Shapes = Callable[[int], tuple[Any, ...]]


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    """Normal numbers from a fixed seed."""
    values = np.random.default_rng(0).normal(size=shape)
    return np.asarray(values, np.float32).astype(dtype)


def products(dtype: Any) -> Shapes:
    """Small ragged products."""
    return lambda i: (normal(17 + i, 127, dtype=dtype), normal(127, 129 + i, dtype=dtype))


def queries(dtype: Any) -> Shapes:
    """Small ragged attention."""
    return lambda i: (
        normal(129 + i, 64, dtype=dtype),
        normal(127, 64, dtype=dtype),
        normal(127, 64, dtype=dtype),
    )


BLOCKS = {"block_m": 16, "block_n": 128, "block_k": 128}
LARGE_BLOCKS = {"block_m": 256, "block_n": 256, "block_k": 256}

#: Name, kernel and arguments of what is small and ragged, as tests are.
SMALL: tuple[tuple[str, Callable[..., Any], Shapes], ...] = (
    ("add", functools.partial(add_blocks, block=1024), lambda i: (normal(2049 + i),) * 2),
    ("matmul float32", functools.partial(matmul, **BLOCKS), products(np.float32)),
    ("matmul bfloat16", functools.partial(matmul, **BLOCKS), products(jnp.bfloat16)),
    (
        "softmax float32",
        functools.partial(softmax, block_rows=16),
        lambda i: (normal(31, 129 + i),),
    ),
    (
        "softmax bfloat16",
        functools.partial(softmax, block_rows=16),
        lambda i: (normal(31, 129 + i, dtype=jnp.bfloat16),),
    ),
    (
        "rms_norm",
        functools.partial(rms_norm, block_rows=16),
        lambda i: (normal(17 + i, 129), normal(129)),
    ),
    (
        "layer_norm",
        functools.partial(layer_norm, block_rows=16),
        lambda i: (normal(17 + i, 129), normal(129), normal(129)),
    ),
    ("attention float32", functools.partial(flash_attention, causal=True), queries(np.float32)),
    ("attention bfloat16", functools.partial(flash_attention, causal=True), queries(jnp.bfloat16)),
    ("attention", flash_attention, queries(np.float32)),
)

#: The same of what is large.
LARGE: tuple[tuple[str, Callable[..., Any], Shapes], ...] = (
    (
        "softmax 8192x512, blocks of 8",
        functools.partial(softmax, block_rows=8),
        lambda i: (normal(8192, 512),),
    ),
    (
        "matmul 2048 cubed float32",
        functools.partial(matmul, **LARGE_BLOCKS),
        lambda i: (normal(2048, 2048), normal(2048, 2048)),
    ),
    (
        "matmul 2048 cubed bfloat16",
        functools.partial(matmul, **LARGE_BLOCKS),
        lambda i: (normal(2048, 2048, dtype=jnp.bfloat16), normal(2048, 2048, dtype=jnp.bfloat16)),
    ),
    (
        "attention 4096x4096",
        functools.partial(flash_attention, causal=True),
        lambda i: (normal(4096, 64), normal(4096, 64), normal(4096, 64)),
    ),
)


def seconds(backend: Backend, kernel: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """How long one call takes, or an error that says why it fails."""
    started = time.perf_counter()
    backend.run(Call(function=kernel, args=args, settings=RunSettings(races=False))).unwrap()
    return time.perf_counter() - started


def measured(
    title: str, kernel: Callable[..., Any], shapes: Shapes, count: int, backends: list[Any]
) -> None:
    """Print a line: the first call of each shape, and a second one with other values."""
    first: list[list[float]] = [[] for _ in backends]
    again: list[list[float]] = [[] for _ in backends]
    for number in range(count):
        args = shapes(number)
        other = tuple(array + array for array in args)  # the simulator keeps what it has run
        for place, backend in enumerate(backends):
            first[place].append(seconds(backend, kernel, args))
            again[place].append(seconds(backend, kernel, other))
    new = [1000 * statistics.median(times) for times in first]
    old = [1000 * statistics.median(times) for times in again]
    cells = [f"{a:8.1f} /{b:8.1f}" for a, b in zip(new, old, strict=True)]
    ratios = " ".join(f"{each / new[0]:6.1f}x" for each in new[1:])
    print(f"{title:32} {'   '.join(cells)}   {ratios}")


def main() -> None:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", type=int, default=5)
    parser.add_argument("--skip-large", action="store_true")
    options = parser.parse_args()
    backends = [tpu_sim(), interpret(), tpu_interpret()]
    for backend in backends:  # what each imports at its first call
        seconds(backend, SMALL[0][1], SMALL[0][2](100))
    print("milliseconds of a new shape / of the same shape again; an interpreter's time by ours")
    names = "".join(f"{backend.name:>21}" for backend in backends)
    print(f"{'':29}{names}")
    for title, kernel, shapes in SMALL:
        measured(title, kernel, shapes, options.shapes, backends)
    if not options.skip_large:
        for title, kernel, shapes in LARGE:
            measured(title, kernel, shapes, 1, backends)


if __name__ == "__main__":
    main()
