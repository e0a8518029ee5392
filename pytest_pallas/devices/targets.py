"""The chips that a backend can stand for."""

from __future__ import annotations

from dataclasses import dataclass


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


#: Names from Google's and NVIDIA's data sheets; device kinds as JAX reports them.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("v4", "tpu", "TPU v4", 2),
        Target("v5e", "tpu", "TPU v5 lite"),
        Target("v5p", "tpu", "TPU v5", 2),
        Target("v6e", "tpu", "TPU v6 lite"),
        Target("tpu7x", "tpu", "TPU7x"),
        Target("a100", "gpu", "NVIDIA A100-SXM4-80GB"),
        Target("h100", "gpu", "NVIDIA H100 80GB HBM3"),
        Target("h200", "gpu", "NVIDIA H200"),
        Target("b200", "gpu", "NVIDIA B200"),
    )
}

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
