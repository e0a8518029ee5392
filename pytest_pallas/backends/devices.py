"""The devices of a host: which ones JAX sees, which one each worker has, and meshes over them.

``simulate`` and ``pin`` act on the environment before JAX starts, as ``pallas_sim.platforms`` does.
Every run of pytest imports this module, so it imports nothing but the standard library.

With pytest-xdist and accelerators the controller decides (``pinning``) and tells its workers by the
environment (``announce``); a worker reads it before it reads a conftest.py (``pin``). ``make_mesh``
makes the meshes of a run, also over several processes.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Callable, Collection, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Mesh

_PLATFORMS = "JAX_PLATFORMS"
_COUNT = "JAX_NUM_CPU_DEVICES"
_COUNT_FLAG = "xla_force_host_platform_device_count"

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


@contextmanager
def only_cpu(environ: MutableMapping[str, str]) -> Generator[str]:
    """Keep JAX of this process off the accelerators, which another process owns.

    Args:
      environ: the environment, also of processes that this one starts.

    Yields:
      The platforms that JAX may use otherwise, as in JAX_PLATFORMS.
    """
    before = environ.get(_PLATFORMS)
    config: Any = sys.modules["jax"].config if "jax" in sys.modules else None
    chosen = None if config is None else config.jax_platforms
    environ[_PLATFORMS] = "cpu"
    if config is not None:
        config.update("jax_platforms", "cpu")
    try:
        yield before or ""
    finally:
        if before is None:
            environ.pop(_PLATFORMS, None)
        else:
            environ[_PLATFORMS] = before
        if "jax" in sys.modules:
            restored: Any = sys.modules["jax"].config
            restored.update("jax_platforms", before if config is None else chosen)


def simulate(count: int, environ: MutableMapping[str, str], *, explicit: bool) -> int:
    """Make JAX start with ``count`` CPU devices in this process and in those it starts.

    Args:
      count: the number of devices, at least 1.
      environ: the environment to write to.
      explicit: whether the user gave the count. A count that is merely the default gives way to one
        that the environment sets already.

    Returns:
      The number that JAX starts with.

    Raises:
      DeviceError: JAX has started with another number of devices.
    """
    already = _already(environ)
    if not explicit and already is not None:
        return already
    before = {name: environ.get(name) for name in ("XLA_FLAGS", _COUNT)}
    if _COUNT_FLAG in environ.get("XLA_FLAGS", ""):
        # JAX rejects to start with both; the user's own command wins.
        kept = [word for word in environ["XLA_FLAGS"].split() if _COUNT_FLAG not in word]
        environ["XLA_FLAGS"] = " ".join(kept)
    environ[_COUNT] = str(count)
    if "jax" not in sys.modules:
        return count
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        if explicit and len(jax.devices("cpu")) != count:
            from pallas_sim.errors import DeviceError

            for name, value in before.items():  # for processes that this one starts
                environ.pop(name, None)
                environ.update({} if value is None else {name: value})
            raise DeviceError(
                f"{count} CPU devices come too late: JAX has already started with "
                f"{len(jax.devices('cpu'))} CPU devices. Under pytest, something used JAX before "
                "that was configured, such as a plugin loaded with -p, or a conftest.py that calls "
                "JAX when it is imported; move that call into a fixture. Without pytest, set "
                f"JAX_NUM_CPU_DEVICES={count} before JAX starts."
            ) from None
        return len(jax.devices("cpu"))
    return count


def _already(environ: MutableMapping[str, str]) -> int | None:
    """Return the count that the environment sets, or None."""
    flags = [word for word in environ.get("XLA_FLAGS", "").split() if _COUNT_FLAG in word]
    text = flags[-1].partition("=")[2] if flags else environ.get(_COUNT, "")
    return int(text) if text.isdigit() else None


# One accelerator for each worker of pytest-xdist.


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
      text: for the header of the run.
    """

    variable: str
    values: tuple[str, ...]
    text: str


def accelerators(
    environ: Mapping[str, str],
    *,
    devices: Path = Path("/dev"),
    installed: Callable[[str], Any] = importlib.util.find_spec,
) -> Accelerators | None:
    """Return the accelerators of this host, found without JAX; None if there are none for JAX.

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
    accelerators: Accelerators | None,
    workers: int,
    backends: Collection[str],
    environ: Mapping[str, str],
) -> Pinning | None:
    """Return what each of several workers sees; None to leave all of them as they are.

    With more workers than accelerators, GPUs are shared if JAX does not take their memory at once.
    Otherwise all workers run on the simulators, or it is an error if a backend is named that needs
    the accelerator.

    Args:
      accelerators: those of this host.
      workers: the number of workers.
      backends: of the run: ``auto``, ``all``, ``NAME`` or ``NAME:TARGET``.
      environ: the environment.

    Raises:
      DeviceError: there are too few accelerators for a named backend.
    """
    from pallas_sim.chips import Label
    from pallas_sim.errors import DeviceError

    if accelerators is None or workers < 2:
        return None
    named = any(Label.of(word).name == accelerators.platform for word in backends)
    if not named and not {"auto", "all"} & set(backends):
        return None
    variable, count = VARIABLES[accelerators.platform], len(accelerators.ids)
    chips = f"{accelerators.platform.upper()}{'s' if count > 1 else ''}"
    if workers <= count:
        text = f"each of {workers} workers has one of {count} {chips} ({variable})"
        return Pinning(variable, accelerators.ids[:workers], text)
    if accelerators.platform == "gpu" and _shares_memory(environ):
        text = f"{workers} workers share {count} {chips} ({variable})"
        return Pinning(variable, tuple(accelerators.ids[n % count] for n in range(workers)), text)
    why = (
        "one process at a time can open a TPU"
        if accelerators.platform == "tpu"
        else "JAX takes three quarters of a GPU's memory for one process"
    )
    if named:
        share = (
            ", or set XLA_PYTHON_CLIENT_PREALLOCATE=false to share them"
            if accelerators.platform == "gpu"
            else ""
        )
        raise DeviceError(
            f"{workers} workers are more than {count} {chips}, and {why}; give -n {count} or less"
            f"{share}"
        )
    text = (
        f"{workers} workers run on the simulators (JAX_PLATFORMS=cpu): they are more than {count} "
        f"{chips}, and {why}"
    )
    return Pinning("JAX_PLATFORMS", ("cpu",) * workers, text)


def _shares_memory(environ: Mapping[str, str]) -> bool:
    """Return whether JAX leaves memory of a GPU to other processes."""
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
    each_worker = values.split(",")
    environ[variable] = each_worker[int(number) % len(each_worker)]
    if variable == VARIABLES["tpu"]:
        environ.pop("TPU_VISIBLE_CHIPS", None)  # the older name
        for name, value in _ALONE.items():
            environ.setdefault(name, value)


# Meshes over simulated devices or hardware.


def make_mesh(axes: Mapping[str, int], platform: str) -> Mesh:
    """Return a mesh with named axes over the first devices of a platform.

    In a program of several processes it has the same number of devices of each of them, in the
    order of processes.

    Args:
      axes: axis name to size, in order, such as ``{"x": 2, "y": 4}``.
      platform: ``"cpu"`` for simulated devices, ``"tpu"`` or ``"gpu"`` for hardware.

    Raises:
      DeviceError: an axis is not a positive integer.
      TooFewDevicesError: there are fewer devices than the mesh has, or it would leave a process
        out.
    """
    import jax
    from jax.sharding import AxisType

    from pallas_sim.errors import DeviceError

    sizes: list[object] = list(axes.values())
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise DeviceError(
            f"a mesh needs axes with positive sizes, such as x=2 and y=2, not {dict(axes)}"
        )
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=_devices(axes, platform),
    )


def _devices(axes: Mapping[str, int], platform: str) -> Sequence[Any]:
    """Return the devices of a mesh."""
    import jax

    from pytest_pallas.backends.processes import gang
    from pytest_pallas.errors import TooFewDevicesError

    needed = math.prod(axes.values())
    devices = jax.devices(platform)
    processes = gang()
    if processes is not None:
        return _devices_of_all(axes, platform, devices, processes.count)
    if len(devices) < needed:
        remedy = "use a larger host"
        if platform == "cpu":
            remedy = (
                f"run with --pallas-devices={needed}, or without pytest set "
                f"JAX_NUM_CPU_DEVICES={needed} before JAX starts"
            )
        raise TooFewDevicesError(
            f"mesh {dict(axes)} needs {needed} devices, but there are {len(devices)} {platform} "
            f"devices; {remedy}"
        )
    return devices[:needed]


def _devices_of_all(
    axes: Mapping[str, int], platform: str, devices: Sequence[Any], count: int
) -> Sequence[Any]:
    """Return the same number of devices of each process, in the order of processes."""
    from pytest_pallas.errors import TooFewDevicesError

    needed = math.prod(axes.values())
    own = [[device for device in devices if device.process_index == n] for n in range(count)]
    there = (
        f"there are {count} processes with {', '.join(str(len(some)) for some in own)} {platform} "
        f"devices"
    )
    if needed % count:
        raise TooFewDevicesError(
            f"mesh {dict(axes)} has {needed} devices, which {count} processes cannot share evenly: "
            f"a mesh has the same number of devices of every process; {there}"
        )
    share = needed // count
    if any(len(some) < share for some in own):
        raise TooFewDevicesError(
            f"mesh {dict(axes)} needs {needed} devices, {share} of every process, but {there}; "
            f"give each process {share} devices, or run more processes"
        )
    return [device for some in own for device in some[:share]]
