"""Checks: one module a question. Importing this package does not import jax."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from pytest_pallas.checks.check import Check, Program

if TYPE_CHECKING:
    from pytest_pallas.backends import Backend
    from pytest_pallas.checks.trial import Finding, Trial
    from pytest_pallas.spec import KernelSpec
    from pytest_pallas.strategies.arguments import Arguments


def _from(module: str) -> Callable[[Trial], Finding]:
    """The function that a module of this package is named after, imported when it is called."""

    def run(trial: Trial) -> Finding:
        return pkgutil.resolve_name(f"{__name__}.{module}:{module}")(trial)

    return run


def _anticipate(trial: Trial) -> None:
    pkgutil.resolve_name(f"{__name__}.trial:anticipate")(trial)


def _program(module: str) -> Callable[[Trial], Program]:
    """The function ``program`` of a module of this package, imported when it is called."""

    def program(trial: Trial) -> Program:
        return pkgutil.resolve_name(f"{__name__}.{module}:program")(trial)

    return program


def _nothing(spec: KernelSpec) -> str | None:
    del spec
    return None


def _differentiable(spec: KernelSpec) -> str | None:
    return None if spec.differentiable else "the spec names no differentiable arguments"


def _vmappable(spec: KernelSpec) -> str | None:
    if spec.meshes:
        return "the kernel runs on a mesh, and vmap of its shard_map is not promised"
    return None if spec.vmappable else "the spec says that the kernel is not vmappable"


def _exportable(spec: KernelSpec) -> str | None:
    if spec.meshes:
        return "the kernel runs on a mesh, and what is exported is called on one device"
    return None


def _tuned(spec: KernelSpec) -> str | None:
    return pkgutil.resolve_name(f"{__name__}.blocks:untuned")(spec)


def _shardable(spec: KernelSpec) -> str | None:
    return None if spec.batch_axes else "the spec names no batch_axes"


def _declares(relation: str) -> Callable[[KernelSpec], str | None]:
    """A need of a relation of some class."""

    def needs(spec: KernelSpec) -> str | None:
        if any(type(each).__name__ == relation for each in spec.relations):
            return None
        return f"the spec declares no {relation} among its relations"

    return needs


def _subjects(module: str) -> Callable[[KernelSpec, Arguments], Collection[Any]]:
    """The function ``subjects`` of a module of this package, imported when it is called."""

    def subjects(spec: KernelSpec, arguments: Arguments) -> Collection[Any]:
        return pkgutil.resolve_name(f"{__name__}.{module}:subjects")(spec.relations, arguments)

    return subjects


def _comparable(spec: KernelSpec, others: Sequence[Backend]) -> str | None:
    if others or spec.implementations:
        return None
    return (
        "the spec names no other implementations, and claims no other chosen backend that executes "
        "it and comes before"
    )


def _exported_on(backend: Backend) -> str | None:
    return pkgutil.resolve_name(f"{__name__}.export:on")(backend)


def _analyzed_on(backend: Backend) -> str | None:
    return pkgutil.resolve_name(f"{__name__}.grid:on")(backend)


def _strength(trial: Trial) -> Finding:
    return pkgutil.resolve_name(f"{__name__}.strength:oracle_strength")(trial)


def _strong(evidence: Sequence[Any]) -> str | None:
    return pkgutil.resolve_name(f"{__name__}.strength:conclude")(evidence)


#: The checks of this package, in the order in which they run.
CHECKS: tuple[Check, ...] = (
    Check(
        name="forward",
        asks="is the answer as close to the oracle as the jnp baseline's?",
        run=_from("forward"),
        prepare=_anticipate,
        program=_program("forward"),
        needs=_nothing,
    ),
    Check(
        name="gradient",
        asks="is the reverse mode that of the reference?",
        run=_from("gradient"),
        program=_program("gradient"),
        needs=_differentiable,
        share=0.5,
    ),
    Check(
        name="vmap",
        asks="does the batched kernel equal the stacked results?",
        run=_from("vmap"),
        program=_program("vmap"),
        needs=_vmappable,
        share=0.25,
    ),
    Check(
        name="determinism",
        asks="does the same call give the same bits again?",
        run=_from("determinism"),
        needs=_nothing,
        share=0.5,
    ),
    Check(
        name="immutability",
        asks="are the inputs left alone?",
        run=_from("immutability"),
        needs=_nothing,
        share=0.25,
    ),
    Check(
        name="dtype",
        asks="does it return the dtypes, shapes and pytree of the reference?",
        run=_from("dtype"),
        needs=_nothing,
    ),
    Check(
        name="jit",
        asks="is the answer without jax.jit as good as with it?",
        run=_from("jit"),
        needs=_nothing,
        share=0.125,
    ),
    Check(
        name="export",
        asks="does it survive jax.export, to the bit?",
        run=_from("export"),
        needs=_exportable,
        on=_exported_on,
        share=0.125,
    ),
    Check(
        name="blocks",
        asks="is the answer with the default tuning as good as with the drawn one?",
        run=_from("blocks"),
        needs=_tuned,
        share=0.125,
    ),
    Check(
        name="sharding",
        asks="is it the same under shard_map on 1, 2, 4 and 8 devices?",
        run=_from("sharding"),
        needs=_shardable,
        share=0.125,
    ),
    Check(
        name="linearity",
        asks="does it scale and add with the arguments in which it is linear?",
        run=_from("linearity"),
        needs=_declares("Linear"),
        subjects=_subjects("linearity"),
        share=0.25,
    ),
    Check(
        name="permutation",
        asks="does permuting arguments permute the answer, or leave it alone?",
        run=_from("permutation"),
        needs=_declares("Permuted"),
        subjects=_subjects("permutation"),
        share=0.25,
    ),
    Check(
        name="relation",
        asks="do the spec's own relations between two answers hold?",
        run=_from("relation"),
        needs=_declares("Relation"),
        subjects=_subjects("relation"),
        share=0.25,
    ),
    Check(
        name="cross",
        asks="do backends and other implementations agree with each other?",
        run=_from("cross"),
        needs=_nothing,
        against=_comparable,
        share=0.25,
    ),
    Check(
        name="padding",
        asks="does nothing change with what lies beyond the edge, or is ignored?",
        run=_from("padding"),
        needs=_nothing,
        share=0.5,
    ),
    Check(
        name="grid",
        asks="is every block written, once, in order, within its array, and masked at its edge?",
        run=_from("grid"),
        needs=_nothing,
        on=_analyzed_on,
        share=0.5,
    ),
    Check(
        name="oracle-strength",
        asks="do the spec's tolerance and data reject answers that are wrong?",
        run=_strength,
        needs=_nothing,
        share=0.5,
        conclude=_strong,
        least=4,
    ),
)

__all__ = ["CHECKS", "Check"]
