"""Random numbers in kernels: the generator of the chip, and keys that do not depend on blocks."""

from reference_kernels.random.dropout import dropout, gaussian_dropout
from reference_kernels.random.noise import noise
from reference_kernels.random.sample_block import sample

__all__ = ["dropout", "gaussian_dropout", "noise", "sample"]
