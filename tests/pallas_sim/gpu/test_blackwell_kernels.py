"""Whole kernels for Blackwell: the reference kernels, and those that JAX comes with."""

from __future__ import annotations

import dataclasses
import importlib
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pallas_sim import simulate
from pallas_sim.chips import GPUS
from pallas_sim.errors import DeadlockError
from pallas_sim.machine import Machine
from pytest_pallas.spec import KernelSpec

SEEDS = (0, 1, 2)


def specs() -> dict[str, KernelSpec]:
    """The specs of the reference kernels for Blackwell, by name."""
    kinds = ("", "mixed_", "scaled_", "sparse_")
    names = [f"blackwell_{kind}matmul_spec" for kind in kinds]
    modules = [importlib.import_module(f"reference_kernels.mosaic_gpu.{name}") for name in names]
    found = [each for module in modules for each in vars(module).values()]
    return {each.name: each for each in found if isinstance(each, KernelSpec)}


def test_there_are_specs() -> None:
    """Static, dynamic and of pairs; of two dtypes; scaled in two formats; sparse."""
    assert len(specs()) == 8


@pytest.mark.parametrize("name", sorted(specs()))
def test_reference_kernels(name: str) -> None:
    """Drawn calls, each with three seeds: as the reference has it, and without a finding."""
    spec = specs()[name]
    kernel: Any = spec.kernel
    reference: Any = spec.reference

    @settings(
        max_examples=2,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(call=spec.inputs)
    def check(call: Any) -> None:
        wanted = np.asarray(reference(*call.args, **call.options), np.float64)
        for seed in SEEDS:
            run = simulate(
                kernel["gpu"], *call.args, **call.options, **call.tuning, target="b200", seed=seed
            )
            # A pair may load the only tile of y again for columns that y has not. The sums of these
            # are not stored, which the answer shows.
            findings = [
                each
                for each in run.findings
                if each.kind != "bounds" or each.accesses[0].kind != "read"
            ]
            assert not findings, findings[0]
            found = np.asarray(run.values, np.float64)
            if spec.exact and has_integers(call.args):  # of which every sum is exact
                np.testing.assert_array_equal(found, wanted)
            else:
                scale = np.abs(wanted).max(initial=0)
                np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=2**-9 * scale)

    check()


def has_integers(args: Any) -> bool:
    """Whether all floats are small integers."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    floats = [each.astype(np.float64) for each in arrays if each.dtype.kind not in "iu"]
    return all((each == np.rint(each)).all() and np.abs(each).max() <= 64 for each in floats)


def whole(rng: np.random.Generator, *shape: int) -> Any:
    """Small integers."""
    return rng.integers(-3, 4, shape).astype(np.float16)


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(5)


def product_of(*, collective: bool) -> Any:
    """JAX's product for Blackwell."""
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu as bundled

    config = bundled.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=2,
        collective=collective,
        epilogue_tile_n=64,
    )
    return lambda a, b: bundled.matmul_kernel(a, b, config)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_product_that_jax_comes_with(seed: int, rng: np.random.Generator) -> None:
    """It is right, but its blocks end while TMA reads their shared memory for the last time."""
    a, b = whole(rng, 256, 192), whole(rng, 192, 256)
    run = simulate(product_of(collective=False), a, b, target="b200", seed=seed)
    assert (run.values == (a.astype(np.float32) @ b.astype(np.float32))).all()
    (finding,) = run.findings
    assert finding.kind == "unwaited"
    assert "from acc_smem to out_gmem" in finding.message


@pytest.mark.parametrize("seed", SEEDS)
def test_its_pairs_take_over_two_clusters(seed: int, rng: np.random.Generator) -> None:
    """It does not tell ``dynamic_scheduling_loop`` of the axis of its clusters: both blocks ask."""
    machine = Machine(target="b200", seed=seed)
    with suppress(DeadlockError):
        simulate(
            product_of(collective=True), whole(rng, 512, 64), whole(rng, 64, 512), machine=machine
        )
    races = [each for each in machine.findings if each.kind == "race"]
    assert "try_cancel_buffer" in {each.ref for each in races}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ragged_product_that_jax_comes_with(seed: int, rng: np.random.Generator) -> None:
    """As it is, over pairs of blocks."""
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu, blackwell_ragged_dot_mgpu

    bundled = blackwell_ragged_dot_mgpu
    config = bundled.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=2,
        collective=True,
        grid_tile_width=1,
        grid_minor_dim=blackwell_matmul_mgpu.MatmulDimension.N,
    )
    a, b = whole(rng, 512, 128), whole(rng, 3, 128, 256)
    sizes = np.array([100, 0, 412], np.int32)
    run = simulate(
        lambda a, b, sizes: bundled.ragged_dot_kernel(a, b, sizes, config),
        *(a, b, sizes),
        target="b200",
        seed=seed,
    )
    wanted = jax.lax.ragged_dot(
        jnp.asarray(a), jnp.asarray(b), jnp.asarray(sizes), preferred_element_type=jnp.float16
    )
    assert not run.findings
    assert (run.values == np.asarray(wanted)).all()


def test_its_pairs_overwrite_sums(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """From the third tile of a pair on: only the first block says that its sums were read.

    ``store_done_barrier`` is a ``Barrier``, so that the products of the first block do not wait for
    the second one, which may still read the sums that they overwrite.
    """
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu, blackwell_ragged_dot_mgpu

    monkeypatch.setitem(GPUS, "b200", dataclasses.replace(GPUS["b200"], cores=4))
    bundled = blackwell_ragged_dot_mgpu
    config = bundled.TuningConfig(
        tile_m=128,
        tile_n=128,
        tile_k=64,
        max_concurrent_steps=2,
        collective=True,
        grid_tile_width=1,
        grid_minor_dim=blackwell_matmul_mgpu.MatmulDimension.N,
    )
    run = simulate(
        lambda a, b, sizes: bundled.ragged_dot_kernel(a, b, sizes, config),
        *(whole(rng, 512, 64), whole(rng, 2, 64, 1024), np.array([200, 312], np.int32)),
        target="b200",
    )
    (race,) = (each for each in run.findings if each.kind == "race")
    later, earlier = race.accesses
    assert (later.by, earlier.by) == ("the tcgen05 product", "the load from tensor memory")
