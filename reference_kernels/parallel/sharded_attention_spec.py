"""Spec of ``sharded_attention``."""

from __future__ import annotations

import itertools
from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.parallel.sharded_attention import reference, sharded_attention

_AXES = ("batch_axis", "head_axis", "sequence_axis")


def _divisions(mesh: jax.sharding.Mesh) -> list[dict[str, str]]:
    """All ways to divide two of the sizes, or the one that there is, over the axes of a mesh."""
    names = mesh.axis_names
    return [
        dict(zip(chosen, names, strict=True))
        for chosen in itertools.permutations(_AXES, len(names))
    ]


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    def drawn(axes: dict[str, str]) -> Any:
        b, g, n = (mesh.shape[axes[axis]] if axis in axes else 1 for axis in _AXES)
        return pst.arguments(
            pst.arrays(
                f"b h q d, b g k d, b g k e; h = g*r, q = {n}*i, k = {n}*j",
                dtype=pst.floats("bfloat16", "float32"),
                # With 8 keys, a device sees none and calls no kernel, for which the others wait on
                # tpu-interpret: it begins a call on all devices together.
                dims={"b": b, "g": g, "r": 2, "i": 17, "j": [9, 17], "d": 40, "e": 24},
            ),
            options={"causal": st.booleans(), **axes},
            tuning={"block_q": 16, "block_kv": 16},
        )

    return st.sampled_from(_divisions(mesh)).flatmap(drawn)


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"b": 4, "h": 32, "g": 8, "q": 4096, "k": 4096, "d": 128, "e": 128}

    def divided(axes: dict[str, str]) -> pst.Arguments:
        options = {"causal": True, **axes}
        return pst.shaped("b h q d, b g k d, b g k e", dtype="bfloat16", dims=dims, options=options)

    # A sequence over two devices only: a program has a kernel for each, and three in a gradient.
    small = [axes for axes in _divisions(mesh) if mesh.shape.get(axes.get("sequence_axis"), 1) < 4]
    return tuple(map(divided, small))


SPEC = KernelSpec(
    name="sharded_attention",
    kernel=sharded_attention,
    reference=reference,
    inputs=_inputs,
    meshes="x y",  # along either axis
    differentiable=(0, 1, 2),
    vmappable=False,
    relations=(
        Linear(2),
        Permuted({0: 0, 1: 0, 2: 0}, output=0),
        Permuted({1: 2, 2: 2}, when=_is_not_causal),
    ),
    typical=_typical,
)
