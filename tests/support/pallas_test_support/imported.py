"""What runs of pytest inside of this process import, imported before the first of them.

Pytester forgets the modules that a run imported. JAX does not survive a second import, and where
some of the modules of its GPU interpreter are new and others are not, it finds no shared memory.
"""

from __future__ import annotations

import importlib
import pkgutil


def import_modules() -> None:
    """Import the plugin, the simulator and what they import late."""
    import hypothesis.strategies  # noqa: F401
    import jax.experimental.pallas.mosaic_gpu
    import jax.experimental.pallas.tpu
    import jax.experimental.pallas.triton
    import jax.experimental.shard_map  # noqa: F401
    import rich.console
    import rich.table  # noqa: F401
    import scipy.fft
    import scipy.linalg
    import scipy.special  # noqa: F401
    from hypothesis.internal.conjecture import providers

    import pallas_sim
    import pytest_pallas

    for package in (pallas_sim, pytest_pallas):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    # What hypothesis reads of the source of all these, once: else it parses them where first a test
    # of a new folder draws, a second each time.
    getattr(providers, "_get_local_constants", lambda: None)()


def import_everything() -> None:
    """Import all of that, and run each interpreter once."""
    import_modules()
    import numpy as np

    from pallas_test_support import sample_kernels
    from pytest_pallas.backends.protocol import Call
    from pytest_pallas.backends.registry import FAMILIES

    x = np.ones((8, 128), np.float32)
    for family in FAMILIES:
        if family.kind == "interpreting":
            outcome = family.make(None).run(Call(function=sample_kernels.add_one, args=(x,)))
            assert outcome.error is None, outcome.error


def import_dask() -> None:
    """Import what runs with ``--pallas-fleet`` import, by a scheduler that starts and ends."""
    import multiprocessing.resource_tracker
    import multiprocessing.synchronize  # noqa: F401

    import distributed

    with distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0"):
        pass
