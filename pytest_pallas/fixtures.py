"""The fixtures. All have module scope, because hypothesis refuses function scope under @given."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    import numpy as np
    from jax.sharding import Mesh

    from pytest_pallas.backends.protocol import Backend, Outcome
    from pytest_pallas.candidates.verdicts import Report
    from pytest_pallas.compile.service import CompileReport
    from pytest_pallas.fixture_types import (
        PallasBenchmark,
        PallasCheck,
        PallasCompile,
        PallasMesh,
        PallasRun,
        PallasVerify,
    )
    from pytest_pallas.pytest_session import PytestSession
    from pytest_pallas.spec import KernelSpec


def activate(config: pytest.Config) -> None:
    """Register the rest of the plugin, ``active``, for the rest of the session.

    It is imported by its name, because it imports this module.
    """
    name = "pallas-active"
    if not config.pluginmanager.has_plugin(name):
        active = importlib.import_module("pytest_pallas.active")
        config.pluginmanager.register(active.KernelTests(config), name)


def current(config: pytest.Config) -> PytestSession:
    """Return the session; activate the plugin on first use."""
    activate(config)
    from pytest_pallas.pytest_session import current

    return current(config)


@pytest.fixture(scope="module")
def pallas_backend(request: pytest.FixtureRequest) -> Backend:
    """The backend of this test; the test runs once for each that was chosen.

    Chosen by --pallas-backend, or for one test by @pytest.mark.pallas(backends=[...]). Override it
    in a conftest.py to choose for a folder; the override may return a name.

    A method of a unittest.TestCase, and a test that asks for a fixture by request.getfixturevalue,
    cannot be repeated: they get the first of the chosen backends, and pallas_check checks on each.
    """
    if hasattr(request, "param"):
        return request.param
    session = current(request.config)
    session.unrepeated = _chosen(session)[0]
    return session.unrepeated


@pytest.fixture(scope="module")
def pallas_run(pallas_backend: Backend | str, request: pytest.FixtureRequest) -> PallasRun:
    """Run a kernel on the backend: ``pallas_run(fn, *args, **options)`` gives numpy arrays.

    Whatever the kernel says about interpret= is overruled. Keyword arguments are passed on,
    untraced; options= and tuning= are mappings of more of them, as pallas_check takes them, and one
    Arguments stands for all of a call. What the kernel raises is raised. A compiling backend has no
    arrays to give: the kernel is compiled there, and the rest of the test skipped.
    """
    session = current(request.config)
    [backend, *_] = _backends(pallas_backend, session)

    def run(
        function: Callable[..., Any],
        /,
        *args: Any,
        options: Mapping[str, Any] | None = None,
        tuning: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Any:
        __tracebackhide__ = True
        from pytest_pallas.backends.protocol import Call, label
        from pytest_pallas.checks.context import as_kernel_error
        from pytest_pallas.run.call_arguments import arguments_to_run, once_in_a_test
        from pytest_pallas.run.check_run import name_of

        arguments = arguments_to_run(function, args, keywords, options=options, tuning=tuning)
        call = Call(
            function=function,
            args=arguments.args,
            options=arguments.options,
            settings=session.settings(session.options_for(session.item), backend),
        )
        session.note_run(name_of(function), backend, lambda: call)

        def run_call() -> Outcome:
            __tracebackhide__ = True
            outcome = backend.run(call)
            if outcome.error is not None:
                raise as_kernel_error(outcome.error)
            return outcome

        outcome = once_in_a_test(session, name_of(function), arguments, run_call)
        if backend.kind == "compiling":
            pytest.skip(f"{name_of(function)} compiled; {label(backend)} executes nothing")
        return outcome.values

    return run


@pytest.fixture(scope="module")
def pallas_check(pallas_backend: Backend | str, request: pytest.FixtureRequest) -> PallasCheck:
    """Verify a kernel against its reference: ``pallas_check(fn, *args, reference=jnp_fn)``.

    The kernel's error against the reference in float64 may be at most twice that of the
    reference in the kernel's own dtypes, plus a few ulps. Keyword arguments:

    reference=   the same function in jnp; needed.
    options=     keyword arguments for both, such as {"causal": True}.
    tuning=      keyword arguments for the kernel only, such as {"block_m": 64}.
    mesh=        a Mesh or its sizes, such as {"x": 4}; both get it as mesh=.
    checks=      names of the checks to make; by default the mark's, or forward. "all" leaves out
                 oracle-strength, unless it is named: one call shows little. It leaves out what does
                 not apply; sanitizers are among them, as --pallas-sanitize says.
    exact=       True: small integers held in floats must give a bitwise equal answer. A number:
                 integers up to that size.
    differentiable=  positions of arguments, for the gradient check.
    tolerance=   a Tolerance, a number (rtol and atol), {"rtol": 1e-3}, or a mapping from dtype
                 and backend to one of these.
    peers=       backends to compare with, for the cross check, such as ["interpret"].
    claimed=     for grid, the backends that the kernel is written for; see KernelSpec.
    deterministic=  False: two right runs may differ in their last bits.
    nan_ok=      True: NaN is a right answer for finite inputs.
    check_dtype= False: the kernel may return other dtypes than the reference.
    jit=         False: call the kernel as it is; it needs the values of its arguments.
    name=        what to call the kernel in reports.
    batch_axes=, relations=, implementations=, ignored=, raises=  as in KernelSpec.

    Returns what the kernel returned, as numpy arrays; on a compiling backend, where the kernel is
    compiled for the shapes of the arguments and nothing is executed, the CompileReport.

    ``pallas_check(SPEC)`` verifies a KernelSpec: every check that applies, on the examples that its
    items draw. ``pallas_check(SPEC, *args)`` asks its checks about one call, which may also be one
    that its strategy drew, and returns what the kernel returned. Both take checks= and, where the
    spec has meshes, mesh={"x": 4} or a Mesh; a call also options= and tuning=. The spec says
    everything else. On a backend that it does not claim the test is skipped.
    """
    session = current(request.config)

    def check(
        kernel: Callable[..., Any] | KernelSpec,
        /,
        *args: Any,
        reference: Callable[..., Any] | None = None,
        **keywords: Any,
    ) -> Any:
        __tracebackhide__ = True
        from pytest_pallas.run.calls import check_kernel

        answers = [
            check_kernel(session, backend, kernel, args, reference, keywords)
            for backend in _backends(pallas_backend, session)
        ]
        return answers[0]

    # pyright takes an unpacked TypedDict for the type of every other keyword.
    return cast("PallasCheck", check)


@pytest.fixture
def pallas_benchmark(
    pallas_backend: Backend | str, request: pytest.FixtureRequest
) -> PallasBenchmark:
    """Time a kernel by pytest-benchmark: ``pallas_benchmark(fn, *args, baseline=jnp_fn)``.

    Each round is one call of what was compiled before, with its arrays on the device, until its
    answer is there. Keyword arguments:

    baseline=    the same function in jnp, timed beside it, jitted, without its own entry.
    options=     keyword arguments of both, such as {"causal": True}.
    tuning=      keyword arguments of the kernel only.
    rounds=      how many calls are timed (10).
    warmup=      how many calls are made before (3).

    ``extra_info`` of the benchmark gets the backend, ``device_seconds`` (by JAX's profiler, on an
    accelerator), ``baseline_seconds``, ``baseline_device_seconds`` and ``times_baseline``. Returns
    what the kernel returned, as numpy arrays. Needs the extra ``benchmark``; on a compiling backend
    the test is skipped.
    """
    session = current(request.config)
    [backend, *_] = _backends(pallas_backend, session)
    if not request.config.pluginmanager.has_plugin("benchmark"):
        from pallas_sim.errors import OptionError

        raise OptionError(
            "pallas_benchmark needs pytest-benchmark: pip install 'pytest-pallas[benchmark]'"
        )

    def measure(
        function: Callable[..., Any],
        /,
        *args: Any,
        baseline: Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        tuning: Mapping[str, Any] | None = None,
        rounds: int = 10,
        warmup: int = 3,
    ) -> Any:
        __tracebackhide__ = True
        from pytest_pallas.backends.execution import to_numpy
        from pytest_pallas.backends.hardware import prepared, times
        from pytest_pallas.backends.protocol import Call, label

        if backend.kind == "compiling":
            pytest.skip(f"{label(backend)} executes nothing that could be timed")
        plain = dict(options or {})
        info: dict[str, Any] = {"backend": label(backend)}
        call = Call(function=function, args=args, options={**plain, **(tuning or {})})
        with prepared(backend, call) as run:
            # Not before: it warns of tests that end without it.
            benchmark: Any = request.getfixturevalue("benchmark")
            values = benchmark.pedantic(run, rounds=rounds, warmup_rounds=warmup)
            mine = times(run, rounds)
        info["device_seconds"] = mine.device
        if baseline is not None:
            call = Call(function=baseline, args=args, options=plain, needs_kernel=False)
            with prepared(backend, call) as run:
                for _ in range(warmup):
                    run()
                theirs = times(run, rounds)
            info["baseline_seconds"] = theirs.wall
            info["baseline_device_seconds"] = theirs.device
            info["times_baseline"] = mine.over(theirs)
        benchmark.extra_info.update(info)
        return to_numpy(values)

    return measure


@pytest.fixture(scope="module")
def pallas_compile(request: pytest.FixtureRequest) -> PallasCompile:
    """Compile a kernel for a chip: ``pallas_compile(fn, *args, target="v6e")``.

    Whatever --pallas-backend says: a test of what the machine code costs needs no other. Arguments
    may be jax.ShapeDtypeStruct. Keyword arguments:

    target=      the chip: v4, v5e, v5p, v6e, tpu7x, a100, h100, h200 or b200; needed.
    options=     keyword arguments of the kernel, such as {"causal": True}.
    name=        what to call the kernel in reports.

    Returns a CompileReport; its numbers are documented in docs/compiling.md. Raises CompileError
    if the compiler refuses the kernel. Without the compiler the test is skipped, or fails under
    --pallas-missing=error.
    """
    session = current(request.config)

    def compile_(
        function: Callable[..., Any],
        /,
        *args: Any,
        target: str,
        options: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> CompileReport:
        __tracebackhide__ = True
        from pallas_sim.chips import TARGETS
        from pytest_pallas.backends.registry import parse
        from pytest_pallas.draw.arguments import Arguments
        from pytest_pallas.run.check_run import check_run, name_of, run_example

        if target not in TARGETS:
            from pallas_sim.errors import OptionError

            raise OptionError(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
        [backend] = parse(f"{TARGETS[target].platform}-compile:{target}", session.families)
        missing = backend.available()
        if missing is not None:
            if session.options_for(session.item).missing == "error":
                from pytest_pallas.errors import BackendUnavailableError

                raise BackendUnavailableError(f"{target} cannot be compiled for: {missing}")
            pytest.skip(f"{target} cannot be compiled for: {missing}")
        run = check_run(session, backend, function, name=name or name_of(function))
        result = run_example(run, Arguments(args, dict(options or {})))
        assert result is not None
        assert result.outcome is not None
        return result.outcome.report

    return compile_


@pytest.fixture(scope="module")
def pallas_mesh(pallas_backend: Backend | str, request: pytest.FixtureRequest) -> PallasMesh:
    """Make a mesh: ``pallas_mesh(x=2, y=4)`` over simulated devices or the backend's hardware.

    Without arguments, the mesh of the test's mark, @pytest.mark.pallas_mesh(x=4). With too few
    devices the test is skipped, or fails under --pallas-missing=error.
    """
    session = current(request.config)
    [backend, *_] = _backends(pallas_backend, session)

    def mesh(**axes: int) -> Mesh:
        __tracebackhide__ = True
        from pytest_pallas.run.backends import mesh_or_skip

        if not axes and session.item is not None:
            mark = session.item.get_closest_marker("pallas_mesh")
            axes = dict(mark.kwargs) if mark is not None else {}
        return mesh_or_skip(session, backend, axes)

    return mesh


@pytest.fixture(scope="module")
def pallas_devices(pallas_backend: Backend | str, request: pytest.FixtureRequest) -> list[Any]:
    """The devices of the backend: simulated ones (--pallas-devices=N), or the hardware's."""
    import jax

    [backend, *_] = _backends(pallas_backend, current(request.config))
    return jax.devices(backend.platform if backend.kind == "hardware" else "cpu")


@pytest.fixture(scope="module")
def pallas_rng(request: pytest.FixtureRequest) -> Iterator[np.random.Generator]:
    """A numpy generator that starts anew in each test, from --pallas-seed and the test's name."""
    import numpy as np

    generator = np.random.Generator(np.random.Philox(0))
    session = current(request.config)
    session.generators.append(generator)
    reseed(session)
    yield generator
    session.generators.remove(generator)


def reseed(session: PytestSession) -> None:
    """Start the generators of ``pallas_rng`` anew for the test that begins."""
    if not session.generators or session.item is None:
        return
    import numpy as np

    # The parameters are left out: every backend sees the same draws.
    name = session.item.nodeid.partition("[")[0]
    seed = session.options_for(session.item).seed
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    fresh = np.random.Philox(int.from_bytes(digest))
    for generator in session.generators:
        generator.bit_generator.state = fresh.state


def _backends(value: Backend | str, session: PytestSession) -> Sequence[Backend]:
    """Return the backend that the fixture, or an override of it, gives to the running test.

    These are all chosen backends if the test could not be repeated for each.
    """
    __tracebackhide__ = True
    callspec: Any = getattr(session.item, "callspec", None)
    repeated = callspec is not None and "pallas_backend" in callspec.params
    if value is session.unrepeated and not repeated:
        return _chosen(session)
    if not isinstance(value, str):
        return (value,)
    from pytest_pallas.backends.registry import parse

    backends = parse(value, session.families)
    if len(backends) != 1:
        from pallas_sim.errors import OptionError

        raise OptionError(f"pallas_backend must return one backend, and {value!r} means several")
    reason = backends[0].available()
    if reason is not None:
        pytest.skip(f"{value}: {reason}")
    return backends


def _chosen(session: PytestSession) -> Sequence[Backend]:
    """Return the backends that were chosen for the running test; skip it if there is none."""
    marks = [] if session.item is None else list(session.item.iter_markers("pallas"))
    backends, reason = session.backends_for(marks)
    if not backends:
        pytest.skip(f"no backend for this test: {reason}")
    return backends


@pytest.fixture(scope="module")
def pallas_verify(request: pytest.FixtureRequest) -> PallasVerify:
    """Judge somebody else's kernel: ``pallas_verify("file.py:fn", reference, "m k, k n")``.

    Its code runs in a sandboxed process only. The arguments are those of ``pytest_pallas.verify``;
    the seed is that of the run unless it is given. The test fails with the report, unless the
    candidate passes.
    """
    session = current(request.config)

    def verified(kernel: Any, /, *args: Any, **options: Any) -> Report:
        __tracebackhide__ = True
        from pytest_pallas.candidates.judge import verify

        report = verify(kernel, *args, **{"seed": session.options.seed, **options})
        if not report.passed:
            pytest.fail(str(report), pytrace=False)
        return report

    return verified
