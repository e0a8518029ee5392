"""One accelerator for each worker of pytest-xdist, by variables set before JAX is imported.

The controller decides (``pinning``) and tells its workers by the environment (``announce``); a
worker heeds it before it reads a conftest.py (``pin``). Nothing here imports JAX.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from pallas_sim.chips import Label
from pallas_sim.errors import DeviceError

#: The variable by which the controller tells workers: ``NAME=VALUE,VALUE,...``, one value a worker.
ANNOUNCED = "PYTEST_PALLAS_WORKER_DEVICES"

#: The name of a worker, which pytest-xdist sets before it reads the configuration: ``gw0``.
_WORKER = "PYTEST_XDIST_WORKER"

#: What makes a process see one chip of a host only; the libraries of GPUs and TPUs read it.
VARIABLES: Mapping[str, str] = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_DEVICES"}

#: The files of devices, and one of the packages by which JAX uses them.
_FILES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("nvidia[0-9]*",),
    "tpu": ("accel[0-9]*", "vfio/[0-9]*"),
}
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "tpu": ("libtpu",),
}

#: libtpu's variables for processes that share a host: each has one chip, and no neighbours.
_ALONE: Mapping[str, str] = {
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    "TPU_PROCESS_BOUNDS": "1,1,1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True)
class Accelerators:
    """The accelerators of this host that processes may use.

    Attributes:
      platform: ``"gpu"`` or ``"tpu"``.
      ids: as the platform's variable names them.
    """

    platform: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Pinning:
    """What each worker sees.

    Attributes:
      variable: the variable that decides it.
      values: its value for each worker, in order; more workers begin anew.
      words: for the header of the run.
    """

    variable: str
    values: tuple[str, ...]
    words: str


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def accelerators(
    environ: Mapping[str, str],
    *,
    devices: Path = Path("/dev"),
    installed: Callable[[str], bool] = _is_installed,
) -> Accelerators | None:
    """The accelerators of this host, found without JAX; None if there are none for JAX.

    A variable that names them, such as ``CUDA_VISIBLE_DEVICES``, is believed.

    Args:
      environ: the environment.
      devices: the folder of device files.
      installed: whether a package is installed.
    """
    allowed = environ.get("JAX_PLATFORMS", "")
    for platform, variable in VARIABLES.items():
        names = {"gpu": ("cuda", "gpu"), "tpu": ("tpu",)}[platform]
        if allowed and not set(names) & set(allowed.split(",")):
            continue
        listed = environ.get(variable)
        if listed is not None:
            ids = tuple(word.strip() for word in listed.split(",") if word.strip())
            if ids and ids[0] not in ("-1", "none", "void"):
                return Accelerators(platform, ids)
            continue
        files = [path for pattern in _FILES[platform] for path in devices.glob(pattern)]
        count = sum(bool(re.fullmatch(r"[a-z]*\d+", path.name)) for path in files)
        if count and any(map(installed, _PACKAGES[platform])):
            return Accelerators(platform, tuple(map(str, range(count))))
    return None


def pinning(
    found: Accelerators | None,
    workers: int,
    backends: Collection[str],
    environ: Mapping[str, str],
) -> Pinning | None:
    """What each of several workers sees; None to leave all of them as they are.

    With more workers than accelerators, GPUs are shared if JAX does not take their memory at once.
    Otherwise all workers run on the simulators, or it is an error if a backend is named that needs
    the accelerator.

    Args:
      found: the accelerators.
      workers: the number of workers.
      backends: of the run: ``auto``, ``all``, ``NAME`` or ``NAME:TARGET``.
      environ: the environment.

    Raises:
      DeviceError: there are too few accelerators for a named backend.
    """
    if found is None or workers < 2:
        return None
    named = any(Label.of(word).name == found.platform for word in backends)
    if not named and not {"auto", "all"} & set(backends):
        return None
    variable, count = VARIABLES[found.platform], len(found.ids)
    chips = f"{found.platform.upper()}{'s' if count > 1 else ''}"
    if workers <= count:
        words = f"each of {workers} workers has one of {count} {chips} ({variable})"
        return Pinning(variable, found.ids[:workers], words)
    if found.platform == "gpu" and _shares_memory(environ):
        words = f"{workers} workers share {count} {chips} ({variable})"
        return Pinning(variable, tuple(found.ids[n % count] for n in range(workers)), words)
    why = (
        "one process at a time can open a TPU"
        if found.platform == "tpu"
        else "JAX takes three quarters of a GPU's memory for one process"
    )
    if named:
        share = (
            ", or set XLA_PYTHON_CLIENT_PREALLOCATE=false to share them"
            if found.platform == "gpu"
            else ""
        )
        raise DeviceError(
            f"{workers} workers are more than {count} {chips}, and {why}; give -n {count} or less"
            f"{share}"
        )
    words = (
        f"{workers} workers run on the simulators (JAX_PLATFORMS=cpu): they are more than {count} "
        f"{chips}, and {why}"
    )
    return Pinning("JAX_PLATFORMS", ("cpu",) * workers, words)


def _shares_memory(environ: Mapping[str, str]) -> bool:
    """Whether JAX leaves memory of a GPU to other processes."""
    preallocates = environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower()
    return (
        preallocates in ("false", "0")
        or environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "platform"
        or "XLA_PYTHON_CLIENT_MEM_FRACTION" in environ
        or "XLA_CLIENT_MEM_FRACTION" in environ
    )


def announce(chosen: Pinning, environ: MutableMapping[str, str]) -> None:
    """Tell the workers that this process starts what each of them sees."""
    environ[ANNOUNCED] = f"{chosen.variable}={','.join(chosen.values)}"


def withdraw(environ: MutableMapping[str, str]) -> None:
    """Undo ``announce``, when the run ends."""
    environ.pop(ANNOUNCED, None)


def pin(environ: MutableMapping[str, str]) -> None:
    """In a worker, see what the controller has announced for it. Processes below see the same."""
    variable, _, values = environ.pop(ANNOUNCED, "").partition("=")
    number = environ.get(_WORKER, "").removeprefix("gw")
    if not values or not number.isdigit():
        return
    each = values.split(",")
    environ[variable] = each[int(number) % len(each)]
    if variable == VARIABLES["tpu"]:
        environ.pop("TPU_VISIBLE_CHIPS", None)  # the older name
        for name, value in _ALONE.items():
            environ.setdefault(name, value)
