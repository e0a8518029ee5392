"""``checks.sharding``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas import NotApplicableError, SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.checks.sharding import sharding
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.spec import KernelSpec


def test_every_number_of_devices(context_of, doubled):
    finding = sharding(context_of(doubled, batch_axes=(0,)))
    counts = [count for count in (1, 2, 4, 8) if count <= jax.device_count()]
    assert finding.failed is None
    assert len(finding.comparisons) == len(counts)
    assert [str(note) for note in finding.notes] == [
        f"sharded over {', '.join(map(str, counts))} devices"
    ]


@pytest.mark.parametrize("least", [2, 8])
def test_what_is_wrong_on_some_devices_only(context_of, doubled, least):
    if jax.device_count() < least:
        pytest.skip(f"needs {least} devices")

    def kernel(x):
        return doubled(x) + (jax.lax.axis_size("shards") >= least)

    finding = sharding(context_of(kernel, batch_axes=(0,)))
    assert finding.failed is not None
    assert finding.subject.startswith(f"shard_map on {least} devices")


def test_other_axes_whole_arguments_and_plain_numbers(context_of, doubled):
    def kernel(x, whole, tree, n):
        return doubled(x).T[..., :2] * whole + tree["a"] * n

    def reference(x, whole, tree, n):
        return (2 * x).T[..., :2] * whole + tree["a"] * n

    rng = np.random.default_rng(0)
    x, whole, part = (rng.standard_normal(s).astype(np.float32) for s in ((8, 6), 2, (6, 2)))
    args = Arguments((x, whole, {"a": part}, 3))
    seen = sharding(context_of(kernel, reference, arguments=args, batch_axes=(1, None, 0, None)))
    assert seen.failed is None
    assert {c.shape for c in seen.comparisons} == {(6 * min(8, jax.device_count()), 2)}


@pytest.mark.parametrize(
    ("axes", "words"), [((0, 0), "2 entries for 1"), ((2,), r"\(8, 128\) and no axis 2")]
)
def test_axes_that_do_not_fit(context_of, axes, words):
    with pytest.raises(SpecError, match=words):
        sharding(context_of(batch_axes=axes))


def test_it_needs_batch_axes_and_jit(context_of):
    for rest in ({}, {"batch_axes": (0,), "settings": RunSettings(jit=False)}):
        with pytest.raises(NotApplicableError, match="batch_axes"):
            sharding(context_of(**rest))


@pytest.mark.parametrize("axes", [(-1,), ("m",), (None,)])
def test_wrong_batch_axes_of_a_spec(axes):
    with pytest.raises(SpecError, match="batch_axes must hold the number of an axis"):
        KernelSpec(
            name="k", kernel=jnp.sin, reference=jnp.sin, inputs=pst.arrays("n"), batch_axes=axes
        )


def test_batch_axes_and_meshes_exclude_each_other():
    with pytest.raises(SpecError, match="exclude each other"):
        KernelSpec(
            name="k", kernel=jnp.sin, reference=jnp.sin, inputs=lambda mesh: pst.arrays("n"),
            batch_axes=(0,), meshes=({"x": 2},),
        )  # fmt: skip
