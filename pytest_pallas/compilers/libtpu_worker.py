"""libtpu's Mosaic and LLO, in a worker, for chips that are not there.

The calls are those of ``jax.experimental.topologies``. In a worker, importing this module loads
libtpu, which writes about that to stderr: before the first program, whose output it would be mixed
with, and whose time limit it would count for.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_sim.chips import learn
from pytest_pallas.analysis.machine_code.bundles import PASS_LABELS, tpu_costs
from pytest_pallas.analysis.refusals import full_text
from pytest_pallas.compilers.libtpu import COSTS, CUSTOM_CALLS, EVERYTHING, SCRATCH
from pytest_pallas.compilers.messages import CompileReply, CompileRequest
from pytest_pallas.compilers.programs import compile_program
from pytest_pallas.compilers.tpu_chips import topology


def compile(payload: bytes) -> bytes:
    """Compile one ``CompileRequest``; the answer is a ``CompileReply``."""
    request = CompileRequest.decode(payload)
    learn(request.target, request.chip)
    folder = _dumps()
    _clear(folder)
    devices = _devices(request.target, request.devices)
    try:
        executable = compile_program(request.module, devices)
    except Exception as error:  # whatever the compiler raises is its answer
        reply = CompileReply(compiled=False, message=full_text(error))
    else:
        text = executable.as_text() or ""
        memory = executable.memory_analysis()
        known = _capacities(request.target)
        asked = bool(os.environ.get(COSTS))
        costs = tpu_costs(folder) if asked else []
        reply = CompileReply(
            compiled=True,
            kernels=tuple(dataclasses.replace(cost, **known) for cost in costs),
            code_bytes=getattr(memory, "generated_code_size_in_bytes", None),
            kernel_calls=sum(text.count(f'custom_call_target="{name}"') for name in CUSTOM_CALLS),
            costs_skipped=not asked,
        )
        if request.dump:
            Path(request.dump, "optimized.hlo").write_text(text, encoding="utf-8")
    if request.dump:
        _keep(folder, Path(request.dump))
    return reply.encode()


@functools.cache
def _dumps() -> Path:
    """The folder that libtpu writes to. libtpu reads its flags once, when it is loaded."""
    folder = Path(tempfile.mkdtemp(dir=os.environ[SCRATCH]))
    words = [os.environ.get("LIBTPU_INIT_ARGS", "")]
    if os.environ.get(COSTS):
        words += [
            f"--xla_jf_dump_to={folder}",
            "--xla_jf_dump_llo_text=true",
            f"--xla_jf_dump_llo_pass_label_regex={PASS_LABELS}",
        ]
    if os.environ.get(EVERYTHING):
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
    described = topologies.get_topology_desc(topology(target, count), "tpu")
    return list(described.devices)[:count]


@functools.cache
def _capacities(target: str) -> Mapping[str, int]:
    """VMEM and SMEM of a chip in bytes, as JAX knows them."""
    kind = _devices(target, 1)[0].device_kind
    device = AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        info = pltpu.get_tpu_info()
    return {
        "vmem_capacity": info.vmem_capacity_bytes,
        "smem_capacity": info.smem_capacity_bytes,
    }


if SCRATCH in os.environ:  # in a worker
    _dumps()
    _devices("v5e", 1)
