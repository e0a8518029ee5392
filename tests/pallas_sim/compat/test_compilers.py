"""Lowering for chips that are not there."""

import sys
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractDevice, Mesh, PartitionSpec

from pallas_sim.chips import TARGETS
from pallas_sim.compat.compilers import (
    exact_exports,
    interpret_ignored,
    lowering_to_triton,
    meshes_of,
)
from pallas_sim.tracing import tracing_for

X = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def kernel(x):
    return pl.pallas_call(body, out_shape=X, interpret=True)(x)


def interpreted():
    (eqn,) = jax.make_jaxpr(lambda x: kernel(x))(X).eqns
    return bool(eqn.params["interpret"])


def test_interpret_is_ignored():
    with interpret_ignored():
        assert not interpreted()
    assert interpreted()


def test_interpret_is_heeded_after_an_error():
    with pytest.raises(ZeroDivisionError), interpret_ignored():
        raise ZeroDivisionError
    assert interpreted()


def test_exports_lower_as_jit_does():
    function = jax.jit(jnp.sin)

    def exported():
        return jax.export.export(function, platforms=("cpu",))(X).mlir_module()

    with exact_exports():
        exact = exported()
    assert "test_compilers.py" not in exact or exact.count("pytest") == 0
    assert len(exact) <= len(exported())


class Searched:
    """A finder that finds nothing, and keeps the names of the modules that were looked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, *_: Any) -> None:
        self.names.append(name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_module_is_looked_for_at_each_operation_of_triton(monkeypatch):
    def lower():
        with tracing_for(TARGETS["h100"]), lowering_to_triton():
            traced = jax.jit(lambda x: pl.pallas_call(body, out_shape=X)(x)).trace(X)
            traced.lower(lowering_platforms=("cuda",))

    lower()  # imports what it needs
    searched = Searched()
    monkeypatch.setattr(sys, "meta_path", [searched, *sys.meta_path])
    lower()
    assert [name for name in searched.names if "dialect" in name or name.endswith(".tt")] == []


def test_meshes_are_of_the_chip():
    chip = AbstractDevice(device_kind="TPU v9", num_cores=1, platform="tpu")
    mesh = Mesh(jax.devices("cpu")[:1], ("x",))
    seen = []

    def function(x):
        seen.append(jax.sharding.get_abstract_mesh().abstract_device)
        return x

    def mapped():
        spec = PartitionSpec("x")
        jax.make_jaxpr(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))(X)

    with meshes_of(lambda: chip):
        mapped()
        assert mesh.abstract_mesh.abstract_device == chip
    mapped()
    assert seen[0] == chip
    assert seen[1] != chip
    assert mesh.abstract_mesh.abstract_device != chip
