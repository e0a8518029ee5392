"""In which order a simulated TPU does what its hardware may do in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One legal order of DMAs and of the programs of ``parallel`` grid dimensions.

    Attributes:
      dma: when a DMA is executed: as it is started, or when somebody waits for it.
      order: which of several DMAs that one wait could execute is executed.
      seed: of the order of programs along parallel dimensions; on the simulator, of everything
        that may happen in any order.
      slow: the number of a device that is slower than the others; None for none.
      cores: over how many cores of a device these programs are divided.
    """

    dma: Literal["on_wait", "eager"] = "on_wait"
    order: Literal["youngest", "oldest"] = "youngest"
    seed: int = 0
    cores: int = 1
    slow: int | None = None

    def __str__(self) -> str:
        """For messages: what is not as in the plain one."""
        words: list[str] = []
        if self.dma == "eager":
            words.append("DMAs executed as they start")
        if self.order == "oldest":
            words.append("the oldest DMA first where a wait could execute several")
        if self.seed:
            words.append(f"seed {self.seed} of the schedule")
        if self.cores > 1:
            words.append(f"parallel programs divided over {self.cores} cores")
        if self.slow is not None:
            words.append(f"device {self.slow} slower than the others")
        return ", ".join(words) or "DMAs executed when waited for, the youngest first"
