"""Which examples run: diverse draws, and those that failed before."""
