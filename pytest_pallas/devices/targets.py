"""The chips that a backend can stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from pytest_pallas.devices.gpus import GPUS, Gpu
from pytest_pallas.devices.tpus import TPUS, Tpu
from pytest_pallas.sim_errors import DeviceError


@dataclass(frozen=True)
class Target:
    """A chip.

    Attributes:
      name: as written on the command line, e.g. ``"v6e"``.
      platform: ``"tpu"`` or ``"gpu"``.
      device_kind: what ``jax.Device.device_kind`` says on that chip.
      cores: TensorCores that a kernel sees as one device (2 only where they are fused: v4, v5p).
    """

    name: str
    platform: str
    device_kind: str
    cores: int = 1


def _target(name: str, chip: Tpu | Gpu) -> Target:
    if isinstance(chip, Tpu):
        return Target(name, "tpu", chip.device_kind, chip.cores)
    return Target(name, "gpu", chip.device_kind)


#: Names from Google's and NVIDIA's data sheets; device kinds as JAX reports them.
TARGETS: dict[str, Target] = {
    name: _target(name, chip) for name, chip in (*TPUS.items(), *GPUS.items())
}

_NAME = re.compile(r"\w[\w.-]*")

#: Chips that projects added, by name.
_added: dict[str, Tpu | Gpu] = {}


def add_chip(name: str, chip: Tpu | Gpu) -> Target:
    """Make a chip known by a name: to backends, the simulator and the compilers.

    Call it in a conftest.py: ``--pallas-backend=gpu-sim:NAME`` is read after that.

    Args:
      name: as written on the command line.
      chip: what it has.

    Raises:
      DeviceError: another chip has this name, or it cannot be written in ``BACKEND:NAME``.
    """
    if not _NAME.fullmatch(name) or name == "all":
        raise DeviceError(f"a chip cannot be named {name!r}: write letters, digits, '-' or '.'")
    if name in TARGETS and _added.get(name) != chip:
        raise DeviceError(f"there is a chip named {name!r} already: {TARGETS[name].device_kind}")
    _added[name] = chip
    if isinstance(chip, Tpu):
        TPUS[name] = chip
    else:
        GPUS[name] = chip
    TARGETS[name] = _target(name, chip)
    return TARGETS[name]


def added_facts(name: str) -> dict[str, Any]:
    """What another process must ``learn`` of a chip: nothing, unless a project added it."""
    chip = _added.get(name)
    return {} if chip is None else {"platform": TARGETS[name].platform, **asdict(chip)}


def learn(name: str, facts: Mapping[str, Any]) -> None:
    """Know a chip that was added in another process, by its ``added_facts``."""
    if facts:
        fields = {key: value for key, value in facts.items() if key != "platform"}
        add_chip(name, Tpu(**fields) if facts["platform"] == "tpu" else Gpu(**fields))


#: The chip that an interpreting backend stands for when none is named.
DEFAULT_TARGETS = {"tpu": "v6e", "gpu": "h100"}


@dataclass(frozen=True)
class Label:
    """A backend as it is written: ``tpu-sim``, or ``tpu-sim:v6e``.

    Attributes:
      name: the name of its family.
      target: the name of a chip, "" if none is named.
    """

    name: str
    target: str = ""

    @classmethod
    def of(cls, text: str) -> Label:
        """What a label says."""
        name, _, target = text.partition(":")
        return cls(name, target)

    @property
    def platform(self) -> str:
        """``"tpu"`` or ``"gpu"``, which the name begins with; "" if it runs on any."""
        word = self.name.partition("-")[0]
        return word if word in DEFAULT_TARGETS else ""

    @property
    def chip(self) -> str:
        """The named chip, or else the default of the platform; "" for any platform."""
        return self.target or DEFAULT_TARGETS.get(self.platform, "")


def default_target(platform: str) -> Target | None:
    """The chip that a backend of a platform stands for when none is named; None for any."""
    return TARGETS.get(DEFAULT_TARGETS.get(platform, ""))


def targets_of(platform: str) -> list[str]:
    """Names of the known targets of a platform, oldest first."""
    return [target.name for target in TARGETS.values() if target.platform == platform]


@dataclass(frozen=True)
class ChipNames(Sequence[str]):
    """Names of the targets of a platform at any moment: those that are added later, too."""

    platform: str

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """The name at a position."""
        return targets_of(self.platform)[index]

    def __len__(self) -> int:
        """How many there are."""
        return len(targets_of(self.platform))
