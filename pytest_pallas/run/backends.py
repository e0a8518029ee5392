"""The backends of a spec, and the peers that it is compared with."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Label
from pallas_sim.traces import equations_inside
from pallas_sim.tracing import tracing_for
from pytest_pallas.backends.protocol import Backend, Call, RunSettings, label
from pytest_pallas.backends.registry import REPLACED, parse, with_target
from pytest_pallas.backends.tracing import kernels_of
from pytest_pallas.draw.arguments import Arguments, on_meshes
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.draw.covering import Goal
from pytest_pallas.draw.dims import STEP, around, probing
from pytest_pallas.draw.examples import ExampleSource
from pytest_pallas.draw.meshes import MeshAxes, fixed_sizes, is_drawn
from pytest_pallas.draw.signatures import inputs_on_meshes
from pytest_pallas.errors import BackendUnavailableError, TooFewDevicesError
from pytest_pallas.fixture_types import Peers
from pytest_pallas.grid.kernel_calls import (
    KernelCall,
    buffers_of,
    is_for_gpus,
    tiles_of,
)
from pytest_pallas.grid.ranges import NarrowValue, narrow_values
from pytest_pallas.session import Session, SpecFacts
from pytest_pallas.spec import ExpectedFailure, KernelSpec

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pytest_pallas.checks import Check
    from pytest_pallas.checks.context import ComparisonPeer


def backends_before(
    spec: KernelSpec, backend: Backend, chosen: Sequence[Backend], checks: Sequence[Check]
) -> tuple[Backend, ...]:
    """Return the selected backends before ``backend`` that execute the kernel; each pair runs once.

    Backends on which one of ``checks`` is expected to fail are left out; if one is expected to fail
    on this backend, all are left out.
    """
    if _expected_to_fail(spec, backend, checks):
        return ()
    before = chosen[: list(map(label, chosen)).index(label(backend))]
    return tuple(
        other
        for other in before
        if other.kind != "compiling"
        and spec.claims(label(other))
        and not _expected_to_fail(spec, other, checks)
    )


def others_of(
    spec: KernelSpec, backend: Backend, sizes: Mapping[str, int], before: Sequence[Backend]
) -> tuple[ComparisonPeer, ...]:
    """Return the peers of a kernel on a backend, without backends that have too few devices.

    Args:
      spec: the spec.
      backend: where the kernel runs.
      sizes: of the mesh to run on, by axis; empty without one.
      before: the backends to compare with.
    """
    from pytest_pallas.checks.context import ComparisonPeer

    backends: list[ComparisonPeer] = []
    for other in before:
        with contextlib.suppress(TooFewDevicesError):
            function = on_mesh(sizes, other, spec.kernel_for(other.platform))
            backends.append(ComparisonPeer(name=label(other), function=function, backend=other))
    return (*backends, *implementations_of(spec.implementations, backend, sizes))


def implementations_of(
    functions: Mapping[str, Callable[..., Any]], backend: Backend, sizes: Mapping[str, int]
) -> Sequence[ComparisonPeer]:
    """Return the peers of a kernel that are other implementations; see ``others_of``."""
    from pytest_pallas.checks.context import ComparisonPeer

    return [
        ComparisonPeer(
            name=name,
            function=on_mesh(sizes, backend, function),
            backend=backend,
            is_kernel=False,
        )
        for name, function in functions.items()
    ]


def peers_of(
    session: Session, kernel: Callable[..., Any], peers: Peers, sizes: Mapping[str, int]
) -> Sequence[ComparisonPeer]:
    """Return the backends to compare with.

    Raises:
      OptionError: an unknown name.
      BackendUnavailableError: it cannot be had here, or executes nothing.
    """
    __tracebackhide__ = True
    from pytest_pallas.checks.context import ComparisonPeer

    known: list[ComparisonPeer] = []
    for name in [peers] if isinstance(peers, str) else peers:
        function = peers[name] if isinstance(peers, Mapping) else kernel
        for backend in parse(name, session.families):
            missing = backend.available()
            if missing is None and backend.kind == "compiling":
                missing = "it executes nothing"
            if missing is not None:
                raise BackendUnavailableError(f"peers=: {label(backend)}: {missing}")
            made = on_mesh(sizes, backend, function)
            known.append(ComparisonPeer(name=label(backend), function=made, backend=backend))
    return known


def on_mesh(
    sizes: Mapping[str, int], backend: Backend, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function on a mesh of a backend's devices; the function itself without sizes."""
    return functools.partial(function, mesh=mesh_on(backend, sizes)) if sizes else function


def mesh_on(backend: Backend, sizes: Mapping[str, int]) -> Mesh:
    """Return a mesh of a backend's devices, simulated or hardware.

    Raises:
      TooFewDevicesError: there are fewer devices.
    """
    from pytest_pallas.backends.devices import make_mesh

    return make_mesh(sizes, _platform(backend))


def _platform(backend: Backend) -> str:
    """Return the platform of a backend's devices; that of simulated ones is the CPU."""
    return backend.platform if backend.kind == "hardware" else "cpu"


def mesh_or_skip(session: Session, backend: Backend, sizes: Mapping[str, int]) -> Mesh:
    """``mesh_on``; too few devices skip the test, or fail it (``--pallas-missing``).

    Raises:
      TooFewDevicesError: there are fewer, and no test is running or it must not be skipped.
    """
    try:
        return mesh_on(backend, sizes)
    except TooFewDevicesError as error:
        _skip_too_few(session, error)
        raise


def _skip_too_few(session: Session, error: TooFewDevicesError) -> None:
    """Skip the running test, unless that must not be skipped."""
    if session.item is not None and session.options_for(session.item).missing != "error":
        pytest.skip(str(error))


def _expected_to_fail(spec: KernelSpec, backend: Backend, checks: Sequence[Check]) -> bool:
    """Return whether one of some checks is expected to fail on a backend itself."""
    return any(expected_failure(spec, backend, check, inherits=False) for check in checks)


def expected_failure(
    spec: KernelSpec, backend: Backend, check: Check, *, inherits: bool = True
) -> ExpectedFailure | None:
    """Return the expected failure of a spec for a backend and check, by label first, then by name.

    Hardware ``inherits`` those of its simulator, unless these say otherwise.
    """
    own = (label(backend), backend.name)
    simulated = tuple(key.replace(backend.name, f"{backend.platform}-sim", 1) for key in own)
    for key in (*own, *(simulated if inherits and backend.kind == "hardware" else ())):
        failure = spec.xfail.get(key)
        if failure is None or not failure.covers(check.name, executes=check.executes):
            continue
        if key in own or failure.hardware:
            return failure
    return None


def on_claimed_chips(
    session: Session, spec: KernelSpec, backends: Sequence[Backend], automatic: Collection[str]
) -> tuple[Sequence[Backend], Collection[str]]:
    """Return the backends of a spec, with each simulator for a chip that the spec claims.

    A simulator without a target is for the default chip of its platform. For a spec that claims
    only other chips, such as a kernel for Blackwell, it is for the first of them.

    Args:
      session: has the families of backends.
      spec: the spec.
      backends: the selected backends.
      automatic: labels of those that were not named; see ``Selection``.

    Returns:
      The backends, and the labels of those that were not named.
    """
    chosen: dict[str, Backend] = {}
    unnamed = set(automatic)
    for selected in backends:
        backend, name = selected, label(selected)
        if backend.kind == "simulating" and backend.target is None and not spec.claims(name):
            labels = map(Label.of, spec.claimed)
            chips = [chip.target for chip in labels if chip.name == backend.name and chip.target]
            if chips:
                backend = with_target(backend, chips[0], session.families)
                if name in automatic:
                    unnamed.add(label(backend))
        chosen.setdefault(label(backend), backend)
    return tuple(chosen.values()), unnamed


def without_replaced(
    facts: SpecFacts,
    spec: KernelSpec,
    backends: Sequence[Backend],
    automatic: Container[str],
    timeout: float,
) -> tuple[Backend, ...]:
    """Return the selected backends that run a spec.

    With ``auto``, a simulator replaces the interpreters of its platform for a spec that it can
    simulate, and they replace it for others. Named backends are kept.

    Args:
      facts: has the results.
      spec: the spec.
      backends: the selected backends.
      automatic: labels of those that were not named; see ``Selection``.
      timeout: time limit in seconds of a trace.
    """
    dropped: set[str] = set()
    unnamed = [backend for backend in backends if label(backend) in automatic]
    for backend in unnamed:
        if backend.kind == "simulating":
            simulated = spec.claims(label(backend)) and lacks(facts, spec, backend, timeout) is None
            dropped.update(REPLACED.get(backend.name, ()) if simulated else (backend.name,))
    return tuple(
        backend for backend in backends if backend not in unnamed or backend.name not in dropped
    )


def lacks(facts: SpecFacts, spec: KernelSpec, simulator: Any, timeout: float) -> str | None:
    """Say why the simulator cannot run a spec, or None. One call is drawn and traced."""
    name = label(simulator)
    if name not in facts.lacks:
        if facts.closed:
            return None
        facts.lacks[name] = _lacks(spec, simulator, timeout)
    return facts.lacks[name]


def _lacks(spec: KernelSpec, simulator: Any, timeout: float) -> str | None:
    if spec.meshes:
        return None  # a call on a mesh shows this only when it runs
    try:
        drawn = draw_once(spec.inputs)
        return simulator.lacks(call_of(spec.kernel_for(simulator.platform), drawn, timeout))
    except Exception:
        return None  # its checks will raise and report the same error


# The platform of a kernel whose spec does not say it: those for GPUs run on the simulated GPU.


def on_its_platform(
    session: Session, spec: KernelSpec, facts: SpecFacts | None = None
) -> KernelSpec:
    """Return the spec, with ``kernel={"gpu": ...}`` if its plain function is a kernel for GPUs.

    One call is drawn and traced, unless the facts say it already. A spec that names backends or
    meshes stays as it is, and so does every spec if only backends for TPUs were named.
    """
    if isinstance(spec.kernel, Mapping) or spec.backends is not None or spec.meshes:
        return spec
    if not session.selection.automatic and all(
        backend.platform != "gpu" for backend in session.selection.backends
    ):
        return spec
    facts = facts or SpecFacts()
    if facts.is_for_gpus is None and not facts.closed:
        facts.is_for_gpus = _draws_for_gpus(spec, session.options.timeout)
    if not facts.is_for_gpus:
        return spec
    return dataclasses.replace(spec, kernel={"gpu": spec.kernel})


def with_named(spec: KernelSpec, backend: Backend, names: Collection[str]) -> KernelSpec:
    """Return the spec for a backend on which checks are named: a compiler decides what it batches.

    Where ``vmap`` is not named, it leaves out kernels that JAX is known to make no batch of.
    """
    if backend.kind != "compiling" or spec.vmappable is not None:
        return spec
    named = "vmap" in {*names, *(spec.checks or ())}
    return dataclasses.replace(spec, vmappable=True) if named else spec


def _draws_for_gpus(spec: KernelSpec, timeout: float) -> bool:
    """Return whether a drawn call of a spec's plain function has kernels for GPUs only."""
    try:
        drawn = draw_once(spec.inputs)
    except Exception:  # an error of the strategy, which the item will raise, too
        return False
    return _is_for_gpus(spec.kernel, drawn, timeout)


def backend_of_call(
    session: Session, backend: Backend, function: Any, arguments: Arguments
) -> Backend:
    """Return the backend for a call of a function: the simulated GPU for a kernel for GPUs.

    A backend that was named stays, and so does every one but the simulated TPU.
    """
    instead = _other_simulators(session, backend)
    if not instead or backend.platform != "tpu":
        return backend
    other = _is_for_gpus(function, arguments, session.options.timeout)
    return instead[0] if other else backend


def backend_of_spec(session: Session, backend: Backend, spec: KernelSpec) -> Backend:
    """Return the backend for a spec: another simulator if it claims no chip of this one.

    A backend that was named stays.
    """
    simulators = [backend, *_other_simulators(session, backend)]
    chosen, _ = on_claimed_chips(session, spec, simulators, session.selection.automatic)
    return next((simulator for simulator in chosen if spec.claims(label(simulator))), chosen[0])


def _other_simulators(session: Session, backend: Backend) -> Sequence[Backend]:
    """Return the simulators of other platforms that ``auto`` selected; () if this one is named."""
    if backend.kind != "simulating" or getattr(backend, "otherwise", None) is None:
        return ()
    return [
        other
        for other in session.selection.backends
        if other.kind == "simulating"
        and other.platform != backend.platform
        and label(other) in session.selection.automatic
    ]


def _is_for_gpus(function: Any, arguments: Arguments, timeout: float) -> bool:
    """Return whether a call has kernels, and all are for GPUs."""
    call = call_of(function, arguments, timeout)
    kernels = _traced(call, "tpu")
    if kernels is None:  # some kernels ask for what only a GPU has
        kernels = _traced(call, "gpu")
    return bool(kernels) and all(map(is_for_gpus, kernels))


def call_of(
    function: Callable[..., Any], arguments: Arguments, timeout: float, *, jit: bool = True
) -> Call:
    """Make the call of a function with drawn arguments, to trace it within some seconds."""
    return Call(
        function=function,
        args=arguments.args,
        options={**arguments.options, **arguments.tuning},
        settings=RunSettings(timeout=timeout, jit=jit),
    )


def _traced(call: Call, platform: str) -> Sequence[KernelCall] | None:
    chip = TARGETS[DEFAULT_TARGETS[platform]]
    return kernels_of(call, functools.partial(tracing_for, chip))


# Learn useful sizes from the kernel: tiles for dims that a spec's strategy does not specify, from
# the trace of a probe, and how many buffers the kernel uses in turns.


#: Time limit in seconds for the trace of a probe, which is larger than draws.
SECONDS = 5.0


def run_on(
    session: Session, backend: Backend, spec: KernelSpec, axes: MeshAxes, *, skips: bool = True
) -> dict[str, Any]:
    """Return the fields of a ``CheckRun`` for a mesh, or for meshes that are drawn.

    With ``skips``, too few devices skip the test, or fail it (``--pallas-missing``).

    Raises:
      TooFewDevicesError: there are fewer devices than the smallest mesh has.
      SpecError: there are no inputs for any of the meshes.
    """
    try:
        if is_drawn(axes):
            return {"axes": axes, "meshes": inputs_on(session, backend, spec, axes)}
        return {"axes": axes, "mesh": mesh_on(backend, fixed_sizes(axes)) if axes else None}
    except TooFewDevicesError as error:
        if skips:
            _skip_too_few(session, error)
        raise


def inputs_on(
    session: Session, backend: Backend, spec: KernelSpec, axes: MeshAxes
) -> Sequence[tuple[Mesh, Any]]:
    """Return the meshes that a spec draws on a backend: ``inputs_on_meshes``, once."""
    key = (spec.file, spec.name, _platform(backend), *axes.items())
    if key not in session.meshes:
        session.meshes[key] = inputs_on_meshes(spec, axes, _platform(backend))
    return session.meshes[key]


def adapted(
    session: Session, spec: KernelSpec, axes: MeshAxes, meshes: Sequence[tuple[Mesh | None, Any]]
) -> Any:
    """Return the strategy of a spec, with draws around the kernel's blocks, which may grow.

    Args:
      session: caches what was learned.
      spec: the spec.
      axes: of the mesh to run on; empty without one.
      meshes: the mesh, or all that are drawn, each with the strategy of its calls.
    """
    key = (spec.file, spec.name, *axes.items())
    facts = session.facts.get((spec.file, spec.name))
    traced = facts is None or not facts.fault  # otherwise its trace did not end at collection
    if traced and key not in session.tiles:
        mesh, strategy = meshes[0]
        session.tiles[key] = learned(spec, strategy, mesh)
    if traced:
        tiles, _, long = session.tiles[key]
        strategies = [around(strategy, tiles, long) for _, strategy in meshes]
    else:
        strategies = [strategy for _, strategy in meshes]
    if not is_drawn(axes):
        return strategies[0]
    sizes = (dict(mesh.shape) for mesh, _ in meshes if mesh is not None)
    return on_meshes(axes, list(zip(sizes, strategies, strict=True)))


def learned(
    spec: KernelSpec, strategy: Any, mesh: Any
) -> tuple[dict[str, tuple[int, ...]], int, tuple[str, int] | None]:
    """Return what the traces of a spec's kernels say about useful sizes.

    Returns:
      Their blocks along the dims that the strategy does not specify, also with other tuning: none
      if it specifies all dims, computes with drawn values, or the kernel cannot be traced with
      large sizes. And how many buffers they use in turns: 0 if no dim has tiles. And a dim with a
      size that 16 bits do not count, or None.
    """
    with probing() as probe:
        try:
            drawn = draw_once(strategy)
            tuned = _tuned(strategy) if probe.sizes else []
        except Exception:  # an error of the strategy with abstract arrays
            return {}, 0, None
    if not probe.sizes:
        declared = draw_once(strategy).declared  # which abstract arrays lack
        if declared is None or not declared.tiles:
            return {}, 0, None
    blocks: dict[str, set[int]] = {}
    depth = equations = 0
    platforms = tuple(spec.kernel) if isinstance(spec.kernel, Mapping) else ("tpu",)
    for platform in platforms:
        kernel = spec.kernel_for(platform)
        function = kernel if mesh is None else functools.partial(kernel, mesh=mesh)
        kernels = _traced(call_of(function, drawn, SECONDS), platform) or ()
        for name, tiles in tiles_of(kernels, probe.sizes).items():
            blocks.setdefault(name, set()).update(tiles)
        sizes = () if mesh is None else tuple(mesh.shape.values())
        depth = max([depth, *(buffers_of(kernel, sizes) for kernel in kernels)])
        equations += _count_equations(kernels)
        for other in tuned:
            kernels = _traced(call_of(function, other, SECONDS), platform) or ()
            for name, tiles in tiles_of(kernels, probe.sizes).items():
                # Of many tiles, the largest counts: each one more has six sizes.
                known = blocks.setdefault(name, set())
                known.update((max(tiles),) if max(tiles) > max(known, default=0) else ())
    sorted_blocks = {name: tuple(sorted(tiles)) for name, tiles in blocks.items()}
    long = None if mesh is not None else _long_dim(spec, strategy, sorted_blocks, equations)
    return sorted_blocks, depth, long


#: Up to so many parameters of tuning, a kernel is also traced with the last value of each.
_TUNED = 4


def _tuned(strategy: Any) -> list[Any]:
    """Return draws with the last value of each tuning parameter, as far as they are known."""
    source = ExampleSource(strategy)
    _, covering = source.aimed(0, Goal({}, {}))
    goals = [
        Goal({}, {aspect: [*labels][-1]})
        for aspect, labels in covering.domain.items()
        if aspect.role == "tuning"
    ]
    draws = (source.aimed(0, goal)[0] for goal in goals[:_TUNED])
    return [drawn for drawn in draws if drawn is not None]


#: A kernel with a long axis may have so many programs, and no loop: then it takes milliseconds.
_FEW_PROGRAMS = 80


#: And so many equations at most: a Python loop over an axis makes some for each round.
_FEW_EQUATIONS = 4000


#: Sizes with which a position that a kernel computes in 8 or 16 bits may wrap around, also as a
#: multiple; and so many programs may compute it.
_WRAPPING, _MORE_PROGRAMS = tuple(1 << bits for bits in range(4, 13)), 600


def _long_dim(
    spec: KernelSpec, strategy: Any, tiles: Mapping[str, tuple[int, ...]], probed: int
) -> tuple[str, int] | None:
    """Return the last dim that is cheap to draw so long that 16 bits are too few, if there is one.

    Too few for the positions that the kernel computes, or where it computes none in narrow
    integers, for the axis itself.

    Args:
      spec: what is drawn for.
      strategy: its inputs.
      tiles: by dim.
      probed: how many equations the kernels have with large sizes.

    Returns:
      The dim, and a size that it exceeds.
    """
    try:
        drawn = draw_once(around(strategy, tiles))
        kernels = [kernel for traced in _traces(spec, drawn) for kernel in traced]
    except Exception:  # an error of the strategy or the kernel
        return None
    more = probed - _count_equations(kernels)
    is_narrow = any(low < high for low, high in (v.range for v in _positions(kernels)))
    lengths = [*(_WRAPPING if is_narrow else ()), 2**16]
    lengths = [length for length in lengths if more * length <= _FEW_EQUATIONS * STEP]
    names = list(drawn.declared.kinds if drawn.declared is not None else ())[: -_LONG_DIMS - 1 : -1]
    for name, length in product(names, lengths):
        try:
            drawn = draw_once(around(strategy, tiles, (name, length), stretches=True))
            if drawn.recipe.get(name, 0) <= length:
                continue
            traces = _traces(spec, drawn)
        except Exception:  # an error of the strategy or the kernel with such sizes
            continue
        kernels = [kernel for traced in traces for kernel in traced]
        if length < 2**16:
            few = all(_programs(kernel) <= _MORE_PROGRAMS for kernel in kernels)
            suits = few and not all(value.fits for value in _positions(kernels))
        else:
            suits = all(traces) and all(map(_is_cheap, kernels))
        if suits:
            return name, length
    return None


def _positions(kernels: Sequence[KernelCall]) -> list[NarrowValue]:
    """Return the positions that kernels compute in integers of 8 and 16 bits."""
    known = [(kernel, kernel.facts.grid) for kernel in kernels if kernel.facts is not None]
    return [value for kernel, grid in known for value in narrow_values(kernel, grid)]


def _programs(kernel: KernelCall) -> float:
    return math.inf if kernel.facts is None else math.prod(n or math.inf for n in kernel.facts.grid)


def _traces(spec: KernelSpec, drawn: Arguments) -> list[Sequence[KernelCall]]:
    """Return the kernels of a spec for some inputs, by platform."""
    return [
        _traced(call_of(spec.kernel_for(platform), drawn, SECONDS), platform) or ()
        for platform in (spec.kernel if isinstance(spec.kernel, Mapping) else ("tpu",))
    ]


def _count_equations(kernels: Sequence[KernelCall]) -> int:
    return sum(1 for kernel in kernels for _ in equations_inside(kernel.eqn))


#: So many dims are tried.
_LONG_DIMS = 2


#: So many elements of a block are few enough for every chip: a TPU has several such blocks, Triton
#: refuses larger ones. A row takes whole registers of a TPU, of 128 lanes.
_SMALL_BLOCK, _LANES = 2**19, 128


def _is_cheap(kernel: KernelCall) -> bool:
    facts, loops = kernel.facts, {"while", "scan"}
    if facts is None or _programs(kernel) > _FEW_PROGRAMS:
        return False
    operands = (*facts.inputs, *facts.outputs)
    shapes = ([size or 1 for _, size, _ in block.dims] for block in operands)
    sizes = (
        math.prod((*shape[:-1], -(-shape[-1] // _LANES) * _LANES)) for shape in shapes if shape
    )
    small = max(sizes, default=0) <= _SMALL_BLOCK
    return small and not kernel.asynchronous and loops.isdisjoint(kernel.primitives)
