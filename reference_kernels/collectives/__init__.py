"""Communication between chips by remote DMA, inside ``jax.shard_map``."""

from reference_kernels.collectives.right_permute import right_permute

__all__ = ["right_permute"]
