"""What JAX's TPU interpreter lacks, run by rules of our own: all of them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_pallas.compat.jaxprs import sub_jaxprs
from pytest_pallas.compat.sparse_core import is_sparse_core_mesh


@contextmanager
def missing_operations() -> Generator[None]:
    """Let the TPU interpreter run what its own cases lack, from SparseCores to random numbers."""
    from pytest_pallas.compat.equations import interpreted_by
    from pytest_pallas.compat.reaching import reaching_rule

    with interpreted_by(lambda eqn, ctx: _rule(eqn) or reaching_rule(eqn, ctx)):
        yield


def simulated_parts(kernel: Any) -> Iterator[str]:
    """What a kernel's equation needs that is run by rules of our own: meshes and primitives."""
    for mesh in kernel.params.get("meshes", ()):
        if is_sparse_core_mesh(mesh):
            yield type(mesh).__name__
    for body in sub_jaxprs(kernel):
        yield from _operations(body)


def _operations(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        if _rule(eqn):
            yield eqn.primitive.name
        for inner in sub_jaxprs(eqn):
            yield from _operations(inner)


def _rule(eqn: Any) -> Any:
    from pytest_pallas.compat.allocating import allocating_rule
    from pytest_pallas.compat.generators import generator_rule
    from pytest_pallas.compat.semaphores import semaphore_rule
    from pytest_pallas.compat.subcores import subcore_rule

    for rule in (subcore_rule, allocating_rule, generator_rule, semaphore_rule):
        if found := rule(eqn):
            return found
    return None
