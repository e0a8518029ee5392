"""The pytest plugin of ``jax_tests.py``: JAX's Pallas tests with the simulator under them.

It runs in the child process (``-p jax_tests_plugin``), and replaces:

- the lowering of ``pallas_call`` and ``mpmd_map``: it checks nothing of ``interpret`` and of the
  platform, and is a host callback into the simulator. What is around kernels, and what a test
  compares with, is still compiled by XLA for the CPU: the simulator never confirms itself;
- as ``tpu``, ``gpu`` and ``b200``, what tests ask about the device: ``jtu.device_under_test`` says
  so, and the device kind, also inside of kernels, is that of a v6e, an H100 or a B200;
- the option ``jax_pallas_use_mosaic_gpu``, where JAX has it no more, by one that is off;
- the lowering of ``with_memory_space_constraint``, ``pin`` and ``unpin``, which XLA has for TPUs
  only, by nothing;
- products of float16 summed in float32, which XLA has for GPUs only, by products of float32.

Hypothesis draws no more than 10 examples a test, and does not shrink them. Modules named
``*_test_util`` that a wheel of JAX lacks come from the checkout.

Each test's outcome is one line of JSON in the file that ``JAX_TESTS_RESULTS`` names.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.util
import json
import os
import re
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from pallas_sim.gpu.windows import reaches_devices

CHECKOUT = Path(os.environ["JAX_TESTS_CHECKOUT"])
DEVICE = os.environ["JAX_TESTS_DEVICE"]
SECONDS = int(os.environ["JAX_TESTS_SECONDS"])
DONE = Path(os.environ["JAX_TESTS_DONE"])
CASES = int(os.environ.get("JAX_TESTS_CASES", "0"))

#: How many examples hypothesis draws; JAX's tests ask for up to 200.
EXAMPLES = 10

#: What the simulator has said in this test: XLA hides it in a traceback.
SAID: list[str] = []

#: The kernels that the simulator has run in this test.
RUN: list[str] = []

#: The chips that the devices stand for; kernels of interpret mode run on the first one.
CHIPS = {"cpu": "v6e", "tpu": "v6e", "gpu": "h100", "b200": "b200"}

#: The chip that kernels run on.
CHIP = os.environ.get("JAX_TESTS_CHIP") or CHIPS[DEVICE]

#: What JAX calls the device.
PLATFORM = "gpu" if DEVICE == "b200" else DEVICE


class _TestUtilities(importlib.abc.MetaPathFinder):
    """Finds JAX's test utilities in the checkout: they are in no wheel."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The place of a module named ``jax...._test_util``, or None."""
        del path, target
        if not fullname.startswith("jax.") or not fullname.endswith("_test_util"):
            return None
        file = CHECKOUT.joinpath(*fullname.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(fullname, file) if file.exists() else None


class _Option:
    """A choice that the installed JAX no longer has: Triton instead of Mosaic GPU."""

    value = False

    def __call__(self, value: bool) -> contextlib.nullcontext[None]:
        """As a context, which changes nothing."""
        assert not value
        return contextlib.nullcontext()


def _stand_in_for_old_options() -> None:
    config: Any = importlib.import_module("jax._src.config")
    if not hasattr(config, "jax_pallas_use_mosaic_gpu"):
        config.jax_pallas_use_mosaic_gpu = _Option()


def _simulate_kernels() -> None:
    """Let every ``pallas_call`` that is executed run on the simulator."""
    import jax
    import numpy as np
    from jax.experimental import io_callback

    from pallas_sim import rules as rules  # which registers them
    from pallas_sim.errors import PallasError
    from pallas_sim.evaluation import prepare, run
    from pallas_sim.machine import Machine, Thread
    from pallas_sim.memory import KeyArray, is_key_dtype

    calls: Any = importlib.import_module("jax._src.pallas.pallas_call")
    meshes: Any = importlib.import_module("jax._src.pallas.mpmd")
    core: Any = importlib.import_module("jax._src.core")
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")

    def wide(aval: Any) -> Any:
        """The shape and dtype in which XLA passes an array to a callback."""
        if is_key_dtype(aval.dtype):
            aval = core.physical_aval(aval)
        dtype = aval.dtype
        if dtype.name in {"int2", "uint2", "int4", "uint4"}:
            dtype = np.dtype(np.int8)
        elif dtype.name.startswith("float4"):
            dtype = np.dtype(np.float32)
        return jax.ShapeDtypeStruct(aval.shape, dtype)

    def to_wide(x: Any) -> Any:
        if is_key_dtype(x.dtype):
            return jax.random.key_data(x)
        return x.astype(wide(x).dtype)

    def from_wide(x: Any, aval: Any) -> Any:
        if is_key_dtype(aval.dtype):
            return jax.random.wrap_key_data(x, impl=aval.dtype._impl.name)
        return x.astype(aval.dtype)

    def as_value(x: Any, aval: Any) -> Any:
        if is_key_dtype(aval.dtype):
            return KeyArray(np.asarray(x), aval.dtype)
        return np.asarray(x).astype(aval.dtype, copy=False)

    def as_array(value: Any, aval: Any) -> Any:
        array = value.data if isinstance(value, KeyArray) else np.asarray(value)
        return array.astype(wide(aval).dtype, copy=False)

    @contextlib.contextmanager
    def told() -> Iterator[None]:
        try:
            yield
        except PallasError as error:
            SAID.append(f"{type(error).__name__}: {error}")
            raise

    def lowering(primitive: Any, ctx: Any, *nodes: Any, **params: Any) -> Any:
        avals = [getattr(aval, "inner_aval", aval) for aval in ctx.avals_in]
        results = [getattr(aval, "inner_aval", aval) for aval in ctx.avals_out]
        outer = ctx
        ctx = ctx.replace(avals_in=avals, avals_out=results)  # without the pins of buffers

        def call(*operands: Any) -> Any:
            return primitive.bind(*operands, **params)

        with core.set_current_trace(core.eval_trace):
            jaxpr = jax.make_jaxpr(call)(*avals)
        with told():
            program = prepare(jaxpr)

        def on_host(*values: Any) -> list[Any]:
            RUN.append(str(params["name"]))
            inputs = list(map(as_value, values, avals))
            machine = Machine(target=CHIP)
            with told(), np.errstate(all="ignore"):
                results = run(program, Thread(machine), inputs)
            _tell_races(machine)
            return list(map(as_array, results, jaxpr.out_avals))

        def implementation(*operands: Any) -> list[Any]:
            results = io_callback(
                on_host, list(map(wide, jaxpr.out_avals)), *map(to_wide, operands)
            )
            return list(map(from_wide, results, jaxpr.out_avals))

        lowered = mlir.lower_fun(implementation, multiple_results=True)(ctx, *nodes)
        if outer.tokens_in.effects():  # those of JAX's interpreter, which does not run
            outer.set_tokens_out(outer.tokens_in)
        return lowered

    for primitive in (calls.pallas_call_p, meshes.mpmd_map_p):
        mlir.register_lowering(primitive, functools.partial(lowering, primitive))


def _simulate_calls() -> None:
    """Simulate the whole of a jitted call whose kernels speak to other devices or other kernels.

    XLA cannot run these one by one: their semaphores and their memory outlive a kernel, and devices
    wait for each other.
    """
    import jax
    import numpy as np

    from pallas_sim.compat.jaxprs import open_jaxpr, semaphore_kind, sub_jaxprs
    from pallas_sim.errors import PallasError
    from pallas_sim.machine import Machine
    from pallas_sim.simulation import evaluate

    pjit: Any = importlib.import_module("jax._src.pjit")
    before = pjit._pjit_call_impl_python

    def equations(jaxpr: Any) -> Iterator[Any]:
        for eqn in jaxpr.eqns:
            yield eqn
            for inner in sub_jaxprs(eqn):
                yield from equations(inner)

    def outlives(eqn: Any) -> bool:
        atoms = (*eqn.invars, *eqn.outvars)
        kernel = eqn.primitive.name in ("pallas_call", "mpmd_map")
        return kernel and any(
            semaphore_kind(getattr(atom.aval, "dtype", None)) is not None for atom in atoms
        )

    def divides_kernels(eqn: Any) -> bool:
        """Whether devices run a kernel that may ask which of them it is on."""
        if eqn.primitive.name != "shard_map":
            return False
        return any(each.primitive.name == "mpmd_map" for each in equations(eqn.params["jaxpr"]))

    def called(*args: Any, jaxpr: Any, **params: Any) -> Any:
        """As ``_pjit_call_impl_python``, which gives results and what was compiled."""
        inner, _ = open_jaxpr(jaxpr)
        concrete = not any(isinstance(each, jax.core.Tracer) for each in args)
        alone = not any(
            reaches_devices(eqn) or outlives(eqn) or divides_kernels(eqn)
            for eqn in equations(inner)
        )
        if alone or not concrete:
            return before(*args, jaxpr=jaxpr, **params)
        RUN.append(str(params.get("name")))
        machine = Machine(target=CHIP)
        try:
            values = evaluate(jaxpr, machine, [np.asarray(each) for each in args])
        except PallasError as error:
            SAID.append(f"{type(error).__name__}: {error}")
            raise
        _tell_races(machine)
        shardings = _shardings(inner)
        arrays = [
            jax.device_put(value, shardings.get(var))
            for var, value in zip(inner.outvars, values, strict=True)
        ]
        return arrays, None, None, []

    pjit._pjit_call_impl_python = called


def _shardings(jaxpr: Any) -> dict[Any, Any]:
    """How the results of a program that ``shard_map`` gives are divided among devices."""
    import jax

    return {
        var: jax.sharding.NamedSharding(eqn.params["mesh"], spec)
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "shard_map" and isinstance(eqn.params["mesh"], jax.sharding.Mesh)
        for var, spec in zip(eqn.outvars, eqn.params["out_specs"], strict=True)
    }


def _tell_races(machine: Any) -> None:
    """Let the tests of interpreters that find races ask the simulator for them."""
    SAID.extend(map(str, machine.findings))
    races = any(finding.kind in ("race", "phase") for finding in machine.findings)
    state = types.SimpleNamespace(races_found=races)
    for name in ("mosaic", "mosaic_gpu"):
        module: Any = importlib.import_module(
            f"jax._src.pallas.{name}.interpret.interpret_pallas_call"
        )
        module.races = state
        module.get_races = lambda: state


def _memory_spaces_are_nothing() -> None:
    """Let a constraint on an array's memory space be compiled for the CPU."""
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    primitives: Any = importlib.import_module("jax._src.state.primitives")
    for name in ("with_memory_space_constraint_p", "pin_p", "unpin_p"):
        mlir.register_lowering(getattr(primitives, name), lambda ctx, x, **_: [x])


def _products_of_halves() -> None:
    """Let the CPU compile products of float16 that are summed in float32, as references ask for."""
    import jax
    import jax.numpy as jnp

    lax: Any = importlib.import_module("jax._src.lax.lax")
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    before = functools.partial(lax._dot_general_lower, platform="cpu")

    def lowering(ctx: Any, *nodes: Any, precision: Any, **params: Any) -> Any:
        if precision != jax.lax.DotAlgorithmPreset.F16_F16_F32:
            return before(ctx, *nodes, precision=precision, **params)
        [result] = ctx.avals_out

        def product(x: Any, y: Any) -> Any:
            wide = (each.astype(jnp.float32) for each in (x, y))
            found = jax.lax.dot_general(*wide, params["dimension_numbers"], precision="highest")
            return found.astype(result.dtype)

        return mlir.lower_fun(product, multiple_results=False)(ctx, *nodes)

    mlir.register_lowering(lax.dot_general_p, lowering, platform="cpu")


def _stand_for_a_chip() -> None:
    """Let tests and kernels find a chip."""
    from pallas_sim.chips import GPUS, TARGETS, attributes

    utilities: Any = importlib.import_module("jax._src.test_util")
    bridge = utilities.xla_bridge
    chip = TARGETS[CHIP]

    class Device:
        """The CPU that says it is a chip."""

        device_kind = chip.device_kind
        platform = PLATFORM
        num_cores = 1

        def __init__(self, device: Any) -> None:
            self._device = device
            vars(self).update(attributes(chip.name) if chip.name in GPUS else {})

        def __getattr__(self, name: str) -> Any:
            return getattr(self._device, name)

    class Client:
        """The CPU's client that says it is the chip's."""

        platform = PLATFORM
        platform_version = "cuda 13000" if PLATFORM == "gpu" else "tpu"

        def __getattr__(self, name: str) -> Any:
            return getattr(bridge.get_backend(), name)

    class Bridge(types.ModuleType):
        """``xla_bridge`` as the test utilities see it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bridge, name)

        def get_backend(self, *_: Any) -> Any:
            """The client of the chip."""
            return Client()

        def devices(self, *_: Any, **__: Any) -> Sequence[Any]:
            """The devices, each of which says it is the chip."""
            return [Device(device) for device in bridge.devices()]

        local_devices = devices

    if PLATFORM == "gpu":
        library: Any = importlib.import_module("jax._src.lib")
        known = dict(vars(library.cuda_versions)) if library.cuda_versions else {}
        known["cuda_supports_multicast"] = lambda *_: True
        library.cuda_versions = types.SimpleNamespace(**known)
    utilities.xla_bridge = Bridge("xla_bridge")
    utilities.device_under_test = lambda: PLATFORM


def pytest_configure(config: pytest.Config) -> None:
    """Put the simulator in place before any test file is imported."""
    del config
    sys.meta_path.append(_TestUtilities())
    _stand_in_for_old_options()
    _simulate_kernels()
    _simulate_calls()
    _memory_spaces_are_nothing()
    _products_of_halves()
    if DEVICE != "cpu":
        _stand_for_a_chip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a former process has done, and most cases of a test that has too many."""
    done = set(DONE.read_text().splitlines()) if DONE.exists() else set[str]()
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(re.sub(r"\d+$", "", item.nodeid), []).append(item)
    chosen: list[pytest.Item] = []
    for each in cases.values():
        share = max(1, -(-len(each) // CASES)) if CASES else 1
        chosen += each[::share]
    hypothesis.settings.register_profile(
        "jax_tests",
        parent=hypothesis.settings.get_profile("default"),
        database=None,
        deadline=None,
        derandomize=True,
        max_examples=min(hypothesis.settings().max_examples, EXAMPLES),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("jax_tests")
    items[:] = [item for item in chosen if _name(item) not in done]


def _name(item: pytest.Item) -> str:
    return item.nodeid.rpartition("/")[2].partition("::")[2]


def _write(**line: Any) -> None:
    with Path(os.environ["JAX_TESTS_RESULTS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        _write(collect=str(report.nodeid), text=str(report.longrepr)[-3000:])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Stop a test after a time, and note that it begins."""
    _write(start=_name(item))
    SAID.clear()
    RUN.clear()

    def stop(*_: Any) -> None:
        raise TimeoutError(f"the test takes more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let kernels find the chip."""
    del item
    if DEVICE == "cpu":
        yield
        return
    from pallas_sim.chips import TARGETS
    from pallas_sim.tracing import tracing_for

    with tracing_for(TARGETS[CHIP]):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Note the outcome of a test."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" or (report.when == "setup" and not report.passed):
        text, where = "", ""
        if call.excinfo is not None:
            text = "\n".join([*SAID, str(call.excinfo.value)])
            where = f"{Path(str(call.excinfo.traceback[-1].path)).name}"
        _write(
            name=_name(item),
            outcome=report.outcome,
            error=call.excinfo.typename if call.excinfo is not None else "",
            text=text[:3000],
            where=where,
            kernels=len(RUN),
            seconds=round(call.duration, 2),
        )
