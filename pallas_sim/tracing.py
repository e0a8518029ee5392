"""Stand-ins for chips that are not there, for kernels that ask which chip they are traced for."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_sim.chips import TPUS, Target, attributes
from pallas_sim.compat.compilers import meshes_of


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
    """Make a stand-in for a chip."""
    facts = (
        attributes(target.name)
        if target.platform == "gpu"
        else {"num_cores": TPUS[target.name].device_cores}
    )
    return AbsentChip(target.device_kind, target.platform, facts)


@contextmanager
def present(chip: AbsentChip) -> Generator[None]:
    """Let kernels that are traced in this context find a chip, and no CPU.

    They ask ``jax.default_backend()`` and ``jax.devices()[0]`` which platform, chip and number of
    cores they have, also for choosing ``interpret=`` or no kernel at all. So this process' devices
    answer as the chip does. JAX itself calls other functions for what it does on the devices that
    are there.
    """

    def answering(name: str) -> Any:
        return property(lambda _: chip.answer(name))

    answers = {name: answering(name) for name in chip.names}
    with _devices_of(chip, answers), patch.object(jax, "default_backend", lambda: chip.platform):
        yield


@contextmanager
def _devices_of(chip: AbstractDevice, attributes: Mapping[str, Any]) -> Generator[None]:
    """Let the current mesh and meshes of this process' devices be meshes of a chip.

    Args:
      chip: that kernels find.
      attributes: of the devices, by name, also such as they lack, like ``core_count``; of a
        property its value.
    """
    with (
        ExitStack() as stack,
        meshes_of(chip),
        jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=chip)),
    ):
        for name, value in attributes.items():
            stack.enter_context(patch.object(jax.Device, name, value, create=True))
        yield


@contextmanager
def tracing_for(target: Target) -> Generator[None]:
    """Let functions that are traced in this context find a chip, on the host's CPU.

    What is traced for a target is traced once: JAX has the stand-in in the keys of its caches, and
    it is equal to another one of the same target. Devices of a GPU also say how many
    multiprocessors they have, on which grids of persistent blocks depend, and their capability.
    """
    known = attributes(target.name) if target.platform == "gpu" else {}
    device = AbstractDevice(
        device_kind=target.device_kind,
        num_cores=known.get("num_cores", 1),
        platform=target.platform,
    )
    with _devices_of(device, known), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield
