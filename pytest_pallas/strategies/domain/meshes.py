"""``device_meshes``: over how many devices a kernel runs, and in which arrangement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.sizes.pools import check_int


def device_meshes(
    axes: str | Sequence[str],
    *,
    devices: Collection[int] = (1, 2, 4, 8),
    divides: Mapping[str, int] | None = None,
) -> SearchStrategy[dict[str, int]]:
    """A strategy for the sizes of a mesh's axes, as ``KernelSpec.meshes`` takes them.

    Example::

        device_meshes("x y")                            # draws {"x": 1, "y": 1}, {"x": 4, "y": 2}
        device_meshes("x", divides={"x": 12})           # {"x": 1}, {"x": 2}, {"x": 4}
        device_meshes(["x"], devices=range(2, 9))       # collectives with an odd number, too

    It shrinks to the fewest devices, in the last axis.

    Args:
      axes: the names of the axes, in one string or several.
      devices: the numbers of devices that a mesh may have in all. More than one device needs
        ``--pallas-devices`` or hardware that has them.
      divides: for some axes the size of the dim that is spread over it: it must be a multiple.

    Draws dicts from axis to size.

    Raises:
      SpecError: an argument that cannot be used, or no mesh satisfies all.
    """
    given: Any = axes
    names = tuple(given.split() if isinstance(given, str) else given)
    if not names or not all(str(name).isidentifier() for name in names):
        raise SpecError(f"axes must name at least one axis, such as 'x y', not {axes!r}")
    if len(set(names)) < len(names):
        raise SpecError(f"axes: a name appears twice in {axes!r}; rename one")
    counts = {check_int("devices", count, 1) for count in devices}
    dims = dict(divides or {})
    for name, dim in dims.items():
        if name not in names:
            raise SpecError(f"divides: there is no axis {name!r}; valid: {', '.join(names)}")
        check_int(f"divides[{name!r}]", dim, 1)
    found = [
        sizes
        for sizes in itertools.product(_divisors(counts), repeat=len(names))
        if math.prod(sizes) in counts
        and all(dims.get(name, size) % size == 0 for name, size in zip(names, sizes, strict=True))
    ]
    if not found:
        raise SpecError(
            f"device_meshes: no mesh of {sorted(counts)} devices has axes {', '.join(names)} that "
            f"divide {dims}; allow other numbers of devices"
        )
    found.sort(key=lambda sizes: (math.prod(sizes), sizes))
    return st.sampled_from(found).map(lambda sizes: dict(zip(names, sizes, strict=True)))


def _divisors(counts: Collection[int]) -> list[int]:
    most = max(counts, default=0)
    return [size for size in range(1, most + 1) if any(count % size == 0 for count in counts)]
