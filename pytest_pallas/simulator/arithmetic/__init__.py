"""Arithmetic as the chips do it: dtypes, rounding, products, random numbers, keys."""
