"""What a kernel that is refused is described by, and bodies and calls that several cases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Shape = jax.ShapeDtypeStruct

TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
GPUS = ("a100", "h100", "h200", "b200")


@dataclass(frozen=True)
class Case:
    """A kernel that compilers refuse.

    Attributes:
      name: what is wrong with it.
      function: calls the kernel.
      args: what to compile it for.
      platform: ``"tpu"`` or ``"gpu"``.
      refused: the chips for which it is refused; for the platform's others it compiles.
      words: what the short message must contain for each of them: the operand, the limit, the
        text of the line.
      aborts: those of ``refused`` for which the compiler ends its process instead of answering.
      silent: chips for which nothing is said: they lack what the kernel runs on.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    platform: str
    refused: tuple[str, ...]
    words: tuple[str, ...]
    aborts: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


X = Shape((8, 128), jnp.float32)


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def sort(x):
    def sort_rows(x_ref, o_ref):
        o_ref[...] = jnp.sort(x_ref[...])

    return pl.pallas_call(sort_rows, out_shape=x)(x)


def with_start(kernel):
    """A call of a kernel whose first operand is a scalar in SMEM."""
    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    return pl.pallas_call(kernel, out_shape=X, in_specs=specs)


def dot(x_ref, y_ref, o_ref):
    o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=o_ref.dtype)


def matmul(dtype, x, y):
    return pl.pallas_call(dot, out_shape=Shape((x.shape[0], y.shape[1]), dtype))(x, y)


def add_itself(x):
    def add(x_ref, o_ref):
        o_ref[...] = x_ref[...] + x_ref[...]

    return pl.pallas_call(add, out_shape=x)(x)
