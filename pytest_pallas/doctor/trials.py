"""A tiny kernel on each backend: whether it is right, and how long the first call took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl

from pytest_pallas.backends import Backend, Call, Family, label
from pytest_pallas.backends.execution import brief

#: What became of a backend.
OK, MISSING, FAILED = "ok", "missing", "FAILED"


@dataclass(frozen=True)
class Trial:
    """A backend and what became of the kernel there.

    Attributes:
      backend: its label.
      status: ``OK``, ``MISSING`` or ``FAILED``.
      words: what was compiled or run, why the backend is missing and what to install, or the error.
      seconds: of the first call.
    """

    backend: str
    status: str
    words: str
    seconds: float = 0.0


def add_one(x: jax.Array) -> jax.Array:
    """``x + 1`` of a float32[8, 128], by a kernel that every backend can run."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def trials(families: Iterable[Family]) -> Iterator[Trial]:
    """Try the kernel on each backend, on its default chip."""
    for family in families:
        yield tried(family.make(None))


def tried(backend: Backend) -> Trial:
    """Try the kernel on one backend. Nothing that it raises ends the others."""
    name, begin = label(backend), time.perf_counter()
    try:
        missing = backend.available()
        if missing is not None:
            return Trial(name, MISSING, missing)
        x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
        begin = time.perf_counter()
        outcome = backend.run(Call(function=add_one, args=(x,)))
    except Exception as error:
        return Trial(name, FAILED, _words(error), time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    if outcome.error is not None:
        return Trial(name, FAILED, _words(outcome.error), seconds)
    if backend.kind == "compiling":
        return Trial(name, OK, "compiled", seconds)
    if not np.array_equal(np.asarray(outcome.values), x + 1):
        return Trial(name, FAILED, "x + 1 of a float32[8, 128] is wrong", seconds)
    return Trial(name, OK, "x + 1 is right", seconds)


def devices() -> tuple[str, ...]:
    """The devices that JAX finds, as ``8 x cpu (cpu)``; or why it finds none."""
    try:
        found = [f"{device.platform} ({device.device_kind})" for device in jax.devices()]
    except RuntimeError as error:
        return (f"JAX does not start: {brief(str(error), lines=3)}",)
    return tuple(f"{found.count(each)} x {each}" for each in dict.fromkeys(found))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(str(error), lines=4)}"
