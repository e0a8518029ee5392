"""The interpreting backends: they force themselves on a kernel, and survive what it does."""

import functools
import importlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support import sample_kernels as kernels

from pallas_sim.chips import TARGETS
from pallas_sim.errors import DeadlockError, SimulationLimitError
from pytest_pallas import NoPallasCallError
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.registry import FAMILIES, parse

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
KNOWN = {family.name: family for family in FAMILIES}


def backend(word):
    return parse(word, KNOWN)[0]


@pytest.mark.parametrize("word", ["interpret", "tpu-interpret", "tpu-interpret:v5e"])
def test_runs_a_kernel(word):
    outcome = backend(word).run(Call(function=kernels.add_one, args=(X,)))
    assert outcome.error is None
    np.testing.assert_array_equal(outcome.values, X + 1)
    assert [kernel.name for kernel in outcome.kernels] == ["body"]


def test_each_backend_is_really_the_one_it_says():
    """The lowered kernel calls back into the TPU interpreter, or is plain HLO."""
    from pytest_pallas.backends.tracing import jitted, split

    for word, calls_back in (("interpret", False), ("tpu-interpret", True)):
        chosen = backend(word)
        with chosen.context():
            static, arrays = split(Call(function=kernels.add_one, args=(X,)))
            text = jitted(static).trace(arrays).lower().as_text()
        assert ("callback" in text) is calls_back, word


@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_kernel_sees_the_target(target):
    seen = []

    def function(x):
        seen.append(pltpu.get_tpu_info().chip_version)
        return kernels.add_one(x)

    outcome = backend(f"tpu-interpret:{target}").run(Call(function=function, args=(X,)))
    assert outcome.error is None
    assert target.removeprefix("v") in str(seen[0].value).replace("x", "").removeprefix("v") or (
        target == "tpu7x" and "7" in str(seen[0].value)
    )
    assert TARGETS[target].platform == "tpu"


def test_hard_coded_interpret_is_overruled():
    function = functools.partial(kernels.add_one_by_rows, interpret=True)
    outcome = backend("tpu-interpret").run(Call(function=function, args=(X,)))
    assert outcome.error is None
    assert outcome.kernels[0].eqn.params["interpret"] == pltpu.InterpretParams()


def test_an_interpreter_is_as_jax_has_it():
    """Reading before the wait: no race is looked for; NaN, because the DMA has not happened."""
    outcome = backend("tpu-interpret").run(Call(function=kernels.read_before_wait, args=(X,)))
    assert outcome.error is None
    assert np.isnan(outcome.values).all()
    assert not outcome.notes


def test_out_of_bounds_read_is_an_error():
    outcome = backend("tpu-interpret").run(Call(function=kernels.read_out_of_bounds, args=(X,)))
    assert "Out-of-bounds read" in str(outcome.error)
    assert "Traceback" not in str(outcome.error)


@pytest.mark.parametrize(
    "wrong",
    [
        kernels.read_out_of_bounds,
        kernels.wait_for_nobody,
    ],
)
def test_a_failed_kernel_leaves_no_trace(wrong):
    chosen = backend("tpu-interpret")
    assert (
        chosen.run(Call(function=wrong, args=(X,), settings=RunSettings(timeout=1.0))).error
        is not None
    )
    for _ in range(2):
        after = chosen.run(Call(function=kernels.copy_by_dma, args=(X,)))
        assert after.error is None
        np.testing.assert_array_equal(after.values, X)


def test_what_never_ends_is_ended_at_the_time_limit():
    outcome = backend("tpu-interpret").run(
        Call(function=kernels.ask_again_and_again, args=(X,), settings=RunSettings(timeout=1.0))
    )
    assert isinstance(outcome.error, DeadlockError)
    assert "did not finish within 1 s" in str(outcome.error)


@pytest.mark.parametrize("name", ["tpu-interpret", "interpret"])
def test_tracing_that_never_ends_is_ended_at_the_time_limit(name):
    def waits(x):
        while True:
            time.sleep(0.01)

    outcome = backend(name).run(Call(function=waits, args=(X,), settings=RunSettings(timeout=0.3)))
    assert isinstance(outcome.error, SimulationLimitError)
    assert "still not traced after 0.3 s; the limit is --pallas-timeout" in str(outcome.error)
    assert outcome.error.timed_out


def test_time_that_is_over_before_the_kernel_runs_is_given_again(monkeypatch):
    """A machine that compiles for longer than the limit must not wait for ever afterwards."""
    from pytest_pallas.backends import interpreters

    fail, asked = interpreters.fail_interpreters, []

    def nothing_runs_at_first(error):
        asked.append(error)
        return len(asked) > 1 and fail(error)

    monkeypatch.setattr(interpreters, "fail_interpreters", nothing_runs_at_first)
    outcome = backend("tpu-interpret").run(
        Call(function=kernels.ask_again_and_again, args=(X,), settings=RunSettings(timeout=1.0))
    )
    assert isinstance(outcome.error, DeadlockError)
    assert len(asked) == 2


def test_a_deadlock_on_several_devices_leaves_no_trace():
    from jax.sharding import PartitionSpec as P

    from pytest_pallas.backends.devices import make_mesh

    mesh = make_mesh({"x": 4}, "cpu")

    def on_mesh(function, x):
        return jax.shard_map(
            function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
        )(x)

    x = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    chosen = backend("tpu-interpret")
    stuck = functools.partial(on_mesh, kernels.wait_for_nobody)
    outcome = chosen.run(
        Call(function=stuck, args=(x,), settings=RunSettings(devices=4, timeout=1.0))
    )
    assert isinstance(outcome.error, DeadlockError)
    fine = functools.partial(on_mesh, kernels.copy_by_dma)
    for _ in range(2):
        after = chosen.run(Call(function=fine, args=(x,), settings=RunSettings(devices=4)))
        assert after.error is None
        np.testing.assert_array_equal(after.values, x)


@pytest.mark.parametrize("word", ["interpret", "tpu-interpret:v4", "tpu-interpret:v6e"])
def test_a_chip_is_known_inside_of_shard_map(word):
    """As ``pltpu.emit_pipeline`` asks for it; outside, nothing has changed."""
    from jax.sharding import PartitionSpec as P

    from pytest_pallas.backends.devices import make_mesh

    mesh = make_mesh({"x": 2}, "cpu")
    mesh.abstract_mesh  # noqa: B018  a property that is kept and says "cpu"
    generations = []

    def tuned(x):
        generations.append(pltpu.get_tpu_info().generation)
        return kernels.add_one(x)

    def on_mesh(function):
        return jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"))

    sharded = jax.shard_map(tuned, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    outcome = backend(word).run(Call(function=sharded, args=(X,), settings=RunSettings(devices=2)))
    assert outcome.error is None
    np.testing.assert_array_equal(outcome.values, X + 1)
    assert set(generations) == {int(word[-1]) if word.endswith("4") else 6}
    assert mesh.abstract_mesh.abstract_device.device_kind == "cpu"
    plain = on_mesh(lambda x: x @ jnp.ones((128, 2)))(X)  # which JAX looks at the mesh for
    np.testing.assert_allclose(plain, X @ np.ones((128, 2)), rtol=1e-5)


def test_a_function_without_a_kernel_is_an_error():
    outcome = backend("interpret").run(Call(function=kernels.no_kernel, args=(X,)))
    assert isinstance(outcome.error, NoPallasCallError)
    assert "no_kernel has no Pallas kernel" in str(outcome.error)
    assert (
        backend("interpret")
        .run(Call(function=kernels.no_kernel, args=(X,), needs_kernel=False))
        .error
        is None
    )


def test_a_call_object_built_at_import_is_explained():
    outcome = backend("tpu-interpret").run(Call(function=kernels.BUILT_TOO_EARLY, args=(X,)))
    assert "built before the test ran" in str(outcome.error)


def test_an_error_while_tracing_is_itself():
    def broken(x):
        raise ValueError("block_m must be a multiple of 8")

    outcome = backend("tpu-interpret").run(Call(function=broken, args=(X,)))
    assert isinstance(outcome.error, ValueError)
    assert outcome.values is None


def test_inputs_are_copied():
    x = X.copy()

    def overwrite(y):
        kernels.add_one(y)
        return kernels.add_one(y)

    outcome = backend("interpret").run(Call(function=overwrite, args=(x,)))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(outcome.inputs[0], X)


def test_a_donated_input_is_seen():
    donate = jax.jit(kernels.add_one, donate_argnums=0)
    outcome = backend("interpret").run(
        Call(function=donate, args=(X,), settings=RunSettings(jit=False))
    )
    assert outcome.error is None
    assert outcome.inputs == (None,)


def test_gpu_interpret_runs_mosaic_gpu():
    from jax.experimental.pallas import mosaic_gpu as plgpu

    @functools.partial(
        plgpu.kernel,
        out_type=jax.ShapeDtypeStruct((128,), jnp.float32),
        scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
    )
    def copy(x_gmem, o_gmem, smem, barrier):
        plgpu.copy_gmem_to_smem(x_gmem, smem, barrier)
        plgpu.barrier_wait(barrier)
        smem[...] = smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    x = np.arange(128, dtype=np.float32)
    outcome = backend("gpu-interpret:h100").run(Call(function=copy, args=(x,)))
    assert outcome.error is None, outcome.error
    np.testing.assert_array_equal(outcome.values, x + 1)


def test_an_assertion_without_words_is_located(monkeypatch):
    """Inside of an interpreter, where its own traceback is text."""
    module = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")

    def _fails():
        raise AssertionError

    monkeypatch.setattr(module, "_get_shared_memory", _fails)
    outcome = backend("gpu-interpret").run(Call(function=kernels.add_one, args=(X,)))
    assert "AssertionError: in _fails (" in str(outcome.error)


@pytest.mark.parametrize(("word", "sms"), [("gpu-interpret", 132), ("gpu-interpret:a100", 108)])
def test_a_gpu_kernel_is_told_the_number_of_multiprocessors(word, sms):
    """As a persistent kernel asks for it, which starts that many blocks."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def body(out, buffer):
        block = jax.lax.axis_index("block")

        @pl.when(block < 1)
        def _():
            buffer[...] = jnp.full((128,), jnp.int32(jax.lax.axis_size("block")))
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer, out)
            plgpu.wait_smem_to_gmem(0)

    def call(x):
        device = jax.devices()[0]
        assert device.compute_capability in ("9.0", "8.0")
        return (
            plgpu.kernel(
                body,
                out_type=jax.ShapeDtypeStruct((128,), jnp.int32),
                scratch_types=[plgpu.SMEM((128,), jnp.int32)],
                grid=(device.core_count,),
                grid_names=("block",),
            )()
            + x
        )

    outcome = backend(word).run(Call(function=call, args=(np.int32(0),)))
    assert outcome.error is None, outcome.error
    assert int(outcome.values[0]) == sms
    assert not hasattr(jax.devices()[0], "core_count")
