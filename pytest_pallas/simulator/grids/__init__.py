"""The grid of a `pallas_call`: which block of each operand a program sees, and when."""
