"""Kernels of several bodies under the TPU interpreter: scalar and vector subcores at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pytest_pallas
from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.protocol import Call

plsc = pytest.importorskip("jax.experimental.pallas.tpu_sc")
LANES = 8
CORES = 2
SUBCORES = 4
X = np.arange(LANES, dtype=np.int32)


def meshes() -> tuple[Any, Any]:
    """Vector and scalar subcores of the same SparseCores."""
    vectors = plsc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=CORES, num_subcores=SUBCORES
    )
    return vectors, plsc.ScalarSubcoreMesh(axis_name="core", num_cores=CORES)


def run(
    out: Any,
    *args: Any,
    vectors: Callable[..., None],
    scalars: Callable[..., None] = lambda *_: None,
    order: int = 1,
    scratch: Callable[[Any, Any], Any] = lambda *_: (),
) -> Any:
    """Run a kernel with two bodies; ``scratch`` is a function of both meshes.

    ``order`` is -1 for the scalar subcores first. What was wrong with the kernel is raised.
    """

    def call(*args: Any) -> Any:
        kernel = pl.kernel(
            body=[vectors, scalars][::order],
            mesh=meshes()[::order],
            out_type=out,
            scratch_types=scratch(*meshes()),
            compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
        )
        return kernel(*args)

    outcome = tpu_interpret().run(Call(function=call, args=args, timeout=20.0))
    if outcome.error is not None:
        raise outcome.error
    (note,) = [note for note in outcome.notes if "simulated" in note]
    assert "ScalarSubcoreMesh, VectorSubcoreMesh" in note
    return jax.tree.map(np.asarray, outcome.values)


def i32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def number() -> Any:
    """Of a vector subcore."""
    return jax.lax.axis_index("core") * SUBCORES + jax.lax.axis_index("subcore")


ORDERS = pytest.mark.parametrize("order", [1, -1], ids=["vectors_first", "scalars_first"])


class TestBodies:
    @ORDERS
    def test_each_core_runs_the_body_of_its_mesh_at_its_place(self, order: int) -> None:
        def vectors(x: Any, of_vectors: Any, of_scalars: Any) -> None:
            del of_scalars
            vmem = jax.empty_ref(i32(LANES), memory_space=pltpu.VMEM)
            pltpu.sync_copy(x, vmem)
            vmem[...] += 100 * number()
            pltpu.sync_copy(vmem, of_vectors.at[number()])

        def scalars(x: Any, of_vectors: Any, of_scalars: Any) -> None:
            del of_vectors
            smem = jax.empty_ref(i32(LANES), memory_space=pltpu.SMEM)
            pltpu.sync_copy(x, smem)
            smem[0] = 7 + jax.lax.axis_index("core")
            pltpu.sync_copy(smem, of_scalars.at[jax.lax.axis_index("core")])

        of_vectors, of_scalars = run(
            (i32(CORES * SUBCORES, LANES), i32(CORES, LANES)),
            X,
            vectors=vectors,
            scalars=scalars,
            order=order,
        )
        places = np.arange(CORES * SUBCORES, dtype=np.int32)
        np.testing.assert_array_equal(of_vectors, X + 100 * places[:, None])
        np.testing.assert_array_equal(of_scalars[:, 0], [7, 8])
        np.testing.assert_array_equal(of_scalars[:, 1:], [X[1:]] * CORES)

    @ORDERS
    def test_memory_of_a_sparse_core_is_shared_by_both(self, order: int) -> None:
        def vectors(x: Any, out: Any, shared: Any, filled: Any) -> None:
            del x
            pl.semaphore_wait(filled, 1)
            pltpu.sync_copy(shared, out.at[number()])

        def scalars(x: Any, out: Any, shared: Any, filled: Any) -> None:
            del out
            pltpu.sync_copy(x.at[jax.lax.axis_index("core")], shared)
            for subcore in range(SUBCORES):
                pl.semaphore_signal(filled, 1, device_id={"subcore": subcore})

        x = np.stack([X, X + 50])
        out = run(
            i32(CORES * SUBCORES, LANES),
            x,
            vectors=vectors,
            scalars=scalars,
            order=order,
            scratch=lambda vectors, scalars: [
                pltpu.VMEM_SHARED((LANES,), jnp.int32),
                pltpu.SemaphoreType.REGULAR @ vectors,
            ],
        )
        np.testing.assert_array_equal(out, np.repeat(x, SUBCORES, axis=0))


class TestReaching:
    def test_a_signal_reaches_the_named_core_of_the_owner(self) -> None:
        def vectors(out: Any, mine: Any) -> None:
            vmem = jax.empty_ref(i32(LANES), memory_space=pltpu.VMEM)
            pl.semaphore_wait(mine, 1 + jax.lax.axis_index("subcore"))
            vmem[...] = jnp.full((LANES,), number(), jnp.int32)
            pltpu.sync_copy(vmem, out.at[number()])

        def scalars(out: Any, mine: Any) -> None:
            del out
            for subcore in range(SUBCORES):
                pl.semaphore_signal(mine, 1 + subcore, device_id={"subcore": subcore})

        out = run(
            i32(CORES * SUBCORES, LANES),
            vectors=vectors,
            scalars=scalars,
            scratch=lambda vectors, scalars: [pltpu.SemaphoreType.REGULAR @ vectors],
        )
        np.testing.assert_array_equal(out[:, 0], np.arange(CORES * SUBCORES))

    def test_and_back_to_the_scalar_subcore_of_the_same_sparse_core(self) -> None:
        def vectors(out: Any, done: Any) -> None:
            del out
            pl.semaphore_signal(done, 1, device_id={"core": jax.lax.axis_index("core")})

        def scalars(out: Any, done: Any) -> None:
            smem = jax.empty_ref(i32(LANES), memory_space=pltpu.SMEM)
            pl.semaphore_wait(done, SUBCORES)
            for i in range(LANES):
                smem[i] = i
            pltpu.sync_copy(smem, out.at[jax.lax.axis_index("core")])

        out = run(
            i32(CORES, LANES),
            vectors=vectors,
            scalars=scalars,
            scratch=lambda vectors, scalars: [pltpu.SemaphoreType.REGULAR @ scalars],
        )
        np.testing.assert_array_equal(out, [X] * CORES)

    def test_a_signal_without_a_name_is_ones_own(self) -> None:
        def vectors(out: Any, mine: Any) -> None:
            vmem = jax.empty_ref(i32(LANES), memory_space=pltpu.VMEM)
            pl.semaphore_signal(mine, 1)
            pl.semaphore_wait(mine, 1)
            vmem[...] = jnp.full((LANES,), number(), jnp.int32)
            pltpu.sync_copy(vmem, out.at[number()])

        out = run(
            i32(CORES * SUBCORES, LANES),
            vectors=vectors,
            scratch=lambda vectors, _: [pltpu.SemaphoreType.REGULAR @ vectors],
        )
        np.testing.assert_array_equal(out[:, 0], np.arange(CORES * SUBCORES))

    @pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="no copies to other cores before")
    def test_a_copy_into_the_memory_of_a_vector_subcore(self) -> None:
        def vectors(x: Any, out: Any, theirs: Any, sent: Any, arrived: Any) -> None:
            del sent
            pltpu.make_async_copy(x.at[0], theirs, arrived).wait()
            pltpu.sync_copy(theirs, out.at[number()])

        def scalars(x: Any, out: Any, theirs: Any, sent: Any, arrived: Any) -> None:
            del out
            for subcore in range(SUBCORES):
                pltpu.async_remote_copy(
                    x.at[subcore], theirs, sent, arrived, device_id={"subcore": subcore}
                ).wait_send()

        x = np.arange(SUBCORES * LANES, dtype=np.int32).reshape(SUBCORES, LANES)
        out = run(
            i32(CORES * SUBCORES, LANES),
            x,
            vectors=vectors,
            scalars=scalars,
            scratch=lambda vectors, scalars: [
                pltpu.VMEM((LANES,), jnp.int32) @ vectors,
                pltpu.SemaphoreType.DMA @ scalars,
                pltpu.SemaphoreType.DMA @ vectors,
            ],
        )
        np.testing.assert_array_equal(out, np.tile(x, (CORES, 1)))

    def test_an_axis_that_is_needed_and_not_named(self) -> None:
        def scalars(out: Any, mine: Any) -> None:
            del out
            pl.semaphore_signal(mine, 1, device_id={"core": 0})

        with pytest.raises(ValueError, match="which subcore is meant"):
            run(
                i32(LANES),
                vectors=lambda *_: None,
                scalars=scalars,
                scratch=lambda vectors, scalars: [pltpu.SemaphoreType.REGULAR @ vectors],
            )


class TestFaults:
    """What the framework finds in a kernel of several bodies."""

    @staticmethod
    def hand_over(*, signals: bool = True, waits: bool = True) -> Any:
        """The scalar subcore fills memory that a vector subcore copies out."""

        def vectors(x: Any, out: Any, shared: Any, filled: Any) -> None:
            del x
            if waits:
                pl.semaphore_wait(filled, 1)
            pltpu.sync_copy(shared, out.at[number()])

        def scalars(x: Any, out: Any, shared: Any, filled: Any) -> None:
            del out
            pltpu.sync_copy(x, shared)
            for subcore in range(SUBCORES if signals else 0):
                pl.semaphore_signal(filled, 1, device_id={"subcore": subcore})

        return run(
            i32(CORES * SUBCORES, LANES),
            X,
            vectors=vectors,
            scalars=scalars,
            scratch=lambda vectors, _: [
                pltpu.VMEM_SHARED((LANES,), jnp.int32),
                pltpu.SemaphoreType.REGULAR @ vectors,
            ],
        )

    def test_nothing(self) -> None:
        np.testing.assert_array_equal(self.hand_over(), [X] * (CORES * SUBCORES))

    def test_a_signal_that_nobody_sends(self) -> None:
        said = "core 3 is blocked on semaphore `filled`: needs 1, has 0"
        with pytest.raises(pytest_pallas.DeadlockError, match=said):
            self.hand_over(signals=False)

    def test_a_race_of_both(self) -> None:
        with pytest.raises(pytest_pallas.RaceError):
            self.hand_over(signals=False, waits=False)


class TestPipelines:
    def test_a_pipeline_is_split_over_the_subcores(self) -> None:
        def vectors(x: Any, out: Any) -> None:
            def double(x_vmem: Any, out_vmem: Any) -> None:
                out_vmem[...] = 2 * x_vmem[...]

            block = pl.BlockSpec((1, LANES), lambda i: (i, 0))
            pltpu.emit_pipeline(
                double,
                grid=(CORES * SUBCORES * 2,),
                in_specs=[block],
                out_specs=[block],
                core_axis_name=("core", "subcore"),
                dimension_semantics=(pltpu.PARALLEL,),
            )(x, out)

        x = np.arange(CORES * SUBCORES * 2 * LANES, dtype=np.int32).reshape(-1, LANES)
        out = run(i32(*x.shape), x, vectors=vectors)
        np.testing.assert_array_equal(out, 2 * x)
