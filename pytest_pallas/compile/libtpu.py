"""The TPU compiler, libtpu: its version and environment for a session, and its run in a worker.

A session calls ``missing``, ``version``, ``flags`` and ``environment``, and starts workers that
call ``compile_payload``. In such a worker, importing this module loads libtpu. So what libtpu
writes while it loads is not mixed with the output of the first program, and the time does not count
for its limit. The GPU compilers run ``compile_program``, too.

The calls are those of ``jax.experimental.topologies``, the environment variables those of libtpu
0.0.51.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pallas_sim.chips import TPUS, learn
from pallas_sim.errors import DeviceError
from pytest_pallas.compile.machine_code import PASS_LABELS, tpu_costs
from pytest_pallas.compile.refusals import full_text
from pytest_pallas.compile.service import CompileReport, CompileRequest, compiled_report
from pytest_pallas.decoding import decode, json_of, parse
from pytest_pallas.tested import installed_version

#: What a worker calls.
ENTRY = "pytest_pallas.compile.libtpu:compile_payload"

#: The variable with the folder in which a worker makes that of libtpu's files. It is set in workers
#: for TPUs only, where importing this module loads libtpu.
SCRATCH = "PYTEST_PALLAS_LIBTPU_SCRATCH"

#: The variable that makes libtpu write the Mosaic passes, too.
EVERYTHING = "PYTEST_PALLAS_DUMP_PASSES"

#: The variable that makes libtpu write the files that costs are read from.
COSTS = "PYTEST_PALLAS_COSTS"

_INSTALL = "pip install 'pytest-pallas[tpu-compile]'"

#: Names of the custom calls that a Pallas kernel becomes.
CUSTOM_CALLS = ("tpu_custom_call",)


def missing() -> str | None:
    """Say what is missing to compile for TPUs, and how to install it; None if nothing is."""
    for module in ("libtpu", "flatbuffers"):
        if util.find_spec(module) is None:
            return f"{module} is not installed; {_INSTALL}"
    return None


def version() -> str:
    """Return the compiler's name and version."""
    return f"libtpu {installed_version('libtpu') or installed_version('libtpu-nightly')}"


def flags() -> str:
    """Return the user's own flags for libtpu."""
    return os.environ.get("LIBTPU_INIT_ARGS", "")


def environment(
    scratch: Path, *, target: str, everything: bool = False, costs: bool = True
) -> Mapping[str, str]:
    """Return the environment variables of a worker, which compiles for every chip.

    Args:
      scratch: an existing folder, in which the worker makes its own.
      target: name of the chip; not used.
      everything: whether libtpu writes the Mosaic passes, too.
      costs: whether libtpu writes the files that costs are read from. Then packing bundles takes
        six times as long, and the compilation up to 1.8 times as long.
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


# TPU topologies to compile for, by chip and number of devices.

_CHIPS_A_HOST = 4

#: Largest edge of the topologies that are tried.
_LARGEST = 8


def topology(target: str, devices: int) -> str:
    """Return the name of the smallest topology of a chip with at least ``devices`` devices.

    Args:
      target: name of the chip, such as ``"v6e"``.
      devices: how many devices a program runs on.

    Raises:
      DeviceError: no topology that libtpu knows is large enough.
    """
    chip = TPUS[target]
    # Edges are powers of two, none more than twice another. libtpu 0.0.48 rejects what is smaller
    # than a host.
    shapes = itertools.combinations_with_replacement((1, 2, 4, _LARGEST), chip.torus_dims)
    shapes = [s for s in shapes if s[-1] <= 2 * s[0] and math.prod(s) >= _CHIPS_A_HOST]
    for shape in sorted(shapes, key=lambda shape: (math.prod(shape), shape)):
        if math.prod(shape) * chip.devices >= devices:
            # libtpu calls a host of v4, v5p and tpu7x (2, 2, 1); (1, 2, 2) is no topology.
            named = shape[::-1] if 1 in shape and len(shape) == 3 else shape
            return f"{target}:{'x'.join(map(str, named))}"
    raise DeviceError(
        f"a mesh of {devices} devices is larger than every {target} topology that can be compiled "
        "for here; use a smaller mesh under tpu-compile"
    )


# In a worker.


def compile_payload(payload: bytes) -> bytes:
    """Compile one ``CompileRequest`` in the worker; returns an encoded ``CompileReport``."""
    request = decode(CompileRequest, parse(payload))
    learn(request.target, request.chip)
    folder = _dumps()
    for path in folder.iterdir():
        path.unlink()
    devices = _devices(request.target, request.devices)
    try:
        executable = compile_program(request.module, devices)
    except Exception as error:  # whatever the compiler raises is its answer
        report = CompileReport(target=request.target, status="refused", text=full_text(error))
    else:
        text = executable.as_text() or ""
        memory = executable.memory_analysis()
        capacities = _capacities(request.target)
        with_costs = bool(os.environ.get(COSTS))
        costs = tpu_costs(folder) if with_costs else []
        report = compiled_report(
            request.target,
            tuple(dataclasses.replace(cost, **capacities) for cost in costs),
            code_bytes=getattr(memory, "generated_code_size_in_bytes", None),
            kernel_calls=sum(text.count(f'custom_call_target="{name}"') for name in CUSTOM_CALLS),
            costs_skipped=not with_costs,
        )
        if request.dump:
            Path(request.dump, "optimized.hlo").write_text(text, encoding="utf-8")
    if request.dump:
        _keep(folder, Path(request.dump))
    return json_of(report)


@functools.cache
def _dumps() -> Path:
    """Make the folder that libtpu writes to. libtpu reads its flags once, when it is loaded."""
    folder = Path(tempfile.mkdtemp(dir=os.environ[SCRATCH]))
    arguments = [os.environ.get("LIBTPU_INIT_ARGS", "")]
    if os.environ.get(COSTS):
        arguments += [
            f"--xla_jf_dump_to={folder}",
            "--xla_jf_dump_llo_text=true",
            f"--xla_jf_dump_llo_pass_label_regex={PASS_LABELS}",
        ]
    if os.environ.get(EVERYTHING):
        arguments.append(f"--xla_mosaic_dump_to={folder}")
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(arguments).strip()
    return folder


def _keep(folder: Path, dump: Path) -> None:
    """Copy libtpu's files under names without the time, in the order of the compilation."""
    for path in sorted(folder.iterdir()):
        name = path.name.partition("-")[2] or path.name
        shutil.copyfile(path, dump / name.replace("<", "").replace(">", ""))


@functools.cache
def _devices(target: str, count: int) -> list[Any]:
    """Return ``count`` devices of a chip."""
    described = topologies.get_topology_desc(topology(target, count), "tpu")
    return list(described.devices)[:count]


@functools.cache
def _capacities(target: str) -> Mapping[str, int]:
    """Return VMEM and SMEM of a chip in bytes, as JAX knows them."""
    kind = _devices(target, 1)[0].device_kind
    device = AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        info = pltpu.get_tpu_info()
    return {"vmem_capacity": info.vmem_capacity_bytes, "smem_capacity": info.smem_capacity_bytes}


if SCRATCH in os.environ:  # in a worker
    _dumps()
    _devices("v5e", 1)


# From a serialized program to an executable for devices that are not there.


def compile_program(module: bytes, devices: Sequence[Any]) -> Any:
    """Compile what ``jax.export`` serialized.

    Args:
      module: the serialized program.
      devices: the devices to compile for, as many as the program runs on.

    Returns:
      The ``jax.stages.Compiled``.

    Raises:
      Exception: what the compiler says.
    """
    program = export.deserialize(bytearray(module))
    replicated = NamedSharding(_mesh(devices), PartitionSpec())
    # Shardings of the export name the axes of its mesh, and no devices.
    shardings = [
        replicated if sharding is None else _on(devices, sharding)
        for sharding in program.in_shardings_jax(None)
    ]
    avals = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(program.in_avals, shardings, strict=True)
    ]
    # jit learns the devices from an argument only, and a program may have none.
    somewhere = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)

    def call(_: Any, args: Any, options: Any) -> Any:
        return program.call(*args, **options)

    jitted = jax.jit(call, keep_unused=True)  # or jit drops that argument
    return jitted.lower(somewhere, *jax.tree.unflatten(program.in_tree, avals)).compile()


def _mesh(devices: Sequence[Any]) -> Mesh:
    """Make a mesh over devices with the smallest possible axes.

    ``compile`` describes the shardings of outputs by the axes of the first argument's mesh. It
    fails if an axis is larger than the number of parts of an output.
    """
    sizes: list[int] = []
    rest = len(devices)
    while rest > 1:
        sizes.append(next(size for size in range(2, rest + 1) if rest % size == 0))
        rest //= sizes[-1]
    axes = tuple(f"_d{number}" for number in range(len(sizes)))
    return Mesh(np.array(devices).reshape(sizes), axes)


def _on(devices: Sequence[Any], sharding: Any) -> NamedSharding:
    """Put a ``NamedSharding`` of an abstract mesh on devices."""
    axes = sharding.mesh
    grid = np.array(devices).reshape(axes.axis_sizes)
    return sharding.update(mesh=Mesh(grid, axes.axis_names, axis_types=axes.axis_types))
