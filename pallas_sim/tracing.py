"""Stand-ins for chips that are not there, for kernels that ask which chip they are traced for."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_sim.chips import Target, attributes, memory_stats
from pallas_sim.compat.compilers import asks_for_the_chip, meshes_of


class AbsentChip(AbstractDevice):
    """A chip as JAX and kernels see it, that notes whether something depends on which one it is.

    JAX has it in the keys of its caches, where a stand-in is equal to itself only.

    Attributes:
      identified: whether something has read what differs between the chips of a platform.
    """

    identified: bool
    _kind: str
    _platform: str
    _attributes: Mapping[str, Any]

    def __init__(self, device_kind: str, platform: str, attributes: Mapping[str, Any]) -> None:
        """Stand in for a chip of which nothing was read yet.

        Args:
          device_kind: what ``jax.Device.device_kind`` says on the chip.
          platform: ``"tpu"`` or ``"gpu"``.
          attributes: what else ``jax.Device`` has on it, by name.
        """
        # Not in the fields of AbstractDevice: these are read without being noticed.
        keep = object.__setattr__
        keep(self, "_kind", device_kind)
        keep(self, "_platform", platform)
        keep(self, "_attributes", dict(attributes))
        keep(self, "identified", False)

    @property
    def platform(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """``"tpu"`` or ``"gpu"``."""
        return self._platform

    @property
    def device_kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What ``jax.Device.device_kind`` says on the chip."""
        return self.answer("device_kind")

    @property
    def num_cores(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """TensorCores of a device, or multiprocessors of a GPU."""
        return self.answer("num_cores")

    @property
    def names(self) -> tuple[str, ...]:
        """What can be read."""
        return ("device_kind", "platform", *self._attributes)

    def answer(self, name: str) -> Any:
        """Return an attribute of the ``jax.Device`` on the chip."""
        if name == "platform":
            return self._platform
        object.__setattr__(self, "identified", True)
        return self._kind if name == "device_kind" else self._attributes[name]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Chip({self._kind})"

    _repr = __repr__  # for the mesh's own


def absent_chip(target: Target) -> AbsentChip:
    """Make a stand-in for a chip, with devices as the compilers have them."""
    return AbsentChip(target.device_kind, target.platform, _facts(target.name))


def _facts(name: str, cores: int | None = None) -> dict[str, Any]:
    """Return the attributes of the devices of a chip, methods too."""
    return {
        **attributes(name, cores),
        "memory_stats": functools.partial(memory_stats, name, cores),
    }


@contextmanager
def present(chip: AbsentChip) -> Generator[None]:
    """Let kernels that are traced in this context find a chip, and no CPU; see ``_posing``."""
    with _posing(_Pose(chip, chip.names, chip.answer)):
        yield


@contextmanager
def tracing_for(target: Target) -> Generator[None]:
    """Let functions that are traced in this context find a chip, on the host's CPU.

    What is traced for a target is traced once: JAX has the stand-in in the keys of its caches, and
    it is equal to another one of the same target. See ``_posing`` for what functions can ask.
    """
    of_gpu = target.platform == "gpu"
    known = _facts(target.name, target.multiprocessors if of_gpu else target.cores)
    device = AbstractDevice(
        device_kind=target.device_kind, num_cores=known["num_cores"], platform=target.platform
    )
    facts = {"device_kind": device.device_kind, "platform": device.platform, **known}
    with (
        _posing(_Pose(device, tuple(facts), facts.__getitem__)),
        jax.default_device(jax.local_devices(backend="cpu")[0]),
    ):
        yield


@contextmanager
def noting_questions() -> Generator[set[str]]:
    """Yield what functions of this thread ask the devices of the chip for, by attribute.

    JAX traces a function once for the same shapes; then it asks nothing.
    """
    outer, questions = _POSES.questions, set[str]()
    _POSES.questions = questions
    try:
        yield questions
    finally:
        _POSES.questions = outer
        outer |= questions


# Devices that answer as those of a chip.


@dataclass(frozen=True, slots=True, eq=False)
class _Pose:
    """The chip that the devices of this process are, for the functions of one thread.

    Attributes:
      device: which chip, as JAX has it in meshes.
      names: of the attributes of ``jax.Device`` that differ from those of a CPU.
      answer: gives the value of such an attribute.
    """

    device: AbstractDevice
    names: tuple[str, ...]
    answer: Callable[[str], Any]


class _Poses(threading.local):
    """The chips of this thread, the innermost last. Greenlets of a thread share them."""

    def __init__(self) -> None:
        self.stack: list[_Pose] = []
        self.questions: set[str] = set()

    @property
    def last(self) -> _Pose | None:
        return self.stack[-1] if self.stack else None


_POSES = _Poses()

#: How many contexts are open, in all threads; the first installs the answers, the last undoes it.
_open = 0
_undo = ExitStack()
_lock = threading.RLock()


@contextmanager
def _posing(pose: _Pose) -> Generator[None]:
    """Let functions of this thread find a chip on the devices that are there.

    They ask ``jax.default_backend()`` and ``jax.devices()[0]`` for platform, kind, number of cores
    and memory, also for choosing ``interpret=`` or no kernel at all, and ``pltpu.get_tpu_info()``.
    So this process' devices, their client and meshes answer as the chip's do. JAX's own modules
    that run arrays on the devices see what is there, and other threads, too.
    """
    global _open, _undo
    with _lock:
        if not _open:
            _undo = _installed()
        _open += 1
    _POSES.stack.append(pose)
    try:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=pose.device)):
            yield
    finally:
        _POSES.stack.remove(pose)
        with _lock:
            _open -= 1
            if not _open:
                _undo.close()


def _installed() -> ExitStack:
    """Install the answers of the chips; returns what undoes that."""
    client = type(jax.local_devices(backend="cpu")[0].client)
    with ExitStack() as stack:
        stack.enter_context(meshes_of(lambda: None if _POSES.last is None else _POSES.last.device))
        for name in _ATTRIBUTES:
            stack.enter_context(
                patch.object(jax.Device, name, _answer(jax.Device, name), create=True)
            )
        stack.enter_context(patch.object(client, "platform", _answer(client, "platform")))
        for name in ("devices", "local_devices", "device_count", "local_device_count"):
            stack.enter_context(patch.object(jax, name, _on_the_chip(getattr(jax, name))))
        return stack.pop_all()


#: The attributes of ``jax.Device`` that chips answer.
_ATTRIBUTES = (
    *("device_kind", "platform", "memory_stats", "num_cores", "core_on_chip", "coords"),
    *("core_count", "compute_capability"),
)


def _answer(kind: type, name: str) -> Any:
    """Return the property of a class that is the chip's attribute where a chip is asked for."""
    original: Any = vars(kind).get(name)

    def answer(self: Any) -> Any:
        pose = _POSES.last
        if pose is not None and asks_for_the_chip(inspect.currentframe()):
            if name in pose.names:
                _POSES.questions.add(name)
                return pose.answer(name)
            if name == "coords" and pose.device.platform == "tpu":
                return [self.id, 0, 0]
        if original is None:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        return original.__get__(self, kind)

    return property(answer)


def _on_the_chip(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of JAX whose ``backend`` may name the platform of the chip."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def answered(*args: Any, **options: Any) -> Any:
        bound, pose = signature.bind(*args, **options), _POSES.last
        backend = bound.arguments.get("backend")
        if pose is not None and isinstance(backend, str):
            platform = "gpu" if backend == "cuda" else backend
            if platform == pose.device.platform:
                bound.arguments["backend"] = "cpu"
        return function(*bound.args, **bound.kwargs)

    return answered


@contextmanager
def collecting_later() -> Generator[None]:
    """Disable garbage collection in this context, which makes very many objects.

    Its rounds are a quarter of the time of tracing, because of JAX's objects. A run of many devices
    keeps all that it records, which each of them would traverse: that was half of the time of a
    ring of 256 devices.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
