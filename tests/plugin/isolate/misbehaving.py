"""Kernels that hang, crash, leak state or exhaust memory, and some that do none of it."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import types

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from kernels import add

from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst

INPUTS = pst.arrays("m n, m n", dtype="float32", dims={"m": [8], "n": [128]})


def reference(x, y):
    return x + y


def _call(body, x, y, **options):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x, y)


def after(act):
    """A kernel whose wrapper calls Python, which does something and gives its argument back."""

    def back(x):
        act()
        return np.asarray(x)

    def kernel(x, y):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return add(jax.pure_callback(back, shape, x), y)

    return kernel


def endless_while(x, y):
    def body(x_ref, y_ref, o_ref):
        zero = jax.lax.while_loop(lambda c: c < 1.0, lambda c: c * 0.5, x_ref[0, 0] * 0.0)
        o_ref[...] = x_ref[...] + y_ref[...] + zero

    return _call(body, x, y)


def _spin():
    while True:
        pass


def waits(x, y):
    def body(x_ref, y_ref, o_ref, semaphore):
        pl.semaphore_wait(semaphore, 1)
        o_ref[...] = x_ref[...] + y_ref[...]

    return _call(body, x, y, scratch_shapes=[pltpu.SemaphoreType.REGULAR])


def _segfault():
    ctypes.string_at(0)


def _grow():
    kept = []
    while True:
        # Every page at once: writing them one by one may take longer than --pallas-timeout.
        kept.append(
            mmap.mmap(-1, 2**26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON | mmap.MAP_POPULATE)
        )


def leaves_precision(x, y):
    jax.config.update("jax_default_matmul_precision", "highest")
    return add(x, y)


def leaves_variable(x, y):
    os.environ["LEFT_BEHIND"] = "1"
    return add(x, y)


def leaves_interpreter(x, y):
    module = importlib.import_module("jax._src.pallas.mosaic.interpret.interpret_pallas_call")
    module._shared_memory = types.SimpleNamespace(set_failed=lambda *args, **options: None)
    return add(x, y)


BAD = {
    "hang_while": endless_while,
    "hang_python": after(_spin),
    "hang_semaphore": waits,
    "crash_abort": after(os.abort),
    "crash_segfault": after(_segfault),
    "crash_exit": after(lambda: os._exit(3)),
    "leak_config": leaves_precision,
    "leak_variable": leaves_variable,
    "leak_interpreter": leaves_interpreter,
    "memory": after(_grow),
}


def good():
    def kernel(x, y):
        return add(x, y)

    return kernel


def _spec(name, kernel):
    return KernelSpec(
        name=name, kernel=kernel, reference=reference, inputs=INPUTS, checks=("forward",)
    )


def specs():
    """A good one after each bad one."""
    for name, kernel in BAD.items():
        yield _spec(name, kernel)
        yield _spec(f"good_after_{name}", good())


SPECS = list(specs())
