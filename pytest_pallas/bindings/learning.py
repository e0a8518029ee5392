"""Learn tiles for dims that a spec's strategy does not specify, from the trace of a probe."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pallas_sim.tracing import tracing_for
from pytest_pallas.analysis.tiles import tiles_of
from pytest_pallas.backends import DEFAULT_TARGETS, TARGETS, Call, RunSettings
from pytest_pallas.backends.kernel_traces import kernels_of
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.once import draw_once
from pytest_pallas.strategies.sizes.learned import around, probing

#: Time limit in seconds for the trace of a probe, which is larger than draws.
SECONDS = 5.0


def adapted(session: Session, spec: KernelSpec, mesh: Any, sizes: Mapping[str, int]) -> Any:
    """The strategy of a spec, with draws around the kernel's blocks for unspecified dims.

    Args:
      session: caches the learned tiles.
      spec: the spec.
      mesh: the ``jax.sharding.Mesh`` to run on, or None.
      sizes: of the mesh, by axis.
    """
    inputs: Any = spec.inputs
    strategy = inputs if mesh is None else inputs(mesh)
    key = (spec.file, spec.name, *sizes.items())
    facts = session.facts.get((spec.file, spec.name))
    if facts is not None and facts.fault:
        return strategy  # its trace did not end at collection
    if key not in session.tiles:
        session.tiles[key] = learned(spec, strategy, mesh)
    return around(strategy, session.tiles[key])


def learned(spec: KernelSpec, strategy: Any, mesh: Any) -> dict[str, tuple[int, ...]]:
    """The blocks of a spec's kernels along the dims that its strategy does not specify.

    Empty if the strategy specifies all dims, computes with drawn values, or the kernel cannot be
    traced with large sizes.
    """
    with probing() as probe:
        try:
            drawn = draw_once(strategy)
        except Exception:  # an error of the strategy with abstract arrays
            return {}
    found: dict[str, set[int]] = {}
    for platform in _platforms(spec) if probe.sizes else ():
        kernel = spec.kernel_for(platform)
        call = Call(
            function=kernel if mesh is None else functools.partial(kernel, mesh=mesh),
            args=drawn.args,
            options={**drawn.options, **drawn.tuning},
            settings=RunSettings(timeout=SECONDS),
        )
        chip = TARGETS[DEFAULT_TARGETS[platform]]
        kernels = kernels_of(call, functools.partial(tracing_for, chip)) or ()
        for name, tiles in tiles_of(kernels, probe.sizes).items():
            found.setdefault(name, set()).update(tiles)
    return {name: tuple(sorted(tiles)) for name, tiles in found.items()}


def _platforms(spec: KernelSpec) -> tuple[str, ...]:
    """The platforms that the kernels of a spec are written for."""
    return tuple(spec.kernel) if isinstance(spec.kernel, Mapping) else ("tpu",)
