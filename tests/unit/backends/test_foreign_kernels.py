"""Kernels with the habits of published ones: they ask which chip they are on, and have a way out.

None of them is executed: what is looked at is what a compiler would be given.
"""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from pallas_sim.chips import TARGETS
from pytest_pallas import NoPallasCallError
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import abstract
from pytest_pallas.compile.backends import Lowered, Lowering
from pytest_pallas.grid.kernel_calls import kernel_calls

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def copied(x, *, rows=8, interpret=False):
    spec = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        copy,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // rows,),
        in_specs=[spec],
        out_specs=spec,
        interpret=interpret,
    )(x)


@pytest.fixture
def lowered():
    """Lower a function for chips, one after the other; what each of them was given."""

    def lower(function, *targets, args=(X,)):
        call = Call(function=function, args=args)
        lowering = Lowering(TARGETS[targets[0]].platform)
        return [
            lowering.lower(call, *abstract(call), TARGETS[target], Lowered()) for target in targets
        ]

    return lower


def grid(program):
    [call] = kernel_calls(program.jaxpr)
    return call.eqn.params["grid_mapping"].grid


def test_a_kernel_that_is_interpreted_where_there_is_no_tpu(lowered):
    def cautious(x):
        return copied(x, interpret=jax.default_backend() != "tpu")

    [program] = lowered(cautious, "v6e")
    assert b"tpu_custom_call" in program.module


def test_a_function_that_uses_its_kernel_on_a_tpu_only(lowered):
    def with_a_way_out(x):
        return copied(x) if jax.devices()[0].platform == "tpu" else x + 0

    [program] = lowered(with_a_way_out, "v6e")
    assert [call.name for call in program.kernels] == ["copy"]


def test_a_function_without_a_kernel_is_still_found(lowered):
    with pytest.raises(NoPallasCallError, match="there is no Pallas kernel to compile"):
        lowered(lambda x: x + 0, "v6e")


def test_blocks_by_the_kind_of_chip(lowered):
    def tuned(x):
        return copied(x, rows={"TPU v5 lite": 16}.get(jax.devices()[0].device_kind, 32))

    assert [grid(each) for each in lowered(tuned, "v4", "v5e", "v6e")] == [(2,), (4,), (2,)]


@pytest.mark.parametrize(
    "cores",
    [
        lambda: jax.devices()[0].core_count,
        lambda: jax.extend.backend.get_default_device().core_count,
        lambda: jax.sharding.get_abstract_mesh().abstract_device.num_cores,
    ],
)
def test_as_many_programs_as_the_gpu_has_cores(lowered, cores):
    def persistent(x):
        def body(x_ref, o_ref):
            o_ref[jax.lax.axis_index("sm")] = x_ref[0]

        kernel = plgpu.kernel(
            body, out_type=x, grid=(cores(),), grid_names=("sm",), thread_name="wg", num_threads=1
        )
        return kernel(x)

    programs = lowered(
        persistent, "h100", "b200", args=(jax.ShapeDtypeStruct((256, 128), jnp.float32),)
    )
    assert len({each.module for each in programs}) == 2
    assert "132" in str(programs[0].jaxpr)
    assert "148" in str(programs[1].jaxpr)


def test_the_generation_of_a_gpu(lowered):
    def for_hopper(x):
        assert jax.devices()[0].compute_capability == "9.0"
        return copied(x)

    [program] = lowered(for_hopper, "h200")
    assert [call.name for call in program.kernels] == ["copy"]


def test_the_cores_of_a_tpu_are_those_of_the_device_that_is_compiled_for(lowered):
    def tuned(x):
        return copied(x, rows=8 * jax.sharding.get_abstract_mesh().abstract_device.num_cores)

    # libtpu's v4 devices are single cores, and its v5p devices are two fused ones.
    assert [grid(each) for each in lowered(tuned, "v4", "v5p")] == [(8,), (4,)]


def test_a_chip_is_known_inside_of_shard_map(lowered):
    mesh = jax.make_mesh((4,), ("x",))
    mesh.abstract_mesh  # noqa: B018  a property that is kept and says "cpu"

    def tuned(x):
        return copied(x, rows=2 * pltpu.get_tpu_info().generation)

    sharded = jax.shard_map(tuned, mesh=mesh, in_specs=P(None), out_specs=P(None), check_vma=False)
    programs = lowered(sharded, "v4", args=(X,))
    assert [grid(each) for each in programs] == [(8,)]
    assert mesh.abstract_mesh.abstract_device.device_kind == "cpu"


def test_the_devices_are_themselves_afterwards(lowered):
    def failing(x):
        assert jax.devices()[0].device_kind == "TPU v6 lite"
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        lowered(failing, "v6e")
    [device, *_] = jax.devices()
    assert (device.device_kind, device.platform, jax.default_backend()) == ("cpu", "cpu", "cpu")
    assert not hasattr(device, "num_cores")


def test_eager_values_in_a_kernel_are_computed_on_the_cpu(lowered):
    def with_a_table(x):
        with jax.ensure_compile_time_eval():
            table = jnp.arange(64, dtype=jnp.float32)[:, None] @ jnp.ones((1, 128))
        return copied(x) * np.asarray(table)

    [program] = lowered(with_a_table, "v6e")
    assert [call.name for call in program.kernels] == ["copy"]


def test_what_does_not_ask_is_lowered_once(lowered):
    traces = []

    def indifferent(x):
        traces.append(x)
        return copied(x)

    first, second = lowered(indifferent, "v4", "v6e")
    assert first is second
    assert len(traces) == 1


def test_a_kept_trace_that_asked_is_not_shared():
    # Of two functions the second finds the trace that jit has kept for the first.
    @jax.jit
    def tuned(x):
        return copied(x, rows={"TPU v5 lite": 16}.get(jax.devices()[0].device_kind, 32))

    lowering = Lowering("tpu")
    for wrapper in (functools.partial(tuned), lambda x: tuned(x)):
        call = Call(function=wrapper, args=(X,))
        programs = [
            lowering.lower(call, *abstract(call), TARGETS[target], Lowered())
            for target in ("v5e", "v6e")
        ]
        assert [grid(each) for each in programs] == [(4,), (2,)]
