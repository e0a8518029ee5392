"""The TPU compiler as a session sees it: whether it is there, which one, and how to run it.

The environment variables are those of libtpu 0.0.51. ``libtpu_worker`` is what runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path

#: What a worker calls.
ENTRY = "pytest_pallas.compilers.libtpu_worker:compile"

#: The variable that says where a worker makes the folder that libtpu writes to.
SCRATCH = "PYTEST_PALLAS_SCRATCH"

#: The variable that is set where libtpu shall write the Mosaic passes too.
EVERYTHING = "PYTEST_PALLAS_DUMP_PASSES"

#: The variable that is set where libtpu shall write what the costs are read from.
COSTS = "PYTEST_PALLAS_COSTS"

_INSTALL = "pip install 'pytest-pallas[tpu-compile]'"

#: Names of the custom calls that a Pallas kernel becomes.
CUSTOM_CALLS = ("tpu_custom_call",)


def missing() -> str | None:
    """What is missing to compile for TPUs, and what to do; None if nothing is."""
    for module in ("libtpu", "flatbuffers"):
        if util.find_spec(module) is None:
            return f"{module} is not installed; {_INSTALL}"
    return None


def version() -> str:
    """The compiler's name and version."""
    try:
        return f"libtpu {metadata.version('libtpu')}"
    except metadata.PackageNotFoundError:
        return f"libtpu {metadata.version('libtpu-nightly')}"


def flags() -> str:
    """The user's own flags for libtpu."""
    return os.environ.get("LIBTPU_INIT_ARGS", "")


def environment(
    scratch: Path, *, target: str, everything: bool = False, costs: bool = True
) -> Mapping[str, str]:
    """The environment variables of a worker, which compiles for every chip.

    Args:
      scratch: an existing folder, in which the worker makes its own.
      target: name of the chip; not used.
      everything: whether libtpu shall write the Mosaic passes too.
      costs: whether libtpu shall write what the costs are read from. Then it takes six times as
        long to pack bundles, and up to 1.8 times as long in all.
    """
    del target
    return {
        "JAX_PLATFORMS": "cpu",  # or JAX waits for a TPU
        "TPU_SKIP_MDS_QUERY": "1",  # or libtpu waits for a metadata server
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a second process dies on the lock file
        "TPU_ACCELERATOR_TYPE": "",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "XLA_FLAGS": "",
        "LIBTPU_INIT_ARGS": flags(),
        SCRATCH: str(scratch),
        EVERYTHING: "1" if everything else "",
        COSTS: "1" if costs else "",
    }
