"""Calls on their way to a compiler: lowered for its chip, whatever their authors did for the CPU.

Nothing is compiled here: what would be handed to the workers is looked at.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import pallas_call  # as many packages do
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pallas_sim.chips import TARGETS
from pallas_sim.errors import SimulationLimitError
from pytest_pallas import errors
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.registry import compiling, parse
from pytest_pallas.checks.transformations import Vjp
from pytest_pallas.compile.cuda import CUSTOM_CALLS as GPU_CALLS
from pytest_pallas.compile.machine_code import Cost
from pytest_pallas.compile.service import CompileReport

X = np.ones((8, 128), np.float32)


class Accepting:
    """A service that accepts every program and keeps it."""

    def __init__(self):
        self.programs = []

    def submit(self, program, *, timeout):
        self.programs.append((program, timeout))
        future = Future()
        kernels = (Cost(kernel="hlo.1", bundles=7),)
        future.set_result(
            CompileReport(target=program.target, status="compiled", kernels=kernels, seconds=1.5)
        )
        return future


def backend_for(target, service):
    families = {family.name: family for family in compiling(lambda: service)}
    [backend] = parse(f"{TARGETS[target].platform}-compile:{target}", families)
    return backend


def lowered(function, *args, target="v6e", **fields):
    """The program that the call becomes, and the call's outcome."""
    service = Accepting()
    outcome = backend_for(target, service).run(Call(function=function, args=args, **fields))
    if outcome.error is not None:
        raise outcome.error
    [(program, _)] = service.programs
    return program, outcome


def text_of(program):
    return export.deserialize(bytearray(program.module)).mlir_module()


def refusal(function, *args, target="v6e", **fields):
    service = Accepting()
    outcome = backend_for(target, service).run(Call(function=function, args=args, **fields))
    assert service.programs == []
    return outcome


def double_body(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def double(x, interpret=False):
    return pl.pallas_call(double_body, out_shape=x, interpret=interpret)(x)


def by_name(x):
    return pallas_call(double_body, out_shape=x, interpret=jax.default_backend() == "cpu")(x)


def by_kernel(x):
    def through_vmem(x_ref, o_ref, vmem):
        pltpu.sync_copy(x_ref, vmem)
        pltpu.sync_copy(vmem, o_ref)

    make = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh  # JAX 0.11
    mesh = make(axis_name="core", num_cores=1)
    scratch = [pltpu.VMEM((8, 128), jnp.float32)]
    return pl.kernel(through_vmem, out_type=x, mesh=mesh, scratch_types=scratch, interpret=True)(x)


def on_gpu(x):
    def through_registers(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    return plgpu.kernel(through_registers, out_type=x, interpret=True)(x)


HARD_CODED = {
    "argument": (functools.partial(double, interpret=True), "v6e"),
    "parameters": (functools.partial(double, interpret=pltpu.InterpretParams()), "v6e"),
    "imported by name": (by_name, "v6e"),
    "pl.kernel": (by_kernel, "v6e"),
    "triton": (functools.partial(double, interpret=True), "h100"),
    "plgpu.kernel": (on_gpu, "h100"),
}


@pytest.mark.parametrize(("function", "target"), HARD_CODED.values(), ids=HARD_CODED.keys())
def test_interpret_is_overruled(function, target):
    program, outcome = lowered(function, X, target=target)
    calls = GPU_CALLS if TARGETS[target].platform == "gpu" else ("tpu_custom_call",)
    assert any(f"custom_call @{name}" in text_of(program) for name in calls)
    assert len(outcome.kernels) == 1


def test_interpret_is_as_it_was_when_nothing_is_lowered():
    lowered(double, X)
    np.testing.assert_array_equal(double(X, interpret=True), 2 * X)


def test_a_kernel_may_ask_which_chip_it_is_for():
    seen = []

    def asks(x):
        seen.append((pltpu.get_tpu_info().chip_version, pltpu.get_tpu_info().generation))
        return double(x)

    for target in ("v4", "tpu7x"):
        lowered(asks, X, target=target)
    assert [generation for _, generation in seen[:1] + seen[-1:]] == [4, 7]


def test_without_a_kernel_it_fails_loudly():
    error = refusal(jnp.sin, X).error
    assert isinstance(error, errors.NoPallasCallError)
    assert str(error).startswith("sin, lowered for tpu, has none of tpu_custom_call: ")


def test_a_kernel_whose_result_is_dropped_counts_as_none():
    def drops(x):
        double(x)
        return x

    assert isinstance(refusal(drops, X).error, errors.NoPallasCallError)


def test_without_a_kernel_it_is_compiled_where_none_is_needed():
    program, outcome = lowered(jnp.sin, X, needs_kernel=False)
    assert outcome.kernels == ()
    assert "sine" in text_of(program)


def calls_back(x):
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), double(x))


def prints(x):
    jax.debug.print("{}", x[0, 0])
    return double(x)


@pytest.mark.parametrize("function", [calls_back, prints])
@pytest.mark.parametrize("target", ["v6e", "h100"])
def test_callbacks_to_the_host_are_refused_by_their_names(function, target):
    outcome = refusal(function, X, target=target)
    assert type(outcome.error) is errors.CompileError
    assert outcome.report.status == "refused"
    assert "calls back to Python (jax.pure_callback, " in str(outcome.error)
    assert "in kernel double_body" in str(outcome.error)


def test_what_the_wrapper_raises_while_it_is_traced_is_the_error():
    def picky(x):
        raise TypeError("no block divides 8 rows")

    outcome = refusal(picky, X)
    assert type(outcome.error) is TypeError
    assert outcome.report is None


def test_what_the_body_raises_while_it_is_traced_is_the_error():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] @ x_ref[...]

    error = refusal(lambda x: pl.pallas_call(body, out_shape=x)(x), X).error
    assert type(error) is TypeError
    assert "dot_general" in str(error)


def test_what_cannot_be_lowered_is_refused_with_the_kernel_and_the_line():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.sort(x_ref[...])

    outcome = refusal(lambda x: pl.pallas_call(body, out_shape=x)(x), X)
    assert type(outcome.error) is errors.CompileError
    assert str(outcome.error).startswith("refused for v6e: ")
    assert "o_ref[...] = jnp.sort(x_ref[...])" in str(outcome.error)
    assert outcome.report.compiler == "JAX's lowering"
    assert outcome.report.signature == "float32[8,128]"
    assert [kernel.name for kernel in outcome.kernels] == ["body"]
    assert isinstance(outcome.error.__cause__, Exception)


def test_a_call_that_needs_values_says_so():
    error = refusal(double, X, settings=RunSettings(jit=False)).error
    assert type(error) is errors.CompileError
    assert "double needs the values of its arguments (jit=False)" in str(error)


def test_arguments_need_no_values():
    program, outcome = lowered(double, jax.ShapeDtypeStruct((16, 128), jnp.bfloat16))
    assert "tensor<16x128xbf16>" in text_of(program)
    assert outcome.report.signature == "bfloat16[16,128]"


def test_kernels_are_called_as_their_authors_call_them():
    def twice(x):
        return pl.pallas_call(double_body, out_shape=x, name="first")(double(x))

    _, outcome = lowered(double, X)
    assert [cost.kernel for cost in outcome.report.kernels] == ["double_body"]
    assert outcome.report.kernels[0].bundles == 7
    _, outcome = lowered(twice, X)
    assert [kernel.name for kernel in outcome.kernels] == ["double_body", "first"]
    # Which of the two is left is not known.
    assert [cost.kernel for cost in outcome.report.kernels] == ["hlo.1"]


def test_a_call_over_several_devices_is_compiled_for_as_many():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("x",))

    @jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    def by_rows(x):
        return double(x)

    x = np.ones((32, 128), np.float32)
    assert lowered(by_rows, x)[0].devices == 4
    sharded = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P("x")))
    assert lowered(by_rows, sharded)[0].devices == 4
    assert lowered(double, X)[0].devices == 1


def test_the_same_call_is_lowered_and_compiled_once():
    service = Accepting()
    backend = backend_for("v6e", service)
    start = backend.start(Call(function=double, args=(X,), settings=RunSettings(timeout=5)))
    assert (
        backend.run(Call(function=double, args=(X + 1,), settings=RunSettings(timeout=5)))
        == start()
    )
    assert [timeout for _, timeout in service.programs] == [5]
    backend.run(Call(function=double, args=(X[:4],)))
    assert len(service.programs) == 2


def deep(levels, function, *args):
    return function(*args) if levels == 0 else deep(levels - 1, function, *args)


NUMBERED = pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="JAX 0.11 numbers the Mosaic GPU kernels of a process"
)


@pytest.mark.parametrize(
    ("function", "target"),
    [(double, "v6e"), (double, "h100"), pytest.param(on_gpu, "h100", marks=NUMBERED)],
)
def test_programs_do_not_depend_on_who_calls(function, target):
    """Or nothing would be found in the cache."""

    def module():
        jax.clear_caches()
        return lowered(function, X, target=target)[0].module

    shallow = module()
    assert deep(40, module) == shallow
    assert (lambda: module())() == shallow


@jax.custom_vjp
def doubled_by_xla(x):
    return double(x)


doubled_by_xla.defvjp(lambda x: (double(x), None), lambda _, ct: (2 * ct,))


def test_a_gradient_that_needs_no_kernel_compiles():
    gradient = Vjp(doubled_by_xla, (0,))
    program, _ = lowered(gradient, None, X, needs_kernel=False)
    assert "tpu_custom_call" not in text_of(program)
    with pytest.raises(errors.NoPallasCallError):
        lowered(gradient, None, X)


def test_a_trace_that_does_not_end_is_an_error():
    def endless(x):
        while True:
            pass

    outcome = refusal(endless, X, settings=RunSettings(timeout=0.1))
    assert isinstance(outcome.error, SimulationLimitError)
    assert "still not traced after 0.1 s" in str(outcome.error)
