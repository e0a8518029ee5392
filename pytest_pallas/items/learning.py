"""Sizes to draw for a spec whose strategies say nothing about them: read off a probed trace."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pytest_pallas.analysis.tiles import tiles_of
from pytest_pallas.backends import DEFAULT_TARGETS, TARGETS, Call, RunSettings
from pytest_pallas.devices.absent import tracing_for
from pytest_pallas.items.tracing import kernels_of
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.once import draw_once
from pytest_pallas.strategies.sizes.learned import around, probing

#: Seconds that tracing a probe may take: it is larger than what is drawn.
SECONDS = 5.0


def adapted(session: Session, spec: KernelSpec, mesh: Any, sizes: Mapping[str, int]) -> Any:
    """The strategy of a spec, drawing around the blocks of its kernel where it says no sizes.

    Args:
      session: which keeps what was learned.
      spec: the spec.
      mesh: the ``jax.sharding.Mesh`` to run on, or None.
      sizes: of the mesh, by axis.
    """
    inputs: Any = spec.inputs
    strategy = inputs if mesh is None else inputs(mesh)
    key = (spec.file, spec.name, *sizes.items())
    if key not in session.tiles:
        session.tiles[key] = learned(spec, strategy, mesh)
    return around(strategy, session.tiles[key])


def learned(spec: KernelSpec, strategy: Any, mesh: Any) -> dict[str, tuple[int, ...]]:
    """The blocks of a spec's kernels along the dims whose sizes its strategy does not say.

    Nothing where the strategy says all, where it computes with what it drew, or where the kernel
    cannot be traced with large sizes.
    """
    with probing() as probe:
        try:
            drawn = draw_once(strategy)
        except Exception:  # of the strategy, which met abstract arrays
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
