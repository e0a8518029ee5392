"""While a kernel is simulated, this process' devices are those of the chip; then no longer."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import default_backend
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_sim import simulate
from pallas_sim.chips import GPUS, TARGETS, TPUS
from pallas_sim.tracing import absent_chip, present, tracing_for

X = np.ones((8, 128), np.float32)
KINDS = {name: target.device_kind for name, target in TARGETS.items()}


def facts() -> dict[str, Any]:
    """What a function can ask about the chip that it runs on."""
    device = jax.devices()[0]
    names = ("num_cores", "core_on_chip", "coords", "core_count", "compute_capability")
    return {
        "kind": device.device_kind,
        "kinds": {d.device_kind for d in (*jax.local_devices(), *jax.devices())},
        "default": jax.extend.backend.get_default_device().device_kind,
        "platforms": {
            *(device.platform, device.client.platform, jax.default_backend(), default_backend()),
            jax.extend.backend.get_backend().platform,
        },
        "memory": device.memory_stats(),
        **{name: getattr(device, name, None) for name in names},
    }


def plainly(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_devices_answer_as_the_chip(target, jit):
    seen = []

    def function(x: Any) -> Any:
        seen.append(facts())
        return plainly(x)

    before = facts()
    assert (simulate(function, X, target=target, jit=jit).values == 2).all()
    assert facts() == before
    assert before["platforms"] == {"cpu"}
    (chip,) = seen
    assert chip["kind"] == chip["default"] == KINDS[target]
    assert chip["kinds"] == {KINDS[target]}
    assert chip["platforms"] == {TARGETS[target].platform}
    assert 0 < chip["memory"]["bytes_limit"] == chip["memory"]["largest_free_block_bytes"]
    if target in GPUS:
        assert chip["memory"]["bytes_limit"] < GPUS[target].memory_bytes
        assert chip["core_count"] == GPUS[target].cores
        assert chip["compute_capability"] == f"{GPUS[target].capability}.0"
    else:
        assert chip["num_cores"] == TPUS[target].cores
        assert (chip["core_on_chip"], chip["coords"]) == (0, [0, 0, 0])


@pytest.mark.parametrize("target", GPUS)
def test_mosaic_gpu_lowers_for_the_chip(target):
    """What it does without a TMA depends on it, and what it refuses."""
    here = utils.get_arch()
    with present(absent_chip(TARGETS[target])):
        assert utils.get_arch().major == GPUS[target].capability
    with tracing_for(TARGETS[target]):
        assert utils.get_arch().major == GPUS[target].capability
    assert utils.get_arch() == here


@pytest.mark.parametrize("target", TPUS)
def test_the_facts_of_chips_are_those_of_jax(target):
    """The table of JAX has the memory of a core in round numbers, before what the system takes."""
    seen = []

    def function(x: Any) -> Any:
        seen.append((pltpu.get_tpu_info(), jax.devices()[0].memory_stats()["bytes_limit"]))
        seen.append(pltpu.TensorCoreMesh(axis_name="core").num_cores)
        return plainly(x)

    simulate(function, X, target=target)
    (info, limit), cores = seen
    chip = TPUS[target]
    assert info.num_cores == cores == chip.cores
    assert info.vmem_capacity_bytes == chip.vmem
    assert 0.85 < limit / (info.hbm_capacity_bytes * chip.cores) < 1


def test_the_branch_for_the_chip_is_taken():
    def function(x: Any) -> Any:
        if jax.default_backend() == "cpu" or jax.devices("tpu")[0].platform != "tpu":
            return x
        generation = 6 if "v6" in jax.devices()[0].device_kind else 5
        assert len(jax.devices("tpu")) == jax.device_count("tpu") == len(jax.devices())
        assert jax.local_devices(backend="tpu") == jax.local_devices(backend="cpu")
        assert jax.local_device_count() == jax.device_count()
        return plainly(x) * generation

    assert (simulate(function, X, target="v5e").values == 10).all()
    assert (simulate(function, X, target="v6e").values == 12).all()
    with pytest.raises(RuntimeError, match="tpu"):
        jax.devices("tpu")


def test_another_platform_is_not_there():
    def function(x: Any) -> Any:
        with pytest.raises(RuntimeError, match="gpu"):
            jax.devices("gpu")
        return plainly(x)

    simulate(function, X, target="v6e")


def test_arrays_live_on_the_devices_that_are_there():
    """What JAX itself does with devices works: constants, meshes, shardings, placements."""
    if len(jax.devices()) < 4:
        pytest.skip("4 devices are needed")

    def function(x: Any) -> Any:
        mesh = jax.make_mesh((2, 2), ("a", "b"))
        with jax.ensure_compile_time_eval():
            two = jax.jit(lambda a: a + 1)(jnp.ones((8, 128)))
            placed = jax.device_put(two, NamedSharding(mesh, P("a", "b")))
            alone = jax.device_put(np.ones(3), jax.devices()[1])
            made = jnp.array([1.0, 2.0], device=jax.devices()[0])
            drawn = jax.random.uniform(jax.random.key(3), (2,))
        assert (np.asarray(placed) == 2).all()
        assert {device.id for device in placed.devices()} == {0, 1, 2, 3}
        assert alone.device.id == 1
        assert np.asarray(made)[1] == 2
        assert (np.asarray(drawn) < 1).all()
        columns = Mesh(np.array(jax.devices()[:2]), ("x",))
        with jax.default_device(jax.devices()[1]):
            spec = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
            return jax.shard_map(plainly, mesh=columns, **spec)(x) + np.asarray(placed)

    assert (simulate(function, X).values == 4).all()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("within", ["shard_map", "use_abstract_mesh"])
def test_the_chip_is_that_of_the_run_within_a_mesh_of_no_device(within, kind):
    mesh = AbstractMesh((2,), ("x",), axis_types=(kind,))
    seen = []

    @jax.jit
    def inner(x: Any) -> Any:
        seen.append((pltpu.get_tpu_info().generation, jax.devices()[0].device_kind))
        return plainly(x)

    def function(x: Any) -> Any:
        if within == "shard_map":
            specs = P() if kind == AxisType.Explicit else P("x")
            mapped = {"mesh": mesh, "in_specs": specs, "out_specs": specs, "check_vma": False}
            return jax.shard_map(inner, **mapped)(x)
        with jax.sharding.use_abstract_mesh(mesh):
            return inner(x)

    for target, generation in (("v5e", 5), ("v6e", 6), ("v4", 4)):
        seen.clear()
        simulate(function, X, target=target)
        assert seen == [(generation, KINDS[target])]
    with (
        jax.sharding.use_abstract_mesh(mesh),
        pytest.raises(ValueError, match="Unsupported TPU device kind: cpu"),
    ):
        pltpu.get_tpu_info()


def test_errors_undo_it():
    def function(x: Any) -> Any:
        raise KeyError(jax.devices()[0].device_kind)

    before = facts()
    with pytest.raises(KeyError, match="TPU v5 lite"):
        simulate(function, X, target="v5e")
    assert facts() == before
    assert not {"coords", "num_cores", "core_count"} & {*dir(jax.Device)}


def test_a_thread_sees_its_own_chip():
    """Contexts of threads may begin and end in any order."""
    steps = [threading.Event() for _ in range(3)]
    seen: dict[str, list[str]] = {"a": [], "b": []}

    def first() -> None:
        with tracing_for(TARGETS["v5e"]):
            steps[0].set()
            steps[1].wait(30)
            seen["a"].append(jax.devices()[0].device_kind)
        seen["a"].append(jax.devices()[0].device_kind)
        steps[2].set()

    def second() -> None:
        steps[0].wait(30)
        seen["b"].append(jax.devices()[0].device_kind)
        with tracing_for(TARGETS["h100"]):
            steps[1].set()
            steps[2].wait(30)
            seen["b"].append(jax.devices()[0].device_kind)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"a": [KINDS["v5e"], "cpu"], "b": ["cpu", KINDS["h100"]]}
    assert jax.devices()[0].device_kind == jax.default_backend() == "cpu"
    assert jax.devices()[0].memory_stats() is None


def test_contexts_within_each_other():
    with tracing_for(TARGETS["v5e"]):
        with tracing_for(TARGETS["h100"]):
            assert jax.default_backend() == "gpu"
        assert jax.default_backend() == "tpu"
        assert pltpu.get_tpu_info().generation == 5
