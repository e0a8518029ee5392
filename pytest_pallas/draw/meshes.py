"""Meshes that a spec runs on: of one size, or with axes whose sizes each example draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

#: Numbers of devices that are drawn along an axis. One neighbour is everybody on two devices, and
#: two are on three; 6 is no power of two. They are also those of a whole mesh of such axes.
DEVICES = (2, 3, 4, 6, 8)

#: Numbers of which an example with either is enough, with the label for both.
_LARGE = {6: "6 or 8", 8: "6 or 8"}

#: What a spec may say: the names of axes, or the size or the sizes of each.
type Axes = str | Mapping[str, int | Collection[int]]

#: The axes of a mesh, each with its size, or with the sizes of which each example draws one.
type MeshAxes = Mapping[str, int | tuple[int, ...]]


def mesh_axes(meshes: Any) -> Any:
    """Return the ``MeshAxes`` of all meshes of a spec; what cannot be used stays as it is."""
    if isinstance(meshes, str | Mapping):
        meshes = (meshes,)
    return tuple(map(_mesh_axes, meshes)) if isinstance(meshes, Sequence) else meshes


def _mesh_axes(axes: Any) -> Any:
    if isinstance(axes, str):
        return dict.fromkeys(axes.split(), DEVICES)
    if not isinstance(axes, Mapping):
        return axes
    named: Mapping[Any, Any] = axes
    return {
        name: tuple(sizes) if isinstance(sizes, Collection) else sizes
        for name, sizes in named.items()
    }


def problem_with_meshes(meshes: Any) -> str | None:
    """Say what is wrong with what ``mesh_axes`` returned, or None."""
    several: Sequence[Any] = meshes if isinstance(meshes, tuple) else [meshes]
    for axes in several:
        if not isinstance(axes, Mapping) or not axes or not all(map(_is_size, axes.values())):
            return (
                'meshes must be names of axes, such as "x" or "x y", or their sizes, such as '
                f'{{"x": 4}} or {{"x": (2, 4, 8)}}, or several of these, not {axes!r:.80}'
            )
    names = list(map(place_of, several))
    twice = next((axes for axes in several if names.count(place_of(axes)) > 1), None)
    if twice is not None:
        return f"meshes has the axes {', '.join(twice)} twice: put their sizes into one entry"
    return None


def _is_size(sizes: Any) -> bool:
    """Return whether these are the sizes of an axis: a number, or several."""
    if isinstance(sizes, tuple):
        several: tuple[Any, ...] = sizes
        return bool(several) and all(isinstance(size, int) and size > 0 for size in several)
    return isinstance(sizes, int)


def is_drawn(axes: MeshAxes) -> bool:
    """Return whether each example draws its mesh, rather than all having one."""
    return any(isinstance(sizes, tuple) for sizes in axes.values())


def fixed_sizes(axes: MeshAxes) -> dict[str, int]:
    """Return the sizes of a mesh; empty if it is drawn."""
    sizes = {name: size for name, size in axes.items() if isinstance(size, int)}
    return {} if is_drawn(axes) else sizes


def sizes_of(axes: MeshAxes) -> list[dict[str, int]]:
    """Return the sizes of all meshes that axes stand for, from the fewest devices."""
    several = [sizes if isinstance(sizes, tuple) else (sizes,) for sizes in axes.values()]
    most = max(DEVICES) if all(sizes == DEVICES for sizes in several) else math.inf
    products = sorted(itertools.product(*several), key=lambda sizes: (math.prod(sizes), sizes))
    return [dict(zip(axes, sizes, strict=True)) for sizes in products if math.prod(sizes) <= most]


def labels_of(axes: MeshAxes, meshes: Sequence[Mapping[str, int]]) -> dict[str, dict[int, str]]:
    """Return for each axis the word of each size that meshes have: ``3``, ``6 or 8``."""
    return {
        name: {
            mesh[name]: (_LARGE if _are_usual(sizes) else {}).get(mesh[name], str(mesh[name]))
            for mesh in meshes
        }
        for name, sizes in axes.items()
    }


def _are_usual(sizes: int | tuple[int, ...]) -> bool:
    """Return whether these are ``DEVICES``, with or without 1."""
    return isinstance(sizes, tuple) and tuple(size for size in sizes if size > 1) == DEVICES


def examples_for(axes: MeshAxes, meshes: Sequence[Mapping[str, int]]) -> int:
    """Return the number of examples that have each word of each axis, drawn from meshes."""
    labels = labels_of(axes, meshes)
    left = {(name, word) for name, sizes in labels.items() for word in sizes.values()}
    of_mesh = [{(name, labels[name][size]) for name, size in mesh.items()} for mesh in meshes]
    count = 0
    while left:
        left -= max(of_mesh, key=lambda pairs: len(pairs & left))
        count += 1
    return count


def place_of(axes: MeshAxes) -> str:
    """Return the part of a test's name for its mesh: ``-x4``, or ``-x`` if that is drawn."""
    return "".join(f"-{name}{size if isinstance(size, int) else ''}" for name, size in axes.items())
