"""How tensor cores add products: the bits that their sums keep, by chip generation.

An instruction adds its products in groups. In each group, the accumulator and the products are
truncated to multiples of one unit, which the largest exponent among them decides; they are added
exactly, and the sum is truncated to the bits of the accumulator.

- Compute capability 9 was compared with an H200: 81,920 sums, no wrong bit (docs/simulator.md).
- Capabilities 8 and 10 are published measurements, which were not compared with a chip here: Xie,
  Wang, Yang and Yang, "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores",
  arXiv:2511.10909.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

#: ``"chip"``: sums of products keep the bits that tensor cores keep. ``"float32"``: sums are those
#: of float32.
Arithmetic = Literal["chip", "float32"]

#: Fractional bits of the significand of float32.
_FLOAT32_BITS = 23

ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)


@dataclass(frozen=True)
class Accumulation:
    """How one instruction adds products in float32.

    Attributes:
      step: products that are added at a time.
      fraction_bits: bits that an addend keeps below the largest exponent of its group.
      sum_bits: bits that a sum keeps below its own exponent: 23 is all of float32.
    """

    step: int
    fraction_bits: int
    sum_bits: int = 23

    @property
    def is_narrow(self) -> bool:
        """Whether a sum has fewer bits than float32."""
        return self.sum_bits < _FLOAT32_BITS


#: By instruction and operands; ``"tf32"`` is float32 that Triton rounds to 10 bits before.
Accumulations = Mapping[tuple[str, str], Accumulation]


def accumulation_of(
    accumulations: Accumulations, instruction: str, lhs: str, rhs: str
) -> Accumulation | None:
    """How an instruction adds products of operands of these dtypes; None if that is not known."""
    found = accumulations.get((instruction, lhs))
    return found if accumulations.get((instruction, rhs)) == found else None


def _of(instruction: str, names: str, accumulation: Accumulation) -> Accumulations:
    return {(instruction, name): accumulation for name in names.split()}


_SIXTEEN = "bfloat16 float16"
_EIGHT = "float8_e4m3fn float8_e5m2"

#: By CUDA's major compute capability.
ACCUMULATIONS: Mapping[int, Accumulations] = MappingProxyType(
    {
        8: {
            **_of("mma", _SIXTEEN, Accumulation(8, 24)),
            **_of("mma", "float32", Accumulation(4, 24)),
            **_of("dot", _SIXTEEN, Accumulation(8, 24)),
            **_of("dot", "tf32", Accumulation(4, 24)),
        },
        9: {
            **_of("wgmma", _SIXTEEN, Accumulation(16, 25)),
            **_of("wgmma", _EIGHT, Accumulation(32, 13, 13)),
            **_of("dot", _SIXTEEN, Accumulation(16, 25)),
            **_of("dot", "tf32", Accumulation(8, 25)),
        },
        10: {
            **_of("tcgen05_mma", _SIXTEEN, Accumulation(16, 25)),
            **_of("tcgen05_mma", "float32", Accumulation(8, 25)),
            **_of("tcgen05_mma", f"{_EIGHT} float4_e2m1fn", Accumulation(32, 25)),
            **_of("dot", _SIXTEEN, Accumulation(16, 25)),
            **_of("dot", "tf32", Accumulation(8, 25)),
        },
    }
)

#: Compute capabilities of which a chip gave the same bits: there ``"chip"`` is the default.
COMPARED = frozenset({9})
