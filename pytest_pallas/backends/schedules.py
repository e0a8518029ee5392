"""In which order a simulated machine does what its hardware may do in any order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One legal order of copies, devices, cores and the programs of ``parallel`` grid dimensions.

    Attributes:
      seed: of everything that may happen in any order.
      cores: over how many cores of a device the programs of parallel dimensions are divided.
    """

    seed: int = 0
    cores: int = 1

    def __str__(self) -> str:
        """For messages: what is not as in the plain one."""
        words: list[str] = []
        if self.seed:
            words.append(f"seed {self.seed} of the schedule")
        if self.cores > 1:
            words.append(f"parallel programs divided over {self.cores} cores")
        return ", ".join(words) or "seed 0 of the schedule"
