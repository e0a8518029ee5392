"""Spec of ``ragged_all_to_all``."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear
from reference_kernels._gaps import REACHING, without
from reference_kernels._mesh_spec import ENTERED, ONE_AXIS
from reference_kernels.collectives import _stacked
from reference_kernels.collectives.ragged_all_to_all import ragged_all_to_all_on_mesh, reference


@st.composite
def _inputs(draw: st.DrawFn, mesh: jax.sharding.Mesh) -> pst.Arguments:
    """Runs of rows from anywhere, which lie in any order and with gaps where they go."""
    axis_name = draw(st.sampled_from(mesh.axis_names))
    drawn = draw(
        pst.arrays(
            "devices m h d, devices l h d",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            # Few shapes, many sizes of runs: these are values, and nothing is compiled anew.
            dims={"devices": mesh.size, "m": 9, "l": 20, "h": [1, 2], "d": 5},
        )
    )
    rows, room = drawn[0].shape[1], drawn[1].shape[1]
    devices, runs = mesh.shape[axis_name], draw(st.sampled_from([1, 2]))
    others = mesh.size // devices
    shape = (devices, others, devices, runs)  # receiver, other devices, sender, run
    sizes = np.zeros(shape, np.int32)
    silent = draw(st.sampled_from([None, *range(devices)]))
    for receiver in range(devices):
        if receiver != silent:
            for other in range(others):
                groups = draw(pst.group_sizes(devices * runs, total=min(room, rows), around=4))
                sizes[receiver, other] = np.reshape(groups, (devices, runs))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    starts = rng.integers(0, rows - sizes + 1).astype(np.int32)
    places = np.zeros(shape, np.int32)
    for receiver, other in np.ndindex(devices, others):
        here = sizes[receiver, other].reshape(-1)
        order = rng.permutation(len(here))
        gap = rng.multinomial(room - here.sum(), np.full(len(here) + 1, 1 / (len(here) + 1)))[:-1]
        ends = np.cumsum(here[order] + gap)
        flat = np.zeros_like(here)
        flat[order] = ends - here[order]
        places[receiver, other] = flat.reshape(devices, runs)

    def by_sender(each: np.ndarray) -> np.ndarray:
        """(devices of the mesh, receivers and runs)."""
        grid = np.moveaxis(each, 2, 0).swapaxes(1, 2)  # sender, other devices, receiver, run
        return np.asarray(_stacked.by_device(grid.reshape(devices, others, -1), mesh, axis_name))

    received = np.asarray(_stacked.by_device(sizes.reshape(devices, others, -1), mesh, axis_name))
    numbers = {
        "input_offsets": by_sender(starts),
        "send_sizes": by_sender(sizes),
        "output_offsets": by_sender(places),
        "recv_sizes": received,
    }
    return pst.Arguments(
        args=(*drawn, *numbers.values()),
        options={"axis_name": axis_name},
        recipe={**drawn.recipe, **{name: each.tolist() for name, each in numbers.items()}},
        declared=drawn.declared,
    )


def _unread(*args: Any, **_: Any) -> tuple[Any, ...]:
    """Rows of ``operand`` that are in no run."""
    operand, _, starts, sizes, *_ = args
    row = np.arange(operand.shape[1])[:, None]
    inside = (row >= starts[:, None]) & (row < (starts + sizes)[:, None])
    unread = np.broadcast_to(~inside.any(axis=2)[..., None, None], operand.shape)
    return unread, None, None, None, None, None


def _typical(mesh: jax.sharding.Mesh) -> Any:
    """4,096 tokens of a device, to two experts on each."""
    return [
        pst.shaped(
            "devices m h d, devices l h d, devices n, devices n, devices n, devices n",
            dtype=["bfloat16", "bfloat16", "int32", "int32", "int32", "int32"],
            dims={"devices": mesh.size, "m": 4096, "l": 8192, "h": 16, "d": 128, "n": 2 * devices},
            options={"axis_name": axis_name},
        )
        for axis_name, devices in mesh.shape.items()
    ]


SPEC = KernelSpec(
    name="ragged_all_to_all",
    kernel=ragged_all_to_all_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=without(REACHING),
    exact=True,
    relations=(Linear((0, 1)),),
    equivalent=(
        ENTERED,
        EquivalentMutant(
            operator="arithmetic",
            change="mul -> add",
            source="run = jax.lax.rem((me + 1) * runs + step, count)",
            reason="every run is started once, beginning with another one",
        ),
        EquivalentMutant(
            operator="load",
            source="size = recv_sizes[run]",
            reason="all of them are waited for, beginning with another one",
        ),
    ),
    ignored=_unread,
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
