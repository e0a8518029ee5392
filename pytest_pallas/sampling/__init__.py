"""Which examples are drawn and asked about: those that differ most, and what failed before."""
