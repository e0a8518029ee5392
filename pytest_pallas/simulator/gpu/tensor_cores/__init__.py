"""Tensor cores: products, the operands that are stored in less, and tensor memory."""
