"""The TPU compiler: libtpu's Mosaic and LLO, in a worker, for chips that are not there.

The calls and environment variables are those of ``jax.experimental.topologies`` and of libtpu
0.0.51. Importing this module imports no jax; ``compile`` does, in the worker.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from pytest_pallas.analysis.machine_code.bundles import PASS_LABELS, tpu_costs
from pytest_pallas.analysis.refusals import full_text
from pytest_pallas.compilers.messages import Reply, Request

#: Where a worker makes the folder that libtpu writes to.
_SCRATCH = "PYTEST_PALLAS_SCRATCH"

#: Set where libtpu shall write the Mosaic passes too.
_EVERYTHING = "PYTEST_PALLAS_DUMP_PASSES"

#: Names of the custom calls that a Pallas kernel becomes.
CUSTOM_CALLS = ("tpu_custom_call",)


def missing() -> str | None:
    """What is missing to compile for TPUs, and what to do; None if nothing is."""
    if util.find_spec("libtpu") is None:
        return "libtpu is not installed; pip install 'pytest-pallas[tpu-compile]'"
    return None


def version() -> str:
    """The compiler's name and version."""
    return f"libtpu {metadata.version('libtpu')}"


def flags() -> str:
    """The user's own flags for libtpu."""
    return os.environ.get("LIBTPU_INIT_ARGS", "")


def environment(scratch: Path, *, target: str, everything: bool = False) -> Mapping[str, str]:
    """The environment variables of a worker, which compiles for every chip.

    Args:
      scratch: an existing folder, in which the worker makes its own.
      target: name of the chip; not used.
      everything: whether libtpu shall write the Mosaic passes too.
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
        _SCRATCH: str(scratch),
        _EVERYTHING: "1" if everything else "",
    }


def compile(payload: bytes) -> bytes:
    """Compile one ``Request``; the answer is a ``Reply``. Runs in the worker."""
    request = Request.decode(payload)
    folder = _dumps()
    _clear(folder)
    devices = _devices(request.target, request.devices)
    from pytest_pallas.compilers.programs import compile_program

    try:
        executable = compile_program(request.module, devices)
    except Exception as error:  # whatever the compiler raises is its answer
        reply = Reply(compiled=False, message=full_text(error))
    else:
        text = executable.as_text() or ""
        memory = executable.memory_analysis()
        known = _capacities(request.target)
        reply = Reply(
            compiled=True,
            kernels=tuple(dataclasses.replace(cost, **known) for cost in tpu_costs(folder)),
            code_bytes=getattr(memory, "generated_code_size_in_bytes", None),
            kernel_calls=sum(text.count(f'custom_call_target="{name}"') for name in CUSTOM_CALLS),
        )
        if request.dump:
            Path(request.dump, "optimized.hlo").write_text(text, encoding="utf-8")
    if request.dump:
        _keep(folder, Path(request.dump))
    return reply.encode()


@functools.cache
def _dumps() -> Path:
    """The folder that libtpu writes to. libtpu reads its flags once, when it is loaded."""
    folder = Path(tempfile.mkdtemp(dir=os.environ[_SCRATCH]))
    words = [
        os.environ.get("LIBTPU_INIT_ARGS", ""),
        f"--xla_jf_dump_to={folder}",
        "--xla_jf_dump_llo_text=true",
        f"--xla_jf_dump_llo_pass_label_regex={PASS_LABELS}",
    ]
    if os.environ.get(_EVERYTHING):
        words.append(f"--xla_mosaic_dump_to={folder}")
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(words).strip()
    return folder


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _keep(folder: Path, dump: Path) -> None:
    """Copy what libtpu wrote, under names without the time, in the order of the compilation."""
    for path in sorted(folder.iterdir()):
        name = path.name.partition("-")[2] or path.name
        shutil.copyfile(path, dump / name.replace("<", "").replace(">", ""))


@functools.cache
def _devices(target: str, count: int) -> list[Any]:
    """``count`` devices of a chip."""
    from jax.experimental import topologies

    from pytest_pallas.compilers.tpu_chips import topology

    described = topologies.get_topology_desc(topology(target, count), "tpu")
    return list(described.devices)[:count]


@functools.cache
def _capacities(target: str) -> Mapping[str, int]:
    """VMEM and SMEM of a chip in bytes, as JAX knows them."""
    import jax
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import AbstractDevice, AbstractMesh

    kind = _devices(target, 1)[0].device_kind
    device = AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        info = pltpu.get_tpu_info()
    return {
        "vmem_capacity": info.vmem_capacity_bytes,
        "smem_capacity": info.smem_capacity_bytes,
    }
