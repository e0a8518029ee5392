"""Strategies for what particular kinds of kernels take: block sizes, lengths, page tables, masks."""
