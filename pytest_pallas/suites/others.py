"""What a spec can be compared with besides its oracle: other backends, other implementations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from pytest_pallas.backends import Backend, label
from pytest_pallas.errors import TooFewDevicesError
from pytest_pallas.spec import KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.checks.trial import Other
    from pytest_pallas.suites.item import SpecItem


def backends_before(
    spec: KernelSpec, backend: Backend, chosen: Sequence[Backend], checks: Collection[str]
) -> tuple[Backend, ...]:
    """The chosen backends before ``backend`` that execute the kernel: each pair is asked once.

    Those are left out on which one of ``checks`` is expected to fail, and so are all if one is on
    this backend: an answer there says nothing.
    """
    if _expected_to_fail(spec, backend, checks):
        return ()
    before = chosen[: [label(each) for each in chosen].index(label(backend))]
    executing = [each for each in before if each.kind != "compiling" and spec.claims(label(each))]
    return tuple(each for each in executing if not _expected_to_fail(spec, each, checks))


def others_of(item: SpecItem) -> tuple[Other, ...]:
    """What an item's kernel is compared with. A backend of too few devices is left out."""
    from pytest_pallas.checks.trial import Other

    spec = item.spec
    backends: list[Other] = []
    for backend in item.before:
        with contextlib.suppress(TooFewDevicesError):
            function = _on_mesh(item, backend, spec.kernel_for(backend.platform))
            backends.append(Other(name=label(backend), function=function, backend=backend))
    implementations = [
        Other(
            name=name,
            function=_on_mesh(item, item.backend, function),
            backend=item.backend,
            is_kernel=False,
        )
        for name, function in spec.implementations.items()
    ]
    return (*backends, *implementations)


def _on_mesh(item: SpecItem, backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    if not item.mesh:
        return function
    from pytest_pallas.devices.mesh import make_mesh

    platform = backend.platform if backend.kind == "hardware" else "cpu"
    return functools.partial(function, mesh=make_mesh(item.mesh, platform))


def _expected_to_fail(spec: KernelSpec, backend: Backend, checks: Collection[str]) -> bool:
    """Whether one of some checks is expected to fail on a backend."""
    for key in (label(backend), backend.name):
        failure = spec.xfail.get(key)
        if failure is not None and (not failure.checks or {*checks} & {*failure.checks}):
            return True
    return False
