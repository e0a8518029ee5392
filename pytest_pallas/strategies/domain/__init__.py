"""Strategies for specific kernels: block sizes, lengths, page tables, masks."""
