"""Strategies for what some kinds of kernels take: block sizes, lengths, page tables, masks."""
