"""The platform of a kernel that does not say it: Mosaic GPU kernels run on the simulated GPU."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pallas_sim.tracing import tracing_for
from pytest_pallas.analysis import KernelCall
from pytest_pallas.analysis.limits import is_mosaic_gpu
from pytest_pallas.backends import DEFAULT_TARGETS, TARGETS, Backend, Call, RunSettings, label
from pytest_pallas.backends.kernel_traces import kernels_of
from pytest_pallas.bindings.backends import on_claimed_chips
from pytest_pallas.session import Session, SpecFacts
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments


def on_its_platform(
    session: Session, spec: KernelSpec, facts: SpecFacts | None = None
) -> KernelSpec:
    """The spec, with ``kernel={"gpu": ...}`` if its plain function is a Mosaic GPU kernel.

    One call is drawn and traced, unless the facts say it already. A spec that names backends or
    meshes stays as it is, and so does every spec if only backends for TPUs were named.
    """
    if isinstance(spec.kernel, Mapping) or spec.backends is not None or spec.meshes:
        return spec
    if not session.selection.automatic and all(
        each.platform != "gpu" for each in session.selection.backends
    ):
        return spec
    facts = facts or SpecFacts()
    if facts.is_for_gpus is None and not facts.closed:
        facts.is_for_gpus = _draws_for_gpus(spec, session.options.timeout)
    if not facts.is_for_gpus:
        return spec
    return dataclasses.replace(spec, kernel={"gpu": spec.kernel})


def _draws_for_gpus(spec: KernelSpec, timeout: float) -> bool:
    """Whether a drawn call of a spec's plain function has Mosaic GPU kernels only."""
    from pytest_pallas.strategies.once import draw_once

    try:
        drawn = draw_once(spec.inputs)
    except Exception:  # an error of the strategy, which the item will raise, too
        return False
    return _is_for_gpus(spec.kernel, drawn, timeout)


def backend_of_call(
    session: Session, backend: Backend, function: Any, arguments: Arguments
) -> Backend:
    """The backend for a call of a function: the simulated GPU for a Mosaic GPU kernel.

    A backend that was named stays, and so does every one but the simulated TPU.
    """
    instead = _other_simulators(session, backend)
    if not instead or backend.platform != "tpu":
        return backend
    is_for_gpus = _is_for_gpus(function, arguments, session.options.timeout)
    return instead[0] if is_for_gpus else backend


def backend_of_spec(session: Session, backend: Backend, spec: KernelSpec) -> Backend:
    """The backend for a spec that claims no chip of the given one: another simulator, if it may.

    A backend that was named stays.
    """
    found, _ = on_claimed_chips(
        session,
        spec,
        [backend, *_other_simulators(session, backend)],
        session.selection.automatic,
    )
    return next((each for each in found if spec.claims(label(each))), found[0])


def _other_simulators(session: Session, backend: Backend) -> Sequence[Backend]:
    """The simulators of other platforms that ``auto`` selected beside this one; () if named."""
    if backend.kind != "simulating" or getattr(backend, "otherwise", None) is None:
        return ()
    return [
        each
        for each in session.selection.backends
        if each.kind == "simulating"
        and each.platform != backend.platform
        and label(each) in session.selection.automatic
    ]


def _is_for_gpus(function: Any, arguments: Arguments, timeout: float) -> bool:
    """Whether a call has kernels, and all are Mosaic GPU kernels."""
    call = Call(
        function=function,
        args=arguments.args,
        options={**arguments.options, **arguments.tuning},
        settings=RunSettings(timeout=timeout),
    )
    kernels = _traced(call, "tpu")
    if kernels is None:  # some kernels ask for what only a GPU has
        kernels = _traced(call, "gpu")
    return bool(kernels) and all(map(is_mosaic_gpu, kernels))


def _traced(call: Call, platform: str) -> Sequence[KernelCall] | None:
    chip = TARGETS[DEFAULT_TARGETS[platform]]
    return kernels_of(call, functools.partial(tracing_for, chip))
