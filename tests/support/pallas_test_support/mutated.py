"""Small kernels, traced as on a simulated TPU, and their mutants run there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.compat.source import own_lines
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.mutate import mutants_of

BACKEND = tpu_sim()


def traced(function, *args):
    """The closed jaxpr of a call."""
    with BACKEND.context(), own_lines():
        static, arrays = split(Call(function=function, args=args))
        return jitted(static).trace(arrays).jaxpr


def ran(function, *args, mutant=None):
    """The outcome of a call, with a mutant."""
    with own_lines():
        return BACKEND.run(
            Call(function=function, args=args, settings=RunSettings(rewriting=mutant, timeout=5.0))
        )


def found(function, *args, operators=()):
    """The mutants of a call, as ``operator: change``."""
    return [
        f"{each.operator}: {each.change}" for each in mutants_of(traced(function, *args), operators)
    ]


def one(function, *args, operator, change, part=""):
    """The only mutant of a call of this kind."""
    [mutant] = [
        each
        for each in mutants_of(traced(function, *args), (operator,))
        if each.change == change and part in each.part
    ]
    return mutant


def kernel(body, shapes, *, grid=(), scratch=(), blocks=None, out_block=None, **more):
    """A function that calls a kernel of one output of the last of ``shapes``."""

    def call(*args):
        specs = {}
        if blocks is not None:
            specs = {"in_specs": blocks, "out_specs": out_block}
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(shapes, jnp.float32),
            grid=grid,
            scratch_shapes=scratch,
            **specs,
            **more,
        )(*args)

    return call


X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
VMEM = pltpu.VMEM((8, 128), jnp.float32)
