"""The reference in float64, in the kernel's dtypes, and with random roundings."""
