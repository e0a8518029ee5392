"""Inner projects that compile for chips that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_pallas.compile import libtpu
from pytest_pallas.compile.service import Service
from pytest_pallas.workers.pool import WorkerPool

#: Kernels that are compiled in the tests of this folder.
KERNELS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import pallas as pl

    X = np.ones((64, 480), np.float32)

    def _double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def double(x):
        return pl.pallas_call(_double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    def in_blocks(x, rows, columns):
        spec = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
        return pl.pallas_call(
            _double,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(pl.cdiv(x.shape[0], rows), pl.cdiv(x.shape[1], columns)),
            in_specs=[spec],
            out_specs=spec,
        )(x)

    def hang_here(x):
        return pl.pallas_call(
            _double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="hang_here"
        )(x)

    def twice(x):
        return x * 2
"""


def pytest_collection_modifyitems(items):
    missing = libtpu.missing()
    for item in items if missing else ():  # those of all folders
        here = item.path.is_relative_to(Path(__file__).parent)
        if here and item.get_closest_marker("without_libtpu") is None:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="package", autouse=True)
def _shared_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All sessions of this process compile in the same workers: one takes a second to start."""
    with WorkerPool(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "_pool", pool)
        patch.setattr(Service, "_scratch", tmp_path_factory.mktemp("compilers"))
        yield


@pytest.fixture
def compiling(project):
    """A project with a module ``chips`` of kernels."""
    project.write(chips=KERNELS)
    return project
