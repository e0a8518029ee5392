"""Rules: the primitives of Mosaic GPU."""
