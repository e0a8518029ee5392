"""Validation of a spec: draws once, without running the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pallas_sim.errors import PallasError
from pytest_pallas import relations
from pytest_pallas.backends import Label
from pytest_pallas.bindings.contexts import lacks_mesh, misfit
from pytest_pallas.checks import Check
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments


def problem_with(spec: KernelSpec, checks: Mapping[str, Check], families: object) -> str | None:
    """The reason why a spec cannot be verified, or None.

    Args:
      spec: the spec.
      checks: the checks that exist, by name.
      families: the names of the backends that exist.
    """
    unknown = [name for name in spec.checks or () if name not in checks]
    if unknown:
        return f"unknown checks {unknown}; valid: {', '.join(checks)}"
    known = {*_names(families), "tpu-compile", "gpu-compile"}
    unknown = [name for name in _families_of((*spec.claimed, *spec.xfail)) if name not in known]
    if unknown:
        return f"unknown backends {unknown}; valid: {', '.join(sorted(known))}"
    if spec.meshes:
        return None  # its strategy needs the mesh, and a mesh needs JAX to start
    from pytest_pallas.strategies.once import draw_once

    try:
        arguments = draw_once(spec.inputs)
    except PallasError as error:
        return str(error)
    except Exception as error:
        return f"its inputs strategy raised {type(error).__name__}: {error}"
    axes = spec.batch_axes
    if axes and len(axes) != len(arguments.args):
        return (
            f"batch_axes has {len(axes)} entries, but its inputs draw {len(arguments.args)} "
            "positional arguments; give one for each, None for an argument that is not split"
        )
    problem = None if spec.ignored is None else _ignored(spec.ignored, arguments)
    if problem is not None:
        return problem
    problem = relations.problem_with(spec.relations, len(arguments.args))
    if problem:
        return problem
    kernels = spec.kernel.values() if isinstance(spec.kernel, Mapping) else (spec.kernel,)
    for kernel in kernels:
        problem = _unbound(kernel, arguments, {**arguments.options, **arguments.tuning}, "kernel")
        if problem:
            return problem
    return _unbound(spec.reference, arguments, dict(arguments.options), "reference")


def _ignored(ignored: Callable[..., Any], arguments: Arguments) -> str | None:
    from pytest_pallas.checks.ignored import masks_of

    try:
        masks_of(ignored, arguments)
    except PallasError as error:
        return str(error)
    return None


def _unbound(
    function: Callable[..., Any], arguments: Arguments, keywords: Mapping[str, Any], role: str
) -> str | None:
    problem = misfit(function, arguments.args, keywords)
    if problem is None:
        return None
    if lacks_mesh(function, arguments.args, keywords):
        return (
            f"the {role} needs mesh=, and the spec has no meshes: give it the sizes of its axes, "
            'such as meshes=({"x": 4},), and inputs=lambda mesh: ... for a strategy'
        )
    words = ", ".join(keywords) or "no keywords"
    return (
        f"its inputs draw {len(arguments.args)} positional arguments and {words}, but these do not "
        f"fit the {role}: {problem}"
    )


def _names(families: Any) -> list[str]:
    return list(families)


def _families_of(labels: Iterable[str]) -> list[str]:
    return [Label.of(text).name for text in labels]
