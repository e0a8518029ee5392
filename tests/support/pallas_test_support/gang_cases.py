"""What the processes of ``gang_processes`` run: kernels over a mesh, right ones and wrong ones."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

import pytest_pallas
from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.backends.spreading import LocalShards


def _double(x_ref, out_ref):
    out_ref[...] = 2 * x_ref[...]


def double(x):
    return pl.pallas_call(_double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _sharded(function, mesh, out_specs, x):
    run = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=out_specs, check_vma=False)
    return run(x)


def doubled(x, *, mesh):
    """Every device doubles its rows."""
    return _sharded(double, mesh, P("x"), x)


def doubled_but_in_process_1(x, *, mesh):
    """The last row of process 1 is wrong."""

    def body(part):
        out = double(part)
        return out.at[-1, 3].add(0.5) if jax.process_index() == 1 else out

    return _sharded(body, mesh, P("x"), x)


def summed(x, *, mesh):
    """The sum of the doubled rows of all devices, on every device."""
    return _sharded(lambda part: jax.lax.psum(double(part), "x"), mesh, P(), x)


def summed_but_in_process_1(x, *, mesh):
    """In process 1 it is the own part only."""

    def body(part):
        out = jax.lax.psum(double(part), "x")
        return out + 1 if jax.process_index() == 1 else out

    return _sharded(body, mesh, P(), x)


def summed_but_on_device_3(x, *, mesh):
    """One copy of several in one process is wrong."""

    def body(part):
        out = jax.lax.psum(double(part), "x")
        return jnp.where(jax.lax.axis_index("x") == 3, out + 1, out)

    return _sharded(body, mesh, P(), x)


def gathered(x, *, mesh):
    body = lambda part: jax.lax.all_gather(double(part), "x", tiled=True)  # noqa: E731
    return _sharded(body, mesh, P(), x)


def raises_in_process_1(x, *, mesh):
    if jax.process_index() == 1:
        raise ValueError("no such tile here")
    return doubled(x, mesh=mesh)


def _to_the_right(x_ref, out_ref, send, receive):
    count = jax.lax.axis_size("x")
    right = jax.lax.rem(jax.lax.axis_index("x") + 1, count)
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id=right)
    copy.start()
    copy.wait()


def shifted(x, *, mesh):
    """Every device copies its rows to the next one."""

    def body(part):
        return pl.pallas_call(
            _to_the_right,
            out_shape=jax.ShapeDtypeStruct(part.shape, part.dtype),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        )(part)

    return _sharded(body, mesh, P("x"), x)


def reference(name: str, x, *, mesh):
    parts = 2 * x.reshape(mesh.size, -1, x.shape[-1])
    if name.startswith("summed"):
        return parts.sum(0)
    if name == "shifted":
        return jnp.roll(x, x.shape[0] // mesh.size, axis=0)
    return 2 * x


def rows(devices: int) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((devices * 8, 128)).astype(np.float32)


def check(name: str, backend: str = "interpret", **options: Any) -> Any:
    """``pytest_pallas.check`` of one of the functions above, over all devices."""
    x = rows(jax.device_count())
    named = functools.partial(reference, name)
    values = pytest_pallas.check(
        globals()[name],
        x,
        reference=lambda x, *, mesh: named(x, mesh=mesh),
        backend=backend,
        mesh={"x": jax.device_count()},
        **options,
    )
    return describe(values)


def check_with(name: str, options: dict[str, Any]) -> Any:
    return check(name, **options)


def describe(values: Any) -> Any:
    """What this process holds of an answer, as JSON."""
    if not hasattr(values, "shape"):
        return {"process": jax.process_index()}
    if not isinstance(values, LocalShards):
        return {"whole": list(values.shape), "process": jax.process_index()}
    return {
        "shape": list(values.shape),
        "shards": [
            [[part.start, part.stop] for part in shard.index] + [shard.device]
            for shard in values.shards
        ],
    }


def differentiable(x, *, mesh):
    """``doubled`` with a rule for its gradient."""

    @jax.custom_vjp
    def function(x):
        return doubled(x, mesh=mesh)

    function.defvjp(
        lambda x: (doubled(x, mesh=mesh), None), lambda _, ct: (doubled(ct, mesh=mesh),)
    )
    return function(x)


def wrong_gradient_in_process_1(x, *, mesh):
    @jax.custom_vjp
    def function(x):
        return doubled(x, mesh=mesh)

    wrong = doubled_but_in_process_1
    function.defvjp(lambda x: (doubled(x, mesh=mesh), None), lambda _, ct: (wrong(ct, mesh=mesh),))
    return function(x)


def leave_out_a_process() -> str:
    """The error of a mesh of processes 0 and 1, of four."""
    devices = [device for device in jax.devices() if device.process_index < 2]
    mesh = jax.sharding.Mesh(devices, "x")
    try:
        pytest_pallas.check(
            doubled,
            rows(2),
            reference=lambda x, *, mesh: 2 * x,
            backend="interpret",
            mesh=mesh,
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def own_devices() -> Any:
    """A kernel without a mesh."""
    x = rows(1)
    return describe(pytest_pallas.check(double, x, reference=lambda x: 2 * x, backend="interpret"))


def different_values() -> str:
    """Each process has other values of the same shape."""
    x = rows(jax.device_count()) + jax.process_index()
    try:
        pytest_pallas.check(
            doubled,
            x,
            reference=lambda x, *, mesh: 2 * x,
            backend="interpret",
            mesh={"x": jax.device_count()},
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def of_many_kinds(x, key, *, mesh):
    """Outputs that are spread, replicated, scalar and empty."""

    def body(part):
        return jax.lax.psum(double(part).sum(), "x")

    return {
        "spread": doubled(x + jax.random.normal(key, x.shape), mesh=mesh),
        "copies": summed(x, mesh=mesh),
        "scalar": _sharded(body, mesh, P(), x),
        "empty": _sharded(lambda part: double(part)[:0], mesh, P("x"), x),
        "other": double(x[:8]),  # XLA decides how it is spread
    }


def reference_of_many_kinds(x, key, *, mesh):
    return {
        "spread": 2 * (x + jax.random.normal(key, x.shape)),
        "copies": 2 * x.reshape(mesh.size, -1, x.shape[-1]).sum(0),
        "scalar": (2 * x).sum(),
        "empty": x[:0],
        "other": 2 * x[:8],
    }


def outputs_of_many_kinds() -> dict[str, list[int]]:
    """The whole shape of each, and for those that this process has whole, that it converts."""
    count = jax.device_count()
    values = pytest_pallas.check(
        of_many_kinds,
        rows(count),
        jax.random.key(3),
        reference=reference_of_many_kinds,
        backend="interpret",
        mesh={"x": count},
    )
    for name in ("copies", "scalar", "empty"):
        assert np.asarray(values[name]).shape == values[name].shape
    return {name: list(value.shape) for name, value in values.items()}


def spread_argument() -> Any:
    """``pallas_run`` takes an array that is spread already, and ``check`` refuses it."""
    from pytest_pallas.backends.interpreters import interpret
    from pytest_pallas.backends.protocol import Call

    mesh = make_mesh({"x": jax.device_count()}, "cpu")
    x = rows(jax.device_count())
    sharding = jax.sharding.NamedSharding(mesh, P("x"))
    spread = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    call = Call(function=functools.partial(doubled, mesh=mesh), args=(spread,))
    values = interpret().run(call).unwrap()
    for shard in values.shards:
        np.testing.assert_array_equal(shard.data, 2 * x[shard.index])
    try:
        pytest_pallas.check(double, spread, reference=lambda x: 2 * x, backend="interpret")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def collectives(dtype: str) -> dict[str, str]:
    """What JAX's collectives give over all devices, and "" where that is right."""
    count = jax.device_count()
    mesh = make_mesh({"x": count}, "cpu")
    x = (np.arange(count * count * 8 * 128).reshape(-1, 128) % 5).astype(dtype)
    parts = x.reshape(count, -1, 128)
    total = parts.astype(np.float64).sum(0)
    blocks = parts.reshape(count, count, -1, 128)
    ring = [(n, (n + 1) % count) for n in range(count)]
    cases = {
        "psum": (lambda p: jax.lax.psum(p, "x"), np.tile(total, (count, 1))),
        "psum_scatter": (lambda p: jax.lax.psum_scatter(p, "x", tiled=True), total),
        "all_gather": (lambda p: jax.lax.all_gather(p, "x", tiled=True), np.tile(x, (count, 1))),
        "all_to_all": (
            lambda p: jax.lax.all_to_all(p, "x", 0, 0, tiled=True),
            blocks.swapaxes(0, 1).reshape(-1, 128),
        ),
        "ppermute": (lambda p: jax.lax.ppermute(p, "x", ring), np.roll(parts, 1, 0)),
    }
    found: dict[str, str] = {}
    for name, (function, expected) in cases.items():
        run = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        placed = jax.make_array_from_callback(
            x.shape, jax.sharding.NamedSharding(mesh, P("x")), lambda index: x[index]
        )
        whole = np.asarray(expected, np.float64).reshape(-1, 128)
        out = jax.jit(run)(placed)
        right = all(
            np.array_equal(np.asarray(shard.data, np.float64), whole[shard.index])
            for shard in out.addressable_shards
        )
        found[name] = "" if right else "wrong"
    return found


def one_that_does_not_come() -> str:
    """Process 1 makes no call; process 0 waits as long as the time limit says."""
    if jax.process_index() == 1:
        return ""
    try:
        check("doubled", timeout=1.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def mesh_processes(axes: dict[str, int]) -> list[int]:
    """The process of each device of a mesh, in its order."""
    return [device.process_index for device in make_mesh(axes, "cpu").devices.flat]


def pytest_run(folder: str, *words: str) -> dict[str, Any]:
    """A session of pytest in this process: outcome and message of each test, and its records.

    In ``words``, ``{process}`` is the number of this process.
    """
    import contextlib
    import io
    import os
    import sys

    import pytest

    reports: list[Any] = []
    records: list[Any] = []

    class Recorder:
        def pytest_runtest_logreport(self, report):
            records.extend(getattr(report, "pallas_records", []))
            if report.when == "call" or report.outcome != "passed":
                reports.append(report)

        def pytest_collectreport(self, report):
            if report.failed:
                reports.append(report)

    os.chdir(folder)
    sys.path.insert(0, folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        own = [word.format(process=jax.process_index()) for word in words]
        code = pytest.main(["-q", "-p", "no:cacheprovider", *own], plugins=[Recorder()])
    sys.path.remove(folder)
    return {
        "code": int(code),
        "printed": printed.getvalue(),
        "tests": {
            report.nodeid.rpartition("::")[2]: [report.outcome, report.longreprtext]
            for report in reports
        },
        "records": records,
    }
